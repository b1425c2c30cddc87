"""The exchange that is not answered yet, and the callers that wait until their verdicts are confirmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kafkadur.consumer.chunk import LOST, Chunk, Confirmation, Lease
from kafkadur.consumer.terms import Terms
from kafkadur.fetch.buffer import FetchBuffer
from kafkadur_coordinators.interface import Exchange
from kafkadur_sharing.errors import Fenced, KafkadurError, LeaseLost

#: Why nothing more is confirmed.
LEFT = "its subscription was closed"


class Waiting(NamedTuple):
    """A caller that waits until the verdicts given so far in a chunk are confirmed."""

    chunk: Chunk
    confirmation: Confirmation
    #: how many of these verdicts are acknowledgements of this caller
    acks: int


class Pending:
    """The unanswered exchange of one member, and what its answer changes."""

    def __init__(self) -> None:
        """No exchange was made."""
        self.clear()

    def clear(self) -> None:
        """No exchange is unanswered."""
        self.exchange: Exchange | None = None
        #: number of offsets that have a verdict, by lease
        self.open: list[tuple[Lease, int]] = []
        #: acknowledgements among them
        self.acked = 0
        #: leases that end
        self.done: list[Lease] = []
        #: leases that end because the subscription is paused
        self.back: list[Lease] = []
        #: callers that wait for its verdicts
        self.confirm: list[Waiting] = []
        #: chunks whose verdicts it may carry
        self.taken: list[Chunk] = []
        #: the readable ends that it reports
        self.readable_end: list[tuple[FetchBuffer, int]] = []

    @property
    def is_answered(self) -> bool:
        """Whether no exchange is under way."""
        return self.exchange is None

    @property
    def settling(self) -> int:
        """Offsets that it settles."""
        return sum(count for _, count in self.open)


class Confirmations:
    """The callers that wait for verdicts of one member, and for its dead letters."""

    def __init__(self, terms: Terms) -> None:
        """No caller waits."""
        self._terms = terms
        #: refused acknowledgements that no caller waited for, and that were not reported yet
        self.fenced_acks = 0
        self.clear()

    def clear(self) -> None:
        """No caller waits."""
        #: callers whose verdicts no exchange has carried yet
        self.waiting: list[Waiting] = []
        #: callers that wait for a dead letter, by chunk (id) and index
        self.dead_letters: dict[tuple[int, int], Confirmation] = {}

    def take(self, concerned: Callable[[Chunk], bool]) -> list[Waiting]:
        """Take out the callers that wait for verdicts of the chunks concerned."""
        taken = [item for item in self.waiting if concerned(item.chunk)]
        self.waiting = [item for item in self.waiting if not concerned(item.chunk)]
        return taken

    def take_lost_letters(self, chunk: Chunk) -> list[Confirmation]:
        """Take out the callers that wait for dead letters of records of a chunk that were lost."""
        return [
            self.dead_letters.pop(place)
            for place in list(self.dead_letters)
            if place[0] == id(chunk) and chunk.verdicts[place[1]] == LOST
        ]

    # -- errors for callers

    def fenced(self, reason: str) -> Fenced:
        """The verdict was refused."""
        return Fenced(
            state=reason,
            owner=f"subscription {self._terms.display}",
            remedy="do nothing: it is delivered again",
        )

    def unknown(self, reason: str) -> LeaseLost:
        """It is not known whether the verdict was applied."""
        return LeaseLost(
            "It is not known whether the verdict was applied.",
            state=reason,
            owner=f"subscription {self._terms.display}",
            remedy="do nothing: it was settled, or is delivered again",
        )

    def after_loss(self, chunk: Chunk) -> KafkadurError | None:
        """The error for callers that wait for verdicts in a chunk whose lease has ended; None: confirmed."""
        if chunk.lease.retired and not chunk.verdicts.count(LOST):
            return None  # the exchange that gave the lease up, or an earlier one, carried them
        return self.fenced(f"fencing token {chunk.lease.token}")
