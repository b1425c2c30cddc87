"""Sending to a distributed topic: to one of its members, or to all, avoiding members that are down.

`kafkadur_sharing.distributed` decides where a message goes; here one producer for each topic member sends it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kafkadur.message.headers import Property
from kafkadur.producer.context import FlushingContext
from kafkadur.producer.producer import Producer
from kafkadur.producer.receipt import Receipt
from kafkadur_sharing.distributed import DistributedTopic, TopicMember
from kafkadur_sharing.errors import DeliveryFailed

#: Seconds for which a topic member is left out after it did not take a message.
AVOIDED_S = 30.0
#: Longest single wait for reports while messages may have to be sent again, seconds.
_SLICE_S = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Message:
    """A message that is not delivered yet."""

    value: str | bytes | None
    key: str | bytes | None
    fields: Mapping[str, Any]
    #: Names of topic members that did not take it.
    refused: tuple[str, ...] = ()


class DistributedProducer(FlushingContext):
    """Sends to a distributed topic, from any thread; a synchronous and an asynchronous context manager.

    Partitioned: messages without a key go to the topic members in turn; if a member does not take a message,
    it is sent to the next one, and that member is left out for half a minute. A message with a key goes to
    the member of its key, or fails, because it would lose its order elsewhere. Replicated: each message goes
    to every member; the failure of one names that member, and the others have the message.
    """

    def __init__(
        self,
        topic: DistributedTopic,
        producers: Mapping[str, Producer],
        *,
        avoided: float = AVOIDED_S,
    ) -> None:
        """`producers` are those of the topic members, by name; they are closed with this one.

        `avoided`: seconds for which a member is left out after it did not take a message.
        """
        self._topic = topic
        self._producers = dict(producers)
        self._avoided = avoided
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        #: topic member -> until when it is left out
        self._out: dict[str, float] = {}
        #: messages to be sent again
        self._again: list[_Message] = []
        self._failures: Counter[str] = Counter()
        self._closed = False

    @property
    def avoided(self) -> frozenset[str]:
        """The topic members that are left out now."""
        now = time.monotonic()
        with self._lock:
            return frozenset(name for name, until in self._out.items() if until > now)

    def publish(
        self,
        value: str | bytes | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, Property] | None = None,
        **fields: Any,  # noqa: ANN401 - those of `Producer.publish`, checked there
    ) -> None:
        """Put a message into the buffers; `flush` and `close` raise failed deliveries.

        `fields` are those of `Producer.publish`: correlation_id, type, priority, delivery_mode, message_id,
        timestamp, delay, not_before, time_to_live. All copies have one message id. Raises as it does.
        """
        fields.setdefault("message_id", f"ID:{uuid.uuid4().hex}")
        message = _Message(value=value, key=key, fields={"properties": properties, **fields})
        self._send_again()
        for member in self._targets(message):
            self._publish(member, message)

    def _targets(self, message: _Message) -> tuple[TopicMember, ...]:
        key = message.key.encode() if isinstance(message.key, str) else message.key
        return self._topic.targets(key, next(self._numbers), self.avoided, message.refused)

    def _publish(self, member: TopicMember, message: _Message) -> None:
        """Hand a message to the producer of a member; its immediate refusal counts as one by Kafka."""
        told = partial(self._reported, member.name, message)
        try:
            self._producers[member.name].publish(
                member.topic, message.value, key=message.key, on_report=told, **message.fields
            )
        except DeliveryFailed as error:
            told(error)

    def _reported(self, member: str, message: _Message, report: Receipt | DeliveryFailed) -> None:
        """Serve the report of a message. Any thread."""
        with self._lock:
            if isinstance(report, Receipt):
                self._out.pop(member, None)
                return
            self._out[member] = time.monotonic() + self._avoided
            again = self._elsewhere(message, (member,))
            if again is not None:
                self._again.append(again)
            else:
                self._failures.update({f"{member}: {reason}": n for reason, n in report.reasons.items()})

    def _elsewhere(self, message: _Message, failed: Iterable[str]) -> _Message | None:
        """Return a message for the members that have not refused it; None if it may go to no other member."""
        refused = {*message.refused, *failed}
        movable = self._topic.forwarding == "partitioned" and message.key is None
        if not movable or len(refused) == len(self._topic.members):
            return None
        return replace(message, refused=tuple(refused))

    def _send_again(self) -> int:
        """Send messages that topic members did not take to other members; returns their number."""
        count = 0
        while True:
            with self._lock:
                message = self._again.pop() if self._again else None
            if message is None:
                return count
            count += 1
            for member in self._targets(message):
                self._publish(member, message)

    async def send(
        self,
        value: str | bytes | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, Property] | None = None,
        **fields: Any,  # noqa: ANN401 - those of `Producer.send`, checked there
    ) -> dict[str, Receipt]:
        """Send a message and wait until Kafka has it; returns the receipts by topic member.

        `fields` as in `publish`. Raises `DeliveryFailed`, whose `reasons` name the topic members that did not
        take the message.
        """
        fields.setdefault("message_id", f"ID:{uuid.uuid4().hex}")
        message = _Message(value=value, key=key, fields={"properties": properties, **fields})
        while True:
            targets = self._targets(message)
            under_way = {
                member.name: self._producers[member.name].send(member.topic, value, key=key, **message.fields)
                for member in targets
            }
            receipts: dict[str, Receipt] = {}
            failed: dict[str, DeliveryFailed] = {}
            for name, future in under_way.items():
                try:
                    receipts[name] = await future
                except DeliveryFailed as error:
                    failed[name] = error
            self._note(receipts, failed)
            if not failed:
                return receipts
            again = self._elsewhere(message, failed)
            if again is None:
                reasons = {
                    f"{name}: {r}": n for name, error in failed.items() for r, n in error.reasons.items()
                }
                raise self._failed(reasons, pending=0)
            message = again

    def _note(self, receipts: Mapping[str, Receipt], failed: Mapping[str, DeliveryFailed]) -> None:
        with self._lock:
            for name in receipts:
                self._out.pop(name, None)
            for name in failed:
                self._out[name] = time.monotonic() + self._avoided

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every published message is delivered, at most `timeout` seconds (None: for ever).

        Blocks. Raises `DeliveryFailed` with the number of copies that failed, `reasons` by topic member, and
        the number of copies still under way at the time-out.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._raise_failures(self._wait(deadline))

    def _raise_failures(self, pending: int) -> None:
        with self._lock:
            reasons, self._failures = dict(self._failures), Counter()
        if reasons or pending:
            raise self._failed(reasons, pending=pending)

    def _wait(self, deadline: float | None) -> int:
        """Wait until all messages are delivered or have failed; returns how many are pending."""
        while True:
            left = _SLICE_S if deadline is None else min(_SLICE_S, max(deadline - time.monotonic(), 0.0))
            pending = 0
            for producer in self._producers.values():
                try:
                    producer.flush(left)
                except DeliveryFailed as error:  # missing reports only: `_reported` gets the failures
                    pending += error.pending
            if deadline is not None and time.monotonic() >= deadline:
                with self._lock:
                    return pending + len(self._again)
            pending += self._send_again()
            if not pending:
                return 0

    def _failed(self, reasons: Mapping[str, int], *, pending: int) -> DeliveryFailed:
        failed = sum(reasons.values())
        listed = ", ".join(f"{name} {count}" for name, count in sorted(reasons.items()))
        waiting = f"; {pending} had no answer when the time was up" if pending else ""
        return DeliveryFailed(
            f"{failed} messages did not reach their member of distributed topic {self._topic.name}{waiting}.",
            failed=failed,
            pending=pending,
            reasons=dict(reasons),
            state=listed or None,
            owner=f"distributed topic {self._topic.name}",
            remedy="check the clusters of these topic members, then publish what is missing again",
        )

    def close(self, timeout: float | None = None) -> None:
        """Flush, at most `timeout` seconds (None: for ever), and close; closing again does nothing.

        Messages still under way at the time-out are given up. Raises as `flush`, when everything is closed.
        """
        if self._closed:
            return
        self._closed = True
        pending = 0
        try:
            pending = self._wait(None if timeout is None else time.monotonic() + timeout)
        finally:
            for producer in self._producers.values():
                with contextlib.suppress(DeliveryFailed):  # `_reported` gets it
                    producer.close(0)
        with self._lock:
            pending += len(self._again)
            self._again.clear()
        self._raise_failures(pending)
