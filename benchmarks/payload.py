"""The payload every workload sends: a sequence number, a time stamp, a work time, padding.

Only its layout lives here; who writes it is in ``source.py``, who reads it in ``recorder.py``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of one payload.
SIZE = 100

_HEAD = struct.Struct("<QQI")
_PADDED = struct.Struct(f"<QQI{SIZE - _HEAD.size}x")


def encode(sequence: int, *, stamp_ns: int = 0, work_us: int = 0) -> bytes:
    """Build one payload of `SIZE` bytes.

    ``stamp_ns`` is a reading of CLOCK_MONOTONIC in nanoseconds (all processes of a Linux machine share it),
    ``work_us`` the time in microseconds that a worker of the fan-out spends on this message.
    """
    return _PADDED.pack(sequence, stamp_ns, work_us)


def sequence(value: bytes) -> int:
    """Return the sequence number of a payload."""
    head: tuple[int, int, int] = _HEAD.unpack_from(value)
    return head[0]


def stamp_ns(value: bytes) -> int:
    """Return the time stamp of a payload in nanoseconds."""
    head: tuple[int, int, int] = _HEAD.unpack_from(value)
    return head[1]


def work_us(value: bytes) -> int:
    """Return the work time in microseconds asked for by a payload."""
    head: tuple[int, int, int] = _HEAD.unpack_from(value)
    return head[2]


def decode_all(payloads: memoryview) -> Iterator[tuple[int, int]]:
    """Yield (sequence, stamp in ns) of each of many payloads that lie one behind the other."""
    for sequence, stamp_ns, _ in _PADDED.iter_unpack(payloads):
        yield sequence, stamp_ns
