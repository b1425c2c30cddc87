"""A real run over all types and faults; and defects planted in what it recorded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.end_to_end.histories.checking import check
from tests.end_to_end.histories.faults import possible
from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import History
from tests.end_to_end.histories.loading import load
from tests.end_to_end.histories.plan import SUBSCRIPTIONS, Plan
from tests.end_to_end.histories.running import run

TYPES = tuple(SUBSCRIPTIONS)

#: Kinds of findings that do not fail the test: known defects, described in docs/internals/reliability.md.
OPEN: set[tuple[str, str]] = set()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((1.0, 2.5, 35.0), id="short"),
        pytest.param((2.0, 7.0, 12.0), id="long", marks=pytest.mark.long),
    ],
)
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> History:
    """Provide the history of one run.

    Parameters: its minutes, seconds between faults of servers, and messages a second and subscription.
    """
    minutes, every, rate = request.param
    plan = Plan(
        seed=20,
        types=TYPES,
        faults=possible(cluster=False),
        minutes=minutes,
        members=2,
        rate=rate,
        server_fault_every=every,
    )
    folder: Path = tmp_path_factory.mktemp("history")
    run(plan, folder, lambda _done, _all, _text: None)
    return load(folder)


def told(findings: list[Finding]) -> str:
    return "\n\n".join("\n".join([f"{f.invariant} {f.kind}: {f.text}", *f.lines]) for f in findings[:10])


def test_nothing_is_violated(history: History) -> None:
    findings = [each for each in check(history) if (each.invariant, each.kind) not in OPEN]
    assert not findings, f"{len(findings)} violations, the first of them:\n{told(findings)}"


def test_faults_really_happened(history: History) -> None:
    assert {fault.kind for fault in history.faults} >= set(possible(cluster=False))


@pytest.mark.parametrize("kind", TYPES)
def test_work_was_done(history: History, kind: str) -> None:
    """Messages were written, those of the last topic were delivered, and some messages were redelivered.

    A topic may have been replaced in an outage, before its messages were delivered. The topic after it
    may have no redelivery, because it was created after the faults.
    """
    lives = {name for name in history.plan.subscriptions if name.split("~")[0] == kind}
    assert sum(place.subscription in lives for place in history.truth) > 100
    (last,) = lives - history.ended
    lasting = {
        place
        for place, message in history.truth.items()
        if place.subscription == last and message.over is None and place not in history.dead_places
    }
    assert lasting
    assert not lasting - history.deliveries_of.keys()
    assert any(
        len(deliveries) > 1
        for place, deliveries in history.deliveries_of.items()
        if place.subscription in lives
    )


def without_an_acknowledgement(history: History) -> History:
    """Of a message that was settled by exactly one verdict, at its only delivery, and that may not expire."""
    place = next(
        place
        for place, deliveries in history.deliveries_of.items()
        if len(deliveries) == 1
        and place.subscription not in history.ended
        and history.truth[place].over is None
        and [verdict.kind for verdict in history.verdicts_of.get(place, ())] == ["ack"]
    )
    return replace(history, verdicts=[each for each in history.verdicts if each.place != place])


def with_another_offset(history: History) -> History:
    first, *rest = history.deliveries
    place = first.place._replace(offset=10_000_000)
    return replace(history, deliveries=[replace(first, place=place), *rest])


def without_dead_letters(history: History) -> History:
    assert history.dead
    return replace(history, dead=())


def without_the_faults(history: History) -> History:
    """What is explained by faults is not explained any more."""
    return replace(history, faults=[])


def with_a_message_of_the_new_topic(history: History) -> History:
    """A member of the old topic reads on in the new one, at its old offset, and does not notice."""
    old = next(iter(history.ended))
    new = next(
        name for name in history.plan.subscriptions if name.split("~")[0] == old.split("~")[0] and name != old
    )
    last = max((d for d in history.deliveries if d.place.subscription == old), key=lambda each: each.at)
    message = next(message for place, message in history.truth.items() if place.subscription == new)
    wrong = replace(last, digest=message.digest, key=message.key, at=last.at + 1)
    return replace(history, deliveries=[*history.deliveries, wrong])


def with_a_message_before_its_time(history: History) -> History:
    delayed = next(each for each in history.deliveries if history.truth[each.place].due is not None)
    early = replace(delayed, called=history.began, at=history.began + 1)
    return replace(history, deliveries=[early, *history.deliveries])


def with_an_expired_message(history: History) -> History:
    expiring = next(each for each in history.deliveries if history.truth[each.place].over is not None)
    message = history.truth[expiring.place]._replace(over=expiring.called - 10**9)
    return replace(history, truth={**history.truth, expiring.place: message})


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        (without_an_acknowledgement, "I1"),
        (with_another_offset, "I2"),
        (without_dead_letters, "I1"),
        (without_the_faults, "I4"),
        (with_a_message_of_the_new_topic, "I2"),
        (with_a_message_before_its_time, "I14"),
        (with_an_expired_message, "I14"),
    ],
)
def test_defect_planted_in_a_real_history(
    history: History, change: Callable[[History], History], invariant: str
) -> None:
    assert invariant in {finding.invariant for finding in check(change(history))}
