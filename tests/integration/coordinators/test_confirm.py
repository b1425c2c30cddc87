"""The short script `confirm` does what `exchange` does, or nothing.

Two subscriptions hear the same. The member of one may make short exchanges, that of the other makes none.
Answers and states are the same, to the byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kafkadur.stack import Valkey
from kafkadur_coordinators.interface import Exchange, ExchangeReply, PartitionReport
from kafkadur_coordinators.redis.coordinator import Refusal
from kafkadur_coordinators.redis.rows import LeaseRow, MemberRow, PartitionRow, SubscriptionRow
from kafkadur_sharing.definition import TypeName
from kafkadur_sharing.errors import CoordinatorRefused
from tests.integration.coordinators import stored
from tests.integration.coordinators.world import BEGIN_MS, Member, World, report, rolled_back, settled
from tests.integration.security.any_values import many

FEW, MANY = 25, 300
#: Values that nobody expects, and the parts of a report that can have one.
WILD: Sequence[int] = (0, 1, 3, 50, 2**20, 2**46, -1, 2**47 + 1)
WILD_PARTS: Sequence[str] = ("partition", "readable_end", "position", "epoch", "reserve", "done")
TYPES: Sequence[TypeName] = ("shared", "exclusive", "priority", "serial", "key-ordered")


class Twins:
    """Two subscriptions that hear the same; the exchanges of the second one are never short."""

    def __init__(self, url: str, kind: str, *, partitions: int = 1) -> None:
        self.short = World(url, type_=kind, partitions=partitions)
        self.full = World(url, type_=kind, partitions=partitions)
        self.full.id = self.short.id
        self.worlds = (self.short, self.full)
        for world in self.worlds:
            world.create()
        self.members: list[tuple[Member, Member]] = []

    def close(self) -> None:
        for world in self.worlds:
            world.close()

    def both(self, act: Callable[[World], object]) -> None:
        """Do the same to both; the results are the same."""
        results = [act(world) for world in self.worlds]
        assert results[0] == results[1]

    def attach(self, name: str) -> None:
        pair = self.short.attach(name, most=0), self.full.attach(name, most=0)
        pair[1].session._short.request = lambda *_: None  # type: ignore[method-assign]  # noqa: SLF001 - as it says
        self.members.append(pair)

    def say(self, exchange: Exchange, who: int = 0) -> ExchangeReply | str:
        """Make an exchange with both; returns the answer, or the code of the refusal."""
        answers = [_said(member, exchange) for member in self.members[who]]
        assert _plain(answers[0]) == _plain(answers[1])
        self.check()
        return answers[0]

    def check(self) -> None:
        """The states are the same."""
        found = [_stored(world) for world in self.worlds]
        assert found[0] == found[1]

    def codes(self) -> Counter[str]:
        """How often `confirm` answered what."""
        replies: list[Any] = [reply for name, _, reply in self.short.calls if name == "confirm"]
        return Counter(str(reply.code) for reply in replies)


def _said(member: Member, exchange: Exchange) -> ExchangeReply | str:
    try:
        return member.session.exchange(exchange)
    except Refusal as refused:
        return refused.code
    except CoordinatorRefused:  # more bits than a text of Lua can have: nothing was changed
        return "ERR"


def _plain(value: object) -> object:
    """Make tuples of lists, which are the same to those who read them."""
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _stored(world: World) -> dict[str, object]:
    root = len(world.address.root)
    return {key.decode()[root:]: value for key, value in world.dump().items()}


@pytest.fixture
def twins(valkey: Valkey) -> Iterator[Callable[..., Twins]]:
    """Provide a maker of twins."""
    made: list[Twins] = []

    def make(kind: str, *, partitions: int = 1) -> Twins:
        made.append(Twins(valkey.url, kind, partitions=partitions))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Life:
    """A member that reads, receives and settles, as drawn."""

    def __init__(self, twins: Twins, draw: Callable[[int], int]) -> None:
        self.twins = twins
        self.draw = draw
        self.number = self.have = self.readable = self.position = 0
        #: first open offset and end of each lease, by token
        self.open: dict[int, tuple[int, int]] = {}

    def exchange(self) -> None:
        """Make one exchange, mostly a usual one."""
        self.number += 1
        part = self._report()
        if self.draw(15) == 1:  # a defect, or a hostile member
            name, value = WILD_PARTS[self.draw(len(WILD_PARTS))], WILD[self.draw(len(WILD))]
            wild: dict[str, Any] = {name: [value] if name == "done" else value}
            part = part._replace(**wild)
        exchange = Exchange(
            number=self.number,
            credit=self.draw(4) if self.draw(15) else WILD[self.draw(len(WILD))],
            have=self.have if self.draw(15) else WILD[self.draw(len(WILD))],
            ask_presence=self.draw(20) == 1,
            span=10 * (self.draw(20) != 1) if self.draw(15) else WILD[self.draw(len(WILD))],
            parts=[part],
            handover=False,
        )
        answer = self.twins.say(exchange)
        if isinstance(answer, str):
            return
        self.have = max(self.have, answer.token)
        for grant in answer.grants:
            self.open[grant.token] = grant.start, grant.horizon
        for token, horizon in answer.horizons.items():
            if token in self.open:
                self.open[token] = self.open[token][0], horizon
        for token in answer.refused:
            self.open.pop(token, None)
        if self.draw(10) == 1:  # the answer was lost
            self.twins.say(exchange)

    def _report(self) -> PartitionReport:
        self.readable += self.draw(6)
        said: dict[str, Any] = {
            "readable_end": self.readable if self.draw(2) else -1,
            "epoch": self.draw(3) - 1,
        }
        if not self.open:
            return report(position=self.position, **said)
        token = min(self.open, key=lambda token: self.open[token])
        start, end = self.open[token]
        stop = min(start + self.draw(4), end, self.readable)
        if self.draw(30) == 1:
            start, stop = start + self.draw(5) - 2, WILD[self.draw(len(WILD))]
        self.position = max(self.position, stop)
        if stop <= start:
            return report(position=self.position, **said)
        match self.draw(12):
            case 1:
                said["returned"] = [rolled_back(token, start, stop, self.draw(3) * 100 - 100)]
            case 2 if stop - start > 1:
                said["settled"] = [settled(token, start + 1, stop)]
                said["returned"] = [rolled_back(token, start, start + 1)]
            case 3 | 4 | 5:
                said["settled"] = [settled(token, start, stop)]
                said["reserve"] = self.draw(3)
            case _:
                said["settled"] = [settled(token, start, stop)]
        self.open[token] = stop, end
        if stop == end:
            del self.open[token]
            said["done"] = [token]
        return report(position=self.position, **said)

    def other(self) -> None:
        """Something else happens to the subscription."""
        match self.draw(8):
            case 1:
                self.twins.both(lambda world: world.run("pause", 1).code)
            case 2 | 3:
                self.twins.both(lambda world: world.run("pause", 0).code)
            case 4 if len(self.twins.members) == 1:
                self.twins.attach("other")
            case 5:
                ms = (1, 400, 6_000, 11_000)[self.draw(4)]
                self.twins.both(lambda world: world.clock.advance(ms))
            case _:
                pass


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_answers_and_states_are_those_of_an_exchange(
    twins: Callable[..., Twins], kind: TypeName, examples: int
) -> None:
    codes: Counter[str] = Counter()

    @many(examples)
    @given(st.randoms(use_true_random=False), st.integers(5, 40))
    def live(chance: Any, steps: int) -> None:
        pair = twins(kind)
        pair.attach("m")
        life = Life(pair, chance.randrange)
        for _ in range(steps):
            if life.draw(8) == 1:
                life.other()
            life.exchange()
        codes.update(pair.codes())
        pair.close()

    live()
    assert codes.keys() <= {"OK", "SLOW", "INVALID"}
    assert codes["OK"] == 0 if kind == "key-ordered" else codes["OK"] >= 10, codes


def usual(kind: TypeName, number: int, token: int = 1) -> Exchange:
    """An exchange that settles the next message of a lease of ten, as `confirm` makes it."""
    part = report(position=number, settled=[settled(token, number - 2, number - 1)], epoch=7)
    credit = 0 if kind == "shared" else 1
    return Exchange(number=number, credit=credit, have=token, ask_presence=False, span=10, parts=[part])


def begun(twins: Callable[..., Twins], kind: TypeName) -> Twins:
    """Twins whose members have a lease of ten messages and are about to settle the second one."""
    pair = twins(kind)
    pair.attach("m")
    first = report(readable_end=10, position=0)
    pair.say(Exchange(number=1, credit=10, have=0, ask_presence=False, span=10, parts=[first]))
    pair.say(usual(kind, 2))
    assert pair.codes() == {"OK": 1}
    return pair


#: What is not as usual: the record, and what is changed of it.
UNUSUAL: Sequence[tuple[str, dict[str, Any]]] = [
    ("s", {"id": "another"}),
    ("s", {"incarnation": 9}),
    ("s", {"server": "another"}),
    ("s", {"time": BEGIN_MS + 5_000}),
    ("s", {"grace": BEGIN_MS + 5_000}),
    ("s", {"next_expiry": BEGIN_MS}),
    ("s", {"doubt": 1}),
    ("s", {"doubt": 2}),
    ("s", {"paused": 1}),
    ("s", {"recovered": 1}),
    ("s", {"token": 5}),
    ("s", {"sequence": 50}),
    ("m:m", {"n": 5}),
    ("m:m", {"exchange": 5}),
    ("m:m", {"exchange": 3}),
    ("m:m", {"tokens": []}),
    ("m:m", {"kind": "claims"}),
    ("p:0", {"xd": 5}),
    ("p:0", {"base": 0}),
    ("p:0", {"next": 99_999, "readable_end": 99_999}),
    ("l:1", {"p": 1}),
    ("l:1", {"s": 5}),
    ("l:1", {"e": 1}),
    ("l:1", {"member": "another"}),
]


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@pytest.mark.parametrize(("record", "changed"), UNUSUAL, ids=str)
def test_an_unusual_state_is_left_to_exchange(
    twins: Callable[..., Twins], kind: TypeName, record: str, changed: dict[str, Any]
) -> None:
    pair = begun(twins, kind)
    rows = {"s": SubscriptionRow, "m": MemberRow, "p": PartitionRow, "l": LeaseRow}
    pair.both(
        lambda world: stored.change(
            world.coordinator.command, world.state, record, rows[record[0]], **changed
        )
    )
    pair.say(usual(kind, 3))
    assert pair.codes() == {"OK": 1, "SLOW": 1}


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@pytest.mark.parametrize("damage", ["seal", "field", "another field", "lists", "member", "version"])
def test_damage_is_left_to_exchange(twins: Callable[..., Twins], kind: TypeName, damage: str) -> None:
    pair = begun(twins, kind)

    def spoil(world: World) -> None:
        command = world.coordinator.command
        match damage:
            case "seal":
                command("DEL", f"{world.address.root}seal")
            case "field":
                command("HDEL", world.state, "p:0")
            case "another field":
                command("HSET", world.state, "stray", "1")
            case "lists":
                command("HSET", world.state, "lists", b"\xc1")
            case "member":
                command("HSET", world.state, "m:m", b"\x90")
            case _:
                command("HSET", world.state, "state_version", "4")

    pair.both(spoil)
    assert pair.say(usual(kind, 3)) in ("MISSING", "VERSION")
    assert pair.codes() == {"OK": 1, "SLOW": 1}


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_a_repeat_is_answered_by_exchange(twins: Callable[..., Twins], kind: TypeName) -> None:
    pair = begun(twins, kind)
    assert _plain(pair.say(usual(kind, 3))) == _plain(pair.say(usual(kind, 3)))
    assert pair.codes() == {"OK": 2, "SLOW": 1}


def test_what_is_slow_is_tried_less_and_less(twins: Callable[..., Twins]) -> None:
    pair = begun(twins, "exclusive")
    pair.both(lambda world: world.run("pause", 1).code)
    for number in range(3, 12):
        pair.say(usual("exclusive", number))
    assert pair.codes() == {"OK": 1, "SLOW": 3}, "the 1st, the 3rd and the 6th"
    pair.both(lambda world: world.run("pause", 0).code)
