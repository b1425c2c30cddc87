"""The settings of an attached member: definition, window and clock. Only the window can change."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kafkadur_sharing.definition import Definition
from kafkadur_sharing.redelivery_policy import Redelivery


@dataclass(kw_only=True)
class Terms:
    """The settings of one member."""

    #: name of the subscription for people
    display: str
    definition: Definition
    #: the window, records: `Member.set_window` changes it; and in bytes
    window: int
    window_bytes: int
    #: whether the window was one when the member attached: then records are dispatched one at a time
    single: bool = field(init=False)
    #: verdicts that may be unconfirmed
    budget: int
    #: session timeout, seconds
    session: float
    #: the clock, seconds
    monotonic: Callable[[], float]
    #: the clock for the times of messages, seconds since 1970
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        """Note the mode of dispatching, which does not change with the window."""
        self.single = self.window == 1

    @property
    def redelivery(self) -> Redelivery:
        """The redelivery policy."""
        return self.definition.redelivery

    def now_ms(self) -> int:
        """Return the time, ms since 1970."""
        return int(self.wall() * 1000)

    @property
    def read_ahead(self) -> int:
        """Records that a reader may hold back before it pauses."""
        return max(2 * self.window, 10_000)

    @property
    def read_at_once(self) -> int:
        """Records that a reader may read in one call."""
        return min(max(self.window, 2_000), 10_000)

    @property
    def read_ahead_bytes(self) -> int:
        """Bytes of payloads that a reader may hold back before it pauses."""
        return max(2 * self.window_bytes, 64 * 2**20)

    def is_used_up(self, attempts: int) -> bool:
        """Whether the redelivery policy allows no further attempt."""
        most = self.definition.redelivery.max_attempts
        return most is not None and attempts >= most
