"""What the rows of a sink say, gathered from Arrow batches."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkadur.runtime.dead_letters import LONGEST_REASON
from kafkadur_sharing.errors import IllegalState
from kafkadur_spark.columns import check_columns
from kafkadur_spark.dispositions import Disposition, Said, decide
from kafkadur_spark.gathering import Gathering

_offsets = st.lists(st.integers(0, 60), max_size=40)


def gathered(*batches: dict[str, Any]) -> list[Said]:
    gathering = Gathering("t")
    for batch in batches:
        gathering.add(pa.RecordBatch.from_pydict(batch))
    return gathering.said()


@given(st.lists(_offsets, max_size=4))
def test_all_offsets_and_no_others_are_gathered(batches: list[list[int]]) -> None:
    rows = [{"partition": [offset % 2 for offset in some], "offset": list(some)} for some in batches if some]
    found = gathered(*rows)
    listed = [(one.partition, offset) for one in found for offset in range(one.start, one.end)]
    assert sorted(listed) == sorted({(offset % 2, offset) for some in batches for offset in some})
    assert {one.disposition for one in found} <= {Disposition.ACK}


def test_offsets_as_they_lie_in_kafka_are_one_stretch_over_batches() -> None:
    assert gathered(
        {"partition": [3] * 3, "offset": [7, 8, 9]}, {"partition": [3] * 2, "offset": [10, 11]}
    ) == [Said(3, 7, 12)]


def test_one_offset_and_no_row() -> None:
    empty = pa.RecordBatch.from_pydict({"partition": pa.array([], "int32"), "offset": pa.array([], "int64")})
    gathering = Gathering("t")
    gathering.add(empty)
    assert gathering.said() == []
    assert gathered({"partition": [0], "offset": [5]}) == [Said(0, 5, 6)]


def test_dispositions_and_reasons_are_kept_apart() -> None:
    found = gathered(
        {
            "partition": [0, 0, 0, 1, 0],
            "offset": [1, 2, 3, 3, 4],
            "disposition": ["ack", "reject", "reject", "rollback", "ack"],
            "reason": [None, "bad", "worse", None, None],
        }
    )
    assert sorted(found) == [
        Said(0, 1, 2),
        Said(0, 2, 3, Disposition.REJECT, "bad"),
        Said(0, 3, 4, Disposition.REJECT, "worse"),
        Said(0, 4, 5),
        Said(1, 3, 4, Disposition.ROLLBACK),
    ]


def test_stretches_are_taken_as_they_are() -> None:
    found = gathered({"partition": [0, 0, 0], "start": [10, 0, 15], "end": [20, 5, 30]})
    assert sorted(found) == [Said(0, 0, 5), Said(0, 10, 30)]


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("topic", "other", "the subscription's topic is t"),
        ("disposition", "acknowledge", "use ack, rollback, reject, leave"),
        ("disposition", None, "has a null"),
        ("offset", None, "has a null"),
    ],
)
def test_a_wrong_row_is_refused(column: str, value: str | None, told: str) -> None:
    rows: dict[str, list[Any]] = {
        "partition": [0, 0],
        "offset": [1, 2],
        "topic": ["t", "t"],
        "disposition": ["ack", "ack"],
    }
    wrong = {**rows, column: [rows[column][0], value]}
    with pytest.raises(IllegalState, match=told):
        gathered(wrong)


@pytest.mark.parametrize(("start", "end"), [(17, 17), (9, 3)])
def test_a_stretch_of_nothing_is_refused(start: int, end: int) -> None:
    """Its end may be meant to be in it: what it says is not to be lost."""
    with pytest.raises(IllegalState, match=f"start {start}, end {end}"):
        gathered({"partition": [0, 0], "start": [0, start], "end": [4, end]})


def test_a_reason_is_no_longer_than_that_of_a_dead_letter() -> None:
    (found,) = gathered({"partition": [0], "offset": [1], "disposition": ["reject"], "reason": ["x" * 5_000]})
    assert len(found.reason) == LONGEST_REASON


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ({"partition": "integer"}, "there is no start, end"),
        ({"partition": "integer", "offset": "long", "value": "binary"}, "not known: value"),
        ({"partition": "integer", "offset": "string"}, "of a wrong type: offset"),
        (
            {"partition": "integer", "offset": "long", "disposition": "integer"},
            "of a wrong type: disposition",
        ),
    ],
)
def test_columns_that_mean_nothing_here_are_refused(types: dict[str, str], told: str) -> None:
    with pytest.raises(IllegalState, match=told):
        check_columns(types)


def test_a_roll_back_counts_before_a_reject_and_that_before_an_ack() -> None:
    said = [
        Said(0, 0, 10),
        Said(0, 3, 6, Disposition.REJECT, "first"),
        Said(0, 5, 7, Disposition.REJECT, "second"),
        Said(0, 4, 5, Disposition.ROLLBACK),
    ]
    chosen = decide(said, {0: [(0, 20)]}, {0: [(0, 9), (12, 20)]}, all_else=False)
    assert chosen.acked == {0: [(0, 3), (7, 9)]}
    assert chosen.rolled_back == {0: [(4, 5)]}
    assert chosen.rejected == {0: {3: "first", 5: "first", 6: "second"}}


def test_what_is_left_is_neither_settled_nor_rejected() -> None:
    said = [
        Said(0, 0, 10, Disposition.REJECT, "x"),
        Said(0, 2, 5, Disposition.LEAVE),
        Said(0, 4, 6, Disposition.ROLLBACK),
    ]
    chosen = decide(said, {0: [(0, 12)]}, {0: [(0, 12)]}, all_else=True)
    assert chosen.acked == {0: [(10, 12)]}
    assert chosen.rolled_back == {0: [(4, 6)]}
    assert sorted(chosen.rejected[0]) == [0, 1, 6, 7, 8, 9]


def test_all_else_is_what_was_read_and_not_named() -> None:
    chosen = decide(
        [Said(1, 2, 3, Disposition.ROLLBACK)],
        {0: [(0, 5)], 1: [(0, 5)]},
        {0: [(0, 5)], 1: [(1, 5)]},
        all_else=True,
    )
    assert chosen.acked == {0: [(0, 5)], 1: [(1, 2), (3, 5)]}


@pytest.mark.parametrize("one", [Said(0, 4, 6), Said(0, -1, 1), Said(0, 3, 3), Said(1, 0, 1)])
def test_what_is_not_in_the_batch_is_refused(one: Said) -> None:
    with pytest.raises(IllegalState, match="not in the batch"):
        decide([one], {0: [(0, 5)]}, {0: [(0, 5)]}, all_else=False)


def test_more_is_rejected_than_can_be_written() -> None:
    with pytest.raises(IllegalState, match="10001 messages of the batch are rejected"):
        decide(
            [Said(0, 0, 10_001, Disposition.REJECT)], {0: [(0, 20_000)]}, {0: [(0, 20_000)]}, all_else=True
        )
