"""Keys in order within one consumer, step by step over a clock from a list."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from kafkadur.handlers.order_by_key import HandlerKeyQueue


@dataclass
class Given:
    """A delivery as far as lines know it."""

    offset: int
    raw_key: bytes | None = b"a"
    partition: int = 0
    attempt: int = 1
    verdict: str = ""
    delay: float | None = None

    @property
    def undecided(self) -> bool:
        return self.verdict in ("", "lost")

    @property
    def lost(self) -> bool:
        return self.verdict == "lost"

    @property
    def comes_again(self) -> bool:
        return self.verdict in ("rolled back", "released")

    def release_later(self, delay: float) -> None:
        assert not self.verdict
        self.verdict, self.delay = "released", delay


@dataclass
class World:
    """Lines and their clock."""

    ordered: bool = True
    now: float = 100.0
    handovers: int = 0
    lines: HandlerKeyQueue[Given] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = HandlerKeyQueue(
            ordered=self.ordered,
            monotonic=lambda: self.now,
            back_off=float,
            patience=10.0,
            handovers=lambda: self.handovers,
        )

    def done(self, delivery: Given) -> Given | None:
        delivery.verdict = "acked"
        return self.lines.leave(delivery)

    def roll_back(self, delivery: Given, delay_ms: int = 0) -> Given | None:
        self.lines.rolled_back(delivery.partition, delivery.offset, delay_ms)
        delivery.verdict = "rolled back"
        return self.lines.leave(delivery)


def test_one_of_a_key_at_a_time_and_others_beside_it() -> None:
    world = World()
    first, second, other, none = Given(1), Given(2), Given(3, b"b"), Given(4, None)
    assert world.lines.enter(first)
    assert not world.lines.enter(second)
    assert world.lines.enter(other)
    assert world.lines.enter(none)
    assert world.lines.enter(Given(5, None)), "without a key there is no order"
    assert world.lines.enter(Given(6, b"a", partition=1)), "nor between partitions"
    assert world.done(first) is second
    assert world.done(second) is None
    assert world.done(none) is None
    assert world.lines.enter(Given(7))


def test_nothing_overtakes_what_was_rolled_back() -> None:
    world = World()
    first, second, third = Given(1), Given(2), Given(3)
    assert world.lines.enter(first)
    world.lines.enter(second)
    assert world.roll_back(first, 2_000) is None
    assert (second.verdict, second.delay) == ("released", 2.0)
    world.now += 0.5
    assert not world.lines.enter(third), "new ones neither"
    assert (third.verdict, third.delay) == ("released", 1.5)
    world.now += 1.5
    again = Given(1, attempt=2)
    assert world.lines.enter(again)
    assert not world.lines.enter(Given(2))
    following = world.done(again)
    assert following is not None
    assert following.offset == 2
    assert not world.lines.enter(Given(4)), "3 has not come again"
    assert not world.lines.enter(Given(3))
    following = world.done(following)
    assert following is not None
    assert following.offset == 3


def test_what_comes_before_its_turn_goes_back_for_a_moment() -> None:
    world = World()
    first, second = Given(1), Given(2)
    world.lines.enter(first)
    world.roll_back(first, 0)
    assert not world.lines.enter(second)
    assert second.delay == pytest.approx(0.05)


def test_the_policy_says_how_long_where_the_roll_back_does_not() -> None:
    world = World()
    first, second = Given(1, attempt=3), Given(2)
    world.lines.enter(first)
    world.lines.enter(second)
    world.roll_back(first, -1)
    assert second.delay == 3.0


def test_a_dead_letter_is_not_waited_for() -> None:
    world = World()
    first, second = Given(1), Given(2)
    world.lines.enter(first)
    world.lines.enter(second)
    first.verdict = "rejected"
    assert world.lines.leave(first) is second


def test_on_a_shared_subscription_nobody_waits() -> None:
    world = World(ordered=False)
    first, second = Given(1), Given(2)
    world.lines.enter(first)
    world.lines.enter(second)
    assert world.roll_back(first) is second
    assert world.done(second) is None
    assert world.lines.enter(Given(3))


def test_what_was_lost_or_settled_while_it_waited_is_passed_over() -> None:
    world = World()
    first, lost, settled, last = Given(1), Given(2), Given(3), Given(4)
    for delivery in (first, lost, settled, last):
        world.lines.enter(delivery)
    lost.verdict, settled.verdict = "lost", "acked"
    assert world.done(first) is last


def test_a_record_that_is_gone_is_not_waited_for_for_ever() -> None:
    world = World()
    first = Given(1)
    world.lines.enter(first)
    world.roll_back(first, 0)
    rounds = 0
    while not world.lines.enter(Given(2)):
        world.now += 0.5
        rounds += 1
        assert rounds < 100
    assert rounds == 20, "10 s of coming again and again"


def test_time_in_which_nothing_is_received_is_no_waiting() -> None:
    world = World()
    first, second = Given(1), Given(2)
    world.lines.enter(first)
    world.lines.enter(second)
    world.roll_back(first, 0)
    assert not world.lines.enter(Given(2))
    world.now += 3_600  # a breaker was open
    assert not world.lines.enter(Given(2))
    assert world.lines.enter(Given(1))


def test_a_handover_ends_the_waiting() -> None:
    world = World()
    first = Given(1)
    world.lines.enter(first)
    world.roll_back(first, 60_000)
    assert not world.lines.enter(Given(2))
    world.handovers += 1  # another consumer may have had 1 by now
    assert world.lines.enter(Given(2))


def test_a_handover_ends_the_waiting_of_a_key_that_is_at_work_too() -> None:
    world = World()
    later, earlier = Given(5), Given(3)
    world.lines.enter(later)
    world.roll_back(later, 60_000)
    assert world.lines.enter(earlier), "an earlier holder had rolled it back"
    world.handovers += 1
    assert not world.lines.enter(Given(6)), "it waits in line"
    following = world.done(earlier)
    assert following is not None
    assert following.offset == 6


def test_after_the_end_everything_goes_back() -> None:
    world = World()
    first, second, third = Given(1), Given(2), Given(3, b"b")
    world.lines.enter(first)
    world.lines.enter(second)
    world.lines.close()
    assert (second.verdict, second.delay) == ("released", 0.0)
    assert not world.lines.enter(third)
    assert third.verdict == "released"
    assert world.done(first) is None


class Coordinator:
    """What hands out and takes back, in small: lowest offset first, what was given back when it is due."""

    def __init__(self, seed: int, count: int) -> None:
        self.chance = random.Random(seed)
        self.world = World()
        self.key_of = {offset: self.chance.choice([b"a", b"b", b"c", None]) for offset in range(count)}
        self.attempts = dict.fromkeys(range(count), 1)
        self.ready = dict.fromkeys(range(count), 0.0)
        self.running: list[Given] = []
        self.in_line: list[Given] = []
        self.done: list[int] = []

    def step(self) -> None:
        """Hand out, end a handler, or let time pass."""
        due = [offset for offset, at in self.ready.items() if at <= self.world.now]
        if due and len(self.running) < 4 and self.chance.random() < 0.7:
            self._hand_out(min(due))
        elif self.running and self.chance.random() < 0.7:
            self._end(self.running.pop(self.chance.randrange(len(self.running))))
        else:
            self.world.now += 0.01
        for delivery in [item for item in self.in_line if item.verdict == "released"]:
            self.in_line.remove(delivery)
            self.ready[delivery.offset] = self.world.now + (delivery.delay or 0)

    def _hand_out(self, offset: int) -> None:
        del self.ready[offset]
        delivery = Given(offset, self.key_of[offset], attempt=self.attempts[offset])
        (self.running if self.world.lines.enter(delivery) else self.in_line).append(delivery)

    def _end(self, delivery: Given) -> None:
        if self.chance.random() < 0.3:
            delay = self.chance.choice([0, 50, 500])
            self.attempts[delivery.offset] += 1
            self.ready[delivery.offset] = self.world.now + delay / 1000
            following = self.world.roll_back(delivery, delay)
        else:
            self.done.append(delivery.offset)
            following = self.world.done(delivery)
        if following is not None:
            self.in_line.remove(following)
            self.running.append(following)


@pytest.mark.parametrize("seed", range(20))
def test_any_course_of_things_keeps_each_key_in_order(seed: int) -> None:
    coordinator = Coordinator(seed, 60)
    for _ in range(100_000):
        if len(coordinator.done) == 60:
            break
        coordinator.step()
        busy = [delivery.raw_key for delivery in coordinator.running if delivery.raw_key is not None]
        assert len(busy) == len(set(busy))
    assert len(coordinator.done) == 60
    for key in (b"a", b"b", b"c"):
        mine = [offset for offset in coordinator.done if coordinator.key_of[offset] == key]
        assert mine == sorted(mine)
