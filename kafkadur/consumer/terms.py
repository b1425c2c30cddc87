"""What a member was attached with: its definition, window and clocks. Nothing here changes."""

from __future__ import annotations

from collections.abc import Callable

from kafkadur_sharing.definition import Definition, SubscriptionType

#: Types of which one member at a time holds all.
_ORDERED = (SubscriptionType.EXCLUSIVE, SubscriptionType.PRIORITY, SubscriptionType.SERIAL)
#: Those whose lanes may pass to another member.
_PASSING = (SubscriptionType.PRIORITY, SubscriptionType.SERIAL)


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
        #: each lane is a share of the keys of a partition, and may have another holder
        self.keyed = definition.type is SubscriptionType.KEY_ORDERED
        #: messages come in order to one holder at a time
        self.lane = definition.type in _ORDERED or self.keyed
        #: it may pass to another member while this one is attached
        self.passes = definition.type in _PASSING
        #: it does so by itself
        self.turns = definition.type is SubscriptionType.SERIAL
        #: each partition by itself
        self.own_turns = self.turns and definition.scope == "partition"
        #: what comes later waits for a message that was rolled back, until it is settled
        self.strict = self.lane and definition.strict_order and not self.keyed
        #: whether it tells when it becomes active or stands by
        self.tells_standing = definition.type is SubscriptionType.PRIORITY

    def is_used_up(self, attempts: int) -> bool:
        """Whether the redelivery policy allows no further attempt."""
        most = self.redelivery.max_attempts
        return most is not None and attempts >= most
