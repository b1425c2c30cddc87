"""The verdicts that need more than writing a byte (`chunk.py`): roll back, reject, commit, confirmations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from kafkadur.consumer.chunk import HANDED, Chunk, Confirmation
from kafkadur.consumer.confirmations import LEFT, Waiting
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.rejections import Rejections
from kafkadur.consumer.state import State
from kafkadur.runtime.dead_letters import Cause
from kafkadur_sharing.definition import AckLevel, validate_level
from kafkadur_sharing.errors import IllegalState


class Settles(Protocol):
    """A member, as the levels of acknowledgement see it."""

    @property
    def display(self) -> str:
        """Name of its subscription for people."""
        ...

    def take_settled(self) -> set[int]:
        """Partitions on which verdicts were confirmed since this was asked last."""
        ...


class Levels(Protocol):
    """Raises confirmations by Redis to higher levels."""

    def above(
        self, member: Settles, level: AckLevel, chunk: Chunk, confirmation: Confirmation
    ) -> Confirmation:
        """A confirmation for Redis that tells `confirmation` when `level` is reached, too."""
        ...


class Verdicts:
    """The side of one member that settles. Each call takes the member's lock."""

    def __init__(
        self,
        state: State,
        *,
        member: Settles,
        policy: Policy,
        rejections: Rejections,
        levels: Levels | None,
        durable: bool,
    ) -> None:
        """`levels` tells when acknowledgements reach a level above Redis; `durable`: it is in the journal."""
        self._terms = state.terms
        self._member = member
        self._lock = state.lock
        self._gate = state.gate
        self._in_flight = state.in_flight
        self._policy = policy
        self._confirmations = state.confirmations
        self._rejections = rejections
        self._levels = levels
        self._durable = durable
        #: called (any thread, lock held: must not block) with partition, offset and delay (ms, -1: as the
        #: policy says) of a record that is rolled back
        self.on_rolled_back: Callable[[int, int, int], None] | None = None

    # -- one record

    def roll_back(self, chunk: Chunk, index: int, delay: int) -> bool:
        """Give a record back, to come again in `delay` ms (-1: as the policy says).

        A lane holds new messages back until it is known again. After the last attempt it is a dead letter.
        Returns whether it was still in the application's hands: its time may have been over just now.
        """
        terms = self._terms
        with self._lock:
            if chunk.verdicts[index] != HANDED:
                return False
            attempts = chunk.lease.attempts + 1
            if terms.is_used_up(attempts):
                self._rejections.give_up(chunk, index, Cause.ATTEMPTS, "it was rolled back", attempts)
                return True
            if delay < 0 and not terms.redelivery.backoff:
                delay = 0
            if self.on_rolled_back is not None:
                self.on_rolled_back(chunk.lease.partition, chunk.offset(index), delay)
            if self._policy.holds_back(delay):
                self._policy.hold_back(chunk, index)
            chunk.roll_back(index, delay)
            return True

    def reject(self, chunk: Chunk, index: int, reason: str, cause: Cause = Cause.REJECTED) -> bool:
        """Give a record in the application's hands up; whether it was still there."""
        return self._rejections.reject(chunk, index, reason, cause)

    def when_written(self, chunk: Chunk, index: int, confirmation: Confirmation) -> None:
        """Tell `confirmation` when the dead letter of a rejected record is written."""
        self._rejections.when_written(chunk, index, confirmation)

    def extend(self, chunk: Chunk, index: int) -> None:
        """The time for which the application may hold a record begins anew."""
        if self._in_flight.max_hold is not None:
            with self._lock:
                self._in_flight.max_hold.extend(chunk, index)

    # -- all that is in hands

    def settle_handed(self, *, acknowledge: bool, but: Collection[tuple[Chunk, int]]) -> list[Chunk]:
        """Give what is in the application's hands its verdict (rules K1, K3); returns the chunks concerned.

        `but`: records that were taken for the application and have not reached it yet.
        """
        left = {(id(chunk), index) for chunk, index in but}
        with self._lock:
            chunks = [chunk for chunk in self._in_flight if chunk.handed_out()]
            for chunk in chunks:
                for index in chunk.handed_indices():
                    if (id(chunk), index) in left:
                        continue
                    if acknowledge:
                        chunk.acknowledge(index)
                    else:
                        self._roll_back_handed(chunk, index)
            return chunks

    def _roll_back_handed(self, chunk: Chunk, index: int) -> None:
        if chunk.verdicts[index] != HANDED:
            return
        attempts = chunk.lease.attempts + 1
        if self._terms.is_used_up(attempts):
            self._rejections.give_up(chunk, index, Cause.ATTEMPTS, "it was rolled back", attempts)
            return
        self._policy.hold_back(chunk, index)
        chunk.roll_back(index)

    def handed(self, but: Collection[tuple[Chunk, int]]) -> list[tuple[Chunk, list[int]]]:
        """What is in the application's hands: records of chunks, by index; `but` as in `settle_handed`."""
        left = {(id(chunk), index) for chunk, index in but}
        with self._lock:
            found = [
                (chunk, [index for index in chunk.handed_indices() if (id(chunk), index) not in left])
                for chunk in self._in_flight
            ]
        return [(chunk, indices) for chunk, indices in found if indices]

    def acknowledge(self, records: Iterable[tuple[Chunk, list[int]]]) -> int:
        """Acknowledge records, by index, that are in the application's hands; returns how many are not."""
        with self._lock:
            return sum(not chunk.acknowledge(index) for chunk, indices in records for index in indices)

    def take_lost(self) -> int:
        """Records whose lease went while they were in the application's hands, since this was asked last."""
        with self._lock:
            lost, self._in_flight.lost = self._in_flight.lost, 0
            return lost

    # -- confirmations

    def confirm(self, chunk: Chunk, confirmation: Confirmation, acks: int = 0) -> None:
        """Tell `confirmation` when the verdicts given so far in this chunk are confirmed: `acks` of its own.

        `exchange_inline` comes next.
        """
        with self._lock:
            lost, left = chunk.lease.lost, self._gate.left
            if not (lost or left):
                self._confirmations.waiting.append(Waiting(chunk, confirmation, acks))
        if lost:
            confirmation.resolve(self._confirmations.after_loss(chunk))
        elif left:
            confirmation.resolve(self._confirmations.unknown(LEFT))

    def level(self, level: str | None) -> AckLevel:
        """The level of an acknowledgement: the one asked for, or the subscription's.

        Raises `IllegalState` for one that does not exist, or that this subscription cannot have.
        """
        if level is None:
            return self._terms.definition.ack_level
        chosen = validate_level(level)
        if chosen == "journal" and not self._durable:
            raise IllegalState(
                "A non-durable subscription is not in the journal.",
                owner=f"subscription {self._terms.display}",
                remedy="use level='redis' or 'replicated', or a durable subscription",
            )
        return chosen

    def above(self, level: AckLevel, chunk: Chunk, confirmation: Confirmation) -> Confirmation:
        """What to `confirm` with, so that `confirmation` is told when `level` is reached."""
        if self._levels is None:
            return confirmation
        return self._levels.above(self._member, level, chunk, confirmation)
