"""Composes exchanges: the partitions, verdicts, readable ends and credit that they carry."""

from __future__ import annotations

from collections.abc import Collection

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.collected_verdicts import CollectedVerdicts
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import Part, State
from kafkadur.consumer.verdicts import Verdicts
from kafkadur_coordinators.interface import MAX_PARTITIONS, Exchange, How, PartitionReport, Returned


class Composer(Part):
    """Makes the exchanges of one member."""

    def __init__(self, state: State, *, policy: Policy, verdicts: Verdicts) -> None:
        """No exchange was made."""
        super().__init__(state)
        self._policy = policy
        self._verdicts = verdicts
        self.clear()

    def clear(self) -> None:
        """No exchange was made."""
        self.number = 0
        #: when the unanswered exchange was made (monotonic seconds)
        self.composed_at = float("-inf")
        #: number of the last exchange that touched a partition
        self._touched: dict[int, int] = {}

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
        """The last exchange: verdicts, and the rest of every lease, which was not dispatched.

        None while another one is unanswered, or while more partitions have something to report than one
        exchange touches: then `build` makes exchanges that carry it.
        """
        if self._pending.exchange is not None or len(self._speaking()) > MAX_PARTITIONS:
            return None
        exchange = self._compose(self._terms.monotonic())
        parts = {part.partition: part for part in exchange.parts}
        for lease in sorted(self._leases, key=lambda lease: lease.partition):
            start, partition = self._unread_from(lease), lease.partition
            if start < lease.end and (partition in parts or len(parts) < MAX_PARTITIONS):
                part = parts.get(partition, PartitionReport(partition=partition))
                rest = Returned(lease.token, start, lease.end, int(How.UNREAD))
                parts[partition] = part._replace(returned=[*part.returned, rest])
        self._pending.exchange = exchange._replace(parts=list(parts.values()), credit=0)
        return self._pending.exchange

    def _compose(self, now: float) -> Exchange:
        if self._policy.keeps_nothing:
            self._release_ready()
        self._policy.begin_exchange()
        chosen = self._choose_partitions(now)
        collected = self._collect(set(chosen))
        credit = self._policy.take_credit(collected.settling)
        self._policy.return_surplus(chosen, collected)
        self._end_leases(chosen, collected)
        self._pending.acked = collected.acked
        self._pending.open = [
            (self._leases.by_token[token], count) for token, count in collected.opened.items()
        ]
        self._pending.confirm = self._confirmations.take(lambda chunk: chunk.lease.partition in chosen)
        handover = self._policy.hand_over(chosen)
        self.number += 1
        for partition in chosen:
            self._touched[partition] = self.number
        self._in_flight.handed_since = 0
        self._schedule.renewed(now, self._terms.session)
        self.composed_at = now
        return Exchange(
            number=self.number,
            credit=credit,
            have=self._leases.have,
            ask_presence=self._schedule.take_ask_presence(),
            span=self._policy.span(),
            parts=[self._report(p, collected) for p in chosen],
            handover=handover,
            reads_on=self._policy.reads_on,
        )

    def _report(self, partition: int, collected: CollectedVerdicts) -> PartitionReport:
        buffer = self._fetch.buffers.get(partition)
        readable_end = epoch = -1
        if buffer is not None and buffer.position > buffer.reported:
            epoch = buffer.epoch  # before the position: it may be newer than that, but never older
            readable_end = buffer.position
            self._pending.readable_end.append((buffer, readable_end))
        expired, expired_read = self._fetch.expiry.take_lost(partition)
        return PartitionReport(
            partition=partition,
            readable_end=readable_end,
            position=self._policy.position(partition),
            settled=collected.settled(partition),
            returned=collected.returned(partition),
            done=collected.done(partition),
            drained=int(self._policy.gives_up(partition)),
            expired=expired,
            reserve=self._policy.to_reserve(partition),
            epoch=epoch,
            log_end=self._fetch.log_ends.pop(partition, -1),
            expired_read=expired_read,
        )

    # -- which partitions

    def _choose_partitions(self, now: float) -> list[int]:
        """Choose the partitions that the next exchange touches.

        If there are too many, those with verdicts are chosen, then those that were touched longest ago. The
        rest is left for the next exchange, except partitions that only may be touched.
        """
        speaking = self._speaking()
        news, idle = self._policy.news()
        others = self._with_news(now) | news

        def last_touched(partition: int) -> int:
            return self._touched.get(partition, 0)

        order = sorted(speaking, key=last_touched) + sorted((others | idle) - speaking, key=last_touched)
        chosen = order[:MAX_PARTITIONS]
        self._schedule.carry(chosen, [p for p in order[MAX_PARTITIONS:] if p in speaking or p in others])
        return self._policy.order(chosen)

    def _speaking(self) -> set[int]:
        """Partitions with verdicts, gaps or callers to report."""
        speaking = {chunk.lease.partition for chunk in self._in_flight if chunk.has_verdicts()}
        speaking |= {lease.partition for lease in self._leases if lease.gaps}
        # an earlier exchange may have carried a verdict before its caller asked for the confirmation
        return speaking | {item.chunk.lease.partition for item in self._confirmations.waiting}

    def _with_news(self, now: float) -> set[int]:
        """Partitions that are to be touched, with or without verdicts."""
        schedule, fetch = self._schedule, self._fetch
        news = schedule.touched | schedule.orphaned | schedule.unserved | schedule.due_partitions(now)
        if schedule.takes_wake(now) or now >= schedule.renew_at:
            news |= self._policy.partitions()
        return news | {p for p, buffer in fetch.buffers.items() if buffer.position > buffer.reported}

    # -- verdicts and leases that end

    def _collect(self, partitions: Collection[int]) -> CollectedVerdicts:
        """Collect the verdicts given since the last exchange on these partitions and mark them as sent."""
        collected = CollectedVerdicts(self._notes)
        for lease in self._leases:
            if lease.partition in partitions:
                collected.take_gaps(lease)
        remaining: list[Chunk] = []
        taken: list[Chunk] = []
        for chunk in self._in_flight:
            if chunk.lease.partition in partitions:
                collected.take(chunk)
                taken.append(chunk)
            if chunk.low < len(chunk.messages):
                remaining.append(chunk)
        self._pending.taken = taken
        self._in_flight.keep(remaining, collected.settling)
        return collected

    def _end_leases(self, chosen: Collection[int], collected: CollectedVerdicts) -> None:
        """End leases without open offsets, and those without messages in flight if it is paused."""
        for token, lease in self._leases.by_token.items():
            left = lease.open - collected.opened.get(token, 0)
            if not lease.lane and left <= 0 and lease.partition in chosen:
                collected.end(lease)
                self._pending.done.append(lease)
        if not self._gate.paused or self._gate.closing:
            return
        for lease in self._policy.unread_leases():
            if lease.partition in chosen and not collected.ends(lease):
                collected.end(lease, self._unread_from(lease))
                self._pending.back.append(lease)

    def _unread_from(self, lease: Lease) -> int:
        """First offset of a lease that was not dispatched."""
        first = self._queue.first_unhanded(lease)
        return lease.fill if first is None else first

    def _release_ready(self) -> None:
        """Give back all records that were not dispatched."""
        for chunk in self._queue.take_all():
            chunk.release_rest()
            if chunk not in self._in_flight.chunks:
                self._in_flight.add(chunk)

    def _roll_back_overdue(self) -> None:
        """Roll back records that were held too long."""
        if self._in_flight.max_hold is None:
            return
        for chunk, index in self._in_flight.max_hold.overdue():
            if not chunk.hold_too_long(index):
                continue
            if not self._verdicts.give_up_last_attempt(chunk, index, "it was held too long"):
                chunk.delays[index] = -1
                self._policy.hold_back(chunk, index)
