"""What stays in an application's hands over a loss of the shared state, and the claims for it.

When Redis restarted, failed over or was wiped, leases end; but whoever is attached again in time may claim
what its application has not decided yet, or has decided and nobody confirmed (`lua/reclaim-6+3.lua`): then
the decision is sent again, under the new lease, and a roll back is counted as if nothing had happened. Rules
over chunks, no I/O and no lock; `losses.py` and `runtime/coordinator_thread.py` decide when it is done. Not
for key-ordered subscriptions, which would have to know what waits behind a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.collected_verdicts import add_ranges
from kafkadur_coordinators.interface import Claim, Claimed, Exchange, How, Returned


def keep(chunks: Iterable[Chunk], unanswered: Exchange | None) -> tuple[list[Chunk], int]:
    """Cut chunks down to what can be claimed; returns those of which there is something.

    What the `unanswered` exchange said is as if it had not been sent; the number says how many
    acknowledgements that are.
    """
    unsent = 0
    sent, returned = _said_in(unanswered)
    kept: list[Chunk] = []
    for chunk in chunks:
        if chunk.lease.lost or chunk.lease.isolated:
            continue
        chunk.cut(chunk.handed)
        token = chunk.lease.token
        for index in range(len(chunk.verdicts)):
            if chunk.offset(index) in sent.get(token, ()):
                unsent += chunk.unsend(index)
            said = returned.get((token, chunk.offset(index)))
            if said is not None and chunk.is_returned(index):
                chunk.take_back(index, released=said.how == How.RELEASED, delay=said.delay)
        if chunk.keep_open():
            kept.append(chunk)
    return kept, unsent


def _said_in(exchange: Exchange | None) -> tuple[dict[int, set[int]], dict[tuple[int, int], Returned]]:
    """What an exchange settled, offsets by token, and what it gave back, by token and offset."""
    sent: dict[int, set[int]] = {}
    returned: dict[tuple[int, int], Returned] = {}
    for part in () if exchange is None else exchange.parts:
        for item in part.settled:
            sent.setdefault(item.token, set()).update(_offsets(item.ranges, item.blob_from, item.blob))
        for back in part.returned:
            if back.how != How.UNREAD:
                returned |= {(back.token, offset): back for offset in range(back.start, back.end)}
    return sent, returned


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
    for first, end in chunk.kept_runs():
        add_ranges(pairs, chunk, first, end)
    lease = chunk.lease
    redelivered = lease.redelivered or bool(pairs and pairs[-1] <= lease.seen)
    return Claim(lease.incarnation, lease.token, 2 * lease.attempts + int(redelivered), pairs)


def take_over(chunk: Chunk, lease: Lease, claimed: Claimed, *, in_time: bool) -> tuple[int, int]:
    """Make what was granted of a claim the new lease's; returns how many deliveries, and acks, are lost.

    What was sent and is settled had arrived, if the member was heard again `in_time`: before its lease could
    be over, and somebody else have settled it. What else the chunk holds beyond the lease is lost.
    """
    held, settled = set(_offsets(claimed.held, 0, b"")), set(_offsets(claimed.settled, 0, b""))
    hands, acks = chunk.take_over(
        held=held.__contains__, arrived=lambda offset: in_time and offset in settled
    )
    lease.stretch.clear()
    lease.fill = lease.end
    chunk.lease = lease
    return hands, acks
