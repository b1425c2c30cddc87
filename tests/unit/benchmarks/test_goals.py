"""Goals are judged by medians against the named peer; what was not measured is not met."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.goals import GOALS, Goal, Pick, evaluate
from benchmarks.rows import Row, percentile
from benchmarks.runner import Run
from benchmarks.systems.base import Workload
from benchmarks.workloads import slow, subjects

_CASE = "big, 1 member"


def _row(system: str, variant: str, rates: list[float]) -> Row:
    return Row(
        workload=Workload.DRAIN,
        case=_CASE,
        system=system,
        variant=variant,
        confirmed="",
        members=1,
        shape="big",
        messages=10,
        figures={"rate": rates} if rates else {},
    )


def _goal(bound: float) -> Goal:
    return Goal(
        name="g",
        workload=Workload.DRAIN,
        numerator=Pick(system="kafkadur", variant="ack-nowait", case=_CASE),
        denominator=Pick(system="raw", variant="tuned", case=_CASE),
        bound=bound,
    )


@pytest.mark.parametrize(("bound", "met"), [(1.5, True), (1.6, False)])
def test_ratio_of_medians(bound: float, *, met: bool) -> None:
    rows = [_row("kafkadur", "ack-nowait", [1.0, 3.0, 90.0]), _row("raw", "tuned", [2.0, 2.0, 0.5])]
    found = evaluate(_goal(bound), rows)
    assert found.value == pytest.approx(1.5)
    assert found.met is met


@pytest.mark.parametrize(
    "rows", [[], [_row("kafkadur", "ack-nowait", [1.0])], [_row("kafkadur", "ack-nowait", [])]]
)
def test_missing_or_void_rows_meet_nothing(rows: list[Row]) -> None:
    found = evaluate(_goal(0.1), rows)
    assert found.value is None
    assert not found.met


def test_every_goal_names_a_case_and_a_peer_that_are_measured() -> None:
    for goal in GOALS:
        measured = {
            (found.system, found.variant.name, found.case.label)
            for found in subjects(goal.workload, ["kafkadur", "raw", "share", "redis"], None)
        }
        for pick in filter(None, (goal.numerator, goal.denominator)):
            assert (pick.system, pick.variant, pick.case) in measured


def test_percentile_is_a_sample() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0


def test_one_message_in_twenty_is_slow() -> None:
    assert sum(map(slow, range(10_000))) == pytest.approx(500, abs=5)


def test_a_repeat_voids_a_run_only_where_nothing_excuses_it() -> None:
    run = Run(messages=10, lost=0, repeated=2, elapsed_s=1.0)
    assert run.complaint is None
    assert replace(run, repeats_allowed=2).complaint is None
    assert "repeated" in (replace(run, repeats_allowed=1).complaint or "")
    assert "lost" in (replace(run, lost=1).complaint or "")
    assert "order" in (replace(run, disordered=1).complaint or "")
