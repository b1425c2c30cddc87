"""The machine of one attached member: leases, windows, verdicts, and what the next exchange carries. No I/O.

Four kinds of threads touch it, each through few methods, all under one lock that is held for a chunk of
records at a time: the readers bring records (`add_records`, `reach`), the coordinator thread asks what to say
and tells what was answered (`build`, `apply`), the application takes blocks and gives verdicts (`next_block`,
`roll_back`, `confirm`). Time comes in as a function. The coordinator thread sends
(`runtime/coordinator_thread.py`), the readers read (`fetch/readers.py`).
"""

from __future__ import annotations

import itertools
import logging
import threading
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

from confluent_kafka import Message

from kafkadur.consumer.delivery import (
    ACKED,
    DEAD,
    HANDED,
    LOST,
    OVERDUE,
    REJECTED,
    RELEASED,
    ROLLED_BACK,
    Chunk,
    Lease,
)
from kafkadur.consumer.harvest import Harvest, has_verdicts, held, unsettled_before
from kafkadur.consumer.key_shares import KeyShares
from kafkadur.consumer.lag_monitor import Behind, LagMonitor
from kafkadur.consumer.loss_recovery import claim, take_over
from kafkadur.consumer.loss_recovery import keep as keep_hands
from kafkadur.consumer.max_hold import MaxHold
from kafkadur.consumer.reservations import FEW, MOST, give_back, promised, surplus
from kafkadur.consumer.turn import LaneGroup, Turn
from kafkadur.events import Event, Teller
from kafkadur.fetch.buffer import NOWHERE, FetchBuffer, Mark, Piece, ReadBatch
from kafkadur.fetch.expiry import Expiry
from kafkadur.fetch.filtering import Takes
from kafkadur.fetch.following import Following
from kafkadur.message.serialization import RAW
from kafkadur.message.tracing import Tracing
from kafkadur.runtime.dead_letters import Cause, Letter
from kafkadur_coordinators.interface import (
    MAX_PARTITIONS,
    Attached,
    Claim,
    Claimed,
    Exchange,
    ExchangeReply,
    Grant,
    How,
    PartitionReport,
    PartitionState,
    Returned,
    Role,
    Standing,
)
from kafkadur_sharing.definition import AckLevel, Definition, SubscriptionType, validate_level
from kafkadur_sharing.errors import Fenced, IllegalState, KafkadurError, LeaseLost

#: An acknowledgement waits for its exchange at most so long, seconds.
CONFIRM_WITHIN = 0.05
#: Part of the byte window above which a chunk is cut, so that a mean record size says enough.
BYTES_STEP = 8
#: The coordinator tells times in whole ms: waiting a little longer meets them.
_ROUNDING = 0.002
#: Between the looks of two members at a session that may have ended, ms.
_APART_MS = 10
#: Spans of a lane, in records, for which the horizon is not extended ahead of time.
_SMALL_SPAN = 512
#: Offsets that are read ahead at most for the sake of a selector.
MOST_SCANNED = 50_000
#: Records over which the part that a selector takes is averaged.
_LATELY = 100_000
#: Seconds between two looks at how far a live member is behind.
_JUDGE_EVERY = 0.05
#: Up to so many members that take turns read on while others have theirs: each uses an eighth of it.
_READ_ALONG = 8
#: Why nothing more is confirmed.
_LEFT = "its subscription was closed"
_OPEN = bytes((HANDED, ACKED, ROLLED_BACK, RELEASED, REJECTED, DEAD, OVERDUE))
_FORGET = bytes.maketrans(_OPEN, bytes((LOST,)) * len(_OPEN))

#: Types of which one member at a time holds all.
_ORDERED = (SubscriptionType.EXCLUSIVE, SubscriptionType.PRIORITY, SubscriptionType.SERIAL)
#: Those whose lanes may pass to another member.
_PASSING = (SubscriptionType.PRIORITY, SubscriptionType.SERIAL)


_log = logging.getLogger("kafkadur")


class Reading(Protocol):
    """What a member asks of its readers.

    Called with the member's lock held: must not block, must not call back.
    """

    def follow(self, partition: int, offset: int, number: int, mark: Mark = NOWHERE) -> None:
        """Read a partition from `offset` on; the log must agree with `mark`."""

    def compare(self, partition: int, mark: Mark) -> None:
        """The log of a partition that is followed must agree with `mark`, too."""

    def unfollow(self, partition: int) -> None:
        """Stop reading a partition."""

    def read_range(self, partition: int, start: int, end: int, token: int) -> None:
        """Read [start, end) for one lease."""

    def find_end(self, partition: int, incarnation: int) -> None:
        """Ask Kafka where the log of a partition ends (`found_end`)."""


class Confirmation(Protocol):
    """Somebody who waits until a verdict is confirmed. Called once, from any thread."""

    def resolve(self, error: KafkadurError | None) -> None:
        """The verdict is confirmed, or failed with `error`."""


class Levels(Protocol):
    """Raises confirmations by Redis to higher levels."""

    def above(
        self, member: Member, level: AckLevel, chunk: Chunk, confirmation: Confirmation
    ) -> Confirmation:
        """A confirmation for Redis that tells `confirmation` when `level` is reached, too."""
        ...


def _cut(pieces: Iterable[Piece], at: int) -> Iterable[Piece]:
    """The same records, none of the pieces reaching over offset `at`."""
    for messages, first, offsets in pieces:
        index = at - first if offsets is None else bisect_left(offsets, at)
        if 0 < index < len(messages):
            yield messages[:index], first, None if offsets is None else offsets[:index]
            second = at if offsets is None else offsets[index]
            yield messages[index:], second, None if offsets is None else offsets[index:]
        else:
            yield messages, first, offsets


class _Waiting(NamedTuple):
    """Somebody who waits until the verdicts given so far in a chunk are confirmed."""

    chunk: Chunk
    confirmation: Confirmation
    #: acknowledgements that it will be told of
    acks: int


@dataclass(slots=True)
class _Carried:
    """What an exchange carries beside what it says: to be done when it is answered."""

    #: offsets that have a verdict, by lease
    open: list[tuple[Lease, int]] = field(default_factory=list[tuple[Lease, int]])
    #: acknowledgements among them
    acked: int = 0
    #: leases that end
    done: list[Lease] = field(default_factory=list[Lease])
    #: leases that end because the subscription is paused
    back: list[Lease] = field(default_factory=list[Lease])
    #: who waits for its verdicts
    confirm: list[_Waiting] = field(default_factory=list[_Waiting])
    #: chunks of which it may say verdicts
    taken: list[Chunk] = field(default_factory=list[Chunk])
    #: how far partitions were read
    avail: list[tuple[FetchBuffer, int]] = field(default_factory=list[tuple[FetchBuffer, int]])


