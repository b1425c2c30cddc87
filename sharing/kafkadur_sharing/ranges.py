"""Sets of offsets as sorted [start, end) pairs. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: [start, end) pairs, sorted, without overlap and without gaps of 0.
Ranges = Sequence[tuple[int, int]]


def joined(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of the pairs; empty pairs are ignored."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(pair for pair in pairs if pair[0] < pair[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def within(ranges: Ranges, start: int, end: int) -> list[tuple[int, int]]:
    """Return the part of a set in [start, end)."""
    cut = ((max(a, start), min(b, end)) for a, b in ranges)
    return [(a, b) for a, b in cut if a < b]


def without(ranges: Ranges, gone: Ranges) -> list[tuple[int, int]]:
    """Return the part of a set that is not in another one."""
    found: list[tuple[int, int]] = []
    left = iter(gone)
    hole = next(left, None)
    for start, end in ranges:
        at = start
        while hole is not None and hole[1] <= at:
            hole = next(left, None)
        while hole is not None and hole[0] < end:
            if at < hole[0]:
                found.append((at, hole[0]))
            at = max(at, hole[1])
            if hole[1] > end:
                break
            hole = next(left, None)
        if at < end:
            found.append((at, end))
    return found


def count(ranges: Ranges) -> int:
    """Return the number of offsets in a set."""
    return sum(end - start for start, end in ranges)
