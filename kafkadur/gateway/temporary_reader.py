"""The thread that reads one partition of the topic of temporary destinations."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from kafkadur.admin.kafka_access import temporary_topic
from kafkadur.admin.topics import TopicAdmin
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.client_settings import for_own_messages
from kafkadur_coordinators.topics import Topics, asking_group
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur.gateway")

_PARTITIONS: Final = 8
#: Messages are of use for as long as a gateway has not read them.
_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": "600000", "segment.ms": "600000"}
#: Messages that are read at once, and seconds to wait for the first of them.
_AT_ONCE, _WAIT_S = 500, 0.1
#: Seconds for a question to Kafka.
_ASK_S: Final = 10.0


class TemporaryReader:
    """Reads from the time of its start on. Its messages arrive in the event loop that starts it."""

    def __init__(self, kafka: Mapping[str, Any], namespace: str, topics: Topics, *, most_bytes: int) -> None:
        """`kafka` is confluent-kafka configuration; `topics` asks Kafka. Connects at the start.

        `most_bytes`: of the largest record.
        """
        self._most_bytes = most_bytes
        self._topics = topics
        self._namespace = namespace
        self.topic = temporary_topic(namespace)
        self._kafka = for_own_messages(kafka)
        self._partition = -1
        self._partitions = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        #: every record before this offset has arrived; only changed in the loop
        self._position = 0
        self._moved = asyncio.Event()

    async def start(self, take: Callable[[Sequence[Message]], None]) -> int:
        """Start, once, and return the partition; raises `KafkaUnavailable` and `KafkaRefused`.

        `take` is called in the event loop with messages.
        """
        if self._thread is None:
            loop = asyncio.get_running_loop()
            consumer = await asyncio.to_thread(self._connect)
            self._thread = threading.Thread(
                target=self._read, args=(consumer, loop, take), name="kafkadur-temporary", daemon=True
            )
            self._thread.start()
        return self._partition

    def ensure(self) -> None:
        """Create the topic if there is none, once; raises `KafkaUnavailable` and `KafkaRefused`."""
        if self._partitions:
            return
        admin = TopicAdmin(self._kafka, timeout=_ASK_S, group=asking_group(self._namespace))
        config = {**_CONFIG, "max.message.bytes": str(self._most_bytes)}
        try:
            admin.ensure(self.topic, config=config, partitions=_PARTITIONS)
            self._partitions = admin.describe(self.topic).partitions
        finally:
            admin.close()

    def _connect(self) -> Consumer:
        self.ensure()
        self._partition = random.randrange(self._partitions)  # noqa: S311 - no secret
        self._position = self._end()
        config = {
            **self._kafka,
            "group.id": f"kafkadur:{self._namespace}:temporary",  # the client needs one; nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(config, logger=client_log)
        consumer.assign([TopicPartition(self.topic, self._partition, self._position)])
        return consumer

    def _read(
        self, consumer: Consumer, loop: asyncio.AbstractEventLoop, take: Callable[[Sequence[Message]], None]
    ) -> None:
        """Read until it is closed. Runs in the thread."""
        try:
            while not self._closed.is_set():
                messages: list[Message] = []
                position = -1
                first = consumer.poll(_WAIT_S)
                for message in () if first is None else (first, *consumer.consume(_AT_ONCE, 0)):
                    error, offset = message.error(), message.offset() or 0
                    if error is None:
                        messages.append(message)
                        position = offset + 1
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's name
                        position = offset
                    else:
                        _log.warning("temporary destinations: %s", error.str())
                if position >= 0:
                    loop.call_soon_threadsafe(self._arrived, take, messages, position)
        except RuntimeError as error:  # the event loop is closed
            _log.info("temporary destinations end: %s", error)
        finally:
            consumer.close()

    def _arrived(
        self, take: Callable[[Sequence[Message]], None], messages: Sequence[Message], position: int
    ) -> None:
        take(messages)
        self._position = max(self._position, position)
        self._moved.set()

    async def caught_up(self, timeout: float) -> bool:
        """Wait until every message that Kafka has now has arrived; False after the time-out, seconds."""
        try:
            async with asyncio.timeout(timeout):
                end = await asyncio.to_thread(self._end)
                while self._position < end:
                    self._moved.clear()
                    await self._moved.wait()
        except (TimeoutError, KafkadurError):
            return False
        return True

    def _end(self) -> int:
        """Return the offset behind the last record that can be read; raises `KafkaUnavailable`."""
        return self._topics.offsets(self.topic, self._partitions, "latest")[self._partition]

    def close(self) -> None:
        """End the thread, and wait for that."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
