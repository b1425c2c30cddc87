"""The verdicts that need more than writing a byte (`chunk.py`): roll back, reject, commit; confirmations.

A rejected record becomes a dead letter, and is settled when that is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from kafkadur.consumer.chunk import HANDED, REJECTED, RELEASED, Chunk, Confirmation, Owner
from kafkadur.consumer.confirmations import LEFT, Waiting
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import Part, State
from kafkadur.runtime.dead_letters import ROLLED_BACK, Cause, Letter
from kafkadur_sharing.definition import AckLevel, validate_level
from kafkadur_sharing.errors import IllegalState


class Levels(Protocol):
    """Raises confirmations by Redis to higher levels."""

    def above(self, member: Owner, level: AckLevel, chunk: Chunk, confirmation: Confirmation) -> Confirmation:
        """A confirmation by Redis that resolves `confirmation` when `level` is reached, too."""
        ...


class Verdicts(Part):
    """The side of one member that settles. Its calls take the member's lock, but for the first section."""

    def __init__(
        self,
        state: State,
        *,
        policy: Policy,
        member: Owner,
        write: Callable[[Letter], None],
        levels: Levels | None,
        durable: bool,
    ) -> None:
        """`write` sends a dead letter and does not wait. `durable`: the subscription is in the journal.

        `levels` tells when acknowledgements reach a level above Redis.
        """
        super().__init__(state)
        self._policy = policy
        self._member = member
        self._write = write
        self._levels = levels
        self._durable = durable
        #: dead letters that were written
        self.dead_letters = 0
        #: called for a record that is rolled back (any thread, lock held: must not block), with its
        #: partition, offset and delay (ms, -1: as the policy says)
        self.on_rolled_back: Callable[[int, int, int], None] | None = None

    # -- with the lock held

    def give_up(self, chunk: Chunk, index: int, cause: Cause, reason: str, attempts: int) -> None:
        """Reject a record and have its dead letter written."""
        chunk.reject(index)
        chunk.recorded().causes[index] = cause.value
        self._write(
            Letter(
                topic=self._terms.definition.dead_letter_topic,
                message=chunk.messages[index],
                subscription=self._terms.display,
                cause=cause,
                reason=reason,
                attempts=attempts,
                written=lambda: self._written(chunk, index),
            )
        )

    def give_up_last_attempt(self, chunk: Chunk, index: int, reason: str) -> bool:
        """Give a record up if the redelivery policy allows no further attempt; whether that is so."""
        attempts = chunk.lease.attempts + 1
        if not self._terms.is_used_up(attempts):
            return False
        self.give_up(chunk, index, Cause.ATTEMPTS, reason, attempts)
        return True

    def give_all_up(self, chunk: Chunk, cause: Cause, reason: str) -> None:
        """Reject the records of a chunk, which are not dispatched any more."""
        self._queue.count_out(chunk, len(chunk.messages))
        chunk.reject_all()
        self._in_flight.add(chunk)
        for index in range(len(chunk.messages)):
            self.give_up(chunk, index, cause, reason, chunk.lease.attempts)

    # -- one record

    def roll_back(self, chunk: Chunk, index: int, delay: int, reason: str = ROLLED_BACK) -> bool:
        """Give a record back, to come again in `delay` ms (-1: as the policy says).

        A lane holds new messages back until it comes again. After the last attempt it becomes a dead letter,
        with this reason. Returns whether it was still in flight: its time may just have been over.
        """
        with self._lock:
            if chunk.verdicts[index] != HANDED:
                return False
            if self.give_up_last_attempt(chunk, index, reason):
                return True
            delay = self._delay(delay)
            if self.on_rolled_back is not None:
                self.on_rolled_back(chunk.lease.partition, chunk.offset(index), delay)
            self._have_come_again(chunk, index, delay)
            return True

    def _delay(self, delay: int) -> int:
        """Return the delay of a rollback, ms; -1, as the policy says, only if the policy has a back-off."""
        return 0 if delay < 0 and not self._terms.redelivery.backoff else delay

    def _have_come_again(self, chunk: Chunk, index: int, delay: int) -> None:
        """Roll a record back; new messages of a lane wait for it if the policy of the type says so."""
        if self._policy.holds_back(delay):
            self._policy.hold_back(chunk, index)
        chunk.roll_back(index, delay)

    def reject(self, chunk: Chunk, index: int, reason: str, cause: Cause = Cause.REJECTED) -> bool:
        """Give a record up; whether it was still in flight."""
        with self._lock:
            if chunk.verdicts[index] != HANDED:
                return False
            self.give_up(chunk, index, cause, reason, chunk.lease.attempts + 1)
            return True

    def when_written(self, chunk: Chunk, index: int, confirmation: Confirmation) -> None:
        """Resolve `confirmation` when the dead letter of a rejected record is written."""
        with self._lock:
            verdict, lost = chunk.verdicts[index], chunk.lease.lost
            given_back = verdict == RELEASED or (verdict == REJECTED and self._gate.left)
            if verdict == REJECTED and not (lost or given_back):
                self._confirmations.dead_letters[id(chunk), index] = confirmation
        if lost:
            confirmation.resolve(self._confirmations.fenced(f"fencing token {chunk.lease.token}"))
        elif given_back:
            confirmation.resolve(self._confirmations.fenced(LEFT))
        elif verdict != REJECTED:
            confirmation.resolve(None)

    def _written(self, chunk: Chunk, index: int) -> None:
        with self._lock:
            chunk.dead_letter_written(index)
            self.dead_letters += 1
            confirmation = self._confirmations.dead_letters.pop((id(chunk), index), None)
        if confirmation is not None:
            confirmation.resolve(None)
        self._schedule.request_exchange()

    def extend(self, chunk: Chunk, index: int) -> None:
        """The time for which the application may hold a record begins anew."""
        if self._in_flight.max_hold is not None:
            with self._lock:
                self._in_flight.max_hold.extend(chunk, index)

    # -- all that is in flight

    def settle_handed(
        self, *, acknowledge: bool, but: Collection[tuple[Chunk, int]], delay: int = 0
    ) -> list[Chunk]:
        """Give the records in flight their verdict (rules K1, K3); returns the chunks concerned.

        `but`: records that the application has not received yet. Those that are rolled back come again in
        `delay` ms (-1: as the policy says).
        """
        delay = self._delay(delay)
        left = {(id(chunk), index) for chunk, index in but}
        with self._lock:
            chunks = [chunk for chunk in self._in_flight if chunk.handed_out()]
            for chunk in chunks:
                for index in chunk.handed_indices():
                    if (id(chunk), index) in left or chunk.verdicts[index] != HANDED:
                        continue
                    if acknowledge:
                        chunk.acknowledge(index)
                    elif not self.give_up_last_attempt(chunk, index, ROLLED_BACK):
                        self._have_come_again(chunk, index, delay)
            return chunks

    def handed(self, but: Collection[tuple[Chunk, int]]) -> list[tuple[Chunk, list[int]]]:
        """The records in flight, by chunk and index; `but` as in `settle_handed`."""
        left = {(id(chunk), index) for chunk, index in but}
        with self._lock:
            found = [
                (chunk, [index for index in chunk.handed_indices() if (id(chunk), index) not in left])
                for chunk in self._in_flight
            ]
        return [(chunk, indices) for chunk, indices in found if indices]

    def chosen(self, records: Iterable[tuple[Chunk, int]]) -> list[tuple[Chunk, list[int]]]:
        """Those of some records that are in flight here, by chunk and index, each once."""
        wanted: dict[int, dict[int, None]] = {}
        for chunk, index in records:
            wanted.setdefault(id(chunk), {})[index] = None
        with self._lock:
            found = [
                (chunk, [index for index in wanted.get(id(chunk), ()) if chunk.verdicts[index] == HANDED])
                for chunk in self._in_flight
            ]
        return [(chunk, indices) for chunk, indices in found if indices]

    def roll_back_records(self, records: Collection[tuple[Chunk, list[int]]]) -> list[Chunk]:
        """Roll back records that are in flight; returns the chunks concerned."""
        for chunk, indices in records:
            for index in indices:
                self.roll_back(chunk, index, -1)
        return [chunk for chunk, _ in records]

    def acknowledge(self, records: Iterable[tuple[Chunk, list[int]]]) -> int:
        """Acknowledge records, by chunk and index; returns how many of them are not in flight."""
        with self._lock:
            return sum(not chunk.acknowledge(index) for chunk, indices in records for index in indices)

    def take_lost(self) -> int:
        """Number of records whose lease ended while they were in flight, since the last call."""
        with self._lock:
            lost, self._in_flight.lost = self._in_flight.lost, 0
            return lost

    # -- confirmations

    def unconfirmed(self) -> tuple[list[Chunk], list[tuple[Chunk, int]]]:
        """Chunks with verdicts that are not confirmed, and rejected records without a dead letter."""
        with self._lock:
            chunks = [chunk for chunk in self._in_flight if chunk.has_verdicts()]
            chunks += [chunk for chunk in self._pending.taken if all(each is not chunk for each in chunks)]
            rejected = [(chunk, index) for chunk in self._in_flight for index in chunk.rejected_indices()]
        return chunks, rejected

    def take_refused(self) -> int:
        """Number of acknowledgements without waiting that were refused since the last call."""
        with self._lock:
            refused, self._confirmations.fenced_acks = self._confirmations.fenced_acks, 0
            return refused

    def confirm(self, chunk: Chunk, confirmation: Confirmation, acks: int = 0) -> None:
        """Resolve `confirmation` when the verdicts given so far in a chunk are confirmed.

        `acks` of them are acknowledgements of its caller, who calls `exchange_inline` next.
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
        """The level of an acknowledgement: `level`, or the subscription's.

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
        """The confirmation to pass to `confirm`, so that `confirmation` is resolved at `level`."""
        if self._levels is None:
            return confirmation
        return self._levels.above(self._member, level, chunk, confirmation)
