"""What is done for every delivery: the compiled and the plain way do the same."""

import copy
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any

import pytest

from kafkadur.consumer import delivery_path, marks
from kafkadur.consumer.chunk import ACKED, FRESH, HANDED, SENT
from kafkadur.native import choice

WAYS = [
    "plain",
    pytest.param("compiled", marks=pytest.mark.skipif(not choice.is_native(), reason="not built")),
]


class Refused(Exception):
    """The verdict was refused."""


def delivery_class(way: str) -> Any:
    """Return a class of deliveries that is made in this way."""
    base: Any = delivery_path.PureHanded if way == "plain" else delivery_path.Handed
    return type("Delivery", (base,), {"__slots__": (), "_refuse": refuse})


def refuse(_: object) -> None:
    """Raise an error."""
    raise Refused


class Chunk:
    """A chunk as far as acknowledging needs it."""

    def __init__(self, verdicts: bytes) -> None:
        self.verdicts = bytearray(verdicts)
        self.messages = [f"record {index}" for index in range(len(verdicts))]

    def acknowledge(self, index: int) -> bool:
        if self.verdicts[index] != HANDED:
            return False
        self.verdicts[index] = ACKED
        return True


@pytest.mark.parametrize("way", WAYS)
def test_acknowledging(way: str) -> None:
    chunk = Chunk(bytes((HANDED, FRESH, HANDED, SENT)))
    made = [delivery_class(way)(chunk, index, f"record {index}") for index in range(5)]
    kept = [(each._index, each._message) for each in made[:2]]  # noqa: SLF001 - what it was made of
    assert kept == [(0, "record 0"), (1, "record 1")]
    made[2].ack_nowait()
    assert chunk.verdicts == bytes((HANDED, FRESH, ACKED, SENT))
    for index in (1, 2, 3):
        with pytest.raises(Refused):
            made[index].ack_nowait()
    with pytest.raises(IndexError):  # the end of the chunk was taken back
        made[4].ack_nowait()
    assert chunk.verdicts == bytes((HANDED, FRESH, ACKED, SENT))


@pytest.mark.parametrize("way", WAYS)
def test_deliveries_are_made_one_after_the_other(way: str) -> None:
    chunk = Chunk(bytes((HANDED,)) * 6)
    deal: Any = delivery_path.pure_deal if way == "plain" else delivery_path.deal
    made, left = deal(delivery_class(way), chunk, 2, 5)
    assert length_hint(left) == 3
    first = next(made)
    assert (first._index, first._message) == (2, "record 2")  # noqa: SLF001 - what it was made of
    assert length_hint(left) == 2
    del chunk.messages[4:]  # the end was taken back, which changes nothing for those that are dealt
    rest = list(made)
    assert [each._message for each in rest] == ["record 3", "record 4"]  # noqa: SLF001 - as above
    assert (length_hint(left), next(made, None)) == (0, None)
    rest[0].ack_nowait()
    assert chunk.verdicts == bytes((HANDED, HANDED, HANDED, ACKED, HANDED, HANDED))


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_another_delivery_of_the_same_record(way: str) -> None:
    chunk = Chunk(bytes((HANDED, HANDED)))
    made = delivery_class(way)(chunk, 1, "record 1")
    again = copy.copy(made)
    again.ack_nowait()
    assert (again._index, again._message) == (1, "record 1")  # noqa: SLF001 - what it was made of
    assert chunk.verdicts == bytes((HANDED, ACKED))


@pytest.mark.skipif(not choice.is_native(), reason="not built")
def test_only_deliveries_are_dealt() -> None:
    with pytest.raises(TypeError):
        delivery_path.deal(int, Chunk(b"\0"), 0, 1)  # type: ignore[arg-type]  # that is the test


def sifting(
    way: str, block: Iterator[int], stale: Callable[[int], bool] = lambda _: False
) -> tuple[Iterator[int], Any]:
    """Return an iterator over a block, and the marks that it looks at."""
    seen: Any = marks.PureMarks() if way == "plain" else marks.Marks()
    seen.losses = 3
    sift: Any = delivery_path.pure_sift if way == "plain" else delivery_path.sift
    return sift(block, seen, 3, stale), seen


@pytest.mark.parametrize("way", WAYS)
def test_a_block_is_handed_out(way: str) -> None:
    looked = list[int]()

    def stale(number: int) -> bool:
        looked.append(number)
        return number % 2 == 0

    found, seen = sifting(way, iter(range(1, 7)), stale)
    assert [next(found), next(found)] == [1, 2]
    assert looked == []
    seen.losses += 1
    assert list(found) == [3, 5]
    assert looked == [3, 4, 5, 6]
    assert next(found, None) is None


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_handed_out_after_stop(way: str) -> None:
    block = iter([1, 2, 3])
    found, seen = sifting(way, block)
    assert next(found) == 1
    seen.closing = True
    assert list(found) == []
    assert list(block) == [2, 3], "the rest is given back"


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_the_block_is_raised(way: str) -> None:
    def block() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    found, _ = sifting(way, block())
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)
