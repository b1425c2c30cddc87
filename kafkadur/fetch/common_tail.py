"""One tail fetcher for several members of a connection that read the same topic and have read all of it.

Each member has a tail fetcher of its own while it catches up: that is fast, and a slow member holds up no
other. A member with nothing left to read moves here if this reader stands at the same offset of the same log.
It leaves when it has more records than it wants. So a thousand subscriptions that wait for messages cost one
client of Kafka.

No member misses a record: it joins where this reader stands, and leaves at an offset up to which it was given
everything. Records that it is given twice are dropped by its buffers (`buffer.py`).
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from kafkadur.fetch.buffer import Mark, Records
from kafkadur.fetch.kafka_thread import Receiver
from kafkadur.fetch.tail_fetcher import Followed, TailFetcher
from kafkadur_sharing.errors import InternalError, KafkadurError

_log = logging.getLogger("kafkadur.readers")

#: Members of a topic that begin with a tail fetcher of their own. Later ones begin here if they can.
OWN_FETCHERS = 4
#: Records read in one call. A member may get so many more than it wants.
_AT_ONCE = 500
#: Members whose floors are looked at in one call, once a second.
_MIRRORED = 250


class Place(NamedTuple):
    """A partition with which a member leaves."""

    #: of the member's start of following it
    number: int
    #: the member was given every record before this offset, and may have been given later ones
    offset: int
    #: what is known of the log before that
    mark: Mark


class Follower(Protocol):
    """A member, as its common tail fetcher sees it."""

    @property
    def receiver(self) -> Receiver:
        """What gets the records."""
        ...

    def mirror_floors(self) -> None:
        """Mirror floors that have changed."""

    def take_over(self, places: Mapping[int, Place], ends: Mapping[int, int]) -> None:
        """Read these partitions alone from now on, and find these ends (`TailFetcher.find_end`).

        Called without a lock, in the thread of the common tail fetcher. Never raises.
        """


@dataclass(slots=True, eq=False)
class _Followed:
    """A partition that is followed."""

    #: of the tail fetcher's start of following it
    number: int
    #: all members were given everything before this offset, or are being given it
    read: int
    #: what is known of the log before `read`
    mark: Mark
    #: members, and the number of each one's start of following it
    members: dict[Follower, int] = field(default_factory=dict["Follower", int])


class CommonTail:
    """The members of one connection that read one topic, and the tail fetcher that some of them share.

    It is the one receiver of that tail fetcher. A member's locks may be held when its lock is taken, never
    the other way around.
    """

    def __init__(self, topic: str, tail: Callable[[CommonTail], TailFetcher]) -> None:
        """`tail` makes a tail fetcher of `topic`, when one is needed."""
        self.display = f"topic {topic}"
        self._make = tail
        self._lock = threading.Lock()
        self._tail: TailFetcher | None = None
        #: all members of the connection that read the topic, here or alone
        self._count = 0
        #: members without a tail fetcher of their own
        self._followers: set[Follower] = set()
        self._places: dict[int, _Followed] = {}
        #: members that were given records since it was looked last whether they have enough
        self._fed: set[Follower] = set()
        #: members that had enough at that look
        self._full: set[Follower] = set()
        #: ends that are asked for: partition -> member -> number of the question, incarnation
        self._asked: dict[int, dict[Follower, tuple[int, int]]] = {}
        self._numbers = itertools.count(1)
        #: how many partitions the topic has, as Kafka said last; 0: it has not said it yet
        self._partitions = 0
        #: where in the members the next call of `mirror_floors` begins
        self._mirrored = 0

    # -- members come and go

    def enter(self, follower: Follower) -> bool:
        """Count a new member; returns whether it begins without a tail fetcher of its own."""
        with self._lock:
            self._count += 1
            if self._count <= OWN_FETCHERS:
                return False
            self._admit(follower)
            return True

    def start(self) -> None:
        """Start the tail fetcher, unless it was started; raises `ResourceLimit` as that does."""
        with self._lock:
            if self._tail is not None and not self._tail.is_started:
                self._tail.start()

    def exit(self, follower: Follower) -> TailFetcher | None:
        """Count a member that has ended no more; returns the tail fetcher if this stopped it."""
        with self._lock:
            self._count -= 1
            self._remove(follower)
            if self._followers or self._tail is None:
                return None
            tail, self._tail = self._tail, None
            self._places.clear()
        tail.stop()
        return tail

    def move_in(self, follower: Follower, followed: Followed) -> bool:
        """Follow all partitions of a member that has read alone; False: it goes on alone."""
        with self._lock:
            if self._count <= OWN_FETCHERS:
                return False
            tail = self._admit(follower)
            if (tail.is_started or _started(tail)) and self._join(follower, followed):
                return True
            self._followers.discard(follower)
            return False

    def eject(self, follower: Follower) -> None:
        """Have a member read alone; in the thread of the tail fetcher, while no records are being given."""
        with self._lock:
            if follower not in self._followers:
                return
            left = self._remove(follower)
        follower.take_over(*left)

    def run(self, command: Callable[[], None]) -> bool:
        """Run a command soon in the thread of the tail fetcher; False: there is no such thread any more."""
        with self._lock:
            if self._tail is None:
                return False
            self._tail.run(command)
            return True

    def _admit(self, follower: Follower) -> TailFetcher:
        self._followers.add(follower)
        if self._tail is None:
            self._tail = self._make(self)
        if self._partitions:  # the tail fetcher tells only of a change
            self._tail.run(partial(self._tell_partitions, {follower: 0}))
        return self._tail

    def _tell_partitions(self, members: Mapping[Follower, int]) -> None:
        self._each(members, lambda receiver, _: receiver.grown(self._partitions))

    def _remove(self, follower: Follower) -> tuple[dict[int, Place], dict[int, int]]:
        """Give a member nothing more; returns what it leaves with (`Follower.take_over`)."""
        self._followers.discard(follower)
        self._fed.discard(follower)
        self._full.discard(follower)
        ends = {p: asked.pop(follower)[1] for p, asked in self._asked.items() if follower in asked}
        places = {
            partition: Place(place.members[follower], place.read, place.mark)
            for partition, place in self._places.items()
            if follower in place.members
        }
        for partition in places:
            self._leave(follower, partition)
        return places, ends

    # -- partitions of members

    def join(self, follower: Follower, partition: int, offset: int, number: int, mark: Mark) -> bool:
        """Give a member the records of a partition from `offset` on; False: it has to read it alone."""
        with self._lock:
            return follower in self._followers and self._join(follower, {partition: (number, offset, mark)})

    def _join(self, follower: Follower, followed: Followed) -> bool:
        for partition, (_, offset, mark) in followed.items():
            place = self._places.get(partition)
            if place is not None and not (place.read == offset and _may_be_one_log(place.mark, mark)):
                return False
        for partition, (number, offset, mark) in followed.items():
            place = self._places.get(partition)
            if place is None or (place.mark.epoch < 0 <= mark.epoch):
                # at its new start the log is compared with the mark
                place = self._follow(partition, offset, mark, {} if place is None else place.members)
            place.members[follower] = number
        return True

    def _follow(self, partition: int, offset: int, mark: Mark, members: dict[Follower, int]) -> _Followed:
        number = next(self._numbers)
        place = self._places[partition] = _Followed(number, offset, mark, members)
        if self._tail is not None:
            self._tail.follow(partition, offset, number, mark)
        return place

    def leave(self, follower: Follower, partition: int) -> None:
        """Give a member no more records of a partition."""
        with self._lock:
            self._leave(follower, partition)

    def _leave(self, follower: Follower, partition: int) -> None:
        place = self._places.get(partition)
        if place is None or place.members.pop(follower, None) is None or place.members:
            return
        del self._places[partition]
        if self._tail is not None:
            self._tail.unfollow(partition)

    def agrees(self, partition: int, mark: Mark) -> bool:
        """Whether the log of a partition is known to agree with `mark`."""
        with self._lock:
            place = self._places.get(partition)
            if mark.epoch < 0 or place is None:
                return True
            return mark.epoch == place.mark.epoch and mark.offset <= place.read

    def find_end(self, follower: Follower, partition: int, incarnation: int) -> None:
        """Ask Kafka where the log of a partition ends, and tell the member."""
        with self._lock:
            number = next(self._numbers)
            self._asked.setdefault(partition, {})[follower] = (number, incarnation)
            if self._tail is not None:
                self._tail.find_end(partition, number)

    def note_room(self, follower: Follower) -> None:
        """A member may have room for more records."""
        if follower in self._full:  # the tail fetcher pauses
            self.run(lambda: None)

    # -- calls of the tail fetcher

    @property
    def at_once(self) -> int:
        """Records that may be read in one call."""
        return _AT_ONCE

    @property
    def has_enough(self) -> bool:
        """Whether to pause: a member has had enough since the last look only.

        One that had enough at the last look, too, reads alone from now on: the others do not wait for it.
        """
        if not self._is_read_here():
            return True
        with self._lock:
            fed, self._fed = self._fed, set()
        full = {follower for follower in fed if follower.receiver.has_enough}
        for follower in full & self._full:
            self.eject(follower)
        with self._lock:
            self._full = (full - self._full) & self._followers
            self._fed |= self._full
            return bool(self._full)

    def fail(self, error: KafkadurError) -> None:
        """Reading cannot go on here. All members read alone, and find out themselves what is wrong."""
        with self._lock:
            if not self._is_read_here():
                return
            # at once: a member that comes from now on must find nothing of this tail fetcher
            leaving = [(follower, self._remove(follower)) for follower in list(self._followers)]
            self._tail = None
        _log.info("%s is not read for several subscriptions any more: %s", self.display, error)
        for follower, left in leaving:
            follower.take_over(*left)

    def add_records(self, partition: int, messages: Records, number: int) -> None:
        """Records that were read (not empty, in order)."""
        end = (messages[-1].offset() or 0) + 1
        members = self._reached(partition, end, number)
        with self._lock:
            self._fed |= members.keys() & self._followers
        some = iter([messages[:] for _ in range(len(members) - 1)])  # each member changes its list
        self._each(members, lambda receiver, own: receiver.add_records(partition, next(some, messages), own))

    def reach(self, partition: int, offset: int, number: int) -> None:
        """The tail fetcher came to the end of a partition, which is `offset`."""
        members = self._reached(partition, offset, number)
        self._each(members, lambda receiver, own: receiver.reach(partition, offset, own))

    def pass_by(self, partition: int, offset: int, number: int) -> None:
        """There are no records before `offset` but those that were added; more may follow."""
        members = self._reached(partition, offset, number)
        self._each(members, lambda receiver, own: receiver.pass_by(partition, offset, own))

    def end_at(self, partition: int, offset: int, number: int) -> None:
        """The log of a partition that is followed ends at `offset` now."""
        members = self._reached(partition, 0, number)
        self._each(members, lambda receiver, own: receiver.end_at(partition, offset, own))

    def lead(self, partition: int, epoch: int, number: int) -> None:
        """Records that come from now on were written under this leader epoch."""
        members = self._reached(partition, 0, number, epoch)
        self._each(members, lambda receiver, own: receiver.lead(partition, epoch, own))

    def grown(self, partitions: int) -> None:
        """The topic has so many partitions."""
        with self._lock:
            self._partitions = partitions
            members = dict.fromkeys(self._followers, 0)
        self._tell_partitions(members)

    def cut(self, partition: int, offset: int) -> None:
        """Kafka lost the records at or beyond `offset`: members follow the partition anew."""
        members = self._of(partition)
        with self._lock:
            if self._places.pop(partition, None) is not None and self._tail is not None:
                self._tail.unfollow(partition)
        self._each(members, lambda receiver, _: receiver.cut(partition, offset))

    def expire(self, partition: int, offset: int) -> None:
        """Kafka has removed the records before `offset`."""
        self._each(self._of(partition), lambda receiver, _: receiver.expire(partition, offset))

    def found_end(self, partition: int, offset: int, incarnation: int) -> None:
        """The log of a partition ended at `offset` when Kafka was asked; `incarnation`: the last question."""
        with self._lock:
            asked = self._asked.get(partition, {})
            members = {
                follower: asked.pop(follower)[1]
                for follower in list(asked)
                if asked[follower][0] <= incarnation
            }
        self._each(members, lambda receiver, own: receiver.found_end(partition, offset, own))

    def add_range_records(self, token: int, messages: Records, reached: int) -> bool:
        """Ranges are read by each member alone."""
        raise NotImplementedError

    def floors(self) -> dict[int, int]:
        """Each member mirrors its floors to a group of its own."""
        return {}

    def mirror_floors(self) -> None:
        """Have some members mirror their floors, in turns; in the thread of the tail fetcher."""
        with self._lock:
            followers = list(self._followers)
        if not followers:
            return
        first = self._mirrored % len(followers)
        self._mirrored = first + _MIRRORED
        for follower in [*followers[first:], *followers[:first]][:_MIRRORED]:
            follower.mirror_floors()

    def _of(self, partition: int) -> dict[Follower, int]:
        with self._lock:
            place = self._places.get(partition)
            return {} if place is None else dict(place.members)

    def _is_read_here(self) -> bool:
        """Whether this is the thread of the tail fetcher, and not of one that was stopped and still ends."""
        tail = self._tail
        return tail is not None and tail.runs_here

    def _reached(
        self, partition: int, offset: int, number: int, epoch: int | None = None
    ) -> dict[Follower, int]:
        """Note how far a partition is read, and its leader epoch if that is given; returns its members."""
        with self._lock:
            place = self._places.get(partition)
            if place is None or place.number != number:
                return {}
            place.read = max(place.read, offset)
            known = place.mark
            place.mark = Mark(max(known.offset, offset), known.epoch if epoch is None else epoch)
            return dict(place.members)

    def _each(self, members: Mapping[Follower, int], call: Callable[[Receiver, int], None]) -> None:
        """Call the receivers of members; an error ends only the member that raised it."""
        for follower, own in members.items():
            try:
                call(follower.receiver, own)
            except KafkadurError as error:
                self._end(follower, error)
            except Exception as error:  # noqa: BLE001 - any defect
                _log.error("%s met a defect", follower.receiver.display, exc_info=error)
                self._end(follower, InternalError.by(error, f"the reader of {self.display}"))

    def _end(self, follower: Follower, error: KafkadurError) -> None:
        with self._lock:
            self._remove(follower)
        follower.receiver.fail(error)


def _may_be_one_log(known: Mark, mark: Mark) -> bool:
    """Whether a log of which this is `known` may agree with `mark`, which is not beyond it."""
    return known.epoch < 0 or mark.epoch < 0 or (known.epoch == mark.epoch and mark.offset <= known.offset)


def _started(tail: TailFetcher) -> bool:
    try:
        tail.start()
    except KafkadurError as error:  # the member has a reader that runs
        _log.info("%s", error)
        return False
    return True
