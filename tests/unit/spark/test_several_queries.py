"""What several queries have settled: only what all have is settled."""

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.ranges import Ranges, joined
from kafkadur_spark.several_queries import SeveralQueries, from_record, to_record

QUERIES = ("totals", "archive", "alerts")
HELD: Any = SimpleNamespace(id="s1", epoch=3, topic=SimpleNamespace(id="t1"))

sets = st.dictionaries(
    st.integers(0, 2),
    st.lists(st.integers(0, 30).flatmap(lambda a: st.tuples(st.just(a), st.integers(a + 1, a + 5)))).map(
        joined
    ),
)


def offsets(some: Mapping[int, Ranges]) -> set[tuple[int, int]]:
    return {
        (p, offset) for p, ranges in some.items() for start, end in ranges for offset in range(start, end)
    }


@given(st.lists(st.tuples(st.sampled_from(QUERIES), sets), max_size=12))
def test_settled_is_what_all_have_settled_and_each_knows_its_rest(said: list[tuple[str, Any]]) -> None:
    several = SeveralQueries(QUERIES)
    for query in QUERIES:
        several.begin(query, {})
    mine = {query: set[tuple[int, int]]() for query in QUERIES}
    for query, some in said:
        several.add(query, some)
        mine[query] |= offsets(some)
        by_all = several.by_all()
        settled = set.intersection(*mine.values())
        assert offsets(by_all) == settled
        several.forget(by_all)
        mine = {each: left - settled for each, left in mine.items()}
        assert {each: offsets(several.of(each)) for each in QUERIES} == mine


def test_nothing_is_settled_before_all_have_begun() -> None:
    several = SeveralQueries(["a", "b"])
    several.begin("a", {0: [(0, 10)]})
    assert several.by_all() == {}
    several.begin("b", {0: [(5, 20)]})
    assert several.by_all() == {0: [(5, 10)]}


def test_a_record_is_that_of_one_life_of_the_subscription() -> None:
    settled = {0: [(3, 8), (10, 12)], 2: [(0, 1)]}
    text = to_record(HELD, settled, {0: 2, 1: 0})
    assert from_record(text, HELD, {}, {0: 2}) == settled
    assert from_record(text, HELD, {0: 5, 2: 1}, {0: 2}) == {0: [(5, 8), (10, 12)], 2: []}
    assert from_record(text, HELD, {}, {0: 3}) == {2: [(0, 1)]}, "other messages may be there now"
    assert from_record(None, HELD, {}, {}) == {}
    for other in ({"id": "s2"}, {"epoch": 4}, {"topic": SimpleNamespace(id="t2")}):
        assert from_record(text, SimpleNamespace(**vars(HELD) | other), {}, {0: 2}) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"subscription": "s1"}), "null"])
def test_a_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(IllegalState, match="cannot be read"):
        from_record(text, HELD, {}, {})
