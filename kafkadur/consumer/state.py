"""The state of a member, and the base of the parts that work on it. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kafkadur.consumer.chunk import Chunk
from kafkadur.consumer.confirmations import Confirmations, Pending
from kafkadur.consumer.fetch_state import FetchState
from kafkadur.consumer.gate import Gate
from kafkadur.consumer.in_flight import InFlight, MaxHold, Unreceived
from kafkadur.consumer.lease_table import LeaseTable
from kafkadur.consumer.ready_queue import ReadyQueue
from kafkadur.consumer.schedule import Schedule
from kafkadur.consumer.state_change import StateChange
from kafkadur.consumer.terms import Terms
from kafkadur.events import Event, Teller
from kafkadur.fetch.filtering import Selection, Takes
from kafkadur.history.notes import Notes


class State:
    """The state of one member: leases, records, verdicts on their way, and when to make the next exchange.

    Each attribute owns its part of the state, and is changed with the member's lock held; the flags of `gate`
    and the requests to `schedule` that say so are set without it.
    """

    def __init__(
        self,
        terms: Terms,
        *,
        heard_since: Callable[[], float],
        request_exchange: Callable[[], None],
        on_event: Callable[[Event], None] | None,
        takes: Takes | None,
        transacted: bool,
        ordered: bool,
        lanes_apart: bool,
    ) -> None:
        """A member that is not attached; the parameters are those of `Member`, and of the policy."""
        self.terms = terms
        self.lock = threading.Lock()
        self.gate = Gate(terms, heard_since)
        #: events for the application
        self.teller = Teller(on_event)
        self.schedule = Schedule(request_exchange)
        self.pending = Pending()
        self.leases = LeaseTable(lanes_apart=lanes_apart)
        self.fetch = FetchState(terms.window)
        self.selection = Selection(takes)
        self.queue = ReadyQueue()
        self.unreceived = Unreceived()
        #: what is noted for the delivery history; None: the subscription has none
        self.notes: Notes | None = None
        if terms.definition.history is not None:
            self.notes = Notes(lanes=terms.definition.lanes, now_ms=terms.now_ms, monotonic=terms.monotonic)
        hold = None if transacted else terms.redelivery.max_hold
        self.in_flight = InFlight(
            terms,
            budget=terms.budget if ordered else None,
            max_hold=None if hold is None else MaxHold(hold.total_seconds(), terms.monotonic),
            pending=self.pending,
            schedule=self.schedule,
            notes=self.notes,
        )
        if self.notes is not None:
            self.notes.watch(self.lock, self.in_flight)
        self.confirmations = Confirmations(terms)
        self.change = StateChange(terms.display)

    def clear(self) -> None:
        """Forget leases, records and verdicts, and what exchanges said."""
        self.gate.clear()
        self.schedule.clear()
        self.pending.clear()
        self.leases.clear()
        self.fetch.clear()
        self.queue.clear()
        self.in_flight.clear()
        self.confirmations.clear()
        self.change.end()


class Part:
    """A part of a member: it has rules, and works on the state of the member.

    Its methods are called with the member's lock held, unless they say otherwise.
    """

    def __init__(self, state: State) -> None:
        """Work on `state`."""
        self._terms = state.terms
        self._lock = state.lock
        self._gate = state.gate
        self._teller = state.teller
        self._schedule = state.schedule
        self._pending = state.pending
        self._leases = state.leases
        self._fetch = state.fetch
        self._selection = state.selection
        self._queue = state.queue
        self._in_flight = state.in_flight
        self._confirmations = state.confirmations
        self._change = state.change
        self._notes = state.notes

    def _lose(self, chunk: Chunk) -> None:
        """The lease of a chunk has ended."""
        before = bytes(chunk.verdicts)
        chunk.lose()
        if self._notes is not None:
            self._notes.changed(chunk, before)
