"""The contract between the parts of a member and the policy of its subscription type.

A policy decides which partitions a member reads, what it asks for and what it gives back. The other parts of
the member call it and never ask for the type. The defaults are those of a member without any lane.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.collected_verdicts import CollectedVerdicts
from kafkadur.consumer.policy.reading import ReadingPolicy
from kafkadur.consumer.turn import LaneGroup
from kafkadur.events import Event
from kafkadur_coordinators.interface import ExchangeReply, Standing


class Policy(ReadingPolicy):
    """The policy of one member."""

    #: messages come in order, to one lease holder at a time
    ORDERED: ClassVar[bool] = True
    #: the order is that of each key
    BY_KEY: ClassVar[bool] = False
    #: a lane may pass to another member while this one is attached
    PASSES: ClassVar[bool] = False
    #: the lane of each partition passes by itself
    LANES_APART: ClassVar[bool] = False
    #: messages in flight are leased again after a loss of the coordination state
    RECLAIMS: ClassVar[bool] = True

    #: the events for a member that became active, and for one that stands by; None: there are none
    STANDING_EVENTS: ClassVar[tuple[Event, Event] | None] = None

    #: whether later messages wait until a message that was rolled back is settled
    strict: bool = False
    #: whether the last exchange says that the member reads on (`Exchange.reads_on`)
    reads_on: bool = False

    def clear(self) -> None:
        """Forget everything: the leases were lost."""
        super().clear()
        self.standing = Standing.STANDBY

    # -- credit

    def take_credit(self, settling: int) -> int:
        """Return the credit of the exchange that is being composed, which settles `settling` offsets."""
        return 0 if self._gate.closing else self.credit(settling)

    def credit(self, _settling: int) -> int:
        """Return how many records may be granted; 1 for a lane, whose horizon bounds what is granted."""
        return 1

    def span(self) -> int:
        """Return how many offsets of a lane may be granted beyond its position."""
        if self._gate.closing:
            return 0
        records = self._terms.window + (0 if self.takes_turns() else self._terms.budget)
        # a lane has about one of so many records of its partition
        return self._selection.scan(records) * self._terms.definition.lanes

    @property
    def keeps_nothing(self) -> bool:
        """Whether records that were read for this member's leases are given back at once."""
        return False

    def beyond_window(self) -> set[int]:
        """Partitions of which records have to be given back: they are held beyond the window."""
        return set()

    def return_surplus(self, chosen: Collection[int], collected: CollectedVerdicts) -> None:
        """Give back records and reservations beyond the window on the partitions of an exchange."""

    def reservations_to_return(self) -> set[int]:
        """Partitions of which more is reserved than there is room for."""
        return set()

    def to_reserve(self, _partition: int) -> int:
        """Return how many offsets that are not written yet this member can have of a partition."""
        return 0

    def lacks_reservations(self) -> bool:
        """Whether reserved records came and new reservations are to be asked for."""
        return False

    # -- dispatch

    def dispatched(self, lease: Lease) -> None:
        """Records of a lease were dispatched: the position of its lane is new."""
        self._schedule.touch((lease.partition,))

    def is_held_back(self, _lane: Lease) -> bool:
        """Whether new messages of a lane wait for a message that was rolled back."""
        return False

    def waits_in_order(self, _chunk: Chunk) -> bool:
        """Whether a chunk of messages that come again waits for messages before it."""
        return False

    def room_in_turn(self, _group: LaneGroup, room: int) -> int:
        """Return how many of `room` records may be dispatched in the current turn."""
        return room

    def uses_up(self, chunk: Chunk, end: int, /) -> bool:
        """Whether more is needed soon after the records of a chunk before `end` were dispatched."""
        raise NotImplementedError

    def hold_back(self, chunk: Chunk, index: int) -> None:
        """Have new messages wait for a record that is rolled back."""

    def holds_back(self, _delay: int) -> bool:
        """Whether new messages wait for a record rolled back with this delay (ms; -1: the default)."""
        return False

    def holds_any(self, group: LaneGroup | None = None) -> bool:
        """Whether a record (of a group) is in flight, or about to be (`one_by_one`)."""
        return any(
            chunk.holds_any()
            for chunk in [*self._in_flight, *self._queue.ready]
            if group is None or chunk.lease.group is group
        )

    def acks_can_wait(self) -> bool:
        """Whether acknowledgements need no exchange of their own: it would bring no more messages."""
        return False

    def wants_handover(self) -> bool:
        """Whether an exchange should hand over a lane, or extend it, while the application waits."""
        return False

    # -- exchanges

    def news(self) -> tuple[set[int], set[int]]:
        """Return the partitions that the next exchanges have to touch, and those that the next one may touch.

        Partitions with verdicts are touched in any case.
        """
        return set(), set()

    def order(self, chosen: list[int]) -> list[int]:
        """Return the partitions of an exchange in the order in which they are to be served."""
        return chosen

    def begin_exchange(self) -> None:
        """Prepare for an exchange that is about to be composed."""

    def position(self, _partition: int) -> int:
        """Return the first offset of a lane that was not dispatched; -1: the lane is not leased."""
        return -1

    def hand_over(self, _chosen: Collection[int]) -> bool:
        """Choose the lanes that the exchange being composed hands over (`handing_over`); whether all are."""
        return False

    def gives_up(self, _partition: int) -> bool:
        """Whether the exchange that is being composed gives up the lane of a partition."""
        return False

    def unread_leases(self) -> list[Lease]:
        """Leases to give back while the subscription is paused: nothing of them is in flight."""
        return []

    # -- answers

    def begin_turns(self) -> None:
        """Begin a turn on the lanes that the answered exchange handed over and that are held again."""

    def take_standing(self, _reply: ExchangeReply) -> bool:
        """Take in which lanes are held; returns whether the member became active or stands by."""
        return False

    def granted(self, _reply: ExchangeReply) -> None:
        """Take in the grants of an answer."""

    def lane_ended(self, _lane: int) -> None:
        """A lane was given up in order."""

    def refused(self, _lease: Lease) -> None:
        """The coordinator does not know a lease of this member."""

    def armed(self, _lease: Lease) -> None:
        """A lease may be dispatched that waited for another one of crash suspects."""

    def drop(self, _lease: Lease) -> None:
        """Forget the records of a lease that wait outside of the ready queue."""

    # -- standing

    def takes_turns(self) -> bool:
        """Whether the lanes pass to other members by themselves, and there are other members."""
        return False

    @property
    def is_between_turns(self) -> bool:
        """Whether other members hold the lanes."""
        return False

    def falls_behind_on_standby(self) -> bool:
        """Whether a member that stands by has to catch up anew."""
        return True
