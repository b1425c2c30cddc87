"""Reservations: offsets that are not written yet and belong to one member of a shared subscription.

The member dispatches their records without an exchange. Reservations take up no credit; a member that has no
room for them any more gives them back. When the coordinator says that a reserved offset is written, it counts
as any other granted offset, also before its record is read. Rules over leases, no I/O. `policy/shared.py`
asks for reservations, the coordinator's `reservations.lua` grants them.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkadur.consumer.chunk import Lease
from kafkadur.consumer.lease_table import LeaseTable
from kafkadur.consumer.schedule import Schedule

#: Offsets that a member reserves on one partition, at most: where members share the partition, and where no
#: other member prefers it.
MOST, MOST_ALONE = 4, 32
#: When so few are left on a partition, the member asks for more without waiting for another exchange.
FEW = 1


def unread(lease: Lease) -> int:
    """Number of offsets of a lease, reserved ones included, that were not read yet."""
    if lease.stretch:
        return sum(end - max(start, lease.fill) for start, end in lease.stretch)
    return lease.end - lease.fill


def reservation(lease: Lease) -> int:
    """Number of reserved offsets of a lease that are still ahead: neither read nor known to be written.

    If it was withdrawn, those that are written and were not read count, too: this member does not read them.
    """
    if not lease.reserved:
        return 0
    begin, ahead = _begin(lease), 0
    for start, end in lease.stretch:  # a loop: this is called for each lease several times a message
        if end > begin:
            ahead += end - max(start, begin)
    return ahead


def _begin(lease: Lease) -> int:
    return lease.fill if lease.withdrawn or lease.fill > lease.written else lease.written


def give_back(lease: Lease, count: int) -> list[tuple[int, int]]:
    """Cut the last `count` reserved offsets off a lease; returns them as ranges, in order.

    Their records are not dispatched from now on, even if they are read.
    """
    ranges: list[tuple[int, int]] = []
    count = min(count, reservation(lease))
    while count > 0 and lease.stretch:
        start, end = lease.stretch.pop()
        begin = max(start, _begin(lease))
        cut = max(begin, end - count)
        if cut < end:
            ranges.append((cut, end))
        count -= end - cut
        if cut > max(start, lease.fill):
            lease.stretch.append((start, cut))
    lease.end = lease.stretch[-1][1] if lease.stretch else lease.fill
    return ranges[::-1]


def withdraw(lease: Lease, leases: LeaseTable, schedule: Schedule) -> None:
    """Give back the rest of a reservation: this member does not read the records."""
    lease.withdrawn = True
    leases.stop_wanting(lease)
    schedule.touch((lease.partition,))
    schedule.request()


def surplus(leases: Iterable[Lease], room: int) -> list[tuple[Lease, int]]:
    """How many reserved offsets of which lease to give back if there is room for `room`; the last ones go."""
    reserved = [lease for lease in leases if lease.reserved]
    found = [(lease, reservation(lease)) for lease in reserved if lease.withdrawn]
    kept = [lease for lease in reserved if not lease.withdrawn]
    over = sum(map(reservation, kept)) - room
    for lease in sorted(kept, key=lambda lease: -lease.start):
        count = min(over, reservation(lease))
        if count > 0:
            found.append((lease, count))
            over -= count
    return [(lease, count) for lease, count in found if count > 0]
