# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""A session: deliveries of several subscriptions that are acknowledged or recovered together (rules K1, K3).

`kafkadur/sync/session.py` is generated from this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkadur_sharing.errors import KafkadurError

if TYPE_CHECKING:
    from kafkadur.sync.subscription import Subscription


class Session:
    """Groups the subscriptions opened with it; made by `Connection.session`."""

    def __init__(self) -> None:
        """No subscription belongs to it yet."""
        self._subscriptions: list[Subscription[Any, Any]] = []

    def join(self, subscription: Subscription[Any, Any]) -> None:
        """A subscription was opened with this session."""
        self._subscriptions.append(subscription)

    def acknowledge(self) -> None:
        """Acknowledge everything delivered by the session so far, and wait until that is confirmed (rule K1).

        Raises `LeaseLost` if a lease is gone: its messages are delivered again, all others are acknowledged.
        """
        self._settle(acknowledge=True)

    def recover(self) -> None:
        """Roll back everything delivered and not settled: it comes again, counted as an attempt (rule K3)."""
        self._settle(acknowledge=False)

    def _settle(self, *, acknowledge: bool) -> None:
        first: KafkadurError | None = None
        for subscription in self._subscriptions:
            try:
                subscription.settle_received(acknowledge=acknowledge)
            except KafkadurError as error:
                first = first or error
        if first is not None:
            raise first
