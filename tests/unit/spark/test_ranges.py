"""Sets of offsets, and their words for Spark, against sets of Python."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from kafkadur_sharing.ranges import count, joined, within, without
from kafkadur_spark.ranges import LONG, WORD, split, words

PAIRS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=12)


def offsets(pairs: list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in pairs for offset in range(start, end)}


@given(PAIRS)
def test_joined_is_sorted_and_complete(pairs: list[tuple[int, int]]) -> None:
    found = joined(pairs)
    assert offsets(found) == offsets(pairs)
    assert count(found) == len(offsets(pairs))
    assert all(a < b for a, b in found)
    assert all(left[1] < right[0] for left, right in pairwise(found))


@given(PAIRS, PAIRS, st.integers(0, 200), st.integers(0, 200))
def test_parts_and_differences(
    some: list[tuple[int, int]], others: list[tuple[int, int]], start: int, end: int
) -> None:
    one, other = joined(some), joined(others)
    assert offsets(within(one, start, end)) == offsets(one) & set(range(start, end))
    left = without(one, other)
    assert offsets(left) == offsets(one) - offsets(other)
    assert left == joined(left)


@given(st.dictionaries(st.integers(0, 3), PAIRS, max_size=3))
def test_words_say_which_offsets(skip: dict[int, list[tuple[int, int]]]) -> None:
    rows = words({partition: joined(pairs) for partition, pairs in skip.items()})
    assert all(-(2**63) <= bits < 2**63 and bits != 0 for _, _, bits in rows)
    found = {
        (partition, word * WORD + bit)
        for partition, word, bits in rows
        for bit in range(WORD)
        if (bits >> bit) & 1
    }
    assert found == {(partition, offset) for partition, pairs in skip.items() for offset in offsets(pairs)}
    assert len({(partition, word) for partition, word, _ in rows}) == len(rows)


def test_long_ranges_are_few() -> None:
    skip = {0: [(0, LONG), (LONG + 1, LONG + 2)], 1: [(5, 6 + 2 * LONG)], 2: [(0, LONG + 1)], 3: [(1, 2)]}
    few, rest = split(skip, most=2)
    assert few == {1: [(5, 6 + 2 * LONG)], 2: [(0, LONG + 1)]}
    assert rest == {0: [(0, LONG), (LONG + 1, LONG + 2)], 3: [(1, 2)]}
    assert split(skip, most=9)[1] == {0: [(LONG + 1, LONG + 2)], 3: [(1, 2)]}