class Member:
    """One member of a subscription, from attaching to leaving."""

    #: tells when acknowledgements reach a level above Redis; set by the connection
    checkpointer: Levels | None = None
    #: whether the subscription is in the journal; set by the connection
    durable = True
    #: whether a transacted session settles what it receives, and whether it is not known what that did
    transacted = False
    in_doubt = False
    #: whether it makes no more exchanges: closed in doubt, its leases end with its session
    silent = False
    #: chunks with what is in the application's hands, to be claimed after a loss
    _kept: Sequence[Chunk] = ()
    #: when this member was heard last before the loss (monotonic seconds)
    _heard_before = float("-inf")

    #: makes spans; None: there are none
    tracing: Tracing | None = None

    def __init__(
        self,
        *,
        display: str,
        definition: Definition,
        window: int,
        window_bytes: int,
        budget: int,
        session: float,
        monotonic: Callable[[], float],
        alive: Callable[[], bool],
        poke: Callable[[], None],
        nudge: Callable[[Member], bool],
        bury: Callable[[Letter], None],
        takes: Takes | None,
        partitions: int,
    ) -> None:
        """`window` and `budget` in records, `window_bytes` in bytes, `session` (time-out) in seconds.

        `alive` says whether the process is seen by others; `poke` asks the coordinator thread to look at this
        member soon, `nudge` now: it may do so in the calling thread. `bury` writes a dead letter. `takes`
        says which records the subscription takes (None: all of them).
        """
        self.display = display
        self.definition = definition
        self.header_types = definition.header_types
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
        self._policy = definition.redelivery
        self._bury = bury
        self._takes = takes
        #: records read, and how many of them the subscription takes: lately
        self._seen = 0
        self._taken = 0
        hold = self._policy.max_hold
        #: times of what is in the application's hands; None: it may hold messages for ever
        self.holding = None if hold is None else MaxHold(hold.total_seconds(), monotonic)
        self.window = window
        self.window_bytes = window_bytes
        self.budget = budget
        self.session = session
        self.partitions = partitions
        self.incarnation = 0
        self.lock = threading.Lock()
        self.reading: Reading | None = None
        self._monotonic = monotonic
        self._alive = alive
        self._poke = poke
        self._nudge = nudge
        #: called (any thread, lock not held) when a block can be taken or the state changed
        self.on_ready: Callable[[], None] = lambda: None
        #: told once by the coordinator thread that nothing more is handed out
        self.on_closing: Callable[[], None] = lambda: None
        #: what the application is told beside its messages
        self.teller = Teller()
        #: records that are handed out, and that the application has not received yet
        self.unreceived: Callable[[], int] = lambda: 0
        #: called (any thread, lock held: must not block) with partition, offset and delay (ms, -1: as the
        #: policy says) of a record that is rolled back
        self.on_rolled_back: Callable[[int, int, int], None] | None = None
        #: deserializers
        self.decoding = RAW
        #: records a reader may hold back before it pauses
        self.read_ahead = max(2 * window, 10_000)
        self._live = LagMonitor(buffer=self.read_ahead)
        self._judge_at = float("-inf")
        #: the subscription is paused
        self.paused = False
        #: this member has no room for anything: its circuit breaker is open
        self.resting = False
        #: nothing more is handed out; who waits was told so; nothing is confirmed any more
        self.closing = self._closing_told = self._left = False
        self.failed: KafkadurError | None = None
        #: acknowledgements without waiting that were refused, not told to anybody yet
        self.fenced_acks = 0
        #: records whose lease went while they were in the application's hands, not told to anybody yet
        self._lost_hands = 0
        #: how often leases were lost: what was taken for the application before may be stale
        self.losses = 0
        self._follow_number = 0
        #: tokens of what a key-ordered subscription has read again
        self._again = itertools.count(-1, -1)
        #: which partitions are worth reading as a whole (shared)
        self._worth = Following(window=window)
        #: records that came from Kafka, those of them that leases took; ranges that were read by themselves
        self._read_records = self._used_records = self._ranges_read = 0
        self._reset()

    def _reset(self) -> None:
        self._reset_leases()
        self._reset_hands()
        self._reset_exchanges()

    def _reset_leases(self) -> None:
        """Nothing is held, nothing is read."""
        self._have = 0
        self._standing = Standing.STANDBY
        #: lanes that pass together, by partition if each has a turn of its own
        self._groups: defaultdict[int, LaneGroup] = defaultdict(LaneGroup)
        #: partitions whose lanes the unanswered exchange offers
        self._offering: Collection[int] = ()
        self._leases: dict[int, Lease] = {}
        #: leases whose record must be alone in the application's hands
        self._alone: set[int] = set()
        #: lanes of keys (key-ordered)
        self._lanes = KeyShares(
            lanes=self.definition.lanes, monotonic=self._monotonic, gap=self._gap, tokens=self._again
        )
        self._wanting: dict[int, list[Lease]] = {}
        #: partitions on which something came that was promised, since the last exchange
        self._came: set[int] = set()
        #: what is promised is to go back
        self._asked_back = False
        self._feeds: dict[int, FetchBuffer] = {}
        self._point_feeds: dict[int, FetchBuffer] = {}
        self._role = Role(rank=0, members=1, neighbour="")
        self._home: set[int] = set()
        self._watches: set[int] = set()
        self._states: dict[int, PartitionState] = {}
        self._orphaned: set[int] = set()
        #: partition -> when the next message that was rolled back is due (monotonic seconds)
        self._due: dict[int, float] = {}
        #: partitions with messages that are due, for which nobody had room: asked for again in the next
        #: exchange
        self._unserved: set[int] = set()
        #: lanes whose avail was reported since they were claimed: only then does a death count all attempts
        self._warm: set[int] = set()
        self._expiry = Expiry()
        #: partition -> offset from which on Kafka lost it
        self._cuts: dict[int, int] = {}
        #: partitions whose log's end is being asked for, and ends that are to be said
        self._unsure: set[int] = set()
        self._log_ends: dict[int, int] = {}

    def _reset_hands(self) -> None:
        """Nothing waits for the application, nothing is in its hands."""
        if self.holding is not None:
            self.holding.clear()
        #: who waits until a dead letter is written, by chunk (id) and index
        self._burials: dict[tuple[int, int], Confirmation] = {}
        self._ready: deque[Chunk] = deque()
        self._urgent: deque[Chunk] = deque()
        self._active: list[Chunk] = []
        #: records of leases that wait to be handed out
        self._queued = 0
        self._in_hands = 0
        self._hands_bytes = 0.0
        self._unconfirmed = 0
        self._handed_since = 0
        self._blocked = False
        self._hold: set[tuple[int, int]] = set()
        self._mean_size = 100.0
        self._free_credit = 0

    def _reset_exchanges(self) -> None:
        """Nothing was said; everything is to be."""
        self._number = 0
        self._pending: Exchange | None = None
        self._carried = _Carried()
        self._confirm: list[_Waiting] = []
        #: where verdicts were confirmed, for checkpoints
        self._settled_on: set[int] = set()
        self._look_at: float | None = None
        self._said: dict[int, int] = {}
        self._touch: set[int] = set(range(self.partitions))
        self._wake_at: float | None = None
        self._force = True
        #: the same, said by any thread without the lock
        self._poked = False
        self._ask_presence = False
        self._last_ok = float("-inf")
        #: when the unanswered exchange was made (monotonic seconds)
        self._composed_at = float("-inf")
        self._renew_at = float("-inf")

    def now(self) -> float:
        """Monotonic seconds."""
        return self._monotonic()

    # -- attaching

    def attached(self, attached: Attached, sent_at: float) -> None:
        """The member was attached by a call sent at `sent_at` (monotonic seconds)."""
        with self.lock:
            self.incarnation = attached.incarnation
            self._last_ok = sent_at
            self._take_role(attached.role)
            self._touch = set(range(self.partitions)) if self.lane else set(self._home)
            self._force = True

    def lose(self, reason: str, *, keep: bool = False) -> None:
        """Every lease is gone: forget all; what is in the application's hands can't be settled any more.

        With `keep` that is claimed first when the member is attached again (`reclaiming.py`).
        """
        with self.lock:
            taken = {id(chunk): chunk for chunk in [*self._kept, *self._carried.taken, *self._active]}
            for lease in self._leases.values():
                lease.group.frozen = True  # who hands out one by one stops
            keeps = keep and not self.keyed
            kept, unsent = keep_hands(taken.values(), self._pending) if keeps else ([], 0)
            stay = set(map(id, kept))
            unknown = [item for item in self._carried.confirm if id(item.chunk) not in stay]
            waiting = [item for item in self._confirm if id(item.chunk) not in stay]
            again = [w for w in (*self._carried.confirm, *self._confirm) if id(w.chunk) in stay]
            burials = {place: who for place, who in self._burials.items() if place[0] in stay}
            gone = [who for place, who in self._burials.items() if place[0] not in stay]
            self._forget_hands([chunk for chunk in taken.values() if id(chunk) not in stay], kept)
            # whether they arrived is not known; dead letters may be among those that are said again
            self.fenced_acks += max(self._carried.acked - unsent, 0)
            self.fenced_acks -= sum(item.acks for item in [*unknown, *waiting])  # who waits is told by itself
            for lease in self._leases.values():
                lease.lost = lease.lost or not any(chunk.lease is lease for chunk in kept)
            followed = list(self._feeds)
            was_active = self._standing is not Standing.STANDBY
            self.losses += 1
            self._heard_before = self._heard_before if self._kept else self._last_ok
            self._reset()
            self._kept, self._confirm, self._burials = kept, again, burials
            self._note(self._live.leave())
            if was_active:
                self._note_standing(active=False)
            if self.reading is not None:
                for partition in followed:
                    self.reading.unfollow(partition)
        self.teller.tell()
        for confirmation in [*gone, *(item.confirmation for item in waiting)]:
            confirmation.resolve(self._fenced(reason))
        for item in unknown:
            item.confirmation.resolve(self._unknown(reason))
        self.on_ready()

    def _forget_hands(self, chunks: Iterable[Chunk], kept: Iterable[Chunk]) -> None:
        """These chunks are lost, and what was not handed out, but of those that are `kept`."""
        stay, leases = {id(chunk) for chunk in kept}, {id(chunk.lease) for chunk in kept}
        for chunk in [*chunks, *(c for c in (*self._ready, *self._urgent) if id(c) not in stay)]:
            self._lost_hands += chunk.verdicts.count(HANDED, chunk.low, chunk.handed)
            self.fenced_acks += chunk.verdicts.count(ACKED)
            # another chunk of the same lease may be claimed
            chunk.lease.lost = chunk.lease.lost or id(chunk.lease) not in leases
            chunk.verdicts[:] = chunk.verdicts.translate(_FORGET)

    def claims(self) -> dict[int, list[tuple[Chunk, Claim]]]:
        """What is to be claimed before the first exchange of a new incarnation, by partition: 16 at most."""
        found: dict[int, list[tuple[Chunk, Claim]]] = {}
        with self.lock:
            for chunk in self._kept:
                if len(found) < MAX_PARTITIONS or chunk.lease.partition in found:
                    found.setdefault(chunk.lease.partition, []).append((chunk, claim(chunk)))
        return found

    def reclaimed(self, answers: Iterable[tuple[Chunk, Claimed]]) -> None:
        """Claims were answered."""
        gone: list[_Waiting] = []
        done: list[_Waiting] = []
        buried: list[Confirmation] = []
        with self.lock:
            in_time = self._monotonic() - self._heard_before < self.session
            for chunk, claimed in answers:
                lost, acks = self._take_over(chunk, claimed, in_time=in_time)
                if lost or not claimed.token:
                    waiting = [item for item in self._confirm if item.chunk is chunk]
                    # who waits is told by itself
                    self.fenced_acks += max(acks - sum(item.acks for item in waiting), 0)
                    self._confirm = [item for item in self._confirm if item.chunk is not chunk]
                    (gone if lost else done).extend(waiting)
                    buried += [
                        self._burials.pop(place)
                        for place in list(self._burials)
                        if place[0] == id(chunk) and chunk.verdicts[place[1]] == LOST
                    ]
                self._kept = [other for other in self._kept if other is not chunk]
            self._recount()
            self._force = True
        for item in done:
            item.confirmation.resolve(None)
        for confirmation in [*buried, *(item.confirmation for item in gone)]:
            confirmation.resolve(self._unknown("its lease was not granted again"))
        self.on_ready()

    def _take_over(self, chunk: Chunk, claimed: Claimed, *, in_time: bool) -> tuple[bool, int]:
        """One claim was answered; returns whether something of it is lost, and how many acknowledgements."""
        old, token, held = chunk.lease, claimed.token, claimed.held
        lease = Lease(
            token=token,
            incarnation=self.incarnation,
            partition=old.partition,
            start=held[0] if held else old.start,
            end=held[-1] if held else old.start,
            attempts=old.attempts,
            redelivered=old.redelivered,
            lane=False,
            group=self._group(old.partition),
            seen=old.seen,
            stretch=held,
        )
        before = chunk.verdicts.count(LOST)
        hands, acks = take_over(chunk, lease, claimed, in_time=in_time)
        self._lost_hands += hands
        lost = chunk.verdicts.count(LOST) > before
        if token == 0:
            lease.lost = True
            return lost, acks
        self._leases[token] = lease
        self._have = max(self._have, token)
        self._active.append(chunk)
        lease.group.turn.hand_out(chunk.verdicts.count(HANDED))
        if self.holding is not None:
            self.holding.hand_out(chunk, chunk.low, chunk.handed)
        return lost, acks

    def fail(self, error: KafkadurError) -> None:
        """The member cannot go on; the application is told at its next call."""
        self.failed = error
        try:
            self.lose(str(error))
        finally:
            self.on_ready()  # whatever came of it: nobody waits for what does not come

    def _fenced(self, reason: str) -> Fenced:
        remedy = "do nothing: it is delivered again"
        return Fenced(state=reason, owner=f"subscription {self.display}", remedy=remedy)

    def _unknown(self, reason: str) -> LeaseLost:
        return LeaseLost(
            "It is not known whether the verdict was applied.",
            state=reason,
            owner=f"subscription {self.display}",
            remedy="do nothing: it was settled, or is delivered again",
        )

    def _take_role(self, role: Role) -> None:
        if role == self._role and (self._home or self.lane):
            return
        if self.keyed:  # which lanes are whose has changed
            self._touch |= set(range(self.partitions))
            self._force = True
        grown = role.members > 1 >= self._role.members
        if role.members != self._role.members:  # what is promised is spread anew
            for lease in [x for x in self._leases.values() if x.ahead and not x.withdrawn]:
                self._withdraw(lease)
        self._role = role
        if self.lane:
            if self.turns and grown:  # what nobody else wanted until now is offered
                self._force = True
            return
        if role.members <= self.partitions:
            home = {p for p in range(self.partitions) if p % role.members == role.rank}
        else:
            home = {role.rank % self.partitions}
        self._touch |= home - self._home
        self._home = home

    @property
    def neighbour(self) -> str:
        """The member whose silence this one reports; empty when it is alone."""
        return self._role.neighbour if self._role.members > 1 else ""

    # -- records come in

    def add_records(self, partition: int, messages: list[Message], number: int) -> None:
        """Records that the tail reader read (not empty, in order)."""
        with self.lock:
            feed = self._feeds.get(partition)
            if feed is None or feed.number != number:  # the reader has not obeyed yet
                return
            feed.add(ReadBatch(messages))
            self._read_records += len(messages)
            news = self._route(partition)
            asks = self._asks_after_reading(news=news)
        self._after_reading(news=news, asks=asks)

    def reach(self, partition: int, offset: int, number: int) -> None:
        """The tail reader came to the end of the partition, which is `offset`."""
        with self.lock:
            feed = self._feeds.get(partition)
            if feed is None or feed.number != number or offset <= feed.position:
                news = False
            else:
                feed.reach(offset)
                news = self._route(partition)
            if feed is not None and feed.number == number:
                feed.stop = max(feed.stop, offset)
            asks = self._asks_after_reading(news=news)
        self._after_reading(news=news, asks=asks)

    def expire(self, partition: int, offset: int) -> None:
        """Kafka does not keep what lies before `offset` any more: unsettled messages there are lost.

        They are counted (`_gap`), told of, and settled as expired.
        """
        with self.lock:
            self._expiry.keeps_from(partition, offset)

    def expiring(self, until: Mapping[int, int]) -> None:
        """Messages before these offsets expire soon: they are rescued where that is wanted."""
        if self.definition.redelivery.rescue:
            with self.lock:
                self._expiry.rescue(until)

    def lead(self, partition: int, epoch: int, number: int) -> None:
        """What is read of a followed partition from now on was written under this leader epoch."""
        feed = self._feeds.get(partition)
        if feed is not None and feed.number == number:
            feed.epoch = epoch  # one assignment: no lock is needed

    def cut(self, partition: int, offset: int) -> None:
        """Kafka lost what lay at or beyond `offset`.

        Nothing is said of it any more before the coordinator knows.
        """
        with self.lock:
            self._cuts[partition] = min(offset, self._cuts.get(partition, offset))
        self.poke()

    @property
    def cuts(self) -> Mapping[int, int]:
        """Offsets of partitions from which on Kafka lost them, unknown to the coordinator so far."""
        return self._cuts

    def note_truncated(self, lost: Mapping[int, int]) -> None:
        """The coordinator has forgotten what Kafka lost: so many known offsets of each partition."""
        self.teller.note(Event.TRUNCATED)
        for partition, count in sorted(lost.items()):
            _log.error(
                "Kafka lost the end of a partition. State: %s[%d] from offset %d on; %d offsets that had "
                "been read are gone, settled or not. Owner: subscription %s. Remedy: none is needed for what "
                "is written there now, it is delivered; to have Kafka wait for a broker that has all, set "
                "unclean.leader.election.enable=false.",
                self.definition.topic,
                partition // self.definition.lanes,
                self._cuts.get(partition, 0),
                count,
                self.display,
            )

    def found_end(self, partition: int, offset: int, incarnation: int) -> None:
        """The log of a partition ended at `offset` when Kafka was asked under this incarnation."""
        with self.lock:
            if incarnation != self.incarnation:
                return
            self._log_ends[partition] = offset
            self._touch.add(partition)
            self._force = True
        self.poke()

    def end_at(self, partition: int, offset: int, number: int) -> None:
        """The log of a partition that is followed ends at `offset` now.

        Called before what was read with it comes.
        """
        feed = self._feeds.get(partition)
        if feed is not None and feed.number == number:
            feed.end = offset  # one assignment: no lock is needed

    def add_range_records(self, token: int, messages: list[Message], reached: int) -> bool:
        """What the point reader read for a lease, up to offset `reached`. Returns whether it is to go on."""
        if token < 0:
            return self._add_parked(token, messages, reached)
        with self.lock:
            lease = self._leases.get(token)
            feed = self._point_feeds.get(token)
            if lease is None or feed is None or lease.lost:
                return False
            if messages:
                feed.add(ReadBatch(messages))
                self._read_records += len(messages)
            feed.reach(min(reached, lease.end))
            news = self._fill(lease, feed)
            more = lease.fill < lease.end
            if not more:
                del self._point_feeds[token]
        if news:
            self.on_ready()
        self.poke()
        return more

    def _after_reading(self, *, news: bool, asks: bool) -> None:
        if news:
            self.on_ready()
        if asks:
            self.poke()

    def _asks_after_reading(self, *, news: bool) -> bool:
        """Whether what was read is to be told at once. The lock is held: leases and feeds change under it."""
        return self._needs_exchange(news=news) or self._lacks_promises()

    def _needs_exchange(self, *, news: bool) -> bool:
        """Whether what was read goes no further without an exchange; `news`: some of it can be handed out."""
        return (
            self._wants_avail()
            or self._only_filtered()
            or (news and self._keeps_nothing())
            or bool(self._beyond_window())
        )

    def _lacks_promises(self) -> bool:
        """Whether what came of what was promised is to be told."""
        came = bool(self._came) and self._pending is None
        return came and (self._is_short() or self._is_filled())

    def _wants_avail(self) -> bool:
        """Whether records wait for a grant that only an exchange can bring."""
        if self._pending is not None:
            return False
        if self.lane:
            if self._takes_turns():  # what has come may be for the next one
                return any(
                    feed.position > feed.reported and self._group(p).standing is not Standing.STANDBY
                    for p, feed in self._feeds.items()
                )
            return any(p not in self._warm and f.position > f.reported for p, f in self._feeds.items())
        for partition, feed in self._feeds.items():
            if feed.position > feed.reported and self._free_credit > 0:
                state = self._states.get(partition)
                if state is None or (state.next >= state.avail and feed.position > state.free_from):
                    return True
        return False

    def _only_filtered(self) -> bool:
        """Whether what was read holds nothing to hand out: then settling it brings more to read."""
        if self._takes is None or self._pending is not None:
            return False
        # one whose records were all handed out stays until the application asks for more
        if any(chunk.handed < len(chunk.messages) for chunk in [*self._ready, *self._urgent]):
            return False
        return any(lease.gaps for lease in self._leases.values())

    @property
    def buffered(self) -> int:
        """Records read and not handed out: what holds the reader back.

        None while a lease waits for records that are there but were not read yet: others may wait for it.
        """
        if any(self._starves(lease) for lease in list(self._leases.values())):
            return 0
        feeds = list(self._feeds.items())
        return sum(feed.buffered for p, feed in feeds if p not in self._lanes.draining) + self._queued

    def _starves(self, lease: Lease) -> bool:
        if (lease.lane and not self.turns) or lease.point or lease.fill >= lease.end:
            return False
        state = self._states.get(lease.partition)
        return state is not None and (lease.fill < state.avail if lease.lane else lease.end <= state.avail)

    def _route(self, partition: int) -> bool:
        """Give what was read to the leases that want it; returns whether a block became ready."""
        feed = self._feeds[partition]
        wanting = self._wanting.get(partition, [])
        news = False
        if partition in self._lanes.draining:
            return False
        if (
            partition in self._offering
        ):  # what a lane holds must not grow until the answer says whether it goes on
            return False
        waiting = [lease for lease in wanting if not lease.point]
        while waiting:
            # piece by piece, in the order of offsets: what was promised to one lease may lie on both sides of
            # what another one has
            lease = min(waiting, key=lambda lease: lease.fill)
            if self.keyed and lease.lane and self._waits_for_exceptions(lease):
                break
            if lease.fill < feed.kept_from:  # what is not here any more is no gap
                self._read_range(lease)
                waiting.remove(lease)
                continue
            pieces = len(lease.stretch)
            news |= self._fill(lease, feed)
            if lease.fill < lease.end:
                if len(lease.stretch) == pieces:  # what comes later is not there either
                    break
                continue
            waiting.remove(lease)
            if not lease.lane:
                wanting.remove(lease)
        else:
            state = self._states.get(partition)
            if state is not None and (self.turns or not self.lane):
                feed.drop_before(min(self._kept_from(state), feed.position))
        return news

    def _fill(self, lease: Lease, feed: FetchBuffer) -> bool:
        """Give a lease what was read for it; returns whether a block became ready."""
        news = False
        if self.keyed and lease.partition in self._lanes.draining:
            return False
        while lease.fill < lease.end:
            start, end = lease.stretch[0] if lease.stretch else (lease.fill, lease.end)
            news |= self._fill_piece(lease, feed, max(start, lease.fill), end)
            if lease.fill < end:
                break
            if lease.stretch:
                lease.stretch.popleft()
                lease.fill = lease.stretch[0][0] if lease.stretch else lease.end
                if not (lease.point or self.keyed):
                    break  # another lease may come before the next piece
        if self.keyed:
            self._lanes.sort_in(lease.partition, self._leases.values())
        return news

    def _fill_piece(self, lease: Lease, feed: FetchBuffer, start: int, end: int) -> bool:
        pieces, reached = feed.take(start, end)
        lease.fill = start
        if lease.ahead and reached > start:
            self._came.add(lease.partition)
        target = self._urgent if self.lane and not lease.lane else self._ready
        used_up, until = self._is_used_up(lease.attempts), self._expiry.rescued_before(lease.partition)
        buried: list[Chunk] = []
        self._used_records += sum(len(piece[0]) for piece in pieces)
        if lease.point and self.keyed:
            pieces = list(self._lanes.of_lane(pieces, lease.partition))
        taken = pieces if self._takes is None else self._filtered(pieces)
        for messages, first, offsets in taken if start >= until else _cut(taken, until):
            given_up = used_up or first < until
            self._gap(lease, lease.fill, first)
            size = sum(map(len, messages))
            self._mean_size += (size / len(messages) - self._mean_size) * 0.1
            if self.keyed and not given_up:
                where = range(first, first + len(messages)) if offsets is None else offsets
                self._lanes.arrive(lease, messages, where)
            else:
                chunks = self._chunks(lease, messages, first, offsets, size)
                (buried if given_up else target).extend(chunks)
                self._queued += len(messages)
            if offsets is None:
                lease.fill = first + len(messages)
            else:
                for before, after in pairwise(offsets):
                    self._gap(lease, before + 1, after)
                lease.fill = offsets[-1] + 1
        if target is self._urgent and len(target) > 1:
            self._urgent = deque(sorted(target, key=_place))
        self._gap(lease, lease.fill, reached)
        lease.fill = reached
        for chunk in buried:
            if used_up:
                self._bury_all(chunk, Cause.ATTEMPTS, "its holders died")
            else:
                self._bury_all(chunk, Cause.EXPIRING, "retention is about to remove it")
        return bool(pieces) and not buried

    # -- lanes of keys

    def _waits_for_exceptions(self, lane: Lease) -> bool:
        """Whether a lane must not go on before what was given back on it is read, and its keys are known."""
        return any(
            not lease.lane and lease.fill < lease.end
            for lease in self._leases.values()
            if lease.partition == lane.partition
        )

    def _read_parked(self) -> None:
        """Have what was parked, and comes next of its key, read again."""
        for lane, start, end, token in self._lanes.to_read_again():
            if self.reading is not None:
                self.reading.read_range(lane, start, end, token)

    def _add_parked(self, token: int, messages: list[Message], reached: int) -> bool:
        """As `add_range_records`, for what was parked."""
        with self.lock:
            more = self._lanes.take_again(token, messages, reached)
            if not more:
                self._read_parked()
        if not more:
            self.on_ready()
        self.poke()
        return more

    def _next_keyed(self, limit: int) -> tuple[Chunk, int, int] | None:
        """As `next_block`: records of one lease whose keys are free."""
        if self.closing or self.failed is not None:
            return None
        self._lanes.keys.look()
        self._read_parked()
        record = self._lanes.keys.first(alone=self._one_is_alone())
        if record is not None and not self.may_dispatch():
            self._blocked = True
            return None
        beside = record is not None and self._may_be_beside(record.lease, again=not record.lease.lane)
        if record is None or self.paused or (self._one_is_alone() and not beside):
            self._idle()
            return None
        lease = record.lease
        if self._is_cold(lease, record.offset):
            return None
        room = min(limit, self._room(self._mean_size))
        if room <= 0:
            self._idle()
            return None
        records = self._lanes.keys.take(1 if lease.alone else room)
        messages, offsets = [record.message for record in records], [record.offset for record in records]
        chunk = Chunk(self, lease, messages, offsets[0], offsets, size=sum(map(len, messages)))
        end = len(records)
        chunk.verdicts[:] = bytes((HANDED,)) * end
        chunk.handed = chunk.taken = end
        self._active.append(chunk)
        self._lanes.keys.hand_out(records, chunk)
        self._in_hands += end
        self._hands_bytes += chunk.weight * end
        self._handed_since += end
        self._touch.add(lease.partition)
        if self.holding is not None:
            self.holding.hand_out(chunk, 0, end)
        return chunk, 0, end

    def _drain(self, asked: Collection[int]) -> None:
        """Lanes that another member is to keep."""
        self._lanes.drain(asked, self._leases)
        if asked:
            self._touch |= set(asked)
            self._force = self._force or any(self._is_drained(lane) for lane in asked)

    def _is_drained(self, lane: int) -> bool:
        if lane not in self._lanes.draining:
            return False
        chunks = [chunk for chunk in self._active if chunk.lease.partition == lane]
        # in this order: a verdict may be given in between, and must not be left behind
        return not any(map(held, chunks)) and not any(map(has_verdicts, chunks))

    # -- selectors

    def _filtered(self, pieces: Iterable[Piece]) -> Iterable[Piece]:
        """Those of the records that the subscription takes; what lies between them becomes gaps."""
        takes = self._takes
        if takes is None:
            return
        for messages, first, offsets in pieces:
            kept = [index for index, message in enumerate(messages) if takes(message)]
            self._seen += len(messages)
            self._taken += len(kept)
            if self._seen > _LATELY:
                self._seen, self._taken = self._seen // 2, self._taken // 2
            if len(kept) == len(messages):
                yield messages, first, offsets
            elif kept:
                where = [first + index if offsets is None else offsets[index] for index in kept]
                yield [messages[index] for index in kept], where[0], where

    def _scan(self, records: int) -> int:
        """Offsets to be read to find so many records that are taken."""
        if self._takes is None or self._seen == 0:
            return records
        density = max(self._taken, 0.5) / self._seen
        return max(records, min(int(records / density), MOST_SCANNED))

    def _kept_from(self, state: PartitionState) -> int:
        """Records before this offset are of no use to this member, whoever gets the next lease."""
        # a lane's horizon can be taken back; what is promised to nobody may be anybody's
        return state.base if self.turns else min(state.next, state.free_from)

    def _gap(self, lease: Lease, start: int, end: int) -> None:
        if end > start:
            lease.gaps += (start, end)
            self._touch.add(lease.partition)
            lost = self._expiry.lose(lease.partition, start, end)
            if lost > start:
                self._note_expired(lease.partition, start, lost)

    def _note_expired(self, partition: int, start: int, end: int) -> None:
        """Unsettled offsets that Kafka does not keep any more: the loss that this layer cannot prevent."""
        self.teller.note(Event.EXPIRED)
        _log.error(
            "Kafka removed unsettled messages. State: %d offsets, %d to %d of %s[%d]. Owner: subscription "
            "%s. Remedy: keep messages longer than consumers are away or behind, or have them rescued "
            "(Redelivery(rescue=True)).",
            end - start,
            start,
            end - 1,
            self.definition.topic,
            partition // self.definition.lanes,
            self.display,
        )

    def _chunks(
        self, lease: Lease, messages: list[Message], first: int, offsets: list[int] | None, size: int
    ) -> Iterable[Chunk]:
        """One chunk, or several where a mean record size would not keep the byte window."""
        if size * BYTES_STEP <= self.window_bytes or len(messages) == 1:
            yield Chunk(self, lease, messages, first, offsets, size=size)
            return
        half = len(messages) // 2
        left, right = messages[:half], messages[half:]
        size_left = sum(map(len, left))
        yield from self._chunks(lease, left, first, offsets and offsets[:half], size_left)
        second = first + half if offsets is None else offsets[half]
        yield from self._chunks(lease, right, second, offsets and offsets[half:], size - size_left)

    # -- messages that are given up

    def _is_used_up(self, attempts: int) -> bool:
        most = self._policy.max_attempts
        return most is not None and attempts >= most

    def _bury_all(self, chunk: Chunk, cause: Cause, reason: str) -> None:
        """Records that nobody gets any more."""
        size = len(chunk.messages)
        self._count_out(chunk, size)
        chunk.handed = size
        chunk.verdicts[:] = bytes((REJECTED,)) * size
        self._active.append(chunk)
        for index in range(size):
            self._give_up(chunk, index, cause, reason, chunk.lease.attempts)

    def _give_up(self, chunk: Chunk, index: int, cause: Cause, reason: str, attempts: int) -> None:
        """Mark a record as rejected and have its dead letter written."""
        chunk.verdicts[index] = REJECTED
        self._bury(
            Letter(
                topic=self.definition.dead_letter_topic,
                message=chunk.messages[index],
                subscription=self.display,
                cause=cause,
                reason=reason,
                attempts=attempts,
                written=lambda: self._written(chunk, index),
            )
        )

    def reject(self, chunk: Chunk, index: int, reason: str, cause: Cause = Cause.REJECTED) -> bool:
        """Give a record in the application's hands up; whether it was still there."""
        with self.lock:
            if chunk.verdicts[index] != HANDED:
                return False
            self._give_up(chunk, index, cause, reason, chunk.lease.attempts + 1)
            return True

    def when_written(self, chunk: Chunk, index: int, confirmation: Confirmation) -> None:
        """Tell `confirmation` when the dead letter of a rejected record is written."""
        with self.lock:
            verdict, lost = chunk.verdicts[index], chunk.lease.lost
            given_back = verdict == RELEASED or (verdict == REJECTED and self._left)
            if verdict == REJECTED and not (lost or given_back):
                self._burials[id(chunk), index] = confirmation
        if lost:
            confirmation.resolve(self._fenced(f"fencing token {chunk.lease.token}"))
        elif given_back:
            confirmation.resolve(self._fenced(_LEFT))
        elif verdict != REJECTED:
            confirmation.resolve(None)

    def _written(self, chunk: Chunk, index: int) -> None:
        with self.lock:
            if chunk.verdicts[index] == REJECTED:
                chunk.verdicts[index] = DEAD
            confirmation = self._burials.pop((id(chunk), index), None)
        if confirmation is not None:
            confirmation.resolve(None)
        self.poke()

    def extend(self, chunk: Chunk, index: int) -> None:
        """The time for which the application may hold a record begins anew."""
        if self.holding is not None:
            with self.lock:
                self.holding.extend(chunk, index)

    def _roll_back_overdue(self) -> None:
        if self.holding is None:
            return
        for chunk, index in self.holding.overdue():
            verdicts = chunk.verdicts
            chunk.overdue.add(index)
            # nothing is called in between: the application's thread gives verdicts without the lock
            if verdicts[index] == HANDED:
                verdicts[index] = OVERDUE
            if verdicts[index] != OVERDUE:
                chunk.overdue.discard(index)
            elif self._is_used_up(chunk.lease.attempts + 1):
                reason = "it was held too long"
                self._give_up(chunk, index, Cause.ATTEMPTS, reason, chunk.lease.attempts + 1)
            else:
                chunk.delays[index] = -1
                if self.lane and not self.keyed:
                    self._hold_back(chunk, index)

    def _hold_back(self, chunk: Chunk, index: int) -> None:
        self._hold.add((chunk.lease.partition, chunk.offset(index)))
        chunk.lease.group.withheld = True

    # -- blocks go out

    def may_dispatch(self) -> bool:
        """Whether this process is still sure to hold its leases."""
        return self._alive() and self._monotonic() - self._last_ok < self.session * 0.9

    def _next_chunk(self) -> Chunk | None:
        """The chunk whose next record comes next; None: nothing can be handed out now."""
        if self.closing or self.failed is not None:
            return None
        chunk = None if self.paused else self._first_free()
        if chunk is None:
            self._idle()
            return None
        if not self.may_dispatch():
            self._blocked = True
            return None
        return chunk

    def _first_free(self) -> Chunk | None:
        """The first chunk whose lane may go on; what was set aside comes first."""
        # partition -> the lowest offset that waits: what comes before it may be in a later chunk
        waiting: dict[int, int] = {}
        for chunk in self._urgent:
            lease = chunk.lease
            if lease.group.frozen or chunk.handed == len(chunk.messages):
                continue
            offset = chunk.offset(chunk.handed)
            if offset >= waiting.get(lease.partition, offset + 1):
                continue
            if not self._waits_in_order(chunk):
                return chunk if self._goes_beside(lease, again=True) else None
            waiting[lease.partition] = offset
        blocked: list[LaneGroup] = []
        for chunk in self._ready:
            group = chunk.lease.group
            if group in blocked:
                continue
            if not group.frozen and not (self.lane and self._held_back(chunk.lease)):
                return chunk if self._goes_beside(chunk.lease, again=False) else None
            blocked.append(group)
        return None

    def _goes_beside(self, lease: Lease, *, again: bool) -> bool:
        return not self._alone or self._may_be_beside(lease, again=again)

    def _one_is_alone(self) -> bool:
        """Whether there is a record that may be handed out, and has to be alone in the hands."""
        now = self._monotonic()
        return any(self._leases[token].not_before <= now for token in self._alone)

    def _may_be_beside(self, lease: Lease, *, again: bool) -> bool:
        """Whether a record may be handed out though there is one that has to be alone in the hands."""
        if lease.alone:
            return not self._holds_any()
        return again and not any(held(chunk) for chunk in self._active if chunk.lease.alone)

    def next_block(self, limit: int) -> tuple[Chunk, int, int] | None:
        """Take the next records for the application: chunk, first index, end index; None: nothing now.

        At most `limit` records, within the window by count and bytes, below the confirmed dispatch bound.
        """
        with self.lock:
            if self.keyed:
                return self._next_keyed(limit)
            chunk = self._next_chunk()
            if chunk is None:
                return None
            if self._is_cold(chunk.lease, chunk.offset(chunk.handed)):
                return None
            room = min(limit, self._room(chunk.weight))
            if room <= 0:
                self._idle()
                return None
            start = chunk.handed
            end = min(len(chunk.messages), start + room)
            chunk.verdicts[start:end] = bytes((HANDED,)) * (end - start)
            chunk.handed = end
            self._count_out(chunk, end)
            self._in_hands += end - start
            self._hands_bytes += chunk.weight * (end - start)
            if start == 0:
                self._active.append(chunk)
            if end == len(chunk.messages):
                (self._urgent if chunk in self._urgent else self._ready).remove(chunk)
            if self.holding is not None:
                self.holding.hand_out(chunk, start, end)
            if self.lane:
                self._touch.add(chunk.lease.partition)
            self._handed_since += end - start
            chunk.lease.group.turn.hand_out(end - start)
            poke = self._pending is None and self._soon(chunk, end)
        if poke:
            self.poke()
        return chunk, start, end

    def next_run(self, limit: int) -> tuple[Chunk, int, int] | None:
        """As `next_block`, for records that are marked as handed out one by one (`subscription._one_by_one`).

        With a window of one each only after the one before was acknowledged, so a lane needs no look at the
        coordinator, nor a lock, for each of them. On a lane that may pass to somebody else (`passes`) none
        counts as handed out before the application really has it. None: nothing can be handed out now.
        """
        with self.lock:
            return self._next_keyed(limit) if self.keyed else self._next_run(limit)

    def _next_run(self, limit: int) -> tuple[Chunk, int, int] | None:
        self._drop_handed()
        self._recount()
        if self._in_hands and self.window == 1:
            self._idle()
            return None
        while True:
            chunk = self._next_chunk()
            if chunk is None or self._is_cold(chunk.lease, chunk.offset(chunk.handed)):
                return None
            room = self._room_of_run(chunk, limit)
            if room > 0:
                # it was made ready before where nothing of it was handed out since
                if chunk.handed == 0 and all(each is not chunk for each in self._active):
                    self._active.append(chunk)
                self._touch.add(chunk.lease.partition)
                chunk.lease.group.turn.run(chunk)
                return chunk, chunk.handed, min(len(chunk.messages), chunk.handed + room)
            if not chunk.lease.group.frozen:
                return None

    def _drop_handed(self) -> None:
        """Chunks of which all was handed out one by one."""
        for queue in (self._urgent, self._ready):
            while queue and queue[0].handed == len(queue[0].messages):
                self._count_out(queue[0], len(queue.popleft().messages))
            if self.own_turns:  # then another lane may have been handed out before the first
                for chunk in [chunk for chunk in queue if chunk.handed == len(chunk.messages)]:
                    self._count_out(chunk, len(chunk.messages))
                    queue.remove(chunk)

    def _room_of_run(self, chunk: Chunk, limit: int) -> int:
        """Records that may be handed out one by one now; if none, what brings some is seen to."""
        if self.budget < self._unconfirmed:
            self._force = True
            return 0
        room = self.budget + 1 - self._unconfirmed
        if self.window > 1:
            room = min(limit, self._room(chunk.weight))
        if room > 0 and self._takes_turns():
            room = min(room, self._left_of_turn(chunk.lease.group))
            if room <= 0:
                chunk.lease.group.frozen = self._force = True  # until it was offered
        if room <= 0:
            self._idle()
        return room

    def _left_of_turn(self, group: LaneGroup) -> int:
        """Records that may be handed out in this turn: a window's worth, one more while others are in hands.

        So a free seat is the holder's as long as it has something unprocessed (W5), and no longer.
        """
        left = self.window - group.turn.handed
        return left if left > 0 else int(self._holds_any(group))

    def _count_out(self, chunk: Chunk, end: int) -> None:
        """Records of a chunk before index `end` do not wait any more."""
        self._queued -= end - chunk.taken
        chunk.taken = end

    def _is_cold(self, lease: Lease, offset: int) -> bool:
        """Whether a new holder must first report how far a lane is readable.

        What lies beyond that is not counted as an attempt when the holder dies: a message that kills its
        process at once would come as a first attempt for ever.
        """
        partition = lease.partition
        if not lease.lane or partition in self._warm:
            return False
        state = self._states.get(partition)
        if state is not None and offset < state.avail:
            return False
        self._force = True
        return True

    def _held_back(self, lane: Lease) -> bool:
        """Whether new messages of a lane wait for one that was rolled back."""
        held = any(not self.own_turns or p == lane.partition for p, _ in self._hold)
        group = [x for x in self._leases.values() if x.group is lane.group and not x.lane]
        held = held or any(x.open > 0 if self.strict else x.fill < x.end for x in group)
        lane.group.withheld = held
        return held

    def _waits_in_order(self, chunk: Chunk) -> bool:
        """Whether a chunk of what was set aside waits for what comes before it.

        It does until that is read; in strict order until it is settled.
        """
        lane, offset = chunk.lease.partition, chunk.offset(chunk.handed)
        aside = [x for x in self._leases.values() if x.partition == lane and not x.lane]
        if any(lease.fill < min(lease.end, offset) for lease in aside):
            return True
        if not self.strict:
            return False
        return any(p == lane and o < offset for p, o in self._hold) or any(
            unsettled_before(other, offset)
            for other in {*self._active, *self._urgent}
            if other.lease.partition == lane and not other.lease.lane
        )

    def _soon(self, chunk: Chunk, handed: int) -> bool:
        if not self.lane:
            return self._handed_since > self.window // 4
        lease, span = chunk.lease, self.window + self.budget
        # below some size the thread that waits anyway is faster than waking another one
        return span > _SMALL_SPAN and lease.lane and lease.end - chunk.offset(handed - 1) <= span // 2

    # -- the live end

    def _note(self, event: Event | None) -> None:
        if event is not None:
            self.teller.note(event)

    def _note_standing(self, *, active: bool) -> None:
        if not active and not self.turns:
            self._note(self._live.leave())
        if self.definition.type is SubscriptionType.PRIORITY:
            self._note(Event.BECAME_ACTIVE if active else Event.BECAME_STANDBY)

    def look_around(self, now: float) -> None:
        """Find out whether this member has caught up or fallen behind, and tell what happened.

        The coordinator thread's, lock not held; `now` is monotonic seconds.
        """
        self.tell_closing()
        if now >= self._judge_at:
            with self.lock:
                self._judge_at = now + _JUDGE_EVERY
                self._judge()
        self.teller.tell()

    def tell_closing(self) -> None:
        """Tell those who wait, once, that nothing more is handed out.

        For the coordinator thread, which does not hold the lock.
        """
        if self.closing and not self._closing_told:
            self._closing_told = True
            self.on_ready()
            self.on_closing()

    def _judge(self) -> None:
        if self.closing or self.failed is not None:
            return
        if self.lane and not self.keyed and self._standing is Standing.STANDBY:
            return  # between its turns a member stays what it was
        self._note(self._live.judge(self._behind()))

    def _behind(self) -> Behind:
        """What waits for this member, and whether nothing does."""
        feeds = {p: feed for p, feed in self._feeds.items() if p not in self._lanes.draining}
        unread = [feed.unread for feed in feeds.values()]
        lag = sum(filter(None, unread)) // self.definition.lanes  # a lane has its share of what is there
        lag += sum(feed.buffered for feed in feeds.values())
        lag += sum(len(chunk.messages) - chunk.handed for chunk in [*self._ready, *self._urgent])
        if self.keyed:
            lag += self._lanes.waiting
        others = self._read_by_others(feeds)
        lag += sum(max(state.avail - state.next, 0) for state in others if state is not None)
        at_end = (
            lag == 0
            and self.unreceived() == 0
            and not any(unread)
            and None not in unread
            and None not in others
            and bool(feeds or others)
            and not self._unserved
            and not any(
                lease.fill < lease.end and not (lease.lane or lease.ahead) for lease in self._leases.values()
            )
        )
        return Behind(lag=lag, at_end=at_end)

    def _read_by_others(self, feeds: Collection[int]) -> list[PartitionState | None]:
        """What is known of partitions that matter to this member and that it does not follow."""
        matter: Collection[int] = self._home | self._watches
        if self.lane:
            matter = self._to_follow() if self.keyed else range(self.partitions)
        return [self._states.get(p) for p in matter if p not in feeds and p not in self._lanes.draining]

    def _idle(self) -> None:
        """The application waits: what it settled frees its window as soon as it is sent."""
        if not self._live.live:
            self._judge()
            if self.teller.waits:
                self._poke()
        if self._pending is not None:
            return
        if any(has_verdicts(chunk) for chunk in self._active):
            self._force = True
        self._force = self._force or bool(self._asked_for()) or bool(self._ended())

    def unblock(self) -> bool:
        """Whether handing out may go on: this process is seen again, or a record of a key has become due."""
        if self._blocked and self.may_dispatch():
            self._blocked = False
            return True
        with self.lock:
            ripe = self._lanes.keys.next_at
            if ripe is None or ripe > self._monotonic():
                return False
            self._lanes.keys.look()  # else it would be due until the application asks for it
            return True

    def _room(self, weight: float) -> int:
        """Records of this mean size (bytes) for which the window has room."""
        room = self._room_now(weight)
        if room <= 0:
            self._recount()
            room = self._room_now(weight)
        return room

    def _room_now(self, weight: float) -> int:
        room = self.window - self._in_hands
        if self._hands_bytes > 0:
            room = min(room, int((self.window_bytes - self._hands_bytes) / weight) if weight else room)
        elif room > 0 and weight:
            room = max(1, min(room, int(self.window_bytes / weight)))
        if self.lane:
            room = min(room, self.budget + 1 - self._unconfirmed)
        return room

    def _recount(self) -> None:
        """Count again what is in the application's hands: verdicts given since the last exchange leave it."""
        hands, size, settled = 0, 0.0, 0
        for chunk in self._active:
            count = held(chunk)
            hands += count
            size += count * chunk.weight
            settled += chunk.verdicts.count(ACKED, chunk.low, chunk.handed)
            settled += chunk.verdicts.count(DEAD, chunk.low, chunk.handed)
        self._in_hands, self._hands_bytes = hands, size
        pending = sum(count for _, count in self._carried.open)
        self._unconfirmed = settled + pending
        if settled and self._pending is None:
            self._force = True

    def roll_back(self, chunk: Chunk, index: int, delay: int) -> bool:
        """Give a record back, to come again in `delay` ms (-1: as the policy says).

        A lane holds new messages back until it is known again. After the last attempt it is a dead letter.
        Returns whether it was still in the application's hands: its time may have been over just now.
        """
        with self.lock:
            if chunk.verdicts[index] != HANDED:
                return False
            attempts = chunk.lease.attempts + 1
            if self._is_used_up(attempts):
                self._give_up(chunk, index, Cause.ATTEMPTS, "it was rolled back", attempts)
                return True
            if delay < 0 and not self._policy.backoff:
                delay = 0
            chunk.delays[index] = delay
            if self.on_rolled_back is not None:
                self.on_rolled_back(chunk.lease.partition, chunk.offset(index), delay)
            if self.lane and not self.keyed and (delay == 0 or self.window == 1 or self.strict):
                self._hold_back(chunk, index)
            chunk.verdicts[index] = ROLLED_BACK
            return True

    def settle_handed(self, *, acknowledge: bool, but: Collection[tuple[Chunk, int]]) -> list[Chunk]:
        """Give what is in the application's hands its verdict (rules K1, K3); returns the chunks concerned.

        `but`: records that were taken for the application and have not reached it yet.
        """
        left = {(id(chunk), index) for chunk, index in but}
        with self.lock:
            chunks = [c for c in self._active if c.verdicts.count(HANDED, c.low, c.handed)]
            for chunk in chunks:
                for index in range(chunk.low, chunk.handed):
                    if chunk.verdicts[index] != HANDED or (id(chunk), index) in left:
                        continue
                    attempts = chunk.lease.attempts + 1
                    if not acknowledge and self._is_used_up(attempts):
                        self._give_up(chunk, index, Cause.ATTEMPTS, "it was rolled back", attempts)
                        continue
                    if not acknowledge and self.lane and not self.keyed:
                        self._hold_back(chunk, index)
                    chunk.verdicts[index] = ACKED if acknowledge else ROLLED_BACK
            return chunks

    def handed(self, but: Collection[tuple[Chunk, int]]) -> list[tuple[Chunk, list[int]]]:
        """What is in the application's hands: records of chunks, by index; `but` as in `settle_handed`."""
        left = {(id(chunk), index) for chunk, index in but}
        with self.lock:
            found = [
                (
                    chunk,
                    [
                        index
                        for index in range(chunk.low, chunk.handed)
                        if chunk.verdicts[index] == HANDED and (id(chunk), index) not in left
                    ],
                )
                for chunk in self._active
            ]
        return [(chunk, indices) for chunk, indices in found if indices]

    def acknowledge(self, records: Iterable[tuple[Chunk, list[int]]]) -> int:
        """Acknowledge records, by index, that are in the application's hands; returns how many are not."""
        gone = 0
        with self.lock:
            for chunk, indices in records:
                for index in indices:
                    if chunk.verdicts[index] == HANDED:
                        chunk.verdicts[index] = ACKED
                    else:
                        gone += 1
        return gone

    def take_lost(self) -> int:
        """Records whose lease went while they were in the application's hands, since this was asked last."""
        with self.lock:
            lost, self._lost_hands = self._lost_hands, 0
            return lost

    def confirm(self, chunk: Chunk, confirmation: Confirmation, acks: int = 0) -> None:
        """Tell `confirmation` when the verdicts given so far in this chunk are confirmed: `acks` of its own.

        `nudge` comes next.
        """
        with self.lock:
            lost, left = chunk.lease.lost, self._left
            if not (lost or left):
                self._confirm.append(_Waiting(chunk, confirmation, acks))
        if lost:
            confirmation.resolve(self._verdict_of(chunk))
        elif left:
            confirmation.resolve(self._unknown(_LEFT))

    def level(self, level: str | None) -> AckLevel:
        """The level of an acknowledgement: the one asked for, or the subscription's.

        Raises `IllegalState` for one that does not exist, or that this subscription cannot have.
        """
        if level is None:
            return self.definition.ack_level
        chosen = validate_level(level)
        if chosen == "journal" and not self.durable:
            raise IllegalState(
                "A non-durable subscription is not in the journal.",
                owner=f"subscription {self.display}",
                remedy="use level='redis' or 'replicated', or a durable subscription",
            )
        return chosen

    def above(self, level: AckLevel, chunk: Chunk, confirmation: Confirmation) -> Confirmation:
        """What to `confirm` with, so that `confirmation` is told when `level` is reached."""
        if self.checkpointer is None:
            return confirmation
        return self.checkpointer.above(self, level, chunk, confirmation)

    def take_settled(self) -> set[int]:
        """Partitions, or lanes of keys, on which verdicts were confirmed since this was asked last."""
        with self.lock:
            settled, self._settled_on = self._settled_on, set()
            return settled

    def _verdict_of(self, chunk: Chunk) -> KafkadurError | None:
        """What becomes of who waits for verdicts in a chunk whose lease is gone."""
        if chunk.lease.retired and not chunk.verdicts.count(LOST):
            return None  # they were carried by the exchange that gave the lease up, or an earlier one
        return self._fenced(f"fencing token {chunk.lease.token}")

    def poke(self) -> None:
        """Ask the coordinator thread for an exchange soon. Takes no lock."""
        self._poked = True
        self._poke()

    def nudge(self) -> bool:
        """The application is about to wait: have the exchange made that is due, if one is.

        Whether it has been made already (in this thread): then there may be a block.
        """
        return self.due(self._monotonic()) <= self._monotonic() and self._nudge(self)

    def wake(self) -> None:
        """Somebody else says there is news."""
        with self.lock:
            self._touch |= self._home | self._watches if not self.lane else set(range(self.partitions))
        self.poke()

    def report_silence(self) -> None:
        """The neighbour's channel is silent: the next exchange asks for the presence of all."""
        self._ask_presence = True
        self.poke()

    # -- exchanges

    def due(self, now: float) -> float:
        """When the next exchange is to be made (monotonic seconds; in the past: now)."""
        with self.lock:
            return self._next_due(now)

    def _next_due(self, now: float) -> float:
        if self._force or self._poked or self._confirm or self._pending is not None:
            return now
        at = self._renew_at
        if self._wake_at is not None:
            at = min(at, self._wake_at)
        if self._due:
            at = min(at, *self._due.values())
        if (ripe := self._lanes.keys.next_at) is not None:
            at = min(at, ripe)
        if self.holding is not None and (overdue_at := self.holding.next_at) is not None:
            at = min(at, overdue_at)
        if self._active:
            if self._look_at is None:
                self._look_at = now + CONFIRM_WITHIN
            at = min(at, self._look_at)
        return at

    def build(self, now: float) -> Exchange | None:
        """The exchange to send now; the same one again while it is unanswered. None: nothing to say."""
        with self.lock:
            if self._pending is not None:
                return self._pending
            self._look_at = None
            self._roll_back_overdue()
            quiet = not (self._force or self._poked or self._confirm) and now < self._renew_at
            if (
                quiet
                and (self._wake_at is None or now < self._wake_at)
                and all(now < at for at in self._due.values())
                and not any(has_verdicts(chunk) for chunk in self._active)
            ):
                return None
            self._force = self._poked = False
            exchange = self._compose(now)
            self._pending = exchange
            return exchange

    def _compose(self, now: float) -> Exchange:
        if self._keeps_nothing():
            self._release_ready()
        if self.own_turns:
            self._recount()  # what was handed out one by one since
        chosen = self._choose_partitions(now)
        harvest = self._harvest(set(chosen))
        self._free_credit = 0 if self.closing else self._credit(harvest.settling)
        self._return_promised(chosen, harvest)
        self._return_surplus(chosen, harvest)
        for token, lease in self._leases.items():
            if (
                not lease.lane
                and lease.open - harvest.opened.get(token, 0) <= 0
                and lease.partition in chosen
            ):
                harvest.end(lease)
                self._carried.done.append(lease)
        if self.paused and not (self.lane or self.keyed or self.closing):
            self._give_back_unread(chosen, harvest)
        self._carried.acked = harvest.acked
        self._carried.open = [(self._leases[token], count) for token, count in harvest.opened.items()]
        self._carried.confirm = [item for item in self._confirm if item.chunk.lease.partition in chosen]
        self._confirm = [item for item in self._confirm if item.chunk.lease.partition not in chosen]
        self._offering = self._offered(chosen)
        self._number += 1
        for partition in chosen:
            self._said[partition] = self._number
        self._handed_since = 0
        self._renew_at = now + self.session / 2
        self._composed_at = now
        ask, self._ask_presence = self._ask_presence, False
        return Exchange(
            number=self._number,
            credit=self._free_credit,
            have=self._have,
            ask_presence=ask,
            span=self._span(),
            parts=[self._report(p, harvest) for p in chosen],
            offer=bool(self._offering) and not self.own_turns,
        )

    # -- what is promised

    def _to_keep(self) -> int:
        """Promised offsets for which there is room."""
        gone = self.closing or self.paused or self.resting or self._asked_back
        return 0 if gone else self._free_credit

    def _return_promised(self, chosen: Collection[int], harvest: Harvest) -> None:
        self._came.clear()
        for lease, count in surplus(self._leases.values(), self._to_keep()):
            if lease.partition in chosen:
                for start, end in give_back(lease, count):
                    harvest.give_back(lease, start, end)

    def _to_return(self) -> set[int]:
        """Partitions of which more is promised than there is room for."""
        return {lease.partition for lease, _ in surplus(self._leases.values(), self._to_keep())}

    def _return_surplus(self, chosen: Collection[int], harvest: Harvest) -> None:
        """Give back what waits beyond the window: others may have room for it.

        What was promised came while the exchange was under way that asked for as many others.
        """
        over = self._surplus(harvest.settling)
        for chunk in [chunk for chunk in self._returnable(over) if chunk.lease.partition in chosen]:
            keep = max(chunk.handed, len(chunk.messages) - over)
            for index in range(keep, len(chunk.messages)):
                harvest.give_back(chunk.lease, chunk.offset(index), chunk.offset(index) + 1)
            messages, _ = chunk.cut(keep)
            self._queued -= len(messages)
            over -= len(messages)
            if chunk.handed == len(chunk.messages):
                self._ready.remove(chunk)
                self._count_out(chunk, chunk.handed)
            if over <= 0:
                return

    def _surplus(self, sending: int) -> int:
        """Records that are held beyond the window, `sending` not counted, which the next exchange settles."""
        return 0 if self.lane or self._takes is not None else self._held(sending) - self.window

    def _returnable(self, surplus: int) -> list[Chunk]:
        """What waits, and can go back if so much is held beyond the window; the last first."""
        if surplus <= 0:
            return []
        # with a window of one a chunk that was begun is handed out without the lock
        begun = self._active if self.window == 1 else []
        return [chunk for chunk in reversed(self._ready) if not chunk.lease.alone and chunk not in begun]

    def _beyond_window(self) -> set[int]:
        """Partitions of which something has to go back, as nobody has acknowledged enough meanwhile."""
        settled = sum(chunk.verdicts.count(ACKED, chunk.low, chunk.handed) for chunk in self._active)
        surplus = self._surplus(settled) if self._pending is None and self._ready else 0
        return {chunk.lease.partition for chunk in self._returnable(surplus)}

    def _to_be_promised(self, partition: int) -> int:
        """How many offsets that are not written yet this member can have of a partition."""
        feed = self._feeds.get(partition)
        if self.lane or self._takes is not None or feed is None or feed.unread != 0:
            return 0
        # this one counts whatever it says by now: the reader notes the end of a log without the lock
        live = 1 + sum(other.unread == 0 for other in self._feeds.values() if other is not feed)
        room, here, total = self._to_keep(), 0, 0
        for lease in self._leases.values():
            if not lease.withdrawn:
                total += promised(lease)
                here += promised(lease) if lease.partition == partition else 0
        return max(min(MOST, room // live, here + room - total), 0)

    def _is_short(self) -> bool:
        """Whether next to nothing is left of what was promised where something came."""
        left = dict.fromkeys(self._came, 0)
        for lease in self._leases.values():
            if lease.ahead and lease.partition in left:
                left[lease.partition] += promised(lease)
        return any(count <= FEW for count in left.values()) and self._to_keep() > FEW

    def _is_filled(self) -> bool:
        """Whether what came took up the last room that the coordinator knows of."""
        return self._takes is None and self._credit(0) <= 0 < self._free_credit

    def _withdraw(self, lease: Lease) -> None:
        """What is left of a promise goes back: this member does not see what comes."""
        lease.withdrawn = True
        if lease in self._wanting.get(lease.partition, []):
            self._wanting[lease.partition].remove(lease)
        self._touch.add(lease.partition)
        self._force = True

    def _give_back_unread(self, chosen: Collection[int], harvest: Harvest) -> None:
        """The subscription is paused: leases of which nothing is in hands end."""
        busy = {chunk.lease.token for chunk in self._active if chunk.low < chunk.handed}
        for token, lease in self._leases.items():
            if lease.partition in chosen and token not in busy and not harvest.ends(lease):
                harvest.end(lease, self._unread_from(lease))
                self._carried.back.append(lease)

    def _span(self) -> int:
        if self.closing:
            return 0
        span = self._scan(self.window if self._takes_turns() else self.window + self.budget)
        return span * self.definition.lanes  # of a partition's records about one in so many is of a lane

    # -- lanes that change hands

    def _takes_turns(self) -> bool:
        return self.turns and self._role.members > 1

    def _group(self, partition: int) -> LaneGroup:
        """The lanes that pass together with that of a partition."""
        return self._groups[partition if self.own_turns else 0]

    def _turn_is_over(self, group: LaneGroup) -> bool:
        """Whether nothing is left that was granted for this turn, a window's worth: handed out or not yet.

        What was granted while nobody else was there is more than that, and for the others, too.
        """
        if not self._takes_turns() or group.standing is not Standing.ACTIVE:
            return False
        if group.turn.handed >= self.window or self._is_crowded(group):
            return True
        leases = [lease for lease in self._leases.values() if lease.group is group]
        span = self._scan(self.window)
        if any(lease.lane and lease.end - self._position(lease.partition) > span for lease in leases):
            return True
        if not self.own_turns and len(group.seen) < self.partitions:
            return False  # what it was not told of may be its
        waiting = [chunk for chunk in [*self._urgent, *self._ready] if chunk.handed < len(chunk.messages)]
        return not any(c.lease.group is group for c in waiting) and not any(map(self._lacks_records, leases))

    def _lacks_records(self, lease: Lease) -> bool:
        """Whether records of a lease are there that a reader, of either kind, has still to bring."""
        state = self._states.get(lease.partition)
        end = lease.fill if state is None else min(lease.end, state.avail)
        return self._starves(lease) or (lease.point and lease.fill < end)

    def _is_crowded(self, group: LaneGroup) -> bool:
        """Whether the window is full, and nothing of these lanes takes part in that: others can have them."""
        return self.own_turns and self._room(self._mean_size) <= 0 and not self._holds_any(group)

    def filled(self) -> None:
        """The application may have a whole window in its hands (`_one_by_one`).

        Lanes that each have a turn of their own, and for which there is no room then, are offered.
        """
        if self._takes_turns():
            self.poke()

    def _holds_any(self, group: LaneGroup | None = None) -> bool:
        """Whether a record (of a group) is in the application's hands, or about to be (`_one_by_one`)."""
        return any(
            chunk.verdicts.count(HANDED, chunk.low) or chunk.verdicts.count(REJECTED, chunk.low)
            for chunk in [*self._active, *self._ready]
            if group is None or chunk.lease.group is group
        )

    def _asked_for(self) -> set[int]:
        """Groups (their numbers) that this member is asked to give up, and of which nothing is in hands."""
        asked = [number for number, group in self._groups.items() if group.standing is Standing.ASKED]
        return {number for number in asked if not self._holds_any(self._groups[number])}

    def _offered(self, chosen: Collection[int]) -> Collection[int]:
        """Partitions whose lanes the exchange that is being composed offers."""
        if not self.lane or self.keyed:
            return ()
        if self.own_turns:
            return {partition for partition in chosen if self._may_offer(self._group(partition))}
        return range(self.partitions) if self._may_offer(self._group(0)) else ()

    def _may_offer(self, group: LaneGroup) -> bool:
        """Whether the exchange that is being composed offers these lanes.

        Everything that was handed out has its verdict, and this exchange or an earlier one carries it.
        """
        asked = group.standing is Standing.ASKED
        leaving = self.closing and self.own_turns and group.standing is Standing.ACTIVE
        if not leaving and (self.closing or not (asked or self._turn_is_over(group))):
            return False
        group.frozen = True  # before looking: see there
        # in this order: a verdict may be given in between, and must not be left behind
        free = not self._holds_any(group)
        sent = not any(has_verdicts(chunk) for chunk in self._active if chunk.lease.group is group)
        if sent and free and not any(x.gaps for x in self._leases.values() if x.group is group):
            return True
        group.frozen = asked
        return False

    def _take_standing(self, reply: ExchangeReply) -> bool:
        """Take in who holds the lanes now; returns whether that changed for this member."""
        if reply.held is not None:
            for partition in self._offering:
                self._group(partition).turn = Turn()
            for token in [token for token in self._leases if token not in reply.held]:
                self._retire(self._leases[token])
            for token, horizon in reply.horizons.items():
                lease = self._leases.get(token)
                if lease is not None and horizon < lease.end:
                    self._shrink(lease, horizon)
        self._offering = ()
        changed = (self._standing is Standing.STANDBY) != (reply.standing is Standing.STANDBY)
        self._standing = reply.standing
        standings = {0: reply.standing}
        if self.own_turns:
            standings = {state.partition: state.standing for state in reply.partitions}
        for number, standing in standings.items():
            group = self._group(number)
            came = group.standing is Standing.STANDBY and standing is Standing.ACTIVE
            if group.standing is Standing.STANDBY:
                group.seen.clear()
            self._forget_hold(group, standing)
            if came and self.turns and not self.own_turns:
                self._touch |= set(range(self.partitions))
                self._force = True
            group.standing, group.frozen = standing, standing is Standing.ASKED
            group.seen |= {state.partition for state in reply.partitions}
            self._force = self._force or (came and self._takes_turns() and self._is_crowded(group))
        self._force = self._force or bool(self._asked_for())
        return changed

    def _forget_hold(self, group: LaneGroup, standing: Standing) -> None:
        """What a member that stands by has rolled back others settle: it does not wait for that any more."""
        if standing is Standing.STANDBY:
            self._hold = {item for item in self._hold if self._group(item[0]) is not group}
            group.withheld = False

    def _retire(self, lease: Lease) -> None:
        """A lease ended in order: nothing of it was in the application's hands."""
        lease.retired = True
        self._shrink(lease, lease.start)
        self._drop_lease(lease.token)
        if self.keyed:
            self._lanes.close(lease.partition)
        self._warm.discard(lease.partition)
        self._hold -= {(p, offset) for p, offset in self._hold if p == lease.partition}

    def _shrink(self, lease: Lease, horizon: int) -> None:
        """Take back what was read for a lease at or beyond `horizon`, and was not handed out."""
        feed = self._feeds.get(lease.partition)
        # only what joins the records that are there: between them must be nothing that was not read
        joins = feed is not None and lease.lane and lease.fill >= feed.kept_from
        for queue in (self._urgent, self._ready):
            for chunk in [chunk for chunk in reversed(queue) if chunk.lease is lease]:
                keep = max(chunk.handed, chunk.index(horizon))
                messages, first = chunk.cut(keep)
                self._queued -= len(messages)
                if messages and feed is not None and joins:
                    feed.put_back(messages, first)
                if chunk.handed == len(chunk.messages):
                    queue.remove(chunk)
                    self._count_out(chunk, chunk.handed)
        lease.end = max(min(lease.end, horizon), lease.start)
        lease.fill = min(lease.fill, lease.end)

    def _choose_partitions(self, now: float) -> list[int]:
        """Which partitions the next exchange touches.

        Those with something to say, the longest silent first.
        """
        speaking = {chunk.lease.partition for chunk in self._active if has_verdicts(chunk)}
        speaking |= {lease.partition for lease in self._leases.values() if lease.gaps}
        # a verdict may have left with an earlier exchange before its giver asked for the confirmation
        speaking |= {item.chunk.lease.partition for item in self._confirm}
        others = (
            self._touch | self._orphaned | self._unserved | {p for p, at in self._due.items() if now >= at}
        )
        due = self._wake_at is not None and now >= self._wake_at
        if due:
            self._wake_at = None
        if due or now >= self._renew_at:
            others |= set(range(self.partitions)) if self.lane else self._home | self._watches
        others |= {p for p, feed in self._feeds.items() if feed.position > feed.reported}
        others |= self._ended() | self._to_return() | self._beyond_window()
        idle: set[int] = set()
        if self.own_turns:
            over = {p for p, group in self._groups.items() if self._turn_is_over(group)}
            busy = {lease.partition for lease in self._leases.values()}
            others |= {p for p in over if p in busy or self._groups[p].frozen} | self._asked_for()
            idle = over
            if self.closing:  # others need not wait for what this member still has in hands of another lane
                active = {p for p, group in self._groups.items() if group.standing is Standing.ACTIVE}
                idle = {p for p in active if not self._holds_any(self._groups[p])}
        elif self._takes_turns() and self._standing is Standing.ACTIVE:
            others |= {lease.partition for lease in self._leases.values() if lease.lane}
        if not self.lane:
            others |= {p for p in self._home | self._watches if self._has_backlog(p)}

        def longest_silent(partition: int) -> int:
            return self._said.get(partition, 0)

        order = sorted(speaking, key=longest_silent) + sorted(others - speaking, key=longest_silent)
        left = order[MAX_PARTITIONS:]
        order += sorted(idle - others - speaking, key=longest_silent)
        chosen = order[:MAX_PARTITIONS]
        self._touch = set(left)
        self._orphaned -= set(chosen)
        # what nobody had room for is asked for again with the others, not at once
        self._force = self._force or bool(self._touch - self._unserved)
        return chosen

    def _has_backlog(self, partition: int) -> bool:
        state = self._states.get(partition)
        return state is None or state.next < state.avail

    def _report(self, partition: int, harvest: Harvest) -> PartitionReport:
        feed = self._feeds.get(partition)
        avail = epoch = -1
        if feed is not None and feed.position > feed.reported:
            epoch = feed.epoch  # first: it may only be too new
            avail = feed.position
            self._carried.avail.append((feed, avail))
        position = -1
        if self.lane and not self.closing:
            position = self._position(partition)
        return PartitionReport(
            partition=partition,
            avail=avail,
            position=position,
            settled=harvest.settled(partition),
            returned=harvest.returned(partition),
            done=harvest.done(partition),
            drained=int(self._gives_up(partition)),
            expired=self._expiry.take_lost(partition),
            ahead=self._to_be_promised(partition),
            epoch=epoch,
            log_end=self._log_ends.pop(partition, -1),
        )

    def _gives_up(self, partition: int) -> bool:
        return self._is_drained(partition) if self.keyed else self.own_turns and partition in self._offering

    def _lane_lease(self, partition: int) -> Lease | None:
        for lease in self._leases.values():
            if lease.lane and lease.partition == partition:
                return lease
        return None

    def _position(self, partition: int) -> int:
        """First offset of a lane that was not handed out."""
        lease = self._lane_lease(partition)
        if lease is None:
            return -1
        if self.keyed:  # what waits for its key does not keep the others from going on
            return lease.start if self._is_full() else lease.fill
        for chunk in self._ready:
            if chunk.lease is lease and chunk.handed < len(chunk.messages):
                return chunk.offset(chunk.handed)
        return lease.fill

    def _is_full(self) -> bool:
        return self._lanes.is_full(self.window)

    def _ended(self) -> set[int]:
        """Lanes of keys whose records were read and wait for the horizon."""
        if not self.keyed or self._is_full():
            return set()
        lanes = [lease.partition for lease in self._leases.values() if lease.lane and lease.fill >= lease.end]
        return {p for p in lanes if p in self._feeds and self._feeds[p].buffered}

    def _credit(self, sending: int) -> int:
        if self.lane:
            return int(not self.own_turns or self._room(self._mean_size) > 0)
        if self.resting:
            return 0
        if self._takes is not None:
            return self._scan_credit()
        held = self._held(sending)
        free = self.window - held
        by_bytes = int((self.window_bytes - held * self._mean_size) / max(self._mean_size, 1.0))
        if held <= 0:
            by_bytes = max(by_bytes, 1)
        return max(min(free, by_bytes), 0)

    def _held(self, sending: int) -> int:
        """Records of all leases, but for what is promised and what an exchange settles."""
        return sum(lease.open - promised(lease) for lease in self._leases.values()) - sending

    def _scan_credit(self) -> int:
        """Offsets that may be read ahead, so that about a window of them is taken."""
        waiting = sum(len(chunk.messages) - chunk.handed for chunk in [*self._ready, *self._urgent])
        held = waiting + self._in_hands
        unread = sum(lease.end - lease.fill for lease in self._leases.values())
        free = self.window - held
        if held:
            free = min(free, int((self.window_bytes - held * self._mean_size) / max(self._mean_size, 1.0)))
        return max(self._scan(free) - unread, 0) if free > 0 else 0

    def _harvest(self, partitions: Collection[int]) -> Harvest:
        """Collect the verdicts given since the last exchange on these partitions and mark them as sent."""
        harvest = Harvest()
        for lease in self._leases.values():
            if lease.partition in partitions:
                harvest.take_gaps(lease)
        remaining: list[Chunk] = []
        for chunk in self._active:
            if chunk.lease.partition in partitions:
                harvest.take(chunk)
            if chunk.low < len(chunk.messages):
                remaining.append(chunk)
        self._carried.taken = [chunk for chunk in self._active if chunk.lease.partition in partitions]
        self._active = remaining
        hands = [(held(chunk), chunk.weight) for chunk in remaining]
        self._in_hands = sum(count for count, _ in hands)
        self._hands_bytes = sum(count * weight for count, weight in hands)
        self._unconfirmed = harvest.settling
        return harvest

    def apply(self, reply: ExchangeReply, sent_at: float) -> None:
        """The exchange sent at `sent_at` (monotonic seconds) was answered."""
        refused = set(reply.refused)
        with self.lock:
            # a repeat does not renew the session: what counts is when it was sent first
            self._last_ok = min(sent_at, self._composed_at)
            waiting = self._carried.confirm
            self._close_pending()
            for token in refused:
                self._refuse_lease(token)
            self._take_role(reply.role)
            self.paused = reply.paused
            if self.paused:  # what is not in hands is given back, also what was taken in advance
                self.losses += 1
                self._touch |= {lease.partition for lease in self._leases.values()}
                if not self.lane:
                    self._force = self._force or any(map(self._is_unread, self._leases.values()))
            self._take_states(reply, sent_at)
            if self.lane and self._take_standing(reply):
                self._note_standing(active=reply.standing is not Standing.STANDBY)
            if self.keyed:
                self._drain(reply.asked)
            self._take_grants(reply)
            if not self.lane:
                self._asked_back = reply.standing is Standing.ASKED
                self._judge_following(reply)
            self._force = self._force or bool(self._orphaned)
            self._follow()
            for partition in self._to_route(reply):
                self._route(partition)
            self._recount()
            self._force = self._force or bool(self._to_return())
            gone = [item for item in self._confirm if item.chunk.lease.lost]
            self._confirm = [item for item in self._confirm if not item.chunk.lease.lost]
            # what was read while this exchange was under way
            self._force = self._force or self._needs_exchange(news=bool(self._ready or self._urgent))
        self.teller.tell()
        for item in gone:
            item.confirmation.resolve(self._verdict_of(item.chunk))
        for item in waiting:
            token = item.chunk.lease.token
            item.confirmation.resolve(self._fenced(f"fencing token {token}") if token in refused else None)
        self.on_ready()

    def _to_route(self, reply: ExchangeReply) -> set[int]:
        """Followed partitions whose records this answer may have given to somebody."""
        changed = {state.partition for state in reply.partitions}
        changed |= {grant.partition for grant in reply.grants}
        return changed & self._feeds.keys()

    def _close_pending(self) -> None:
        """What the answered exchange carried is known to the coordinator now."""
        if self._pending is not None:
            self._settled_on.update(
                part.partition for part in self._pending.parts if part.settled or part.returned
            )
        self._pending = None
        for lease, count in self._carried.open:
            lease.open -= count
        for lease in self._carried.done:
            self._leases.pop(lease.token, None)
            self._alone.discard(lease.token)
        for lease in self._carried.back:
            self._retire(lease)
        for feed, avail in self._carried.avail:
            feed.reported = max(feed.reported, avail)
            if avail > feed.start:
                self._warm |= {partition for partition, followed in self._feeds.items() if followed is feed}
        self._carried = _Carried()

    def _take_states(self, reply: ExchangeReply, sent_at: float) -> None:
        for state in reply.partitions:
            self._states[state.partition] = state
            self._due.pop(state.partition, None)
            self._unserved.discard(state.partition)
            if state.due_ms > 0:
                self._due[state.partition] = sent_at + state.due_ms / 1000 + _ROUNDING
            elif state.due_ms == 0:
                self._unserved.add(state.partition)
            self._take_unsure(state)
        new = set(reply.watches) - self._watches - {state.partition for state in reply.partitions}
        self._touch |= new  # how far it was reported, and what is nobody's, is to be known
        self._force = self._force or bool(new)
        self._watches = set(reply.watches)
        self._orphaned |= set(reply.orphaned)
        if reply.silent_ms is not None:  # a silent member is looked at again before it is given up
            self._ask_presence = True
        # one after the other: the first one who looks ends the session, and wakes who is next
        ended = None if reply.expiry_ms is None else reply.expiry_ms + min(reply.role.rank, 20) * _APART_MS
        waits = [wait for wait in (reply.silent_ms, reply.grace_ms or None, ended) if wait is not None]
        self._wake_at = sent_at + min(waits) / 1000 + _ROUNDING if waits else None

    def _take_unsure(self, state: PartitionState) -> None:
        """Have Kafka asked where a partition ends if nothing of it is granted until that is known."""
        if not state.unsure:
            self._unsure.discard(state.partition)
        elif state.partition not in self._unsure and self.reading is not None:
            self._unsure.add(state.partition)
            self.reading.find_end(state.partition, self.incarnation)

    def _take_grants(self, reply: ExchangeReply) -> None:
        self._have = max(self._have, reply.token)
        for token, horizon in reply.horizons.items():
            lane = self._leases.get(token)
            if lane is not None:
                lane.end = max(lane.end, horizon)
        lanes = {grant.partition: grant.start for grant in reply.grants if grant.kind == "lane"}
        for grant in sorted(reply.grants, key=lambda grant: (grant.partition, grant.start)):
            self._take_grant(grant, lanes)
        self._free_credit -= sum(
            grant.records for grant in reply.grants if grant.kind not in {"lane", "ahead"}
        )

    def _refuse_lease(self, token: int) -> None:
        """The coordinator does not know a lease of this member: its lane begins anew."""
        lease = self._leases.get(token)
        self._drop_lease(token)
        if lease is not None and self.keyed:
            self._drain({lease.partition})

    def _drop_lease(self, token: int) -> None:
        lease = self._leases.pop(token, None)
        if lease is None:
            return
        self._alone.discard(token)
        lease.lost = True
        self.losses += 1
        if self.keyed:
            self._lanes.drop(lease)
        self._point_feeds.pop(token, None)
        if lease in self._wanting.get(lease.partition, []):
            self._wanting[lease.partition].remove(lease)
        for queue in (self._ready, self._urgent):
            for chunk in [c for c in queue if c.lease is lease]:
                queue.remove(chunk)
                self._count_out(chunk, len(chunk.messages))
        for chunk in [c for c in self._active if c.lease is lease]:
            self.fenced_acks += chunk.verdicts.count(ACKED)
            self._lost_hands += chunk.verdicts.count(HANDED, chunk.low, chunk.handed)
            chunk.verdicts[:] = chunk.verdicts.translate(_FORGET)
            self._active.remove(chunk)

    def _take_grant(self, grant: Grant, lanes: Mapping[int, int]) -> None:
        if grant.token in self._leases:
            return
        lease = Lease(
            token=grant.token,
            incarnation=self.incarnation,
            partition=grant.partition,
            start=grant.start,
            end=grant.horizon,
            attempts=grant.attempts,
            redelivered=grant.redelivered,
            lane=grant.kind == "lane",
            group=self._group(grant.partition),
            seen=grant.seen,
            stretch=grant.stretch,
            alone=grant.alone,
            ahead=grant.kind == "ahead",
        )
        if grant.due_ms:
            lease.not_before = self._monotonic() + grant.due_ms / 1000
        self._leases[lease.token] = lease
        if lease.alone:
            self._alone.add(lease.token)
        if grant.kind == "runs":
            self._hold -= {
                (p, o) for p, o in self._hold if p == lease.partition and lease.start <= o < lease.end
            }
        wanting = self._wanting.setdefault(lease.partition, [])
        wanting.append(lease)
        wanting.sort(key=lambda item: item.start)
        feed = self._feeds.get(lease.partition)
        if (
            feed is not None and lease.lane and lease.start < feed.kept_from
        ):  # it goes on for ever: read it anew
            del self._feeds[lease.partition]
            if self.reading is not None:
                self.reading.unfollow(lease.partition)
            feed = None
        if feed is not None:
            near = lease.start >= feed.kept_from
        elif lease.ahead:
            near = False
        else:  # the reader is about to start at the first lease, unless that lies far back
            state = self._states.get(lease.partition)
            begin = lanes.get(lease.partition, lease.start if state is None else state.next)
            near = begin - lease.start <= self.read_ahead
            near = near and (self.lane or lease.partition in self._to_follow())
        if not near:
            self._read_range(lease)

    def _read_range(self, lease: Lease) -> None:
        if lease.ahead:
            self._withdraw(lease)
            return
        lease.point = True
        self._wanting[lease.partition].remove(lease)
        self._point_feeds[lease.token] = FetchBuffer(lease.fill)
        self._ranges_read += 1
        if self.reading is not None:
            self.reading.read_range(lease.partition, lease.fill, lease.end, lease.token)

    def _judge_following(self, reply: ExchangeReply) -> None:
        for grant in reply.grants:
            if grant.kind in {"range", "ahead"}:
                self._worth.granted(grant.partition, grant.records)
        for state in reply.partitions:
            self._worth.advanced(state.partition, state.next)
        self._worth.watch(self._watches)

    def _to_follow(self) -> set[int]:
        if self.lane:
            held = {lease.partition for lease in self._leases.values() if lease.lane}
            # who gets its turn again soon reads on: going back to where it was would cost more than the turn
            if 1 < self._role.members <= _READ_ALONG and self.turns:
                return set(range(self.partitions))
            if self._takes_turns():  # a lane of which nothing is there has no lease: its holder watches
                kept = {p for p, group in self._groups.items() if group.standing is not Standing.STANDBY}
                held |= kept if self.own_turns or not kept else set(range(self.partitions))
            return held
        return (self._home - self._worth.by_range) | self._watches

    def _follow(self) -> None:
        """Tell the reader which partitions to follow from where.

        Leases that lose their reader are read as ranges.
        """
        if self.reading is None:
            return
        target = self._to_follow()
        # a lease may also wait on a partition that was to be followed when it came, and is not any more
        for partition in (self._feeds.keys() | self._wanting.keys()) - target:
            for lease in [x for x in self._wanting.get(partition, []) if x.fill < x.end and not x.point]:
                self._read_range(lease)
            if self._feeds.pop(partition, None) is not None:
                self.reading.unfollow(partition)
        for partition in target - set(self._feeds):
            state = self._states.get(partition)
            if state is None:
                self._touch.add(partition)
                self._force = True
                continue
            starts = [lease.start for lease in self._wanting.get(partition, [])]
            begin = min(self._kept_from(state), state.avail)  # what is promised may not be written yet
            start = min(starts) if self.lane and starts else min([begin, *starts])
            self._follow_number += 1
            self._feeds[partition] = FetchBuffer(start, self._follow_number)
            mark = Mark(state.avail, state.epoch)
            self.reading.follow(partition, start, self._follow_number, mark)

    # -- resting

    def rest(self) -> None:
        """Ask for nothing until `wake_up`, and give back what is not in the application's hands.

        What others can have goes to them: of a shared subscription everything. A lane stays where it is.
        """
        self.resting = True
        self.poke()

    def wake_up(self) -> None:
        """Ask for messages again."""
        self.resting = False
        self.poke()

    def _keeps_nothing(self) -> bool:
        """Whether what was read for this member's leases goes back at once."""
        return self.resting and not self.lane

    def _release_ready(self) -> None:
        for chunk in [*self._urgent, *self._ready]:
            end = len(chunk.messages)
            chunk.verdicts[chunk.handed :] = bytes((RELEASED,)) * (end - chunk.handed)
            chunk.handed = end
            self._count_out(chunk, end)
            if chunk not in self._active:
                self._active.append(chunk)
        self._urgent.clear()
        self._ready.clear()

    # -- leaving

    def begin_close(self) -> None:
        """Hand out nothing more; what is in hands may still get its verdict.

        Takes no lock, and has the coordinator thread wake who waits: a signal handler may have interrupted
        the thread that holds the lock, or that is about to wait.
        """
        self.closing = True
        self._poke()

    @property
    def in_hands(self) -> int:
        """Records in the application's hands."""
        with self.lock:
            self._recount()
            return self._in_hands

    def release_all(self) -> None:
        """Give everything back.

        What was handed out uncounted, what was not as if it had never been granted.
        """
        with self.lock:
            for chunk in self._active:
                verdicts = chunk.verdicts
                for index in range(chunk.handed):
                    # another thread may give a verdict just now: nothing is called between look and change
                    if verdicts[index] == HANDED or verdicts[index] == REJECTED:
                        verdicts[index] = RELEASED
            self._force = True

    def farewell(self) -> Exchange | None:
        """The last exchange: verdicts, and the unread rest of every lease.

        None while another one is unanswered.
        """
        with self.lock:
            if self._pending is not None:
                return None
            exchange = self._compose(self._monotonic())
            rest: dict[int, list[Returned]] = {}
            for lease in self._leases.values():
                start = self._unread_from(lease)
                if start < lease.end:
                    rest.setdefault(lease.partition, []).append(
                        Returned(lease.token, start, lease.end, int(How.UNREAD))
                    )
            parts = {part.partition: part for part in exchange.parts}
            for partition, items in sorted(rest.items()):
                part = parts.get(partition)
                if part is not None:
                    parts[partition] = part._replace(returned=[*part.returned, *items])
                elif len(parts) < MAX_PARTITIONS:
                    parts[partition] = PartitionReport(partition=partition, returned=items)
            exchange = exchange._replace(parts=list(parts.values()), credit=0)
            self._pending = exchange
            return exchange

    def _is_unread(self, lease: Lease) -> bool:
        """Whether nothing of a lease is in the application's hands, or waits to be reported."""
        return not any(chunk.lease is lease and chunk.low < chunk.handed for chunk in self._active)

    def _unread_from(self, lease: Lease) -> int:
        for queue in (self._urgent, self._ready):
            for chunk in queue:
                if chunk.lease is lease and chunk.handed < len(chunk.messages):
                    return chunk.offset(chunk.handed)
        return lease.fill

    def abandon(self) -> None:
        """Nothing is confirmed any more: tell who still waits."""
        with self.lock:
            self._left = True
            waiting = [item.confirmation for item in (*self._carried.confirm, *self._confirm)]
            waiting += self._burials.values()
            self._confirm, self._burials = [], {}
        for confirmation in waiting:
            confirmation.resolve(self._fenced(_LEFT))

    def unconfirmed_acks(self) -> int:
        """Acknowledgements without waiting that were refused, or never answered."""
        with self.lock:
            waiting = sum(chunk.verdicts.count(ACKED) for chunk in self._active)
            waiting += sum(chunk.verdicts.count(ACKED) for chunk in self._kept)
            return self.fenced_acks + waiting + self._carried.acked

    def held_partitions(self) -> list[int]:
        """Partitions on which this member holds leases, at most 16."""
        with self.lock:
            return sorted({lease.partition for lease in self._leases.values()})[:MAX_PARTITIONS]

    def floors(self) -> dict[int, int]:
        """Lowest unsettled offsets as far as they are known here: what is mirrored to Kafka."""
        with self.lock:
            return {p: state.floor for p, state in self._states.items()}

    def statistics(self) -> dict[str, int]:
        """Numbers for people, of this moment.

        `leases`; `in_hands` and `buffered` (read ahead), records; `exchanges` so far; `live`: 1 after it has
        caught up and until it falls behind; `lag`: records that wait for this member, read or not;
        `followed`: partitions; `ranges_read` by themselves so far; `records_read` from Kafka so far, and
        `records_used`: those of them that leases took; `parked`: messages behind stuck keys of which only the
        offsets are kept; `promised`: offsets of this member's alone that are not written yet.
        """
        with self.lock:
            self._recount()
            return {
                "leases": len(self._leases),
                "in_hands": self._in_hands,
                "buffered": sum(feed.buffered for feed in self._feeds.values()),
                "exchanges": self._number,
                "live": int(self._live.live),
                "lag": self._behind().lag,
                "followed": len(self._feeds),
                "ranges_read": self._ranges_read,
                "records_read": self._read_records,
                "records_used": self._used_records,
                "parked": self._lanes.keys.parked,
                "promised": sum(map(promised, self._leases.values())),
            }


def _place(chunk: Chunk) -> tuple[int, int]:
    return chunk.lease.partition, chunk.first
