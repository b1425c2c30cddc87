"""The machine of one member, driven step by step: no servers, no threads, time from a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from kafkadur import LeaseLost
from kafkadur.consumer.chunk import ACKED, RELEASED, ROLLED_BACK, Chunk
from kafkadur.consumer.member import Callbacks, Member
from kafkadur.consumer.schedule import CONFIRM_WITHIN
from kafkadur.consumer.terms import Terms
from kafkadur.fetch.buffer import NOWHERE, FetchBuffer, Mark
from kafkadur.runtime.coordinator_thread import CoordinatorThread
from kafkadur.runtime.served import Served
from kafkadur_coordinators.interface import (
    Attached,
    Exchange,
    ExchangeReply,
    Grant,
    PartitionState,
    Role,
    Standing,
)
from kafkadur_sharing.definition import Definition, SubscriptionType


class Reading:
    """Notes what the member asks of its readers."""

    compiled = False

    def __init__(self) -> None:
        self.followed: dict[int, tuple[int, int]] = {}
        self.marks: dict[int, Mark] = {}
        self.ranges: list[tuple[int, int, int, int]] = []
        self.asked: list[tuple[int, int]] = []

    def start(self) -> None:
        raise AssertionError("no thread here")

    def stop(self) -> None:
        raise AssertionError("no thread here")

    def join(self, timeout: float) -> bool:
        raise AssertionError(f"no thread here to wait for, {timeout} s")

    def read_inline(self, timeout: float, is_over: Callable[[], bool]) -> bool:
        raise AssertionError(f"no Kafka here to wait for, {timeout} s, over: {is_over()}")

    def interrupt(self) -> None:
        """Nobody waits for Kafka."""

    def follow(self, partition: int, offset: int, number: int, mark: Mark = NOWHERE) -> None:
        self.followed[partition] = (offset, number)
        self.marks[partition] = mark

    def compare(self, partition: int, mark: Mark) -> None:
        self.marks[partition] = mark

    def unfollow(self, partition: int) -> None:
        del self.followed[partition]

    def read_range(self, partition: int, start: int, end: int, token: int) -> None:
        self.ranges.append((partition, start, end, token))

    def find_end(self, partition: int, incarnation: int) -> None:
        self.asked.append((partition, incarnation))

    def note_room(self) -> None:
        """Nothing is read here."""


class Driver:
    """A member and the answers it gets."""

    def __init__(self, *, partitions: int, window: int = 100, lane: bool = False) -> None:
        self.reading = Reading()
        self.woken: list[bool] = []
        #: calls that told the coordinator thread to look at the member, and that made an exchange themselves
        self.asked = self.inline = 0
        self.heard_since = 0.0
        self.now = 1.0
        self.partitions = partitions
        terms = Terms(
            display="test",
            definition=Definition(
                type=SubscriptionType.EXCLUSIVE if lane else SubscriptionType.SHARED, topic="t"
            ),
            window=window,
            window_bytes=1_000_000,
            budget=100,
            session=10.0,
            monotonic=lambda: self.now,
        )
        self.member = Member(
            terms,
            Callbacks(
                readers=lambda _: self.reading,
                heard_since=lambda: self.heard_since,
                request_exchange=self._ask,
                exchange_inline=self._exchange_inline,
                write_dead_letter=lambda _: None,
                on_ready=lambda: self.woken.append(True),
                on_closing=lambda: None,
            ),
        )
        self._token = 0

    def _ask(self) -> None:
        self.asked += 1

    def _exchange_inline(self, _: Member) -> bool:
        self.inline += 1
        return False

    def attach(self, rank: int, members: int) -> None:
        role = Role(rank=rank, members=members, neighbour="", partitions=self.partitions)
        attached = Attached(role, grace_ms=0, attachment=1, incarnation=1)
        self.member.attached(attached, 1.0)

    def exchange(
        self, rank: int, members: int, states: Sequence[PartitionState], grants: Sequence[Grant] = ()
    ) -> Exchange:
        self.member.request_exchange()
        exchange = self.member.build(1.0)
        assert exchange is not None
        self._token = max([self._token, *(grant.token for grant in grants)])
        self.member.apply(self.reply(rank, members, states, grants), 1.0)
        return exchange

    def reply(
        self, rank: int, members: int, states: Sequence[PartitionState], grants: Sequence[Grant] = ()
    ) -> ExchangeReply:
        """What the coordinator answers."""
        return ExchangeReply(
            token=self._token,
            silent_ms=None,
            role=Role(rank=rank, members=members, neighbour="", partitions=self.partitions),
            grants=grants,
            horizons={},
            refused=(),
            partitions=states,
            watches=(),
            orphaned=(),
            standing=Standing.ACTIVE,
            held=None,
            paused=False,
            grace_ms=0,
        )

    def records(self, partition: int, offsets: range, number: int | None = None) -> None:
        if number is None:
            number = self.reading.followed[partition][1]
        messages = [Message(topic="t", partition=partition, offset=o, value=b"x") for o in offsets]
        self.member.intake.add_records(partition, messages, number)

    def block(self) -> tuple[Chunk, int, int]:
        block = self.member.next_block(1_000)
        assert block is not None
        return block


def state(partition: int, *, next_: int, readable_end: int) -> PartitionState:
    return PartitionState(
        partition=partition, base=0, next=next_, readable_end=readable_end, floor=0, due_ms=-1
    )


def lease(token: int, partition: int, start: int, end: int) -> Grant:
    return Grant(token, partition, start, end, 0, redelivered=False, kind="range", seen=0)


def settled_offsets(exchange: Exchange) -> set[int]:
    """Offsets that an exchange settles by ranges."""
    found: set[int] = set()
    for part in exchange.parts:
        for item in part.settled:
            pairs = item.ranges
            for a, b in zip(pairs[::2], pairs[1::2], strict=True):
                found |= set(range(a, b))
    return found


def test_the_reader_is_told_how_far_the_log_was_read_under_which_leader() -> None:
    driver = Driver(partitions=1)
    driver.exchange(0, 1, [state(0, next_=3, readable_end=7)._replace(epoch=4)], [lease(1, 0, 0, 3)])
    assert driver.reading.marks == {0: Mark(7, 4)}
    number = driver.reading.followed[0][1]
    driver.member.intake.lead(0, 5, number)
    driver.member.intake.lead(0, 9, number - 1)  # an assignment from before
    driver.records(0, range(9))
    said = driver.exchange(0, 1, [state(0, next_=9, readable_end=9)])
    assert (said.parts[0].readable_end, said.parts[0].epoch) == (9, 5)
    driver.member.wake()
    assert driver.exchange(0, 1, []).parts[0].epoch == -1, "nothing new"


def test_records_of_an_earlier_assignment_are_no_gap() -> None:
    """A partition is given up and taken back before the reader obeys: what it still brings is dropped."""
    driver = Driver(partitions=2)
    driver.attach(0, 1)
    both = [state(0, next_=0, readable_end=1000), state(1, next_=0, readable_end=1000)]
    driver.exchange(0, 1, both)
    first = driver.reading.followed[1][1]
    driver.records(1, range(500))
    driver.exchange(0, 2, both)  # a second member came: partition 1 is its home
    assert 1 not in driver.reading.followed
    driver.exchange(0, 1, both)  # it left again
    driver.records(1, range(500, 1000), first)  # the reader has not obeyed yet
    driver.member.intake.reach(1, 1000, first)
    driver.records(1, range(1000))
    driver.exchange(0, 1, [state(1, next_=100, readable_end=1000)], [lease(1, 1, 0, 100)])
    chunk, start, end = driver.block()
    assert (chunk.offset(start), chunk.offset(end - 1)) == (0, 99)
    assert settled_offsets(driver.exchange(0, 1, both)) == set()


def test_lease_on_a_partition_given_up_in_the_same_answer_is_read_as_a_range() -> None:
    driver = Driver(partitions=2)
    driver.attach(0, 1)
    driver.exchange(
        0, 2, [state(0, next_=0, readable_end=10), state(1, next_=10, readable_end=10)], [lease(1, 1, 0, 10)]
    )
    assert driver.reading.ranges == [(1, 0, 10, 1)]
    messages = [Message(topic="t", partition=1, offset=o, value=b"x") for o in range(10)]
    assert driver.member.intake.add_range_records(1, messages, 10) is False
    chunk, start, end = driver.block()
    assert [chunk.offset(i) for i in range(start, end)] == list(range(10))


def test_after_a_pause_of_being_heard_nothing_is_dispatched_before_an_exchange() -> None:
    """Other members may hold its leases by now (invariant I5)."""
    driver = Driver(partitions=1)
    driver.attach(0, 1)
    driver.exchange(0, 1, [state(0, next_=2, readable_end=2)], [lease(1, 0, 0, 2)])
    driver.records(0, range(2))
    for heard_since in (float("inf"), 1.5):  # not heard; heard again, after the last exchange
        driver.heard_since = heard_since
        assert driver.member.next_block(1) is None
        assert not driver.member.unblock()
    assert driver.member.due(2.0) <= 2.0, "an exchange is due at once"
    exchange = driver.member.build(2.0)
    assert exchange is not None
    driver.member.apply(driver.reply(0, 1, [], []), 2.0)
    assert driver.member.next_block(1) is not None


def test_a_lease_that_waits_for_records_keeps_the_reader_going() -> None:
    driver = Driver(partitions=2, window=10_000)
    driver.attach(0, 1)
    driver.exchange(0, 1, [state(0, next_=0, readable_end=0), state(1, next_=0, readable_end=0)])
    driver.records(0, range(30_000))
    assert driver.member.intake.has_enough
    driver.exchange(0, 1, [state(1, next_=10, readable_end=10)], [lease(1, 1, 0, 10)])
    assert not driver.member.intake.has_enough


def test_gaps_are_settled_once_a_later_record_was_read() -> None:
    driver = Driver(partitions=1)
    driver.attach(0, 1)
    driver.exchange(0, 1, [state(0, next_=0, readable_end=0)])
    driver.records(0, range(3))
    driver.exchange(0, 1, [state(0, next_=10, readable_end=10)], [lease(1, 0, 0, 10)])
    assert settled_offsets(driver.exchange(0, 1, [])) == set()
    driver.records(0, range(8, 9))
    assert settled_offsets(driver.exchange(0, 1, [])) == {3, 4, 5, 6, 7}
    driver.member.intake.reach(0, 12, driver.reading.followed[0][1])
    assert settled_offsets(driver.exchange(0, 1, [])) == {9}


def test_what_was_set_aside_comes_in_order_however_it_is_read() -> None:
    """What lies far back is read by itself, and later than what the tail fetcher still has."""
    driver = Driver(partitions=1, lane=True)
    driver.attach(0, 1)
    far = Grant(2, 0, 5, 7, 1, redelivered=True, kind="runs", seen=0, stretch=(5, 7))
    near = Grant(3, 0, 199_990, 199_992, 1, redelivered=True, kind="runs", seen=0, stretch=(199_990, 199_992))
    lane = Grant(4, 0, 200_000, 200_100, 0, redelivered=False, kind="lane", seen=0)
    driver.exchange(0, 1, [state(0, next_=200_100, readable_end=200_000)], [far, near, lane])
    assert driver.reading.ranges == [(0, 5, 7, 2)]
    driver.records(0, range(199_990, 200_010))
    assert driver.member.next_block(10) is None, "what comes first was not read yet"
    messages = [Message(topic="t", partition=0, offset=o, value=b"x") for o in (5, 6)]
    assert driver.member.intake.add_range_records(2, messages, 7) is False
    seen: list[int] = []
    while len(seen) < 4:
        chunk, start, end = driver.block()
        seen += [chunk.offset(index) for index in range(start, end)]
    assert seen == [5, 6, 199_990, 199_991]


def test_window_bounds_what_is_handed_out() -> None:
    driver = Driver(partitions=1, window=5)
    driver.attach(0, 1)
    driver.exchange(0, 1, [state(0, next_=0, readable_end=0)])
    driver.records(0, range(20))
    driver.exchange(0, 1, [state(0, next_=20, readable_end=20)], [lease(1, 0, 0, 20)])
    chunk, start, end = driver.block()
    assert end - start == 5
    assert driver.member.next_block(1_000) is None
    chunk.verdicts[start] = 2
    _, start, end = driver.block()
    assert (start, end) == (5, 6)


def waiting(window: int, verdict: int) -> Driver:
    """Return a member whose one message has this verdict, and whose application waits for another message."""
    driver = Driver(partitions=1, window=window)
    driver.attach(0, 1)
    driver.exchange(0, 1, [state(0, next_=0, readable_end=0)])
    driver.records(0, range(1))
    driver.exchange(0, 1, [state(0, next_=1, readable_end=1)], [lease(1, 0, 0, 1)])
    chunk, start, _ = driver.block()
    chunk.returns = verdict != ACKED
    chunk.verdicts[start] = verdict
    driver.asked = 0
    assert driver.member.next_block(1) is None
    return driver


def test_acknowledgements_are_sent_within_their_time_while_the_application_waits() -> None:
    """The coordinator thread sleeps longer than that: it is told once, and makes the exchange then."""
    driver = waiting(100, ACKED)
    for _ in range(2):
        assert not driver.member.exchange_inline()
        assert (driver.inline, driver.asked) == (0, 1)
    assert driver.member.due(driver.now) == driver.now + CONFIRM_WITHIN
    driver.now += CONFIRM_WITHIN
    driver.member.exchange_inline()
    assert driver.inline == 1
    exchange = driver.member.build(driver.now)
    assert exchange is not None
    assert settled_offsets(exchange) == {0}


@pytest.mark.parametrize(("window", "verdict"), [(1, ACKED), (2, ACKED), (100, ROLLED_BACK), (100, RELEASED)])
def test_what_brings_messages_is_sent_at_once_while_the_application_waits(window: int, verdict: int) -> None:
    """Room in a small window, and messages that come again."""
    driver = waiting(window, verdict)
    driver.member.exchange_inline()
    assert driver.inline == 1


@pytest.mark.parametrize(
    ("acknowledged", "horizon", "at_once"),
    [
        (1, 200, False),
        (50, 200, False),
        (51, 200, True),  # more than half of the budget
        (1, 101, True),  # less than half of the span is left
    ],
)
def test_acknowledgements_of_a_lane_wait_while_they_bring_nothing(
    acknowledged: int, horizon: int, *, at_once: bool
) -> None:
    driver = Driver(partitions=1, window=100, lane=True)
    driver.attach(0, 1)
    lane = lease(1, 0, 0, horizon)._replace(kind="lane")
    driver.exchange(0, 1, [state(0, next_=horizon, readable_end=0)], [lane])
    driver.records(0, range(acknowledged))
    driver.member.request_exchange()
    assert driver.member.build(1.0) is not None  # it reports the readable end
    driver.member.apply(
        driver.reply(0, 1, [state(0, next_=horizon, readable_end=acknowledged)]),
        1.0,
    )
    chunk, start, end = driver.block()
    chunk.verdicts[start:end] = bytes((ACKED,)) * acknowledged
    assert driver.member.next_block(1) is None
    driver.member.exchange_inline()
    assert bool(driver.inline) == at_once


def test_the_end_of_the_log_moves_while_an_exchange_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's thread notes the end without the lock, between any two looks at it."""
    driver = Driver(partitions=1)
    driver.attach(0, 1)
    driver.exchange(0, 1, [state(0, next_=0, readable_end=0)])
    number = driver.reading.followed[0][1]
    driver.member.intake.end_at(0, 0, number)
    unread = vars(FetchBuffer)["unread"].fget
    looks: list[int | None] = []

    def look(feed: FetchBuffer) -> int | None:
        looks.append(unread(feed))
        driver.member.intake.end_at(0, 10, number)
        return looks[-1]

    monkeypatch.setattr(FetchBuffer, "unread", property(look))
    driver.member.request_exchange()
    exchange = driver.member.build(1.0)
    assert looks[0] == 0, "it was at the end"
    assert exchange is not None
    assert exchange.parts[0].reserve > 0


