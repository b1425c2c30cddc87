"""Two processes create, join, replace, convert and unsubscribe one subscription at once, round after round.

Whatever the interleaving, each is told what the rules say for some order of the two, and what stands in the
end is what that order leaves: `decide` and `decide_unsubscribe` are asked for all orders.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest

import kafkadur.sync
from kafkadur import InvalidDestination, KafkadurError
from kafkadur.admin.changes import Admin
from kafkadur.admin.subscription_info import SubscriptionInfo
from kafkadur_sharing.decisions import (
    Attach,
    Convert,
    Create,
    Delete,
    Existing,
    OnChange,
    Refuse,
    Replace,
    Request,
    UnsubscribeRequest,
    decide,
    decide_unsubscribe,
)
from kafkadur_sharing.definition import Definition, SubscriptionType, TypeName
from kafkadur_sharing.keys import SubscriptionKey
from tests.integration.subscriptions.helpers import Place
from tests.integration.subscriptions.workers import Child

DONE = "done"


class Wish(NamedTuple):
    """What a process does in a round: it attaches and closes, or unsubscribes."""

    type: TypeName | None
    selector: str | None = None
    allow_conversion: bool = False
    on_change: OnChange | None = None


TWO: tuple[TypeName, ...] = ("exclusive", "shared")
THREE: tuple[TypeName, ...] = (*TWO, "serial")
WISHES = [
    Wish(None),
    *(Wish(kind) for kind in THREE),
    *(Wish(kind, "n = 1", on_change="replace") for kind in TWO),
    *(Wish(kind, "n = 1", on_change="alter") for kind in TWO),
    *(Wish(kind, allow_conversion=True) for kind in THREE),
]


@dataclass(frozen=True)
class State:
    """A subscription, or that there is none: which one it is, what it is like, who is attached."""

    generation: int = 0
    definition: Definition | None = None
    attached: tuple[int, ...] = ()


def step(state: State, who: int, wish: Wish, key: SubscriptionKey, topic: str) -> tuple[State, str]:
    """One process does what it wishes; returns what stands then, and what it is told."""
    existing = (
        None
        if state.definition is None
        else Existing(definition=state.definition, members=len(state.attached))
    )
    if wish.type is None:
        gone = decide_unsubscribe(existing, UnsubscribeRequest(key=key))
        if isinstance(gone, Delete):
            return State(state.generation + 1), DONE
        return state, type(gone.error).__name__
    wanted = Definition(type=SubscriptionType(wish.type), topic=topic, selector=wish.selector)
    decision = decide(
        existing,
        Request(
            key=key,
            definition=wanted,
            allow_conversion=wish.allow_conversion,
            on_change=wish.on_change,
        ),
    )
    match decision:
        case Refuse():
            return state, type(decision.error).__name__
        case Create() | Replace():
            return State(state.generation + 1, decision.definition, (who,)), DONE
        case Attach() | Convert():
            return replace(state, definition=decision.definition, attached=(*state.attached, who)), DONE


def outcomes(
    state: State, wishes: Sequence[Wish], key: SubscriptionKey, topic: str
) -> Iterator[tuple[State, tuple[str, ...]]]:
    """What can come of two wishes at once: whoever begins, and closes before the other begins or after."""
    for first in (0, 1):
        second = 1 - first
        for overlapping in (False, True):
            told = ["", ""]
            now, told[first] = step(state, first, wishes[first], key, topic)
            if not overlapping:
                now = replace(now, attached=())
            now, told[second] = step(now, second, wishes[second], key, topic)
            yield replace(now, attached=()), tuple(told)


class Process(Child):
    """One of the two."""

    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        super().__init__(__name__)
        self.say({"settings": settings, "topic": topic})


def shown(state: State) -> tuple[Any, ...]:
    """What of a state can be seen from outside."""
    return None if state.definition is None else (state.definition.type, state.definition.selector), len(
        state.attached
    )


def seen(admin: Admin, key: SubscriptionKey) -> SubscriptionInfo | None:
    """The subscription as it stands."""
    try:
        return admin.info(key)
    except InvalidDestination:
        return None


@pytest.mark.parametrize(("seed", "rounds"), [(1, 50), pytest.param(2, 1_000, marks=pytest.mark.long)])
def test_all_that_is_told_and_stands_is_of_some_order(place: Place, seed: int, rounds: int) -> None:
    topic = place.topic([])
    rng = random.Random(seed)
    processes = [Process(place.settings(), topic) for _ in range(2)]
    told: set[tuple[str, ...]] = set()
    try:
        assert [process.answer() for process in processes] == [DONE, DONE]
        with place.connect_sync() as connection, Admin(connection.settings) as admin:
            key, state, identity = connection.key("d"), State(), ""
            for number in range(20 * rounds):
                if number >= rounds and overlapped(told):
                    break
                wishes = rng.choices(WISHES, k=2)
                for process, wish in zip(processes, wishes, strict=True):
                    process.say(wish)
                answers = tuple(process.answer() for process in processes)
                found = seen(admin, key)
                standing = None if found is None else (found.definition.type, found.definition.selector)
                allowed = [
                    after
                    for after, answer in outcomes(state, wishes, key, topic)
                    if answer == answers
                    and shown(after)[0] == standing
                    # the same subscription, or another one
                    and (found is None or (found.id == identity) == (after.generation == state.generation))
                ]
                kept = "the same" if found is not None and found.id == identity else "another"
                assert allowed, f"{state}\n{wishes}\n{answers}\n{standing}, {kept} subscription"
                state, identity = allowed[0], "" if found is None else found.id
                told.add(answers)
    finally:
        for process in processes:
            process.end()
    assert overlapped(told), told


def overlapped(told: set[tuple[str, ...]]) -> bool:
    """Whether the two have met: one was attached while the other asked. Chance decides in which round."""
    return {DONE, "SubscriptionActive"} <= set(itertools.chain.from_iterable(told))


def _tell(what: str) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Be one of the two."""
    plan = json.loads(sys.stdin.readline())
    with kafkadur.sync.connect(**plan["settings"]) as connection:
        _tell(DONE)
        for line in sys.stdin:
            wish = Wish(*json.loads(line))
            answer = DONE
            try:
                if wish.type is None:
                    connection.unsubscribe("d")
                else:
                    connection.subscribe(
                        plan["topic"],
                        durable="d",
                        type=wish.type,
                        selector=wish.selector,
                        allow_conversion=wish.allow_conversion,
                        on_change=wish.on_change,
                    ).close()
            except KafkadurError as error:
                answer = type(error).__name__
            _tell(answer)


if __name__ == "__main__":
    main()
