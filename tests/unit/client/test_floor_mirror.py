"""When floors are committed to Kafka: when they change, and again, because Kafka may have lost them."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafkadur.fetch import group_floors
from kafkadur.fetch.floor_mirror import FloorMirror
from kafkadur.fetch.group_floors import GroupFloors
from kafkadur_sharing.errors import IllegalState, KafkadurError, KafkaUnavailable

LIMIT_S = 30


class Mirrored:
    """A member with floors, time that is moved by hand, and what was committed."""

    display = "invoices"

    def __init__(self) -> None:
        self.now = 100.0
        self.known: dict[int, int] = {}
        self.fails = False
        self.committed: list[dict[int, int]] = []
        self.followed = {0, 1}
        self.mirror = FloorMirror(
            cast("Any", self), self.commit, followed=self.followed, monotonic=lambda: self.now
        )

    def floors(self) -> dict[int, int]:
        return dict(self.known)

    def commit(self, floors: Mapping[int, int]) -> None:
        if self.fails:
            raise KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT))
        self.committed.append(dict(floors))

    def after(self, seconds: int) -> list[dict[int, int]]:
        """Return what is committed in so many seconds."""
        self.committed.clear()
        for _ in range(seconds):
            self.now += 1.0
            self.mirror.mirror()
        return self.committed


def test_floors_are_committed_when_they_change_and_twice_again() -> None:
    member = Mirrored()
    assert member.after(100) == [], "there are none"
    member.known = {0: 5, 1: 7}
    assert member.after(5) == [{0: 5, 1: 7}]
    assert member.after(1) == [{0: 5, 1: 7}]
    assert member.after(54) == []
    assert member.after(1) == [{0: 5, 1: 7}]
    assert member.after(1_000) == [], "another member may know a higher floor by now"


def test_a_floor_is_not_repeated_because_another_one_changes() -> None:
    member = Mirrored()
    member.known = {0: 5, 1: 0}
    repeated = 0
    for _ in range(100):
        member.known[1] += 1
        (committed,) = member.after(1)
        assert committed[1] == member.known[1]
        repeated += 0 in committed
    assert repeated == 3


def test_the_floor_of_a_partition_that_is_not_read_is_not_repeated() -> None:
    """Nobody here would notice that its log was cut off, and that its floor has been taken back."""
    member = Mirrored()
    member.known = {0: 5, 1: 7}
    member.followed.remove(1)
    assert member.after(6) == [{0: 5, 1: 7}, {0: 5}]
    member.followed.add(1)
    assert member.after(55) == [{0: 5, 1: 7}], "as planned"
    member.known[1] = 8
    member.followed.clear()
    assert member.after(1) == [{1: 8}]
    assert member.after(100) == []
    member.followed.add(1)
    assert member.after(100) == [], "it is too late by then"


def test_the_member_whose_floor_changed_last_repeats_it_last() -> None:
    """Two members know a partition, and one of them is told no more of it."""
    group: dict[int, int] = {}
    first, second = Mirrored(), Mirrored()
    for now in range(200):
        for member in (first, second):
            member.now += 1.0
            if now < 20 or member is second:
                member.known = {0: min(now, 50)}
            member.mirror.mirror()
            for floors in member.committed:
                group |= floors
            member.committed.clear()
    assert group == {0: 50}


def test_what_was_not_committed_is_tried_again_at_once() -> None:
    member = Mirrored()
    member.known, member.fails = {0: 5}, True
    assert member.after(3) == []
    member.fails = False
    assert member.after(1) == [{0: 5}]
    member.mirror.forget()
    assert member.after(1) == [{0: 5}]


class Answering:
    """Commits floors of groups as the next answers say."""

    def __init__(self, *answers: KafkadurError | Callable[[], object]) -> None:
        self.answers = list(answers)
        self.committed: list[tuple[str, dict[int, int]]] = []
        self.tried = 0

    def commit(self, group: str, _topic: str, floors: dict[int, int], *, metadata: str) -> None:
        assert metadata == "m"
        self.tried += 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, KafkadurError):
            raise answer
        if answer is not None:
            answer()
            raise KafkaUnavailable
        self.committed.append((group, floors))

    def close(self) -> None:
        """Nothing is open."""


class Held:
    """A commit that fails when the test lets it go on."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.goes_on.wait(LIMIT_S)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_floors, "_RETRY", 0.01)
    monkeypatch.setattr(group_floors, "_APART", 0.01)


def until_all_are_committed() -> None:
    for thread in threading.enumerate():
        if thread.name == "kafkadur-floors":
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def test_floors_of_a_group_are_tried_again_while_kafka_is_away() -> None:
    kafka = Answering(KafkaUnavailable(), KafkaUnavailable())
    floors = GroupFloors(lambda: cast("Any", kafka))
    floors.mirror("g", "t", {0: 1}, "m")
    until_all_are_committed()
    assert (kafka.tried, kafka.committed) == (3, [("g", {0: 1})])


def test_later_floors_of_a_group_win_over_those_that_failed() -> None:
    floors: GroupFloors

    def settle_more() -> None:
        floors.mirror("g", "t", {1: 8}, "m")

    kafka = Answering(settle_more)
    floors = GroupFloors(lambda: cast("Any", kafka))
    floors.mirror("g", "t", {0: 1, 1: 7}, "m")
    until_all_are_committed()
    assert kafka.committed == [("g", {0: 1, 1: 8})]


def test_what_kafka_refuses_is_not_tried_again() -> None:
    kafka = Answering(IllegalState("the group is in use"))
    floors = GroupFloors(lambda: cast("Any", kafka))
    floors.mirror("g", "t", {0: 1}, "m")
    until_all_are_committed()
    assert (kafka.tried, kafka.committed) == (1, [])


def test_floors_of_a_member_that_has_left_are_not_tried_again() -> None:
    held = Held()
    kafka = Answering(held)
    floors = GroupFloors(lambda: cast("Any", kafka))
    floors.mirror("g", "t", {0: 1}, "m")
    assert held.begun.wait(LIMIT_S)
    assert not floors.flush("g", 0.01)
    held.goes_on.set()
    until_all_are_committed()
    assert (kafka.tried, kafka.committed) == (1, [])


def test_floors_that_were_not_tried_in_time_are_tried_once() -> None:
    held = Held()
    kafka = Answering(held, KafkaUnavailable())
    floors = GroupFloors(lambda: cast("Any", kafka))
    floors.mirror("other", "t", {0: 1}, "m")
    assert held.begun.wait(LIMIT_S)
    floors.mirror("g", "t", {0: 7}, "m")
    assert not floors.flush("g", 0.01)
    held.goes_on.set()
    until_all_are_committed()
    assert (kafka.tried, kafka.committed) == (3, [("other", {0: 1})])
