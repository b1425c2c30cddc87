"""The path of every delivery: making it, handing it to a loop, and acknowledging it without waiting.

`Handed`, `deal` and `sift` are compiled where `kafkadur/native/_native.pyx` is, and do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from confluent_kafka import Message

from kafkadur.consumer.chunk import Chunk
from kafkadur.consumer.marks import Marks
from kafkadur.native.choice import compiled

D = TypeVar("D")


class PureHanded:
    """One record of a chunk."""

    __slots__ = ("_chunk", "_index", "_message")

    def __init__(self, chunk: Chunk, index: int, message: Message) -> None:
        """Record `index` of a chunk."""
        self._chunk = chunk
        self._index = index
        self._message = message

    @property
    def value(self) -> Any:  # noqa: ANN401 - `Delivery` says what it is
        """Payload, None for a tombstone; or the object that the deserializer makes of it.

        It is deserialized at the first access, in the accessing thread. Raises `Undecodable`.
        """
        return self._message.value()

    @property
    def key(self) -> Any:  # noqa: ANN401 - as above
        """Key, None if the message has none; or the object that the deserializer makes of it, as `value`."""
        return self._message.key()

    def ack_nowait(self) -> None:
        """Acknowledge locally; the next exchange confirms it (within the unconfirmed budget).

        Raises `AlreadySettled` or `LeaseLost`.
        """
        if not self._chunk.acknowledge(self._index):
            self._refuse()

    def _refuse(self) -> NoReturn:
        """Raise the error for a verdict on a record that is not in flight."""
        raise NotImplementedError


def pure_deal(
    make: Callable[[Chunk, int, Message], D], chunk: Chunk, start: int, end: int
) -> tuple[Iterator[D], Iterator[Any]]:
    """Return an iterator over the deliveries of records [start, end), and one that knows how many are left.

    The length hint of the second is their number. `make` is the class of the deliveries, or a function that
    makes one.
    """
    indices = iter(range(start, end))
    return map(make, repeat(chunk), indices, chunk.messages[start:end]), indices


def pure_sift(block: Iterator[D], marks: Marks, losses: int, stale: Callable[[D], bool]) -> Iterator[D]:
    """Yield the deliveries of a block until nothing more may be handed out.

    It was taken when leases had been lost `losses` times. If more are lost now, `stale` says which deliveries
    are left out.
    """
    while not marks.closing:
        delivery = next(block, None)
        if delivery is None:
            return
        if marks.losses == losses or not stale(delivery):
            yield delivery


if TYPE_CHECKING:
    Handed = PureHanded
    deal = pure_deal
    sift = pure_sift
else:
    Handed = compiled("Handed", PureHanded)
    deal = compiled("deal", pure_deal)
    sift = compiled("Sift", pure_sift)
