"""A session: deliveries of several subscriptions that are acknowledged or recovered together (rules K1, K3).

`kafkadur/sync/session.py` is generated from this file.
"""

from __future__ import annotations

from kafkadur.aio.waiting import Confirmed
from kafkadur.member import Member


class Session:
    """Groups the subscriptions opened with it; made by `Connection.session`."""

    def __init__(self) -> None:
        """No subscription belongs to it yet."""
        self._members: list[Member] = []

    def join(self, member: Member) -> None:
        """A subscription was opened with this session."""
        self._members.append(member)

    async def acknowledge(self) -> None:
        """Acknowledge everything delivered by the session so far, and wait until that is confirmed (rule K1).

        Raises `LeaseLost` if a lease is gone: its messages are delivered again.
        """
        await self._settle_all(acknowledge=True)

    async def recover(self) -> None:
        """Roll back everything delivered and not settled: it comes again, counted as an attempt (rule K3)."""
        await self._settle_all(acknowledge=False)

    async def _settle_all(self, *, acknowledge: bool) -> None:
        waiting: list[Confirmed] = []
        for member in self._members:
            for chunk in member.settle_handed(acknowledge=acknowledge):
                confirmed = Confirmed()
                member.confirm(chunk, confirmed)
                waiting.append(confirmed)
            member.nudge()
        for confirmed in waiting:
            await confirmed.wait()
