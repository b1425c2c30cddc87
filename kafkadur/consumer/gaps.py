"""Offsets of leases without a record, or whose record the subscription does not take: they are settled."""

from __future__ import annotations

import logging

from kafkadur.consumer.chunk import Lease
from kafkadur.consumer.state import Part
from kafkadur.events import Event

_log = logging.getLogger("kafkadur")


class Gaps(Part):
    """The gaps in the leases of one member."""

    def add(self, lease: Lease, start: int, end: int) -> None:
        """Settle offsets [start, end) of a lease with the next exchange.

        Those that Kafka has removed are reported as expired.
        """
        if end <= start:
            return
        lease.gaps += (start, end)
        self._schedule.touch((lease.partition,))
        read = not lease.lane or end <= lease.fill
        lost = self._fetch.expiry.lose(lease.partition, start, end, read=read)
        if lost > start:
            self._note_expired(lease.partition, start, lost)

    def _note_expired(self, partition: int, start: int, end: int) -> None:
        """Report unsettled messages that Kafka has removed: no subscription can prevent that loss."""
        self._teller.note(Event.EXPIRED)
        _log.error(
            "Kafka removed unsettled messages. State: %d offsets, %d to %d of %s[%d]. Owner: subscription "
            "%s. Remedy: keep messages longer than consumers are away or behind, or have them rescued "
            "(Redelivery(rescue=True)).",
            end - start,
            start,
            end - 1,
            self._terms.definition.topic,
            partition // self._terms.definition.lanes,
            self._terms.display,
        )
