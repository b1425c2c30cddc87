"""Records that are given up: each becomes a dead letter, and is settled when that is written."""

from __future__ import annotations

from collections.abc import Callable

from kafkadur.consumer.chunk import HANDED, REJECTED, RELEASED, Chunk, Confirmation
from kafkadur.consumer.confirmations import LEFT
from kafkadur.consumer.state import State
from kafkadur.runtime.dead_letters import Cause, Letter


class Rejections:
    """The dead letters of one member."""

    def __init__(
        self,
        state: State,
        *,
        write: Callable[[Letter], None],
    ) -> None:
        """`lock` is the member's; `write` sends a dead letter and does not wait."""
        self._terms = state.terms
        self._lock = state.lock
        self._gate = state.gate
        self._schedule = state.schedule
        self._queue = state.queue
        self._in_flight = state.in_flight
        self._confirmations = state.confirmations
        self._write = write

    # -- with the lock held

    def give_up(self, chunk: Chunk, index: int, cause: Cause, reason: str, attempts: int) -> None:
        """Reject a record and have its dead letter written."""
        chunk.reject(index)
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

    def give_all_up(self, chunk: Chunk, cause: Cause, reason: str) -> None:
        """Reject the records of a chunk that no application gets any more."""
        self._queue.count_out(chunk, len(chunk.messages))
        chunk.reject_all()
        self._in_flight.add(chunk)
        for index in range(len(chunk.messages)):
            self.give_up(chunk, index, cause, reason, chunk.lease.attempts)

    # -- without the lock

    def reject(self, chunk: Chunk, index: int, reason: str, cause: Cause) -> bool:
        """Give a record in the application's hands up; whether it was still there."""
        with self._lock:
            if chunk.verdicts[index] != HANDED:
                return False
            self.give_up(chunk, index, cause, reason, chunk.lease.attempts + 1)
            return True

    def when_written(self, chunk: Chunk, index: int, confirmation: Confirmation) -> None:
        """Tell `confirmation` when the dead letter of a rejected record is written."""
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
            confirmation = self._confirmations.dead_letters.pop((id(chunk), index), None)
        if confirmation is not None:
            confirmation.resolve(None)
        self._schedule.request_exchange()
