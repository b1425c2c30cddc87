"""How often the coordinator thread looks at members: when they are due or asked for, and now and then."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafkadur.runtime import coordinator_thread
from kafkadur.runtime.coordinator_thread import CoordinatorThread
from kafkadur.runtime.served import Served
from kafkadur.runtime.stages import no_probe


class Clock:
    """Time that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Looked:
    """Stands in for a member that has nothing to exchange."""

    def __init__(self, name: str, looks: Counter[str], served: Counter[str]) -> None:
        self.display = name
        self.failed = None
        self.neighbour = ""
        self.gate = SimpleNamespace(blocked=False, silent=False)
        self.renewal = SimpleNamespace(suffices=lambda _: False)
        self.due_in = 60.0
        self._looks, self._served = looks, served

    def look_around(self, _now: float) -> None:
        self._looks[self.display] += 1

    def unblock(self) -> bool:
        self._served[self.display] += 1
        return False

    def due(self, now: float) -> float:
        return now + self.due_in


class World:
    """A coordinator thread that is not started, and members."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.clock = Clock()
        monkeypatch.setattr(coordinator_thread, "time", self.clock)
        unused = cast("Any", None)
        self.thread = CoordinatorThread(coordinator=unused, lifecycle=unused, presence=unused, probe=no_probe)
        #: how often each was looked at, and how often it was found out whether an exchange is due
        self.looks, self.served = Counter[str](), Counter[str]()
        self.members = [Looked(str(at), self.looks, self.served) for at in range(count)]
        for member in self.members:
            session = SimpleNamespace(member=member.display)
            self.thread.serve(
                Served(
                    member=cast("Any", member),
                    request=unused,
                    membership=cast("Any", SimpleNamespace(session=session)),
                    name="",
                    rank=unused,
                    session_name="",
                )
            )
        self.round()
        assert len(self.looks) == count, "each is looked at once, at first"
        self.looks.clear()

    def round(self) -> float:
        """Serve all; returns how long the thread would sleep."""
        return self.thread._serve_all()  # noqa: SLF001 - the thread is not started

    def run(self, seconds: float) -> None:
        """Serve for so many seconds, as the thread does."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += max(self.round(), 0.001)


def test_a_few_members_are_looked_at_five_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 3)
    world.run(10)
    assert all(45 <= world.looks[member.display] <= 51 for member in world.members)


def test_many_are_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1_000)
    world.run(30)
    assert all(2 <= world.looks[member.display] <= 4 for member in world.members)
    assert world.round() <= 0.21, "the neighbours are looked at by then"


def test_one_that_asks_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1_000)
    world.run(1)
    world.looks.clear()
    world.thread.request_exchange("7")
    world.round()
    assert world.looks["7"] == 1
    world.thread.request_exchange("nobody")
    world.round()


def test_one_that_is_due_is_looked_at_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1_000)
    world.members[5].due_in = 0.05
    world.thread.request_exchange("5")
    world.round()
    world.served.clear()
    world.run(1)
    assert 18 <= world.served["5"] <= 22


@pytest.mark.parametrize("state", ["blocked", "silent"])
def test_one_that_delivers_nothing_is_looked_at_often(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    world = World(monkeypatch, 1_000)
    setattr(world.members[9].gate, state, True)
    world.thread.request_exchange("9")
    world.round()
    world.looks.clear()
    world.run(10)
    assert 45 <= world.looks["9"] <= 51
