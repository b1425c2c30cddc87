"""Whether a run was right, from what its members noted: nothing lost or repeated, in order, by turns."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from benchmarks.children import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: A message in a member's hands: time in ns, index of the member, sequence number.
Arrival: TypeAlias = tuple[int, int, int]


def count(found: Iterable[int], expected: int) -> tuple[int, int]:
    """Return (lost, repeated) when the sequence numbers 0 to ``expected`` - 1 were sent.

    Raises:
        BenchmarkError: a sequence number that was never sent.
    """
    received = 0
    distinct: set[int] = set()
    for number in found:
        received += 1
        distinct.add(number)
    if distinct and max(distinct) >= expected:
        message = f"a message arrived that was never sent: number {max(distinct)} of {expected}"
        raise BenchmarkError(message)
    return expected - len(distinct), received - len(distinct)


def count_firsts(found: Sequence[int], expected: int, *, partitions: int, anew: bool) -> tuple[int, int]:
    """Return (lost, repeated) of ``expected`` messages that were each the first one somebody got.

    Lost are those that were passed over, and those that never came.
    Message n lies in partition n % ``partitions``. Who goes on where the one before left off gets each
    partition's messages without a hole and once; who begins ``anew`` gets the first one of a partition.
    """
    missing = expected - len(found)
    indices: dict[int, Counter[int]] = defaultdict(Counter)
    for number in found:
        indices[number % partitions][number // partitions] += 1
    if anew:
        passed_over = sum(index * times for each in indices.values() for index, times in each.items())
        return missing + passed_over, 0
    lost = missing + sum(max(each) + 1 - len(each) for each in indices.values())
    return lost, sum(each.total() - len(each) for each in indices.values())


def disordered(arrivals: Sequence[Arrival], same_order: Callable[[int], int]) -> int:
    """Return how many messages came after a later one of the same order; ``arrivals`` are sorted by time."""
    latest: dict[int, int] = {}
    wrong = 0
    for _, _, sequence in arrivals:
        order = same_order(sequence)
        if sequence < latest.get(order, -1):
            wrong += 1
        else:
            latest[order] = sequence
    return wrong


def handovers_ms(arrivals: Sequence[Arrival]) -> list[float]:
    """Return the time from a member's last message to the next one's first, each time the turn passed."""
    return [(at - before) / 1e6 for (before, a, _), (at, b, _) in pairwise(arrivals) if a != b]