def test_a_repeated_exchange_is_the_same() -> None:
    driver = Driver(partitions=1)
    driver.attach(0, 1)
    first = driver.member.build(1.0)
    assert first is not None
    assert driver.member.build(2.0) is first


def test_stopping_in_a_signal_handler_does_not_wait_for_the_thread_it_interrupts() -> None:
    """That thread may hold the lock."""
    driver = Driver(partitions=1)
    driver.attach(0, 1)
    driver.woken.clear()
    with driver.member.lock:
        driver.member.begin_close()
    driver.member.look_around(1.0)  # the coordinator thread's thread
    assert driver.woken == [True]
    assert driver.member.next_block(1) is None


def test_a_change_that_was_broken_off_ends_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C raises an exception anywhere: records without a lease must not become a gap that is settled."""
    driver = Driver(partitions=1)
    driver.attach(0, 1)
    driver.exchange(0, 1, [state(0, next_=0, readable_end=0)])
    driver.exchange(0, 1, [state(0, next_=20, readable_end=20)], [lease(1, 0, 0, 20)])

    def interrupted(_: int) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(driver.member.intake._router, "route", interrupted)  # noqa: SLF001 - to break it off there
        with pytest.raises(KeyboardInterrupt):
            driver.records(0, range(10))
    with pytest.raises(LeaseLost, match="interrupted in the middle"):
        driver.records(0, range(10, 20))
    with pytest.raises(LeaseLost, match="interrupted in the middle"):
        driver.member.build(1.0)
    driver.member.release_all()
    assert isinstance(driver.member.failed, LeaseLost)
    exchange = driver.member.farewell()
    assert exchange is None or settled_offsets(exchange) == set()


def test_a_change_that_was_broken_off_while_an_exchange_is_under_way_is_no_defect() -> None:
    """The coordinator thread meets it when the answer comes: that is a `LeaseLost` as well."""
    driver = Driver(partitions=1)
    driver.attach(0, 1)
    driver.member.request_exchange()
    assert driver.member.build(1.0) is not None
    driver.member._state.change.begin()  # noqa: SLF001 - and it is broken off
    served: Any = SimpleNamespace(member=driver.member)

    def step(_: Served) -> None:
        driver.member.apply(driver.reply(0, 1, []), 1.0)

    CoordinatorThread._guarded(served, step)  # noqa: SLF001 - what the thread calls
    assert isinstance(driver.member.failed, LeaseLost)


def test_open_transactions_are_not_blamed_for_what_a_full_member_does_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A partition whose end was reached grows while the reader pauses: another one fills the member."""
    driver = Driver(partitions=2, window=10_000)
    driver.attach(0, 1)
    driver.exchange(0, 1, [state(0, next_=0, readable_end=0), state(1, next_=0, readable_end=0)])
    member, number = driver.member, driver.reading.followed[1][1]
    member.intake.reach(1, 0, number)
    member.intake.end_at(1, 500, number)

    def look_for(seconds: int) -> str:
        for _ in range(seconds):
            driver.now += 1.0
            member.look_around(driver.now)
        return caplog.text

    driver.records(0, range(30_000))
    full = member.intake.has_enough
    assert full
    assert not look_for(10)
    driver.exchange(0, 1, [state(1, next_=10, readable_end=10)], [lease(1, 1, 0, 10)])
    assert not member.intake.has_enough, "it reads, and nothing comes"
    assert not look_for(2)
    assert "500 offsets of t[1] wait behind an open transaction" in look_for(4)


