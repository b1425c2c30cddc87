"""The range fetcher: reads single ranges of offsets that a member needs again."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, Message, TopicPartition

from kafkadur.fetch.buffer import Mark
from kafkadur.fetch.kafka_thread import AT_ONCE, EOF, WAIT, KafkaThread, Receiver, consumer_config
from kafkadur.fetch.native import rest
from kafkadur_coordinators.kafka_refusal import refused

_log = logging.getLogger("kafkadur.readers")

#: Seconds between two polls of a client that has nothing to read.
_POLLED_EVERY_S = 10.0


class RangeFetcher(KafkaThread):
    """Reads single ranges: redeliveries, and leases on partitions that the member does not follow."""

    def __init__(
        self, *, member: Receiver, kafka: Mapping[str, Any], topic: str, topic_id: str, group: str
    ) -> None:
        """Made with the member it reads for; the thread starts with the first range."""
        config = consumer_config(kafka, group)
        config["fetch.wait.max.ms"] = 10
        config["queued.min.messages"] = 100
        config["fetch.message.max.bytes"] = 262_144
        super().__init__(
            name=f"kafkadur-point-{topic}", config=config, topic=topic, topic_id=topic_id, fail=member.fail
        )
        self._member = member
        self._waiting: deque[tuple[int, int, int, int]] = deque()

    def read_range(self, partition: int, start: int, end: int, token: int) -> None:
        """Read [start, end) of `partition` for the lease `token`."""
        self._waiting.append((partition, start, end, token))
        if self._thread.ident is None and not self._closing:  # once: it may have ended for good
            self.start()
        self._work.set()

    def _loop(self) -> None:
        while not self._closing:
            if not self._waiting:
                rest(self._consumer)
                self._rest()
                continue
            self._read(*self._waiting.popleft())

    def _rest(self) -> None:
        """Wait for a range, and take statistics and lines of the log out of the client's queue meanwhile."""
        while not self._work.wait(_POLLED_EVERY_S):
            self._consumer.consume(AT_ONCE, 0)
        self._work.clear()

    def _read(self, partition: int, start: int, end: int, token: int) -> None:
        self._starts[partition] = TopicPartition(self._topic, partition, start)
        self._heard_at = self._monotonic()  # until now Kafka had nothing to answer
        self._consumer.incremental_assign([self._starts[partition]])
        if not self._just_made:
            self._find_leaders(self._consumer)
        self._just_made = False
        reached = start
        try:
            while not self._closing:
                consumer = self._consumer
                messages = consumer.consume(min(AT_ONCE, max(end - reached, 1)), 0)
                if not messages:
                    message = consumer.poll(WAIT)
                    messages = [] if message is None else [message]
                self._reader_log.check_topic(self._member.display)
                if messages:
                    self._heard()
                else:
                    self._find_leaders(consumer)
                    self._look_after()
                records, reached, gone = self._sort_out(messages, reached)
                if gone is not None:
                    # the leader epoch is not known here: a member that follows the partition checks it
                    begins = self._begin_anew(consumer, gone, self._member, Mark(reached))
                    if begins is None:
                        return
                    reached = begins
                if not self._member.add_range_records(token, records, reached):
                    return
        finally:
            if self._consumer.assignment():  # a partition that was cut off is not assigned any more
                self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def _sort_out(self, messages: list[Message], reached: int) -> tuple[list[Message], int, Message | None]:
        """The records among messages and events, and the offset up to which the partition was read.

        Third, the event that Kafka does not have the offset that was to be read, if it came.
        """
        records: list[Message] = []
        gone: Message | None = None
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                reached = (message.offset() or 0) + 1
            elif error.code() == EOF:
                reached = max(reached, message.offset() or 0)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the library's name for it
                gone = message
            elif (refusal := refused(error, f"topic {self._topic}")) is not None:
                raise refusal
            else:
                _log.info("reading %s: %s", self._topic, error.str())
        return records, reached, gone
