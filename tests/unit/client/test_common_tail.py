"""Members that share a tail fetcher miss no record, whenever they come, move and go.

The tail fetchers are stand-ins that read a list when they are told to; the rest is what runs in production.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kafkadur.fetch import common_tail, fetchers
from kafkadur.fetch.buffer import NOWHERE, FetchBuffer, Mark, ReadBatch, Records
from kafkadur.fetch.common_tail import CommonTail
from kafkadur.fetch.fetchers import Fetchers
from kafkadur.fetch.group_floors import GroupFloors
from kafkadur.fetch.tail_fetcher import TailFetcher
from kafkadur.runtime.stages import no_probe
from kafkadur_sharing.errors import IllegalState, KafkadurError

EPOCH = 3
PARTITIONS = 2


@dataclass(frozen=True)
class Record:
    """A record, as far as buffers and readers look at it."""

    at: int

    def offset(self) -> int:
        return self.at


@dataclass
class Log:
    """The partitions of a topic."""

    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)


@dataclass(eq=False)
class Tail:
    """Stands in for a tail fetcher: `step` obeys the commands, and gives what it reads."""

    log: Log
    member: Any
    park: Callable[[Any], bool] | None = None
    is_started: bool = False
    ended: bool = False
    followed: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    commands: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    compiled = False
    runs_here = True

    def follow(self, partition: int, offset: int, number: int, _mark: Mark = NOWHERE) -> None:
        self.commands.append(lambda: self.followed.__setitem__(partition, [number, offset]))

    def unfollow(self, partition: int) -> None:
        self.commands.append(lambda: cast("None", self.followed.pop(partition, None)))

    def compare(self, partition: int, mark: Mark) -> None:
        """Every log agrees."""

    def find_end(self, partition: int, incarnation: int) -> None:
        self.commands.append(lambda: self.member.found_end(partition, self.log.ends[partition], incarnation))

    def run(self, command: Callable[[], None]) -> None:
        self.commands.append(command)

    def note_room(self) -> None:
        """It never rests."""

    @property
    def has_commands(self) -> bool:
        return bool(self.commands)

    def start(self) -> None:
        self.is_started = True

    def stop(self) -> None:
        self.ended = True

    def join(self, _timeout: float) -> bool:
        return self.ended

    def step(self, most: int) -> None:
        """Obey, and read at most so many records of each partition."""
        if self.ended or not self.is_started:
            return
        while self.commands:
            self.commands.pop(0)()
        if self.member.has_enough:
            return
        for partition, place in list(self.followed.items()):
            number, offset = place
            end = min(self.log.ends[partition], offset + most)
            place[1] = end
            if end > offset:
                self.member.lead(partition, EPOCH, number)
                records = [Record(at) for at in range(offset, end)]
                self.member.add_records(partition, records, number)
            if end == self.log.ends[partition]:
                self.member.reach(partition, end, number)

    def rest(self) -> None:
        """Have another reader follow everything, if there is nothing to read."""
        if self.ended or not self.is_started or self.park is None:
            return
        if all(place[1] == self.log.ends[partition] for partition, place in self.followed.items()):
            places = {
                partition: (number, offset, Mark(offset, EPOCH))
                for partition, (number, offset) in self.followed.items()
            }
            self.ended = self.park(places)


class Member:
    """Keeps what it is given, as the intake of a member does."""

    def __init__(self, name: str) -> None:
        self.display = name
        self.buffers: dict[int, FetchBuffer] = {}
        #: offset at which it began to follow a partition
        self.begun: dict[int, int] = {}
        #: offsets that it got since
        self.got: dict[int, list[int]] = {}
        self.has_enough = False
        self.breaks = False
        self.failure: KafkadurError | None = None
        self.ends: list[tuple[int, int, int]] = []
        self.partitions = 0

    def follow(self, partition: int, offset: int, number: int) -> None:
        self.buffers[partition] = FetchBuffer(offset, number)
        self.begun[partition] = offset
        self.got[partition] = []

    def _of(self, partition: int, number: int) -> FetchBuffer | None:
        buffer = self.buffers.get(partition)
        return buffer if buffer is not None and buffer.number == number else None

    def add_records(self, partition: int, messages: Records, number: int) -> None:
        if self.breaks:
            raise ZeroDivisionError
        if (buffer := self._of(partition, number)) is not None:
            buffer.add(ReadBatch(messages, len(messages)))
            pieces, _ = buffer.take(self.begun[partition], 10**9)
            self.got[partition] += [message.offset() or 0 for some, _, _ in pieces for message in some]

    def reach(self, partition: int, offset: int, number: int) -> None:
        if (buffer := self._of(partition, number)) is not None:
            buffer.reach(offset)

    def lead(self, partition: int, epoch: int, number: int) -> None:
        """The epoch is always the same."""

    def grown(self, partitions: int) -> None:
        self.partitions = partitions

    def found_end(self, partition: int, offset: int, incarnation: int) -> None:
        self.ends.append((partition, offset, incarnation))

    def floors(self) -> dict[int, int]:
        return {}

    def fail(self, error: KafkadurError) -> None:
        self.failure = error


class World:
    """A connection with members of one topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = Log()
        self.tails: list[Tail] = []
        monkeypatch.setattr(fetchers, "TailFetcher", self._tail)
        self.common = CommonTail("t", lambda common: cast("TailFetcher", self._tail(member=common)))
        self.numbers = 0

    def _tail(self, *, member: object, park: Any = None, **_more: object) -> Tail:
        self.tails.append(Tail(self.log, member, park))
        return self.tails[-1]

    def attach(self) -> tuple[Member, Fetchers]:
        member = Member(f"member {len(self.tails)}")
        reading = Fetchers(
            cast("Any", member),
            kafka={},
            topic="t",
            topic_id="",
            group="g",
            floor_metadata="",
            common=self.common,
            floors=GroupFloors(lambda: pytest.fail("nothing is mirrored")),
            probe=no_probe,
        )
        reading.start()
        return member, reading

    def follow(self, member: Member, reading: Fetchers, partition: int, offset: int, mark: Mark) -> None:
        self.numbers += 1
        member.follow(partition, offset, self.numbers)
        reading.follow(partition, offset, self.numbers, mark)

    def step(self, most: int = 10) -> None:
        for tail in list(self.tails):
            tail.step(most)

    def settle(self) -> None:
        """Let all read to the end."""
        for _ in range(100):
            self.step()

    @property
    def running(self) -> list[Tail]:
        return [tail for tail in self.tails if tail.is_started and not tail.ended]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Provide a connection whose members share a reader from the first one on."""
    monkeypatch.setattr(common_tail, "OWN_FETCHERS", 0)
    return World(monkeypatch)


def all_got(world: World, member: Member) -> bool:
    """Whether a member has everything that was written since it began to follow."""
    return member.got == {
        partition: list(range(begun, world.log.ends[partition])) for partition, begun in member.begun.items()
    }


def test_members_share_from_the_fifth_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    members = [world.attach() for _ in range(common_tail.OWN_FETCHERS + 3)]
    for member, reading in members:
        world.follow(member, reading, 0, 0, NOWHERE)
    world.step()
    assert len(world.running) == common_tail.OWN_FETCHERS + 1
    for tail in world.running:
        tail.rest()
    assert len(world.running) == 1, "the first ones share it too, when there is nothing to read"
    world.log.ends[0] = 5
    world.settle()
    assert all(all_got(world, member) for member, _ in members)
    for _, reading in members:
        reading.stop()
    assert not world.running


def test_a_member_with_enough_reads_alone(world: World) -> None:
    slow, quick = world.attach(), world.attach()
    for member, reading in (slow, quick):
        world.follow(member, reading, 0, 0, NOWHERE)
    world.log.ends[0] = 3
    world.step()
    slow[0].has_enough = True
    world.log.ends[0] = 6
    world.step()
    assert len(quick[0].got[0]) == 3, "it waits for a moment"
    assert len(world.running) == 1
    world.step()
    assert len(world.running) == 2, "and no longer"
    world.step()
    assert all_got(world, quick[0])
    assert len(slow[0].got[0]) == 3
    slow[0].has_enough = False
    world.step()
    assert all_got(world, slow[0])


def test_behind_the_others_a_member_reads_alone(world: World) -> None:
    world.log.ends[0] = 100
    first, late = world.attach(), world.attach()
    world.follow(*first, 0, 100, Mark(100, EPOCH))
    world.follow(*late, 0, 40, Mark(100, EPOCH))
    world.step(5)
    assert len(world.running) == 2
    world.log.ends[0] = 101
    world.settle()
    assert all_got(world, first[0])
    assert all_got(world, late[0])


@pytest.mark.parametrize("mark", [Mark(10, EPOCH + 1), Mark(10, EPOCH - 1), Mark(12, EPOCH)])
def test_where_the_logs_may_differ_a_member_reads_alone(world: World, mark: Mark) -> None:
    """Its reader finds out; for the others nothing has changed."""
    world.log.ends[0] = 10
    first, other = world.attach(), world.attach()
    world.follow(*first, 0, 10, Mark(10, EPOCH))
    world.follow(*other, 0, 10, mark)
    world.step()
    assert len(world.running) == 2


def test_a_later_doubt_about_the_log_makes_a_member_read_alone(world: World) -> None:
    world.log.ends[0] = 10
    first, other = world.attach(), world.attach()
    for each in (first, other):
        world.follow(*each, 0, 10, Mark(10, EPOCH))
    world.step()
    other[1].compare(0, Mark(10, EPOCH))
    world.step()
    assert len(world.running) == 1
    other[1].compare(0, Mark(10, EPOCH + 1))
    world.step()
    assert len(world.running) == 2
    world.log.ends[0] = 12
    world.settle()
    assert all_got(world, first[0])
    assert all_got(world, other[0])


def test_a_reader_that_fails_leaves_all_to_their_own(world: World) -> None:
    members = [world.attach() for _ in range(3)]
    for member, reading in members:
        world.follow(member, reading, 0, 0, NOWHERE)
        reading.find_end(0, 7)
    world.log.ends[0] = 4
    (tail,) = world.running
    tail.ended = True  # as its thread does
    world.common.fail(IllegalState("it cannot read"))
    assert len(world.running) == 3
    world.settle()
    assert all(all_got(world, member) for member, _ in members)
    assert [member.ends for member, _ in members] == [[(0, 4, 7)]] * 3
    assert not any(member.failure for member, _ in members), "their own readers tell them"


def test_one_that_comes_after_a_failure_gets_a_new_reader(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before the others have left the reader that failed."""
    for _ in range(2):
        world.follow(*world.attach(), 0, 0, NOWHERE)
    world.step()
    late: list[tuple[Member, Fetchers]] = []
    take_over = Fetchers.take_over

    def meanwhile(self: Fetchers, *left: Any) -> None:
        if not late:
            late.append(world.attach())
            world.follow(*late[0], 0, 0, NOWHERE)
        take_over(self, *left)

    monkeypatch.setattr(Fetchers, "take_over", meanwhile)
    (tail,) = world.running
    tail.ended = True
    world.common.fail(IllegalState("it cannot read"))
    world.log.ends[0] = 3
    world.settle()
    assert all_got(world, late[0][0])


