"""What was lost, repeated, out of order or handed over is found in what the members noted."""

from __future__ import annotations

import pytest

from benchmarks.children import BenchmarkError
from benchmarks.verification import count, count_firsts, disordered, handovers_ms


def test_lost_and_repeated_are_counted() -> None:
    assert count([0, 1, 2, 3], 4) == (0, 0)
    assert count([3, 0, 3, 1, 3], 5) == (2, 2)


def test_what_was_never_sent_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="number 4 of 4"):
        count([4], 4)


@pytest.mark.parametrize(
    ("found", "expected", "anew", "wrong"),
    [
        ([0, 1, 3, 2], 4, False, (0, 0)),  # partition 0: 0, 2; partition 1: 1, 3
        ([0, 4], 2, False, (1, 0)),  # message 2 of partition 0 was passed over
        ([0, 0, 1], 3, False, (0, 1)),
        ([0, 1], 3, False, (1, 0)),  # a round without a message
        ([0, 1, 0], 3, True, (0, 0)),
        ([0, 3], 2, True, (1, 0)),  # it began at the second message of partition 1
    ],
)
def test_first_messages(found: list[int], expected: int, *, anew: bool, wrong: tuple[int, int]) -> None:
    assert count_firsts(found, expected, partitions=2, anew=anew) == wrong


def test_order_is_kept_within_what_has_one() -> None:
    arrivals = [(10, 0, 0), (20, 1, 3), (30, 0, 2), (40, 1, 1)]
    assert disordered(arrivals, lambda sequence: sequence % 2) == 1  # 1 after 3
    assert disordered(arrivals, lambda sequence: sequence) == 0


def test_a_handover_is_between_members() -> None:
    arrivals = [(1_000_000, 0, 0), (2_000_000, 0, 1), (5_000_000, 1, 2), (6_000_000, 0, 3)]
    assert handovers_ms(arrivals) == [3.0, 1.0]
