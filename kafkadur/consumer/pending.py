"""The exchange that was sent and not answered yet, and what it carries beside what it says."""

from __future__ import annotations

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.confirmations import Waiting
from kafkadur.fetch.buffer import FetchBuffer
from kafkadur_coordinators.interface import Exchange


class Pending:
    """What is to be done when the exchange of one member is answered."""

    def __init__(self) -> None:
        """No exchange was made."""
        self.clear()

    def clear(self) -> None:
        """No exchange was made."""
        self.exchange: Exchange | None = None
        #: offsets that have a verdict, by lease
        self.open: list[tuple[Lease, int]] = []
        #: acknowledgements among them
        self.acked = 0
        #: leases that end
        self.done: list[Lease] = []
        #: leases that end because the subscription is paused
        self.back: list[Lease] = []
        #: callers that wait for its verdicts
        self.confirm: list[Waiting] = []
        #: chunks of which it may say verdicts
        self.taken: list[Chunk] = []
        #: how far partitions were read
        self.readable_end: list[tuple[FetchBuffer, int]] = []

    @property
    def is_answered(self) -> bool:
        """Whether no exchange is under way."""
        return self.exchange is None

    @property
    def settling(self) -> int:
        """Offsets that it settles."""
        return sum(count for _, count in self.open)