def test_floors_of_an_earlier_subscription_are_not_committed_for_a_later_one() -> None:
    """Both have the same group; the earlier one had settled more."""
    committed: list[tuple[str, dict[int, int], str]] = []
    begun, goes_on = threading.Event(), threading.Event()

    class Slow:
        def commit(self, group: str, _topic: str, floors: dict[int, int], *, metadata: str) -> None:
            begun.set()
            assert goes_on.wait(10)
            committed.append((group, floors, metadata))

        def close(self) -> None:
            """Nothing is open."""

    floors = GroupFloors(lambda: cast("Any", Slow()))
    floors.mirror("another", "t", {0: 1}, "a")
    assert begun.wait(10)
    floors.mirror("g", "t", {0: 100}, "earlier")
    floors.mirror("g", "t", {1: 7}, "later")
    floors.mirror("g", "t", {1: 8}, "later")
    goes_on.set()
    assert floors.flush("g", 10)
    assert committed == [("another", {0: 1}, "a"), ("g", {1: 8}, "later")]


def test_a_reader_that_still_ends_leaves_the_next_one_alone(world: World) -> None:
    first = world.attach()
    (old,) = world.running
    first[1].stop()
    second = world.attach()
    world.follow(*second, 0, 0, NOWHERE)
    (new,) = world.running
    new.runs_here = False  # as the old one calls
    world.common.fail(IllegalState("it cannot read"))
    assert world.common.has_enough
    new.runs_here = True
    world.log.ends[0] = 3
    world.settle()
    assert world.running == [new]
    assert old.ended
    assert all_got(world, second[0])


