# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""A delivery whose verdicts wait for confirmation, and its variants: deserialized, traced, transacted.

`kafkadur/sync/delivery.py` is generated from this file.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

from kafkadur.consumer.chunk import HANDED, REJECTED, Chunk
from kafkadur.consumer.delivery import Decodes, K_co, Traced, Transacted, V_co, in_transaction
from kafkadur.consumer.delivery import Delivery as PlainDelivery
from kafkadur.consumer.member import Member
from kafkadur.runtime.closing import FirstError
from kafkadur.sync.waiting import Confirmed
from kafkadur_sharing.definition import AckLevel
from kafkadur_sharing.errors import LeaseLost


def confirm(chunk: Chunk, acks: int = 0, level: AckLevel = "redis") -> None:
    """Wait until the verdicts given so far in a chunk are confirmed at `level`.

    `acks`: the number of acknowledgements that the caller has given.
    """
    confirmed = Confirmed()
    member = chunk.member
    waiting = confirmed if level == "redis" else member.verdicts.above(level, chunk, confirmed)
    member.verdicts.confirm(chunk, waiting, acks)
    member.exchange_inline()
    confirmed.wait()


def confirm_all(member: Member) -> None:
    """Wait until all verdicts given so far are confirmed, at the level of the subscription.

    Raises `LeaseLost` if acknowledgements were refused, and else the first error of a confirmation.
    """
    verdicts, level = (member.verdicts, member.definition.ack_level)
    for chunk, index in verdicts.unconfirmed()[1]:
        written = Confirmed()
        verdicts.when_written(chunk, index, written)
        with contextlib.suppress(LeaseLost):
            written.wait()
    waits: list[Confirmed] = []
    for chunk in verdicts.unconfirmed()[0]:
        confirmed = Confirmed()
        verdicts.confirm(chunk, confirmed if level == "redis" else verdicts.above(level, chunk, confirmed))
        waits.append(confirmed)
    member.exchange_inline()
    first = FirstError()
    for confirmed in waits:
        with first:
            confirmed.wait()
    if refused := verdicts.take_refused():
        raise refused_acks(refused, member.display)
    first.reraise()


def refused_acks(count: int, display: str) -> LeaseLost:
    """Return the error for acknowledgements made without waiting that were not confirmed."""
    return LeaseLost(
        f"{count} acknowledgements made without waiting were not confirmed.",
        owner=f"subscription {display}",
        remedy="do nothing: those messages are delivered again",
    )


def _given_up(chunk: Chunk, index: int) -> None:
    """Wait for a rollback; if the message became a dead letter, wait until that is written and settled."""
    if chunk.verdicts[index] == REJECTED:
        confirmed = Confirmed()
        chunk.member.verdicts.when_written(chunk, index, confirmed)
        confirmed.wait()
        confirm(chunk, level=chunk.member.definition.ack_level)
    else:
        confirm(chunk)


