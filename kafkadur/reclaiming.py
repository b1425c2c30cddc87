"""What stays in an application's hands over a loss of the shared state, and the claims for it.

When Redis restarted, failed over or was wiped, leases end; but whoever is attached again in time may claim
what its application has not settled yet, or has settled and nobody confirmed (`lua/reclaim-6+3.lua`). Rules
over chunks, no I/O and no lock; when it is done is `member.py` and `pump.py`. Not for key-ordered
subscriptions, which would have to know what waits behind a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from kafkadur.delivery import (
    ACKED,
    DEAD,
    HANDED,
    LOST,
    OVERDUE,
    REJECTED,
    RELEASED,
    RETURNED,
    ROLLED_BACK,
    SENT,
    Chunk,
    Lease,
)
from kafkadur.harvest import add_ranges
from kafkadur_coordinators.interface import Claim, Claimed, Exchange

#: Verdicts of records that are claimed.
_KEPT = (HANDED, ACKED, REJECTED, DEAD)
_KEPT_RUNS = re.compile(b"[" + bytes(_KEPT) + b"]+")
#: What was given back comes again by itself.
_GIVEN = bytes((ROLLED_BACK, RELEASED, OVERDUE, RETURNED))
_FORGET_GIVEN = bytes.maketrans(_GIVEN, bytes((LOST,)) * len(_GIVEN))


def keep(chunks: Iterable[Chunk], unanswered: Exchange | None) -> tuple[list[Chunk], int]:
    """Cut chunks down to what can be claimed; returns those of which there is something.

    What the `unanswered` exchange acknowledged is as if it had not been sent; the number says how many that
    are.
    """
    unsent = 0
    sent: dict[int, set[int]] = {}
    for part in () if unanswered is None else unanswered.parts:
        for item in part.settled:
            sent.setdefault(item.token, set()).update(_offsets(item.ranges, item.blob_from, item.blob))
    kept: list[Chunk] = []
    for chunk in chunks:
        if chunk.lease.lost or chunk.lease.alone:
            continue
        chunk.cut(chunk.handed)
        for index in range(len(chunk.verdicts)):
            if chunk.verdicts[index] == SENT and chunk.offset(index) in sent.get(chunk.lease.token, ()):
                chunk.verdicts[index] = ACKED
                chunk.unsure.add(index)
                unsent += 1
        chunk.verdicts[:] = chunk.verdicts.translate(_FORGET_GIVEN)
        chunk.low = next((i for i, verdict in enumerate(chunk.verdicts) if verdict in _KEPT), chunk.handed)
        if chunk.low < chunk.handed:
            kept.append(chunk)
    return kept, unsent


def _offsets(ranges: Sequence[int], first: int, blob: bytes) -> Iterator[int]:
    for start, end in zip(ranges[::2], ranges[1::2], strict=True):
        yield from range(start, end)
    for at, byte in enumerate(blob):
        for bit in range(8):
            if byte & (128 >> bit):
                yield first + at * 8 + bit


def claim(chunk: Chunk) -> Claim:
    """The claim for what a chunk still holds."""
    pairs: list[int] = []
    for kept in _KEPT_RUNS.finditer(bytes(chunk.verdicts), chunk.low, chunk.handed):
        add_ranges(pairs, chunk, *kept.span())
    lease = chunk.lease
    redelivered = lease.redelivered or bool(pairs and pairs[-1] <= lease.seen)
    return Claim(lease.incarnation, lease.token, 2 * lease.attempts + int(redelivered), pairs)


def take_over(chunk: Chunk, lease: Lease, claimed: Claimed) -> tuple[int, int]:
    """Make what was granted of a claim the new lease's; returns how many deliveries, and acks, are lost.

    What was sent and is settled had arrived; what else the chunk holds beyond the lease is lost: also what
    somebody else has settled meanwhile.
    """
    held, settled = set(_offsets(claimed.held, 0, b"")), set(_offsets(claimed.settled, 0, b""))
    hands = acks = 0
    for index in range(chunk.low, chunk.handed):
        verdict, offset = chunk.verdicts[index], chunk.offset(index)
        if verdict in {ACKED, DEAD} and index in chunk.unsure and offset in settled:
            chunk.verdicts[index] = SENT
        elif verdict in _KEPT and offset not in held:
            hands += verdict == HANDED
            acks += verdict == ACKED
            chunk.verdicts[index] = LOST
    lease.chunks.append(chunk)
    lease.stretch.clear()
    lease.fill = lease.end
    chunk.lease = lease
    return hands, acks
