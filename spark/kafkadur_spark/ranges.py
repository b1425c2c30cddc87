"""Sets of offsets as words of 64 for a join in Spark. Pure.

A skip set contains the offsets that a query must leave out because they were settled before it began. In
Spark it is a small table (partition, word, bits) in which every record's offset is looked up: the word is
offset // 64, and bit offset % 64 of `bits` is set if the offset is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkadur_sharing.ranges import Ranges

#: Offsets of one word.
WORD = 64
_ALL = 2**WORD - 1
#: A range of at least so many offsets is long.
LONG = 64 * WORD


def split(skip: Mapping[int, Ranges], *, most: int) -> tuple[dict[int, Ranges], dict[int, Ranges]]:
    """Split sets into at most `most` long ranges and the rest, which is for `words`; both by partition."""
    long = sorted(
        ((end - start, partition, start, end) for partition, some in skip.items() for start, end in some),
        reverse=True,
    )
    chosen = {(partition, start, end) for size, partition, start, end in long[:most] if size >= LONG}
    few: dict[int, Ranges] = {p: [pair for pair in some if (p, *pair) in chosen] for p, some in skip.items()}
    rest: dict[int, Ranges] = {
        p: [pair for pair in some if (p, *pair) not in chosen] for p, some in skip.items()
    }
    return {p: some for p, some in few.items() if some}, {p: some for p, some in rest.items() if some}


def words(skip: Mapping[int, Ranges]) -> list[tuple[int, int, int]]:
    """Return the rows (partition, word, bits) of skip sets by partition; bits is an int64, as Spark needs."""
    rows: list[tuple[int, int, int]] = []
    for partition, ranges in sorted(skip.items()):
        bits: dict[int, int] = {}
        for start, end in ranges:
            for word in range(start // WORD, (end - 1) // WORD + 1):
                low, high = max(start - word * WORD, 0), min(end - word * WORD, WORD)
                bits[word] = bits.get(word, 0) | ((_ALL >> (WORD - (high - low))) << low)
        rows += [(partition, word, _signed(value)) for word, value in sorted(bits.items())]
    return rows


def _signed(value: int) -> int:
    """Return the int64 with the bits of a word."""
    return value - 2**WORD if value >= 2 ** (WORD - 1) else value
