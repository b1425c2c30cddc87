"""Bounds of the numbers and texts that members and the coordinator send each other.

The scripts refuse a request with a value outside of the bounds of its field (`redis/shapes.py`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, NamedTuple

from kafkadur_sharing.numbers import LONGEST_DELAY


class Bounds(NamedTuple):
    """The least and the greatest value of an integer, or length of a text in bytes."""

    least: int
    most: int


_MOST = 2**47
#: Truth as a number.
Flag = Annotated[int, Bounds(0, 1)]
#: A number of members, partitions or attempts, or a window.
Count = Annotated[int, Bounds(0, 2**31)]
#: A number of records. One member may take, or find expired, all of a partition.
Records = Annotated[int, Bounds(0, _MOST)]
#: The number of a partition, or of a lane of keys.
Partition = Annotated[int, Bounds(0, 2**31)]
#: An offset of a partition, or the end of a range of offsets.
Offset = Annotated[int, Bounds(0, _MOST)]
#: An offset, or -1: there is none, or it is not known.
MaybeOffset = Annotated[int, Bounds(-1, _MOST)]
#: A number that rises: a token, an incarnation, the number of an exchange.
Serial = Annotated[int, Bounds(0, _MOST)]
#: A leader epoch, or -1: it is not known.
MaybeEpoch = Annotated[int, Bounds(-1, 2**31)]
#: A time since 1970 in ms, or -1: there is none.
MaybeTime = Annotated[int, Bounds(-1, _MOST)]
#: Attempts that were counted, and what is known of them (`lua/include/redelivery.lua`).
Marks = Annotated[int, Bounds(0, 2**16 - 1)]
#: Milliseconds until a message may be delivered again, or -1: as the redelivery policy says.
Delay = Annotated[int, Bounds(-1, LONGEST_DELAY // timedelta(milliseconds=1))]
#: A name, or another short text.
Name = Annotated[str, Bounds(0, 2**16)]
#: A definition as JSON. It has two offsets for each partition.
Document = Annotated[str, Bounds(0, 2**24)]
#: Milliseconds that something lasts.
Duration = Annotated[int, Bounds(0, _MOST)]
#: Milliseconds that something lasts, at most a day.
TimeOut = Annotated[int, Bounds(0, 86_400_000)]