class Delivery(PlainDelivery[V_co, K_co]):
    """One message in flight, with verdicts that wait until they are confirmed.

    The value and key of a plain `Delivery` are bytes; `Delivery[Order]` has the value type `Order`,
    `Delivery[Order, str]` also the key type `str`.
    """

    __slots__ = ()

    def ack(self, *, level: AckLevel | None = None) -> None:
        """Acknowledge and wait until that is confirmed at `level`, by default the subscription's.

        `redis`: the coordinator has settled the message; this survives the end of this process. `replicated`:
        so have as many replicas as the setting `replicas` says; this survives the loss of the Redis server.
        `journal`: the acknowledgement is in Kafka; this survives the loss of Redis.
        Raises `AlreadySettled`, `LeaseLost` (or `Fenced`: the message may be delivered again),
        `LevelNotReached` (the message is settled, but could be delivered again after a loss of state) and,
        before anything is done, `IllegalState` for an unknown level, or `journal` on a non-durable
        subscription.
        """
        chosen = self._chunk.member.verdicts.level(level)
        super().ack_nowait()
        confirm(self._chunk, 1, chosen)

    def rollback(self, *, delay: timedelta | float | None = None) -> None:
        """Give the message back, counted as an attempt, and wait until that is confirmed.

        It is delivered again after `delay` (seconds, or a timedelta) at the earliest; None: after the
        back-off of the redelivery policy. If this was the last attempt that the policy allows, the message
        becomes a dead letter, and this waits as `reject` does. Raises as `ack` does, and `IllegalState` for a
        delay that is not from 0 to 7 days.
        """
        self._roll_back(delay)
        _given_up(self._chunk, self._index)

    def reject(self, reason: str = "") -> None:
        """Send the message to dead letters, settle it, and wait for both.

        The first 1,000 characters of `reason` are written with it. Raises as `ack` does, and `IllegalState`
        for a reason that is not a str.
        """
        self._reject(reason)
        _given_up(self._chunk, self._index)

    def release(self) -> None:
        """Give the message back without counting an attempt, and wait until that is confirmed.

        Raises as `ack` does.
        """
        self._release()
        confirm(self._chunk)

    def extend(self) -> None:
        """Check that the lease is still held, and renew it for a whole session time-out from now.

        Leases are renewed automatically while the process lives; call this before a step that must not run
        twice. The `max_hold` of a redelivery policy begins anew. Raises `LeaseLost` if the lease has ended.
        """
        if self._chunk.verdicts[self._index] != HANDED or self._chunk.lease.lost:
            self._refuse()
        self._chunk.member.verdicts.extend(self._chunk, self._index)
        confirm(self._chunk)


class DecodedDelivery(Decodes[V_co, K_co], Delivery[V_co, K_co]):
    """A delivery of a subscription with deserializers."""

    __slots__ = ()


class TracedDelivery(Traced, Delivery[V_co, K_co]):
    """A delivery whose verdicts are traced as spans."""

    __slots__ = ()

    def ack(self, *, level: AckLevel | None = None) -> None:
        """As of `Delivery`, within a span."""
        with self.settling("ack"):
            super().ack(level=level)

    def rollback(self, *, delay: timedelta | float | None = None) -> None:
        """As of `Delivery`, within a span."""
        with self.settling("rollback"):
            super().rollback(delay=delay)

    def reject(self, reason: str = "") -> None:
        """As of `Delivery`, within a span."""
        with self.settling("reject"):
            super().reject(reason)

    def release(self) -> None:
        """As of `Delivery`, within a span."""
        with self.settling("release"):
            super().release()


class TracedDecodedDelivery(Decodes[V_co, K_co], TracedDelivery[V_co, K_co]):
    """A delivery of a subscription with deserializers whose verdicts are traced as spans."""

    __slots__ = ()


class TransactedDelivery(Transacted, Delivery[V_co, K_co]):
    """A delivery in a transacted session, which gives the verdict by `commit` or `rollback`."""

    __slots__ = ()

    def ack(self, *, level: AckLevel | None = None) -> None:
        """Raise `IllegalState`."""
        del level
        raise in_transaction()

    def rollback(self, *, delay: timedelta | float | None = None) -> None:
        """Raise `IllegalState`."""
        del delay
        raise in_transaction()

    def reject(self, reason: str = "") -> None:
        """Raise `IllegalState`."""
        del reason
        raise in_transaction()

    def release(self) -> None:
        """Raise `IllegalState`."""
        raise in_transaction()


class TransactedDecodedDelivery(Decodes[V_co, K_co], TransactedDelivery[V_co, K_co]):
    """A delivery in a transacted session, of a subscription with deserializers."""

    __slots__ = ()


def class_for(member: Member) -> type[Delivery[Any, Any]]:
    """The class of a member's deliveries."""
    raw = member.decoding.is_raw
    if member.judged_by_session:
        return TransactedDelivery if raw else TransactedDecodedDelivery
    if member.tracing is not None:
        return TracedDelivery if raw else TracedDecodedDelivery
    return Delivery if raw else DecodedDelivery
