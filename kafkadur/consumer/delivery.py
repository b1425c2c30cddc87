"""Deliveries and batches: one record of a chunk (`chunk.py`), or several, as the application sees them.

Delivery objects are made when they are received, and are part of no reference cycles, so the garbage
collector has no work with them. Deserializers, spans and transacted sessions have classes of their own, so
that plain deliveries pay nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from confluent_kafka import Message
from typing_extensions import TypeVar

from kafkadur.consumer.chunk import HANDED, LOST, OVERDUE, RELEASE_SENT, RELEASED, UNSETTLED, Chunk
from kafkadur.consumer.delivery_path import Handed, deal
from kafkadur.fetch.buffer import Records
from kafkadur.fetch.native import as_message, values
from kafkadur.message.headers import Decoded, JmsFields, Property, decode
from kafkadur.runtime.dead_letters import ROLLED_BACK, Cause
from kafkadur_sharing.errors import AlreadySettled, ForkedConnection, IllegalState, LeaseLost
from kafkadur_sharing.numbers import check_delay, check_instance

#: Types of a delivery's value and key: without a deserializer they are bytes.
V_co = TypeVar("V_co", covariant=True, default=bytes | None)
K_co = TypeVar("K_co", covariant=True, default=bytes | None)


class Delivery(Handed, Generic[V_co, K_co]):
    """One message in flight: its value is a `V_co`, its key a `K_co`.

    It ends with one verdict: `ack`, `rollback`, `reject` or `release`. A second verdict raises
    `AlreadySettled`; a verdict after the lease has ended raises `LeaseLost`. Every method may be called from
    any thread, the awaitable ones in the loop of the subscription.
    """

    __slots__ = ()

    # -- the message

    if TYPE_CHECKING:  # they are those of `Handed`, which does not know their types

        @property
        def value(self) -> V_co:
            """See `Handed`."""
            ...

        @property
        def key(self) -> K_co:
            """See `Handed`."""
            ...

    @property
    def raw_value(self) -> bytes | None:
        """Payload as it is in Kafka; None for a tombstone."""
        return self._message.value()

    @property
    def raw_key(self) -> bytes | None:
        """Key as it is in Kafka, if the message has one."""
        return self._message.key()

    @property
    def topic(self) -> str:
        """Its topic."""
        return self._message.topic()  # type: ignore[return-value]  # None only on errors, which are no deliveries

    @property
    def partition(self) -> int:
        """Its partition."""
        return self._message.partition()  # type: ignore[return-value]  # None only on errors

    @property
    def offset(self) -> int:
        """Its offset."""
        return self._chunk.offset(self._index)

    @property
    def timestamp(self) -> int:
        """Time of the record in Kafka, ms since the epoch (JMSTimestamp)."""
        return self._message.timestamp()[1]

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """All Kafka headers as they are."""
        return self._message.headers() or ()  # type: ignore[return-value]  # the stub allows str, the wire does not

    @property
    def chunk_id(self) -> int:
        """Part of acknowledging many: equal for messages that were leased and are confirmed together."""
        return id(self._chunk)

    @property
    def message(self) -> Message:
        """The record as a `Message` of confluent-kafka."""
        return as_message(self._message)

    def _decoded(self) -> Decoded:
        return decode(self.headers, self._chunk.member.definition.header_types)

    @property
    def properties(self) -> dict[str, Property]:
        """Typed properties."""
        return self._decoded().properties

    @property
    def fields(self) -> JmsFields:
        """JMS fields: message id, correlation id, type, priority, delivery mode, client id, connection id."""
        return self._decoded().fields

    # -- the delivery

    @property
    def attempt(self) -> int:
        """1 for the first attempt; rises with every attempt that counts (rule K4)."""
        return self._chunk.lease.attempts + 1

    @property
    def redelivered(self) -> bool:
        """Whether it may have been delivered before."""
        lease = self._chunk.lease
        return lease.redelivered or self.offset < lease.seen

    @property
    def fencing_token(self) -> tuple[int, int]:
        """(incarnation, counter).

        Rises with every lease; pass it to a system that must refuse a holder that was replaced.
        """
        return (self._chunk.lease.incarnation, self._chunk.lease.token)

    @property
    def settled(self) -> bool:
        """Whether it has its verdict; False if it was released, or its lease ended: it is delivered again."""
        return self._chunk.verdicts[self._index] not in UNSETTLED

    @property
    def undecided(self) -> bool:
        """Part of running handlers: whether the application has given it no verdict, and not released it."""
        return self._chunk.verdicts[self._index] in (HANDED, LOST, OVERDUE)

    @property
    def lost(self) -> bool:
        """Whether its lease ended before it had a verdict: it is delivered again."""
        return self._chunk.verdicts[self._index] == LOST

    def __repr__(self) -> str:
        """Topic, partition, offset and attempt; never the payload."""
        return f"<Delivery {self.topic}[{self.partition}]@{self.offset} attempt {self.attempt}>"

    # -- verdicts

    def rollback_nowait(self, delay: timedelta | float | None = None) -> None:
        """Give the message back locally, counted as an attempt.

        It comes again after `delay` seconds, None: after the back-off of the redelivery policy. If this was
        the last attempt the policy allows, it becomes a dead letter. Raises `AlreadySettled` or `LeaseLost`,
        and `IllegalState` for a delay that is not from 0 to 7 days.
        """
        self._roll_back(delay)
        self._chunk.member.request_exchange()

    def rollback_failed(self, delay: timedelta | float | None, reason: str) -> None:
        """Part of running handlers: as `rollback_nowait`, with the reason of a dead letter."""
        self._roll_back(delay, reason)
        self._chunk.member.request_exchange()

    def _roll_back(self, delay: timedelta | float | None, reason: str = ROLLED_BACK) -> None:
        chunk, delay_ms = self._chunk, -1 if delay is None else round(check_delay("delay", delay) * 1000)
        # a look before the lock is taken, which may be held for ever in a forked child
        if chunk.verdicts[self._index] != HANDED or not chunk.member.verdicts.roll_back(
            chunk, self._index, delay_ms, reason
        ):
            self._refuse()

    def reject_nowait(self, reason: str = "") -> None:
        """Give the message up locally: it is settled when its dead letter is written.

        Raises `AlreadySettled` or `LeaseLost`, and `IllegalState` for a reason that is not a str.
        """
        self._reject(reason)

    def _reject(self, reason: str, cause: Cause = Cause.REJECTED) -> None:
        chunk, index, reason = self._chunk, self._index, check_instance("reason", reason, str)
        if chunk.verdicts[index] != HANDED or not chunk.member.verdicts.reject(chunk, index, reason, cause):
            self._refuse()

    def reject_as(self, cause: Cause, reason: str) -> None:
        """Part of running handlers: as `reject_nowait`, with another cause in the dead letter."""
        self._reject(reason, cause)

    def release_nowait(self) -> None:
        """Give the message back locally without counting an attempt.

        Raises `AlreadySettled` or `LeaseLost`.
        """
        self._release()
        self._chunk.member.request_exchange()

    def _release(self) -> None:
        if not self._chunk.release(self._index):
            self._refuse()

    def put_back(self) -> None:
        """Part of receiving: release a message that was not received; raises as `release_nowait`."""
        self._release()
        self._chunk.member.request_exchange()

    def release_later(self, delay: float) -> None:
        """Part of keeping keys in order: as `release_nowait`, and it comes again after `delay` seconds.

        Does nothing when it has its verdict already.
        """
        if self._chunk.release(self._index, round(delay * 1000)):
            self._chunk.member.request_exchange()

    @property
    def comes_again(self) -> bool:
        """Whether it was given back: rolled back, released, or held too long."""
        return self._chunk.comes_again(self._index)

    def _refuse(self) -> NoReturn:
        if isinstance(failed := self._chunk.member.gate.failed, ForkedConnection):
            raise failed
        verdict = self._chunk.verdicts[self._index]
        where = f"{self.topic}[{self.partition}]@{self.offset}"
        if verdict == OVERDUE or self._index in self._chunk.overdue:
            raise LeaseLost(
                "The message was held longer than the redelivery policy allows.",
                state=f"{where}, max_hold is over",
                owner=f"subscription {self._chunk.member.display}",
                remedy="do nothing: it is delivered again; call extend() before, or allow more time",
            )
        if verdict == LOST or self._chunk.lease.lost:
            raise LeaseLost(
                state=f"{where}, fencing token {self.fencing_token}",
                owner=f"subscription {self._chunk.member.display}",
                remedy="do nothing: it is delivered again",
            )
        if verdict in (RELEASED, RELEASE_SENT):
            raise LeaseLost(
                "The message was given back.",
                state=f"{where} was released, or its subscription was closed",
                owner=f"subscription {self._chunk.member.display}",
                remedy="do nothing: it is delivered again",
            )
        raise AlreadySettled(state=where, remedy="settle each delivery once")


class _Unread:
    """Stands for a value or key that was not deserialized yet."""


_UNREAD = _Unread()


class Decodes(Generic[V_co, K_co]):
    """The part of a delivery that deserializes value and key: each at the first access, once."""

    # No slots: two bases of one class cannot both have some.
    _chunk: Chunk
    _message: Message
    _value: V_co | _Unread = _UNREAD
    _key: K_co | _Unread = _UNREAD

    @property
    def value(self) -> V_co:
        """The deserialized payload; raises `Undecodable`, and calls the deserializer again next time."""
        if isinstance(self._value, _Unread):
            self._value = self._chunk.member.decoding.value(self._message)
        return self._value  # type: ignore[return-value]  # just set

    @property
    def key(self) -> K_co:
        """The deserialized key; raises as `value` does."""
        if isinstance(self._key, _Unread):
            self._key = self._chunk.member.decoding.key(self._message)
        return self._key  # type: ignore[return-value]  # just set


class DecodedDelivery(Decodes[V_co, K_co], Delivery[V_co, K_co]):
    """A delivery of a subscription with deserializers."""

    __slots__ = ()


class Transacted:
    """The part of a delivery in a transacted session: the session gives the verdict."""

    __slots__ = ()

    def _raise_in_transaction(self, *_args: Any, **_kwargs: Any) -> NoReturn:  # noqa: ANN401 - of any verdict
        """Raise `IllegalState`."""
        raise in_transaction()

    ack_nowait = rollback_nowait = reject_nowait = release_nowait = _raise_in_transaction


def in_transaction() -> IllegalState:
    """The error for a verdict on a message of a transacted session."""
    return IllegalState(
        "A message of a transacted session gets no verdict of its own.",
        state="it is part of a transaction",
        owner="the session",
        remedy="commit or roll back the session",
    )


class TransactedDelivery(Transacted, Delivery[V_co, K_co]):
    """A delivery of a batch in a transacted session."""

    __slots__ = ()


class TransactedDecodedDelivery(Transacted, DecodedDelivery[V_co, K_co]):
    """A delivery of a batch in a transacted session, of a subscription with deserializers."""

    __slots__ = ()


class Traced:
    """The part of a delivery that makes spans of verdicts."""

    __slots__ = ()

    _chunk: Chunk
    _message: Message

    def settling(self, verdict: str) -> AbstractContextManager[None]:
        """The span around a verdict."""
        member = self._chunk.member
        if member.tracing is None:
            return nullcontext()
        return member.tracing.settling(verdict, (self._message,), member.display)

    def ack_nowait(self) -> None:
        """As `Delivery` does, with a span."""
        with self.settling("ack"):
            super().ack_nowait()  # type: ignore[misc]  # it is mixed into a delivery

    def rollback_nowait(self, delay: timedelta | float | None = None) -> None:
        """As `Delivery` does, with a span."""
        with self.settling("rollback"):
            super().rollback_nowait(delay)  # type: ignore[misc]  # as above

    def rollback_failed(self, delay: timedelta | float | None, reason: str) -> None:
        """As `Delivery` does, with a span."""
        with self.settling("rollback"):
            super().rollback_failed(delay, reason)  # type: ignore[misc]  # as above

    def reject_nowait(self, reason: str = "") -> None:
        """As `Delivery` does, with a span."""
        with self.settling("reject"):
            super().reject_nowait(reason)  # type: ignore[misc]  # as above

    def reject_as(self, cause: Cause, reason: str) -> None:
        """As `Delivery` does, with a span."""
        with self.settling("reject"):
            super().reject_as(cause, reason)  # type: ignore[misc]  # as above

    def release_nowait(self) -> None:
        """As `Delivery` does, with a span."""
        with self.settling("release"):
            super().release_nowait()  # type: ignore[misc]  # as above


class TracedDelivery(Traced, Delivery[V_co, K_co]):
    """A delivery of a batch, with spans of its verdicts."""

    __slots__ = ()


class TracedDecodedDelivery(Traced, DecodedDelivery[V_co, K_co]):
    """A delivery of a batch, with spans of its verdicts, of a subscription with deserializers."""

    __slots__ = ()


def record_of(delivery: Delivery[Any, Any]) -> tuple[Chunk, int]:
    """Return the record of a delivery: its chunk, and the index in that."""
    return delivery._chunk, delivery._index  # noqa: SLF001 - of this module


def is_in_flight(delivery: Delivery[Any, Any]) -> bool:
    """Whether a delivery has no verdict yet, and its lease is held."""
    chunk, index = record_of(delivery)
    return chunk.verdicts[index] == HANDED and not chunk.lease.lost


class Batch(Sequence[Delivery[V_co, K_co]]):
    """Deliveries that were received together; their objects are made when they are accessed."""

    __slots__ = ("_chunk", "_end", "_start")

    def __init__(self, chunk: Chunk, start: int, end: int) -> None:
        """Made by the subscription."""
        self._chunk = chunk
        self._start = start
        self._end = end

    def __len__(self) -> int:
        """Number of deliveries."""
        return self._end - self._start

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - an int gives a Delivery, a slice a list of them
        """One delivery, or a list of them."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at, chunk = range(self._start, self._end)[index], self._chunk
        return self._class()(chunk, at, chunk.messages[at])

    def __iter__(self) -> Iterator[Delivery[V_co, K_co]]:
        """Yield all of them."""
        return deal(self._class(), self._chunk, self._start, self._end)[0]

    def _class(self) -> type[Delivery[V_co, K_co]]:
        """Return the class of its deliveries."""
        member, raw = self._chunk.member, self._chunk.member.decoding.is_raw
        made: type[Delivery[Any, Any]]
        if member.judged_by_session:
            made = TransactedDelivery if raw else TransactedDecodedDelivery
        elif member.tracing is not None:
            made = TracedDelivery if raw else TracedDecodedDelivery
        else:
            made = Delivery if raw else DecodedDelivery
        return made

    def messages(self) -> list[Message]:
        """The records as `Message` objects of confluent-kafka."""
        return list(map(as_message, self._records()))

    def _records(self) -> Records:
        return self._chunk.messages[self._start : self._end]

    def values(self) -> list[V_co]:
        """The payloads, or the objects that the deserializer makes of them; raises `Undecodable`."""
        decoding = self._chunk.member.decoding
        if decoding.keeps_values:
            return self.raw_values()  # type: ignore[return-value]  # V_co is bytes without a deserializer
        return [decoding.value(message) for message in self._records()]

    def raw_values(self) -> list[bytes | None]:
        """The payloads as they are in Kafka."""
        return values(self._records())

    def ack_nowait(self) -> None:
        """Acknowledge all of them locally; raises `AlreadySettled` or `LeaseLost` if one has its verdict.

        Raises `IllegalState` in a transacted session: the session commits.
        """
        member = self._chunk.member
        if member.judged_by_session:
            raise in_transaction()
        if member.tracing is None:
            self._acknowledge()
            return
        with member.tracing.settling("ack", self.messages(), member.display):
            self._acknowledge()

    def _acknowledge(self) -> None:
        if not self._chunk.acknowledge_range(self._start, self._end):
            for delivery in self:
                if self._chunk.verdicts[delivery._index] != HANDED:  # noqa: SLF001 - of this module
                    delivery._refuse()  # noqa: SLF001 - of this module
