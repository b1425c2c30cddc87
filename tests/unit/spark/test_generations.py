"""Which checkpoint a query goes on with: kept, the first, foreign, behind and ahead of what is settled."""

from dataclasses import replace
from typing import Any

import pytest

from kafkadur_sharing.errors import IllegalState
from kafkadur_spark.generations import Generation, Standing, Verdict, choose, judge, offsets_of

LAST = Generation(
    number=3, subscription_id="0.1", epoch=0, topic_id="t", starts={0: 10, 1: 0}, skip={0: [(12, 14)]}
)


def standing(floors: dict[int, int], holes: dict[int, list[tuple[int, int]]] | None = None) -> Standing:
    return Standing(subscription_id="0.1", epoch=0, topic_id="t", floors=floors, holes=holes or {})


@pytest.mark.parametrize(
    ("committed", "now", "verdict"),
    [
        pytest.param({0: 20, 1: 5}, standing({0: 20, 1: 5}), Verdict.KEEP, id="equal"),
        pytest.param({0: 20, 1: 5}, standing({0: 25, 1: 5}), Verdict.KEEP, id="behind"),
        pytest.param(None, standing({0: 10, 1: 0}), Verdict.KEEP, id="no-batch-yet"),
        pytest.param(None, standing({0: 30, 1: 0}), Verdict.KEEP, id="no-batch-yet-and-behind"),
        pytest.param({0: 20, 1: 5}, standing({0: 18, 1: 5}), Verdict.AHEAD, id="ahead"),
        pytest.param(
            {0: 20, 1: 5}, standing({0: 18, 1: 5}, {0: [(18, 20)]}), Verdict.KEEP, id="ahead-of-nothing"
        ),
        pytest.param(
            {0: 20, 1: 5}, standing({0: 15, 1: 5}, {0: [(16, 30)]}), Verdict.AHEAD, id="one-was-given-back"
        ),
        pytest.param(None, standing({0: 9, 1: 0}), Verdict.AHEAD, id="before-the-start"),
    ],
)
def test_the_last_generation_is_judged(
    committed: dict[int, int] | None, now: Standing, verdict: Verdict
) -> None:
    assert judge(LAST, committed, now) is verdict


@pytest.mark.parametrize("other", [{"subscription_id": "9.9"}, {"epoch": 1}, {"topic_id": "u"}])
def test_what_is_of_another_one_is_foreign(other: dict[str, Any]) -> None:
    now = replace(standing({}), **other)
    assert judge(LAST, {0: 20}, now) is Verdict.FOREIGN


def test_a_new_one_begins_at_the_floor_and_leaves_out_what_is_settled() -> None:
    now = standing({0: 15, 1: 5}, {0: [(16, 30)], 1: []})
    new = choose(LAST, {0: 20, 1: 5}, now, on_ahead="new")
    assert (new.number, new.starts, new.skip) == (4, {0: 15, 1: 5}, {0: [(16, 30)]})
    assert choose(None, None, now, on_ahead="refuse").number == 1
    assert Generation.from_json(new.to_json()) == new


def test_the_pinned_skip_set_is_kept() -> None:
    """Although more is settled by now: a batch that is replayed leaves out what it left out before."""
    now = standing({0: 10, 1: 0}, {0: [(12, 19)]})
    assert choose(LAST, None, now, planned={0: 19, 1: 0}, on_ahead="refuse") is LAST


def test_what_was_never_planned_can_be_left_out() -> None:
    """Somebody else has worked on it since."""
    now = standing({0: 25, 1: 3}, {0: [(28, 40)], 1: [(4, 6)]})
    chosen = choose(LAST, {0: 15, 1: 0}, now, planned={0: 20, 1: 0}, on_ahead="refuse")
    assert (chosen.number, chosen.revision, chosen.starts) == (3, 1, LAST.starts)
    assert chosen.skip == {0: [(12, 14), (20, 25), (28, 40)], 1: [(0, 3), (4, 6)]}
    assert choose(chosen, {0: 20, 1: 0}, now, planned={0: 20, 1: 0}, on_ahead="refuse") is chosen


def test_who_has_once_said_what_is_settled_is_not_settled_by_what_is_committed() -> None:
    """Something that was rolled back may lie before what is committed."""
    progress = replace(LAST, acking="progress")
    now = standing({0: 20, 1: 0})
    assert choose(progress, {0: 20}, now, on_ahead="refuse", acking="progress") is progress
    chosen = choose(progress, {0: 20}, now, on_ahead="new", acking="batch")
    assert (chosen.acking, chosen.number, chosen.revision) == ("batch", LAST.number, LAST.revision + 1)
    assert choose(chosen, {0: 20}, now, on_ahead="refuse", acking="progress").acking == "batch"


def test_a_query_with_state_is_not_begun_anew_unasked() -> None:
    with pytest.raises(IllegalState, match="on_ahead") as caught:
        choose(LAST, {0: 20}, standing({0: 15, 1: 0}), on_ahead="refuse")
    assert caught.value.owner


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1}', '{"format": 1, "number": "x"}'])
def test_what_is_no_generation(text: str) -> None:
    with pytest.raises(IllegalState, match="cannot be read"):
        Generation.from_json(text)


def test_a_generation_of_another_version() -> None:
    with pytest.raises(IllegalState, match="another version"):
        Generation.from_json('{"format": 2}')


def test_offsets_of_an_entry() -> None:
    entry = 'v1\n{"batchWatermarkMs":0}\n-\n{"other":{"0":7}}\n{"flights":{"1":5,"0":12}}'
    assert offsets_of(entry, "flights") == {0: 12, 1: 5}
    assert offsets_of(entry, "nothing") is None
    with pytest.raises(IllegalState, match="offset log"):
        offsets_of("v9\n{}", "flights")