def test_a_log_that_was_cut_off_has_no_floor_until_the_coordinator_knows() -> None:
    """Mirrored beyond the cut, it would be believed after a loss of Redis."""
    driver = Driver(partitions=2)
    driver.attach(0, 1)
    driver.exchange(0, 1, [state(number, next_=5, readable_end=5) for number in range(2)])
    intake = driver.member.intake
    assert intake.floors() == {0: 0, 1: 0}
    intake.cut(0, 3)
    assert intake.floors() == {1: 0}


def idle(driver: Driver) -> Member:
    """Let a member say all it has to say."""
    driver.attach(0, 1)
    driver.exchange(0, 1, [state(0, next_=0, readable_end=0)])
    driver.exchange(0, 1, [state(0, next_=0, readable_end=0)])
    return driver.member


def test_the_session_of_an_idle_member_is_renewed_until_an_exchange_is_due() -> None:
    driver = Driver(partitions=1)
    member = idle(driver)
    made = 0
    while member.renewal.suffices(driver.now + 5.0):
        driver.now += 5.0
        member.renewal.made(driver.now)
        assert member.due(driver.now) == driver.now + 5.0
        made += 1
    assert made == 60
    driver.now += 5.0
    exchange = member.build(driver.now)
    assert exchange is not None
    member.apply(driver.reply(0, 1, []), driver.now)
    assert member.renewal.suffices(driver.now + 5.0)


