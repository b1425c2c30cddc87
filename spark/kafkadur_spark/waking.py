"""Waking a query that has nothing to read, when messages that were rolled back are due.

Spark plans a batch only if a source has something new. So the query reads a second topic beside that of its
subscription, and the driver writes a record there; the frame leaves such records out. The topic is compacted
and all records have one key: it stays small, and no offset in a checkpoint can be before its start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark.sql.streaming.query import StreamingQuery

from kafkadur.admin.topics import TopicAdmin
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.client_settings import for_own_messages
from kafkadur_sharing.errors import LeaseLost
from kafkadur_sharing.keys import SubscriptionKey, digest
from kafkadur_sharing.names import WAKING_PREFIX
from kafkadur_spark.redelivering import Due

_log = logging.getLogger("kafkadur.spark")

#: Seconds between two looks at an idle query.
_EVERY_S: Final = 1.0
#: Longest pause after a wake: while the same messages stay due, the pause doubles up to it.
_MOST_S: Final = 60.0
#: Seconds within which Kafka must take a record.
_WRITTEN_S: Final = 10.0
_CONFIG: Final = {"cleanup.policy": "compact", "segment.ms": "3600000"}


def waking_topic(key: SubscriptionKey, query: str | None) -> str:
    """Return the name of the topic that wakes the query on a subscription, or one of several."""
    whose = key.tag if query is None else digest([key.tag, query])
    return f"{WAKING_PREFIX}{digest([key.namespace])}.{whose}"


class WakingTopic:
    """The topic that wakes one query. Any thread may use it."""

    def __init__(self, kafka: Mapping[str, Any], key: SubscriptionKey, query: str | None) -> None:
        """`kafka` is confluent-kafka configuration; each call has a connection of its own."""
        self._kafka = for_own_messages(kafka)
        self.name = waking_topic(key, query)

    def ensure(self) -> None:
        """Create the topic, if it does not exist. Raises as `TopicAdmin.ensure`."""
        admin = TopicAdmin(self._kafka)
        try:
            admin.ensure(self.name, config=_CONFIG)
        finally:
            admin.close()

    def write(self) -> None:
        """Write a record; raises `KafkaException` if Kafka refuses it or does not take it in time."""
        settings = {**self._kafka, "message.timeout.ms": round(_WRITTEN_S * 1000)}
        producer = Producer(settings, logger=client_log)
        refused: list[KafkaError] = []

        def note(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                refused.append(error)

        producer.produce(self.name, key=b"wake", value=b"", on_delivery=note)
        producer.flush(2 * _WRITTEN_S)
        if refused:
            raise KafkaException(refused[0])


class Waker:
    """The thread that wakes one query until it ends."""

    def __init__(
        self, query: StreamingQuery, *, due: Callable[[], Due | None], write: Callable[[], None]
    ) -> None:
        """`due` and `write` are as for `keep_awake`."""
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=keep_awake,
            args=(lambda: query.isActive,),
            kwargs={"due": due, "write": write, "ended": self._ended},
            name="kafkadur-waker",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread; it may still be writing a record."""
        self._ended.set()


def keep_awake(
    is_active: Callable[[], bool],
    *,
    due: Callable[[], Due | None],
    write: Callable[[], None],
    ended: threading.Event,
) -> None:
    """Wake a query until it is not active any more or `ended` is set.

    `due` returns the messages that are due for an idle query, None while a batch is not committed. `write`
    makes Spark plan a batch.
    """
    before: Due | None = None
    pause = _EVERY_S
    while not ended.wait(pause):
        try:
            if not is_active():
                return
        except Exception as error:  # noqa: BLE001 - Spark has ended
            _log.info("a query is not woken any more: %s", error)
            return
        try:
            found = due()
            if found:
                write()
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - servers and file systems, which may answer again
            _log.warning("a query is not woken: %s", error)
            pause = min(2 * pause, _MOST_S)
            continue
        if found is not None:
            pause = min(2 * pause, _MOST_S) if found and found == before else _EVERY_S
            before = found
