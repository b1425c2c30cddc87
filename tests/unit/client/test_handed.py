"""What is done for every delivery: the compiled and the plain way do the same."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kafkadur.consumer import handed
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
    base: Any = handed.PureHanded if way == "plain" else handed.Handed
    return type("Delivery", (base,), {"__slots__": (), "_refuse": refuse})


def refuse(_: object) -> None:
    """Raise an error."""
    raise Refused


class Chunk:
    """A chunk as far as acknowledging needs it."""

    def __init__(self, verdicts: bytes) -> None:
        self.verdicts = bytearray(verdicts)

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


def sifting(
    way: str, block: Iterator[int], stale: Callable[[int], bool] = lambda _: False
) -> tuple[Iterator[int], SimpleNamespace, SimpleNamespace]:
    """Return an iterator over a block, and what it looks at: leases and gate."""
    leases, gate = SimpleNamespace(losses=3), SimpleNamespace(closing=False)
    sift: Any = handed.pure_sift if way == "plain" else handed.sift
    return sift(block, leases, gate, 3, stale), leases, gate


@pytest.mark.parametrize("way", WAYS)
def test_a_block_is_handed_out(way: str) -> None:
    looked = list[int]()

    def stale(number: int) -> bool:
        looked.append(number)
        return number % 2 == 0

    found, leases, _ = sifting(way, iter(range(1, 7)), stale)
    assert [next(found), next(found)] == [1, 2]
    assert looked == []
    leases.losses += 1
    assert list(found) == [3, 5]
    assert looked == [3, 4, 5, 6]
    assert next(found, None) is None


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_handed_out_after_stop(way: str) -> None:
    block = iter([1, 2, 3])
    found, _, gate = sifting(way, block)
    assert next(found) == 1
    gate.closing = True
    assert list(found) == []
    assert list(block) == [2, 3], "the rest is given back"


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_the_block_is_raised(way: str) -> None:
    def block() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    found, _, _ = sifting(way, block())
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)
