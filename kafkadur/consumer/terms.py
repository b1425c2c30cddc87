"""The settings of an attached member: definition, window and clocks. They never change."""

from __future__ import annotations

from collections.abc import Callable

from kafkadur_sharing.definition import Definition


class Terms:
    """The settings of one member."""

    def __init__(
        self,
        *,
        display: str,
        definition: Definition,
        window: int,
        window_bytes: int,
        budget: int,
        session: float,
        partitions: int,
        monotonic: Callable[[], float],
    ) -> None:
        """`window` and `budget` in records, `window_bytes` in bytes, `session` (time-out) in seconds."""
        self.display = display
        self.definition = definition
        self.redelivery = definition.redelivery
        self.window = window
        self.window_bytes = window_bytes
        self.budget = budget
        self.session = session
        self.partitions = partitions
        self.monotonic = monotonic
        #: records a reader may hold back before it pauses
        self.read_ahead = max(2 * window, 10_000)

    def is_used_up(self, attempts: int) -> bool:
        """Whether the redelivery policy allows no further attempt."""
        most = self.redelivery.max_attempts
        return most is not None and attempts >= most