def test_a_member_that_has_something_to_say_makes_an_exchange() -> None:
    driver = Driver(partitions=1)
    member = idle(driver)
    assert not member.renewal.suffices(driver.now), "it is not time yet"
    soon = driver.now + 5.0
    assert member.renewal.suffices(soon)
    driver.records(0, range(3))
    assert not member.renewal.suffices(soon), "the coordinator does not know what was read"
    driver.exchange(0, 1, [state(0, next_=3, readable_end=3)], [lease(1, 0, 0, 3)])
    assert member.renewal.suffices(soon)
    driver.block()
    assert not member.renewal.suffices(soon), "messages are in flight"


def test_after_a_renewal_that_did_not_suffice_exchanges_are_made_for_a_while() -> None:
    driver = Driver(partitions=1)
    member = idle(driver)
    passed = []
    for _ in range(4):
        member.renewal.failed()
        assert member.due(driver.now) <= driver.now
        count = 0
        while not member.renewal.suffices(driver.now + 5.0):
            driver.exchange(0, 1, [])
            count += 1
        passed.append(count)
    assert passed == [1, 2, 4, 8]


@pytest.mark.parametrize("reason", ["a wake", "a silent neighbour", "not heard"])
def test_other_reasons_for_an_exchange_come_first(reason: str) -> None:
    driver = Driver(partitions=1)
    member = idle(driver)
    if reason == "a wake":
        member.wake()
    elif reason == "a silent neighbour":
        member.report_silence()
    else:
        driver.heard_since = float("inf")
    assert not member.renewal.suffices(driver.now + 5.0)
