"""Which partitions a member of a shared subscription follows; of the others it reads only granted ranges.

Following reads every record once and uses a part of them; each range costs a read of its own. The records
that were granted, to this member and to all, show which is cheaper. No I/O; the fetchers read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: A member follows a partition while it uses at least one of this many records that it reads there.
LEAST_USED = 8
#: Records read in vain that cost as much as reading one range (docs/decisions/0012-when-to-follow.md).
WORTH_A_READ = 500
#: A partition is judged whenever so many offsets, and so many windows, were granted to all members.
_JUDGED_OVER = 5_000
_JUDGED_OVER_WINDOWS = 16


@dataclass(slots=True)
class _Account:
    """The grants on a partition since it was judged last."""

    since: int
    next: int
    used: int = 0
    leases: int = 0


class Following:
    """The choice of one member. Every partition begins as followed."""

    def __init__(self, *, window: int) -> None:
        """`window`: of the member, records."""
        self._judged_over = max(_JUDGED_OVER, _JUDGED_OVER_WINDOWS * window)
        self._accounts: dict[int, _Account] = {}
        #: partitions of which this member reads only the ranges that it is granted
        self.by_range: set[int] = set()

    def granted(self, partition: int, records: int) -> None:
        """This member was granted new records of a partition."""
        account = self._accounts.get(partition)
        if account is not None:
            account.used += records
            account.leases += 1

    def advanced(self, partition: int, offset: int) -> None:
        """The first offset without a grant is `offset` now; called after `granted` for the same answer.

        The thresholds to stop following and to follow again differ by a factor of two: a choice lasts.
        """
        account = self._accounts.setdefault(partition, _Account(offset, offset))
        account.next = max(account.next, offset)
        read = account.next - account.since
        if read < self._judged_over:
            return
        in_vain, worth = read - account.used, account.leases * WORTH_A_READ
        if partition not in self.by_range:
            if account.used * LEAST_USED < read and in_vain > worth:
                self.by_range.add(partition)
        elif account.used * LEAST_USED >= 2 * read or 2 * in_vain <= worth:
            self.by_range.discard(partition)
        self._accounts[partition] = _Account(account.next, account.next)

    def watch(self, partitions: Iterable[int]) -> None:
        """Follow these partitions at any cost, because their ends are to be reported, and judge them anew."""
        for partition in self.by_range.intersection(partitions):
            self.by_range.discard(partition)
            self._accounts.pop(partition, None)
