"""The parts of a member that own its state. Each is changed with the member's lock held, and does no I/O."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kafkadur.consumer.confirmations import Confirmations
from kafkadur.consumer.fetch_state import FetchState
from kafkadur.consumer.gate import Gate
from kafkadur.consumer.in_flight import InFlight
from kafkadur.consumer.lease_table import LeaseTable
from kafkadur.consumer.max_hold import MaxHold
from kafkadur.consumer.pending import Pending
from kafkadur.consumer.ready_queue import ReadyQueue
from kafkadur.consumer.schedule import Schedule
from kafkadur.consumer.selection import Selection
from kafkadur.consumer.terms import Terms
from kafkadur.consumer.unreceived import Unreceived
from kafkadur.events import Teller
from kafkadur.fetch.filtering import Takes


class State:
    """What one member knows: leases, records, verdicts on their way, and when to speak next."""

    def __init__(
        self,
        terms: Terms,
        *,
        heard_since: Callable[[], float],
        request_exchange: Callable[[], None],
        takes: Takes | None,
        transacted: bool,
        ordered: bool,
        lanes_apart: bool,
    ) -> None:
        """A member that is not attached; the parameters are those of `Member`, and of the policy."""
        self.terms = terms
        self.lock = threading.Lock()
        self.gate = Gate(terms, heard_since)
        #: what the application is told beside its messages
        self.teller = Teller()
        self.schedule = Schedule(terms.partitions, request_exchange)
        self.pending = Pending()
        self.leases = LeaseTable(lanes_apart=lanes_apart)
        self.fetch = FetchState(terms.window)
        self.selection = Selection(takes)
        self.queue = ReadyQueue()
        self.unreceived = Unreceived()
        hold = None if transacted else terms.redelivery.max_hold
        self.in_flight = InFlight(
            terms,
            budget=terms.budget if ordered else None,
            max_hold=None if hold is None else MaxHold(hold.total_seconds(), terms.monotonic),
            pending=self.pending,
            schedule=self.schedule,
        )
        self.confirmations = Confirmations(terms)

    def clear(self) -> None:
        """Nothing is leased, nothing is read, nothing is in hands, nothing was said."""
        self.gate.clear()
        self.schedule.clear()
        self.pending.clear()
        self.leases.clear()
        self.fetch.clear()
        self.queue.clear()
        self.in_flight.clear()
        self.confirmations.clear()
