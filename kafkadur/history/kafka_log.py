"""Writes delivery histories to Kafka. `writer.py` decides what is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kafkadur.admin.topics import TopicAdmin
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.client_settings import for_own_messages
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.redelivery_policy import in_ms

_log = logging.getLogger("kafkadur.history")

#: Seconds for one question to Kafka about a topic.
_TOPIC_S = 5.0
#: Kafka removes whole segments only: each has the entries of a quarter of the retention, within these bounds.
_SEGMENT_MS = (300_000, 86_400_000)
#: Errors after which the same message would be refused again.
_FINAL = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG)


class KafkaLog:
    """Writes histories to Kafka. Used by one thread."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        *,
        client: Callable[[Mapping[str, Any]], Producer] | None = None,
        prepare: Callable[[str, timedelta], None] | None = None,
    ) -> None:
        """`kafka` is confluent-kafka configuration.

        `client` makes the client that writes from its configuration, and `prepare` does what the method does;
        by default both use Kafka. Raises `KafkaException` for a wrong configuration.
        """
        self._kafka = for_own_messages(kafka)
        self._config = {
            "compression.type": "zstd",
            **self._kafka,
            "acks": "all",
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 1,  # docs/decisions/0032
            "retries": 2_147_483_647,
            "linger.ms": 20,
            "message.timeout.ms": 10_000,
            "queue.buffering.max.kbytes": 65_536,
        }
        self._make = client if client is not None else _client
        self._prepare = prepare if prepare is not None else self._prepare_in_kafka
        self._producer = self._make(self._config)
        self._broken = False
        #: producers that were replaced while messages of theirs were under way
        self._left: list[Producer] = []

    def prepare(self, topic: str, kept: timedelta) -> None:
        """Create a topic that keeps messages so long, or set that. Raises a `KafkadurError`."""
        self._prepare(topic, kept)

    def _prepare_in_kafka(self, topic: str, kept: timedelta) -> None:
        retention = in_ms(kept)
        least, most = _SEGMENT_MS
        config = {
            "cleanup.policy": "delete",
            "retention.ms": str(retention),
            "segment.ms": str(min(max(retention // 4, least), most)),
        }
        admin = TopicAdmin(self._kafka, timeout=_TOPIC_S)
        try:
            admin.ensure(topic, config=config)
            try:
                if admin.retention(topic) != retention:
                    admin.configure(topic, config)
            except KafkadurError as error:  # it can be written all the same
                _log.warning(
                    "topic %s keeps a delivery history for another time than asked: %s", topic, error
                )
        finally:
            admin.close()

    def write(self, topic: str, value: bytes, done: Callable[[str | None, bool], None]) -> None:
        """Write a message.

        `done` is called with None, or with the reason why it is not written and whether another try may help.
        """

        def report(error: KafkaError | None, _: Message) -> None:
            if error is None:
                done(None, False)
                return
            self._broken = True
            done(error.str(), error.code() not in _FINAL)

        if self._broken:  # a producer that lost a message, or whose topic was deleted, may write no more
            self._producer.purge(in_flight=False)
            self._left.append(self._producer)
            self._producer = self._make(self._config)
            self._broken = False
        try:
            self._producer.produce(topic, value=value, partition=0, on_delivery=report)
        except BufferError:
            done("the producer's queue is full", True)
        except KafkaException as error:
            self._broken = True
            done(error.args[0].str(), error.args[0].code() not in _FINAL)

    def serve(self, timeout: float) -> None:
        """Call `done` of the messages that are done, waiting so many seconds for one."""
        self._producer.poll(timeout)
        for producer in self._left:
            producer.poll(0)
        self._left = [producer for producer in self._left if len(producer)]


def _client(config: Mapping[str, Any]) -> Producer:
    return Producer(dict(config), logger=client_log)