def test_a_defect_ends_only_the_member_that_it_is_in(world: World) -> None:
    broken, other = world.attach(), world.attach()
    for each in (broken, other):
        world.follow(*each, 0, 0, NOWHERE)
    broken[0].breaks = True
    world.log.ends[0] = 2
    world.step()
    world.log.ends[0] = 4
    world.step()
    assert "ZeroDivisionError" in str(broken[0].failure)
    assert other[0].failure is None
    assert all_got(world, other[0])


def test_all_are_told_of_partitions_that_were_added(world: World) -> None:
    first = world.attach()
    world.step()
    world.common.grown(5)
    second = world.attach()
    world.step()
    assert (first[0].partitions, second[0].partitions) == (5, 5)


def test_each_question_for_an_end_is_answered_with_one_that_was_asked_later(world: World) -> None:
    first, second = world.attach(), world.attach()
    first[1].find_end(1, 4)
    second[1].find_end(1, 9)
    world.log.ends[1] = 8
    world.step()
    assert first[0].ends == [(1, 8, 4)]
    assert second[0].ends == [(1, 8, 9)]


class Life(RuleBasedStateMachine):
    """Members come, follow, are slow, move and go while records are written and read."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(common_tail, "OWN_FETCHERS", 1)
        self.world = World(self.patch)
        self.members: list[tuple[Member, Fetchers]] = []

    def teardown(self) -> None:
        try:
            for member, _ in self.members:
                member.has_enough = False
            self.world.settle()
            for member, _ in self.members:
                assert all_got(self.world, member), member.got
            for _, reading in self.members:
                reading.stop()
            assert not self.world.running
        finally:
            self.patch.undo()

    @initialize(ends=st.lists(st.integers(0, 20), min_size=PARTITIONS, max_size=PARTITIONS))
    def write_first(self, ends: list[int]) -> None:
        self.world.log.ends = ends
        for _ in range(4):
            self.members.append(self.world.attach())
            for partition, end in enumerate(ends):
                self.world.follow(*self.members[-1], partition, end, Mark(end, EPOCH))
        self.world.step()

    @precondition(lambda self: len(self.members) < 6)
    @rule()
    def attach(self) -> None:
        self.members.append(self.world.attach())

    def some(self, which: int) -> tuple[Member, Fetchers]:
        return self.members[which % len(self.members)]

    @precondition(lambda self: self.members)
    @rule(
        which=st.integers(0, 5),
        partition=st.integers(0, PARTITIONS - 1),
        behind=st.integers(0, 9),
        known=st.booleans(),
    )
    def follow(self, which: int, partition: int, behind: int, *, known: bool) -> None:
        end = self.world.log.ends[partition]
        offset = max(end - behind, 0)
        self.world.follow(*self.some(which), partition, offset, Mark(offset, EPOCH) if known else NOWHERE)

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5), partition=st.integers(0, PARTITIONS - 1))
    def unfollow(self, which: int, partition: int) -> None:
        member, reading = self.some(which)
        for known in (member.buffers, member.begun, member.got):
            cast("dict[int, Any]", known).pop(partition, None)
        reading.unfollow(partition)

    @precondition(lambda self: self.members)
    @rule(
        which=st.integers(0, 5),
        partition=st.integers(0, PARTITIONS - 1),
        epoch=st.integers(EPOCH - 1, EPOCH + 1),
    )
    def compare(self, which: int, partition: int, epoch: int) -> None:
        member, reading = self.some(which)
        if partition in member.begun:
            reading.compare(partition, Mark(member.begun[partition], epoch))

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5), slow=st.booleans())
    def change_pace(self, which: int, *, slow: bool) -> None:
        self.some(which)[0].has_enough = slow

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 8))
    def write(self, partition: int, count: int) -> None:
        self.world.log.ends[partition] += count

    @precondition(lambda self: self.world.running)
    @rule(which=st.integers(0, 9), most=st.integers(1, 4))
    def read(self, which: int, most: int) -> None:
        self.world.running[which % len(self.world.running)].step(most)

    @rule()
    def read_all(self) -> None:
        self.world.step(3)

    @precondition(lambda self: self.world.running)
    @rule(which=st.integers(0, 9))
    def rest(self, which: int) -> None:
        self.world.running[which % len(self.world.running)].rest()

    @precondition(lambda self: self.world.running)
    @rule()
    def fail(self) -> None:
        for tail in self.world.running:
            if tail.member is self.world.common:
                tail.ended = True
                self.world.common.fail(IllegalState("it cannot read"))

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5))
    def leave(self, which: int) -> None:
        _, reading = self.members.pop(which % len(self.members))
        reading.stop()

    @invariant()
    def nothing_is_skipped(self) -> None:
        for member, _ in self.members:
            for partition, offsets in member.got.items():
                begun = member.begun[partition]
                assert offsets == list(range(begun, begun + len(offsets)))


def test_no_record_is_skipped_whatever_happens() -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=100,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
