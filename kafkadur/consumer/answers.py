"""Applies the answers to exchanges: standing, grants, horizons, leases that ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafkadur.consumer.chunk import NEVER, Lease
from kafkadur.consumer.composer import Composer
from kafkadur.consumer.lag import Lag
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import Part, State
from kafkadur.events import Event
from kafkadur.fetch.buffer import ReadBatch
from kafkadur.fetch.native import size_of
from kafkadur_coordinators.interface import ExchangeReply, Grant, PartitionState, Pushed, Role, Standing

_log = logging.getLogger("kafkadur")

#: The coordinator rounds times to whole ms: wait a little longer, so as not to ask too early.
_ROUNDING = 0.002
#: Records that the listening thread takes in at most: it has to answer for the process meanwhile.
_MOST_PUSHED = 1_000
#: Time between the looks of two members at a session that may have ended, ms.
_APART_MS = 10


class Answers(Part):
    """Applies the answers of one member."""

    def __init__(self, state: State, *, policy: Policy, router: Router, lag: Lag, composer: Composer) -> None:
        """Nothing was answered."""
        super().__init__(state)
        self._policy = policy
        self._router = router
        self._lag = lag
        self._composer = composer
        self.clear()

    def clear(self) -> None:
        """Nothing was answered."""
        self._settled_on: set[int] = set()

    @property
    def has_settled(self) -> bool:
        """Whether `take_settled` returns any; takes no lock."""
        return bool(self._settled_on)

    def take_settled(self) -> set[int]:
        """Partitions, or lanes of keys, on which verdicts were confirmed since the last call."""
        settled, self._settled_on = self._settled_on, set()
        return settled

    # -- the whole answer

    def apply(self, reply: ExchangeReply, sent_at: float) -> None:
        """The exchange sent at `sent_at` (monotonic seconds) was answered."""
        # a repeat does not renew the session: the time at which the exchange was sent first counts
        self._gate.last_ok = min(sent_at, self._composer.composed_at)
        self._close_pending()
        refused = set(reply.refused)
        if self._notes is not None:
            self._notes.answered(refused)
        for token in refused:
            self._refuse_lease(token)
        self._take(reply, sent_at)

    def take_push(self, push: Pushed) -> bool:
        """Another member's exchange has granted something to this one; returns whether it was taken in.

        It is not taken in while an exchange is under way, or after a later one: that brings the same, and
        what was granted may be settled by then. It does not renew the session.
        """
        leases = self._leases
        now = (leases.incarnation, leases.attachment, self._composer.number)
        if self._change.changing or not self._pending.is_answered:
            return False
        if (push.incarnation, push.attachment, push.number) != now:
            return False
        if sum(grant.records for grant in push.reply.grants) > _MOST_PUSHED:
            return False
        self._change.begin()
        for state in push.reply.partitions:
            buffer = self._fetch.buffers.get(state.partition)
            if buffer is not None:  # another member has reported so far
                buffer.reported = max(buffer.reported, state.readable_end)
        self._take(push.reply, self._terms.monotonic())
        self._fetch.reading.note_room()
        self._change.end()
        return True

    def _take(self, reply: ExchangeReply, at: float) -> None:
        """Take in what a reply tells. `at`: when its times began to run (monotonic seconds)."""
        schedule = self._schedule
        self.take_role(reply.role)
        self._take_paused(paused=reply.paused)
        self._take_states(reply, at)
        self._take_handover(reply)
        if self._policy.take_standing(reply):
            self._lag.note_standing(active=reply.standing is not Standing.STANDBY)
        self._take_grants(reply)
        self._policy.granted(reply)
        schedule.request(when=bool(schedule.orphaned))
        self._router.follow()
        changed = {state.partition for state in reply.partitions}
        changed |= {grant.partition for grant in reply.grants}
        for partition in changed & self._fetch.buffers.keys():  # records may have been granted there
            self._router.route(partition)
        self._in_flight.recount()
        schedule.request(when=bool(self._policy.reservations_to_return()))

    def _close_pending(self) -> None:
        """The coordinator knows what the answered exchange carried."""
        pending = self._pending
        if pending.exchange is not None:
            self._settled_on.update(
                part.partition for part in pending.exchange.parts if part.settled or part.returned
            )
        for lease, count in pending.open:
            lease.open -= count
        for lease in pending.done:
            self._leases.remove(lease.token)
        for lease in pending.back:
            self._retire(lease)
        for buffer, avail in pending.readable_end:
            buffer.reported = max(buffer.reported, avail)
            if avail > buffer.start:
                self._fetch.warm |= {p for p, each in self._fetch.buffers.items() if each is buffer}
        pending.clear()

    def take_role(self, role: Role) -> None:
        """Take in the role of the member among the others."""
        before = self._fetch.role
        self._fetch.role = role
        self._schedule.learn_partitions(role.partitions)
        self._policy.take_role(before)

    def _take_paused(self, *, paused: bool) -> None:
        if paused != self._gate.paused:
            self._gate.paused = paused
            self._teller.note(Event.PAUSED if paused else Event.RESUMED)
            text = "is paused: nothing is handed out until `kafkadur sub resume`" if paused else "goes on"
            _log.warning("Subscription %s %s.", self._terms.display, text)
        if not paused:
            return
        # messages that are not in flight are given back, including deliveries that were taken in advance
        self._gate.losses += 1
        self._schedule.touch({lease.partition for lease in self._leases})
        self._schedule.request(when=bool(self._policy.unread_leases()))

    # -- partitions

    def _take_states(self, reply: ExchangeReply, sent_at: float) -> None:
        schedule, fetch = self._schedule, self._fetch
        for state in reply.partitions:
            fetch.states[state.partition] = state
            schedule.due.pop(state.partition, None)
            schedule.unserved.discard(state.partition)
            if state.due_ms > 0:
                schedule.due[state.partition] = sent_at + state.due_ms / 1000 + _ROUNDING
            elif state.due_ms == 0:
                schedule.unserved.add(state.partition)
            self._take_log_end_unknown(state)
        new = set(reply.watches) - fetch.watches - {state.partition for state in reply.partitions}
        # the answer brings their states: reported readable ends, and offsets that no member has leased
        schedule.touch(new)
        schedule.request(when=bool(new))
        fetch.watches = set(reply.watches)
        schedule.orphaned |= set(reply.orphaned)
        if reply.silent_ms is not None:  # its presence is checked again before its session is ended
            schedule.ask_presence()
        # members look one after the other: the first one ends the session, and wakes the next one
        ended = None if reply.expiry_ms is None else reply.expiry_ms + min(reply.role.rank, 20) * _APART_MS
        waits = [wait for wait in (reply.silent_ms, reply.grace_ms or None, ended) if wait is not None]
        schedule.wake_at = sent_at + min(waits) / 1000 + _ROUNDING if waits else None

    def _take_log_end_unknown(self, state: PartitionState) -> None:
        """Ask Kafka where a partition ends if nothing of it is granted until that is known."""
        fetch = self._fetch
        if not state.log_end_unknown:
            fetch.end_unknown.discard(state.partition)
        elif state.partition not in fetch.end_unknown:
            fetch.end_unknown.add(state.partition)
            fetch.reading.find_end(state.partition, self._leases.incarnation)

    # -- lanes

    def _take_handover(self, reply: ExchangeReply) -> None:
        """End the lanes that were handed over, if any, and take back records beyond new horizons."""
        if reply.held is None:
            return
        self._policy.begin_turns()
        for lease in [lease for lease in self._leases if lease.token not in reply.held]:
            self._retire(lease)
        for token, horizon in reply.horizons.items():
            held = self._leases.by_token.get(token)
            if held is not None and horizon < held.end:
                self._shrink(held, horizon)

    def _retire(self, lease: Lease) -> None:
        """A lease ended in order: none of its messages was in flight."""
        lease.retired = True
        self._shrink(lease, lease.start)
        self._drop_lease(lease.token)
        partition = lease.partition
        self._policy.lane_ended(partition)
        self._fetch.warm.discard(partition)
        self._in_flight.stop_holding_back(r for r in [*self._in_flight.holding_back] if r[0] == partition)

    def _shrink(self, lease: Lease, horizon: int) -> None:
        """Take back the records of a lease at or beyond `horizon` that were not dispatched."""
        buffer, queue = self._fetch.buffers.get(lease.partition), self._queue
        # the buffer takes them only if they adjoin its records: there must be no unread offset between them
        joins = buffer is not None and lease.lane and lease.fill >= buffer.kept_from
        for chunk in [
            chunk for chunk in (*reversed(queue.urgent), *reversed(queue.ready)) if chunk.lease is lease
        ]:
            messages, first = queue.cut(chunk, max(chunk.handed, chunk.index(horizon)))
            if messages and buffer is not None and joins:
                buffer.put_back(ReadBatch(messages, size_of(messages)), first)
        lease.end = max(min(lease.end, horizon), lease.start)
        lease.fill = min(lease.fill, lease.end)

    # -- leases

    def _refuse_lease(self, token: int) -> None:
        """The coordinator does not know a lease of this member: its lane begins anew."""
        lease = self._leases.by_token.get(token)
        self._drop_lease(token)
        if lease is not None:
            self._policy.refused(lease)

    def _drop_lease(self, token: int) -> None:
        lease = self._leases.remove(token)
        if lease is None:
            return
        lease.lost = True
        self._gate.losses += 1
        self._policy.drop(lease)
        self._fetch.ranges.pop(token, None)
        self._leases.stop_wanting(lease)
        self._queue.drop(lease)
        for chunk in [chunk for chunk in self._in_flight if chunk.lease is lease]:
            self._confirmations.fenced_acks += chunk.acks()
            self._in_flight.lost += chunk.handed_out()
            self._lose(chunk)
            self._in_flight.chunks.remove(chunk)

    def _take_grants(self, reply: ExchangeReply) -> None:
        self._leases.have = max(self._leases.have, reply.token)
        for token, horizon in reply.horizons.items():
            lane = self._leases.by_token.get(token)
            if lane is not None:
                lane.end = max(lane.end, horizon)
        lanes = {grant.partition: grant.start for grant in reply.grants if grant.kind == "lane"}
        for grant in sorted(reply.grants, key=lambda grant: (grant.partition, grant.start)):
            self._take_grant(grant, lanes)
        self._arm(reply)

    def _arm(self, reply: ExchangeReply) -> None:
        """Let the records of a lease be dispatched that another one of crash suspects came before."""
        lease = self._leases.by_token.get(reply.armed)
        if lease is not None and lease.not_before == NEVER:
            lease.not_before = self._terms.monotonic()
            self._policy.armed(lease)

    def _take_grant(self, grant: Grant, lanes: Mapping[int, int]) -> None:
        if grant.token in self._leases.by_token:
            return
        lease = Lease(
            token=grant.token,
            incarnation=self._leases.incarnation,
            partition=grant.partition,
            start=grant.start,
            end=grant.horizon,
            attempts=grant.attempts,
            redelivered=grant.redelivered,
            lane=grant.kind == "lane",
            group=self._leases.group(grant.partition),
            seen=grant.seen,
            pairs=grant.stretch,
            isolated=grant.isolated,
            reserved=grant.kind == "ahead",
        )
        if grant.due_ms < 0:
            lease.not_before = NEVER
        elif grant.due_ms:
            lease.not_before = self._terms.monotonic() + grant.due_ms / 1000
        self._leases.add(lease)
        if grant.kind == "runs":
            self._in_flight.stop_holding_back(
                (p, o)
                for p, o in [*self._in_flight.holding_back]
                if p == lease.partition and lease.start <= o < lease.end
            )
        self._leases.want(lease)
        if not self._is_near(lease, lanes):
            self._router.read_range(lease)

    def _is_near(self, lease: Lease, lanes: Mapping[int, int]) -> bool:
        """Whether the tail fetcher brings the records of a lease; `lanes`: first offsets of new lanes."""
        fetch, partition = self._fetch, lease.partition
        buffer = fetch.buffers.get(partition)
        if buffer is not None and lease.lane and lease.start < buffer.kept_from:
            fetch.unfollow(partition)  # a lane has no end to read up to as a range: follow it anew
            buffer = None
        if buffer is not None:
            return lease.start >= buffer.kept_from
        if lease.reserved:
            return False
        # the reader is about to start at the first lease, unless that lies far back
        state = fetch.states.get(partition)
        begin = lanes.get(partition, lease.start if state is None else state.next)
        near = begin - lease.start <= self._terms.read_ahead
        return near and self._policy.will_follow(partition)
