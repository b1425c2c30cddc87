"""What the next exchange says: partitions, verdicts, readable ends, credit."""

from __future__ import annotations

from collections.abc import Collection

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.credit import Credit
from kafkadur.consumer.harvest import Harvest
from kafkadur.consumer.lanes import Lanes
from kafkadur.consumer.rejections import Rejections
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import State
from kafkadur.runtime.dead_letters import Cause
from kafkadur_coordinators.interface import (
    MAX_PARTITIONS,
    Exchange,
    How,
    PartitionReport,
    Returned,
    Standing,
)


class Composer:
    """Makes the exchanges of one member. Called with its lock held."""

    def __init__(
        self,
        state: State,
        *,
        credit: Credit,
        lanes: Lanes,
        router: Router,
        rejections: Rejections,
    ) -> None:
        """No exchange was made."""
        self._terms = state.terms
        self._gate = state.gate
        self._schedule = state.schedule
        self._pending = state.pending
        self._leases = state.leases
        self._fetch = state.fetch
        self._queue = state.queue
        self._in_flight = state.in_flight
        self._confirmations = state.confirmations
        self._credit = credit
        self._lanes = lanes
        self._router = router
        self._rejections = rejections
        self.clear()

    def clear(self) -> None:
        """No exchange was made."""
        self.number = 0
        #: when the unanswered exchange was made (monotonic seconds)
        self.composed_at = float("-inf")
        #: the last exchange that touched a partition
        self._said: dict[int, int] = {}

    # -- making an exchange

    def build(self, now: float) -> Exchange | None:
        """The exchange to send now; the same one again while it is unanswered. None: nothing to say."""
        pending = self._pending
        if pending.exchange is not None:
            return pending.exchange
        self._schedule.looked()
        self._roll_back_overdue()
        quiet = self._schedule.is_quiet(now) and not self._confirmations.waiting
        if quiet and not self._in_flight.has_verdicts():
            return None
        self._schedule.begin()
        pending.exchange = self._compose(now)
        return pending.exchange

    def farewell(self) -> Exchange | None:
        """The last exchange: verdicts, and the unread rest of every lease.

        None while another one is unanswered.
        """
        if self._pending.exchange is not None:
            return None
        exchange = self._compose(self._terms.monotonic())
        rest: dict[int, list[Returned]] = {}
        for lease in self._leases:
            start = self._unread_from(lease)
            if start < lease.end:
                item = Returned(lease.token, start, lease.end, int(How.UNREAD))
                rest.setdefault(lease.partition, []).append(item)
        parts = {part.partition: part for part in exchange.parts}
        for partition, items in sorted(rest.items()):
            part = parts.get(partition)
            if part is not None:
                parts[partition] = part._replace(returned=[*part.returned, *items])
            elif len(parts) < MAX_PARTITIONS:
                parts[partition] = PartitionReport(partition=partition, returned=items)
        self._pending.exchange = exchange._replace(parts=list(parts.values()), credit=0)
        return self._pending.exchange

    def _compose(self, now: float) -> Exchange:
        if self._gate.keeps_nothing:
            self._release_ready()
        if self._terms.own_turns:
            self._in_flight.recount()  # what was handed out one by one since
        chosen = self._choose_partitions(now)
        harvest = self._harvest(set(chosen))
        free = self._credit.take_free(harvest.settling)
        self._credit.return_reserved(chosen, harvest)
        self._credit.return_surplus(chosen, harvest)
        self._end_leases(chosen, harvest)
        self._pending.acked = harvest.acked
        self._pending.open = [
            (self._leases.by_token[token], count) for token, count in harvest.opened.items()
        ]
        self._pending.confirm = self._confirmations.take(chosen)
        self._router.offering = self._lanes.offered(chosen)
        self.number += 1
        for partition in chosen:
            self._said[partition] = self.number
        self._in_flight.handed_since = 0
        self._schedule.renew_at = now + self._terms.session / 2
        self.composed_at = now
        return Exchange(
            number=self.number,
            credit=free,
            have=self._leases.have,
            ask_presence=self._schedule.take_ask_presence(),
            span=self._credit.span(alone=not self._lanes.takes_turns()),
            parts=[self._report(p, harvest) for p in chosen],
            offer=bool(self._router.offering) and not self._terms.own_turns,
        )

    def _report(self, partition: int, harvest: Harvest) -> PartitionReport:
        buffer = self._fetch.buffers.get(partition)
        avail = epoch = -1
        if buffer is not None and buffer.position > buffer.reported:
            epoch = buffer.epoch  # first: it may only be too new
            avail = buffer.position
            self._pending.avail.append((buffer, avail))
        says_position = self._terms.lane and not self._gate.closing
        return PartitionReport(
            partition=partition,
            avail=avail,
            position=self._lanes.position(partition) if says_position else -1,
            settled=harvest.settled(partition),
            returned=harvest.returned(partition),
            done=harvest.done(partition),
            drained=int(self._lanes.gives_up(partition)),
            expired=self._fetch.expiry.take_lost(partition),
            ahead=self._credit.to_reserve(partition),
            epoch=epoch,
            log_end=self._fetch.log_ends.pop(partition, -1),
        )

    # -- which partitions

    def _choose_partitions(self, now: float) -> list[int]:
        """Which partitions the next exchange touches.

        Those with something to say, the longest silent first.
        """
        speaking = {chunk.lease.partition for chunk in self._in_flight if chunk.has_verdicts()}
        speaking |= {lease.partition for lease in self._leases if lease.gaps}
        # a verdict may have left with an earlier exchange before its giver asked for the confirmation
        speaking |= {item.chunk.lease.partition for item in self._confirmations.waiting}
        others = self._with_news(now)
        idle: set[int] = set()
        if self._terms.own_turns:
            news, idle = self._own_turns()
            others |= news
        elif self._lanes.takes_turns() and self._lanes.standing is Standing.ACTIVE:
            others |= {lease.partition for lease in self._leases if lease.lane}
        if not self._terms.lane:
            watched = self._fetch.home | self._fetch.watches
            others |= {p for p in watched if self._fetch.has_backlog(p)}

        def longest_silent(partition: int) -> int:
            return self._said.get(partition, 0)

        order = sorted(speaking, key=longest_silent) + sorted(others - speaking, key=longest_silent)
        left = order[MAX_PARTITIONS:]
        order += sorted(idle - others - speaking, key=longest_silent)
        chosen = order[:MAX_PARTITIONS]
        self._schedule.carry(chosen, left)
        return chosen

    def _with_news(self, now: float) -> set[int]:
        """Partitions that are to be touched, whatever their verdicts."""
        schedule, fetch = self._schedule, self._fetch
        news = schedule.touched | schedule.orphaned | schedule.unserved | schedule.due_partitions(now)
        if schedule.takes_wake(now) or now >= schedule.renew_at:
            news |= set(range(self._terms.partitions)) if self._terms.lane else fetch.home | fetch.watches
        news |= {p for p, buffer in fetch.buffers.items() if buffer.position > buffer.reported}
        news |= self._lanes.ended() | self._credit.to_return()
        return news | self._credit.beyond_window(answered=self._pending.is_answered)

    def _own_turns(self) -> tuple[set[int], set[int]]:
        """Partitions whose lanes are to be offered, and those of which nothing is left to do."""
        groups = self._leases.groups
        over = {p for p, group in groups.items() if self._lanes.turn_is_over(group)}
        busy = {lease.partition for lease in self._leases}
        news = {p for p in over if p in busy or groups[p].frozen} | self._lanes.asked_for()
        if not self._gate.closing:
            return news, over
        # others need not wait for what this member still has in hands of another lane
        active = {p for p, group in groups.items() if group.standing is Standing.ACTIVE}
        return news, {p for p in active if not self._lanes.holds_any(groups[p])}

    # -- verdicts and leases that end

    def _harvest(self, partitions: Collection[int]) -> Harvest:
        """Collect the verdicts given since the last exchange on these partitions and mark them as sent."""
        harvest = Harvest()
        for lease in self._leases:
            if lease.partition in partitions:
                harvest.take_gaps(lease)
        remaining: list[Chunk] = []
        taken: list[Chunk] = []
        for chunk in self._in_flight:
            if chunk.lease.partition in partitions:
                harvest.take(chunk)
                taken.append(chunk)
            if chunk.low < len(chunk.messages):
                remaining.append(chunk)
        self._pending.taken = taken
        self._in_flight.keep(remaining, harvest.settling)
        return harvest

    def _end_leases(self, chosen: Collection[int], harvest: Harvest) -> None:
        """Say which leases end: those with nothing open, and all unread ones of a paused subscription."""
        for token, lease in self._leases.by_token.items():
            left = lease.open - harvest.opened.get(token, 0)
            if not lease.lane and left <= 0 and lease.partition in chosen:
                harvest.end(lease)
                self._pending.done.append(lease)
        if not self._gate.paused or self._terms.lane or self._gate.closing:
            return
        busy = {chunk.lease.token for chunk in self._in_flight if chunk.low < chunk.handed}
        for token, lease in self._leases.by_token.items():
            if lease.partition in chosen and token not in busy and not harvest.ends(lease):
                harvest.end(lease, self._unread_from(lease))
                self._pending.back.append(lease)

    def _unread_from(self, lease: Lease) -> int:
        """First offset of a lease that was not handed out."""
        first = self._queue.first_unhanded(lease)
        return lease.fill if first is None else first

    def _release_ready(self) -> None:
        """Give everything back that was not handed out."""
        for chunk in self._queue.take_all():
            chunk.release_rest()
            if chunk not in self._in_flight.chunks:
                self._in_flight.add(chunk)

    def _roll_back_overdue(self) -> None:
        """Roll back what the application has held too long."""
        if self._in_flight.max_hold is None:
            return
        for chunk, index in self._in_flight.max_hold.overdue():
            if not chunk.hold_too_long(index):
                continue
            attempts = chunk.lease.attempts + 1
            if self._terms.is_used_up(attempts):
                self._rejections.give_up(chunk, index, Cause.ATTEMPTS, "it was held too long", attempts)
                continue
            chunk.delays[index] = -1
            if self._terms.lane and not self._terms.keyed:
                self._in_flight.hold_back(chunk, index)
