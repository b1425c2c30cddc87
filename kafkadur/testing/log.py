"""Topics in memory: partitions of messages that any thread appends to and reads."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from kafkadur_sharing.errors import IllegalState

#: Headers as they are sent: names, and values as text or bytes.
Headers = Iterable[tuple[str, str | bytes | None]]


@dataclass(kw_only=True)
class Topic:
    """One topic."""

    #: a topic deleted and created again would have another one
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    partitions: list[list[Message]]
    #: all messages, in the order in which they were appended
    messages: list[Message] = field(default_factory=list[Message])
    #: partitions of the messages without a key, one after the other
    turns: itertools.count[int] = field(default_factory=itertools.count)


class Log:
    """The topics of one Kafka in memory."""

    def __init__(self) -> None:
        """There are no topics."""
        #: held to change something, and notified when something was appended
        self.changed = threading.Condition()
        self._topics: dict[str, Topic] = {}

    def create(self, name: str, partitions: int) -> None:
        """Create a topic; raises `IllegalState` if it exists."""
        with self.changed:
            if name in self._topics:
                raise IllegalState("The topic exists.", owner=f"topic {name}", remedy="use another name")
            self._topics[name] = Topic(partitions=[[] for _ in range(partitions)])

    def ensure(self, name: str, partitions: int) -> None:
        """Create a topic if it does not exist."""
        with self.changed:
            self._topics.setdefault(name, Topic(partitions=[[] for _ in range(partitions)]))

    def topic(self, name: str) -> Topic | None:
        """Return a topic; None if it does not exist."""
        return self._topics.get(name)

    def append(
        self,
        name: str,
        value: str | bytes | None,
        key: str | bytes | None = None,
        *,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers = (),
    ) -> Message | None:
        """Append a message and return it as consumers get it; None if there is no such topic or partition.

        Without a `partition` (-1) messages of one key go to one partition, and others take turns. Without a
        `timestamp` (0; ms since 1970) it is that of now.
        """
        with self.changed:
            topic = self._topics.get(name)
            if topic is None or partition >= len(topic.partitions):
                return None
            raw = _bytes(key)
            if partition < 0:
                chosen = next(topic.turns) if raw is None else zlib.crc32(raw)
                partition = chosen % len(topic.partitions)
            message = Message(
                topic=name,
                partition=partition,
                offset=len(topic.partitions[partition]),
                key=raw,
                value=_bytes(value),
                headers=[(label, _bytes(content)) for label, content in headers] or None,
                timestamp=(TIMESTAMP_CREATE_TIME, timestamp or round(time.time() * 1000)),
            )
            topic.partitions[partition].append(message)
            topic.messages.append(message)
            self.changed.notify_all()
            return message

    def read(self, name: str, partition: int, start: int, end: int | None = None) -> list[Message]:
        """Return the messages of a partition at the offsets [start, end); None: to its end."""
        return self._topics[name].partitions[partition][start:end]

    def end(self, name: str, partition: int) -> int:
        """Return the offset of the next message of a partition."""
        return len(self._topics[name].partitions[partition])


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
