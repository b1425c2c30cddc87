"""Those who wait until a verdict is confirmed, or until a dead letter is written."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kafkadur.consumer.chunk import LOST, Chunk, Confirmation
from kafkadur.consumer.terms import Terms
from kafkadur_sharing.errors import Fenced, KafkadurError, LeaseLost

#: Why nothing more is confirmed.
LEFT = "its subscription was closed"


class Waiting(NamedTuple):
    """A caller that waits until the verdicts given so far in a chunk are confirmed."""

    chunk: Chunk
    confirmation: Confirmation
    #: acknowledgements that it will be told of
    acks: int


class Confirmations:
    """The callers that wait for one member's verdicts."""

    def __init__(self, terms: Terms) -> None:
        """No caller waits."""
        self._terms = terms
        #: acknowledgements without waiting that were refused, not told to the application yet
        self.fenced_acks = 0
        #: callers whose verdicts no exchange has carried yet
        self.waiting: list[Waiting] = []
        #: callers that wait for a dead letter, by chunk (id) and index
        self.dead_letters: dict[tuple[int, int], Confirmation] = {}

    def clear(self) -> None:
        """No caller waits."""
        self.waiting = []
        self.dead_letters = {}

    def take(self, partitions: Collection[int]) -> list[Waiting]:
        """Callers whose verdicts an exchange on these partitions carries."""
        taken = [item for item in self.waiting if item.chunk.lease.partition in partitions]
        self.waiting = [item for item in self.waiting if item.chunk.lease.partition not in partitions]
        return taken

    def take_lost(self) -> list[Waiting]:
        """Callers whose lease is gone."""
        gone = [item for item in self.waiting if item.chunk.lease.lost]
        self.waiting = [item for item in self.waiting if not item.chunk.lease.lost]
        return gone

    def take_of(self, chunk: Chunk) -> list[Waiting]:
        """Callers that wait for verdicts of a chunk."""
        taken = [item for item in self.waiting if item.chunk is chunk]
        self.waiting = [item for item in self.waiting if item.chunk is not chunk]
        return taken

    def take_lost_letters(self, chunk: Chunk) -> list[Confirmation]:
        """Callers that wait for dead letters of records of a chunk that were lost."""
        return [
            self.dead_letters.pop(place)
            for place in list(self.dead_letters)
            if place[0] == id(chunk) and chunk.verdicts[place[1]] == LOST
        ]

    # -- what callers are told

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
        """What callers are told that wait for verdicts in a chunk whose lease is gone."""
        if chunk.lease.retired and not chunk.verdicts.count(LOST):
            return None  # they were carried by the exchange that gave the lease up, or an earlier one
        return self.fenced(f"fencing token {chunk.lease.token}")
