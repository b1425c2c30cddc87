"""What becomes of a member's state when every lease is lost, and what of it is leased again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kafkadur.consumer.chunk import HANDED, Chunk, Confirmation, Lease
from kafkadur.consumer.lag import Lag
from kafkadur.consumer.loss_recovery import claim, keep, take_over
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import State
from kafkadur_coordinators.interface import MAX_PARTITIONS, Claim, Claimed, Standing


class Told(NamedTuple):
    """Callers to be told, after the lock was released."""

    #: their verdicts are confirmed
    confirmed: list[Confirmation]
    #: their verdicts were refused
    refused: list[Confirmation]
    #: whether their verdicts were applied is not known
    unknown: list[Confirmation]


class Losses:
    """The losses of one member. Called with its lock held."""

    def __init__(
        self,
        state: State,
        *,
        policy: Policy,
        lag: Lag,
        clear: Callable[[], None],
    ) -> None:
        """`clear` empties every part of the member."""
        self._terms = state.terms
        self._gate = state.gate
        self._schedule = state.schedule
        self._pending = state.pending
        self._leases = state.leases
        self._fetch = state.fetch
        self._queue = state.queue
        self._in_flight = state.in_flight
        self._confirmations = state.confirmations
        self._policy = policy
        self._lag = lag
        self._clear = clear
        #: chunks with what is in the application's hands, to be leased again after a loss
        self.kept: Sequence[Chunk] = ()
        #: when this member was heard last before the loss (monotonic seconds)
        self._heard_before = float("-inf")

    # -- every lease is lost

    def lose(self, *, keeps: bool) -> Told:
        """Forget all; with `keeps` what is in the application's hands is leased again later."""
        pending, confirmations = self._pending, self._confirmations
        taken = {id(chunk): chunk for chunk in [*self.kept, *pending.taken, *self._in_flight]}
        for lease in self._leases:
            lease.group.frozen = True  # handing out one by one stops
        kept, unsent = keep(taken.values(), pending.exchange) if keeps and self._policy.RECLAIMS else ([], 0)
        stay = set(map(id, kept))
        unknown = [item for item in pending.confirm if id(item.chunk) not in stay]
        refused = [item for item in confirmations.waiting if id(item.chunk) not in stay]
        again = [w for w in (*pending.confirm, *confirmations.waiting) if id(w.chunk) in stay]
        letters = {place: who for place, who in confirmations.dead_letters.items() if place[0] in stay}
        gone = [who for place, who in confirmations.dead_letters.items() if place[0] not in stay]
        self._forget([chunk for chunk in taken.values() if id(chunk) not in stay], kept)
        # whether they arrived is not known; dead letters may be among those that are said again
        confirmations.fenced_acks += max(pending.acked - unsent, 0)
        # callers that wait are told by themselves
        confirmations.fenced_acks -= sum(item.acks for item in [*unknown, *refused])
        for lease in self._leases:
            lease.lost = lease.lost or not any(chunk.lease is lease for chunk in kept)
        self._heard_before = self._heard_before if self.kept else self._gate.last_ok
        self._forget_state()
        self.kept = kept
        confirmations.waiting, confirmations.dead_letters = again, letters
        return Told(
            [], [*gone, *(item.confirmation for item in refused)], [item.confirmation for item in unknown]
        )

    def _forget(self, chunks: Iterable[Chunk], kept: Iterable[Chunk]) -> None:
        """These chunks are lost, and what was not handed out, but of those that are `kept`."""
        stay, leases = {id(chunk) for chunk in kept}, {id(chunk.lease) for chunk in kept}
        queued = [chunk for chunk in self._queue if id(chunk) not in stay]
        for chunk in [*chunks, *queued]:
            self._in_flight.lost += chunk.handed_out()
            self._confirmations.fenced_acks += chunk.acks()
            # another chunk of the same lease may be leased again
            chunk.lease.lost = chunk.lease.lost or id(chunk.lease) not in leases
            chunk.lose()

    def _forget_state(self) -> None:
        followed, reading = list(self._fetch.buffers), self._fetch.reading
        was_active = self._policy.standing is not Standing.STANDBY
        self._leases.losses += 1
        self._clear()
        self._lag.leave()
        if was_active:
            self._lag.note_standing(active=False)
        if reading is not None:
            for partition in followed:
                reading.unfollow(partition)

    # -- what was kept is leased again

    def claims(self) -> dict[int, list[tuple[Chunk, Claim]]]:
        """What is to be leased again before the first exchange of a new incarnation, by partition (16)."""
        found: dict[int, list[tuple[Chunk, Claim]]] = {}
        for chunk in self.kept:
            if len(found) < MAX_PARTITIONS or chunk.lease.partition in found:
                found.setdefault(chunk.lease.partition, []).append((chunk, claim(chunk)))
        return found

    def reclaimed(self, answers: Iterable[tuple[Chunk, Claimed]]) -> Told:
        """Claims were answered."""
        told, confirmations = Told([], [], []), self._confirmations
        in_time = self._terms.monotonic() - self._heard_before < self._terms.session
        for chunk, claimed in answers:
            lost, acks = self._take_over(chunk, claimed, in_time=in_time)
            if lost or not claimed.token:
                waiting = confirmations.take_of(chunk)
                # callers that wait are told by themselves
                confirmations.fenced_acks += max(acks - sum(item.acks for item in waiting), 0)
                (told.unknown if lost else told.confirmed).extend(item.confirmation for item in waiting)
                told.unknown.extend(confirmations.take_lost_letters(chunk))
            self.kept = [other for other in self.kept if other is not chunk]
        self._in_flight.recount()
        self._schedule.request()
        return told

    def _take_over(self, chunk: Chunk, claimed: Claimed, *, in_time: bool) -> tuple[bool, int]:
        """One claim was answered; returns whether something of it is lost, and how many acknowledgements."""
        old, token, held = chunk.lease, claimed.token, claimed.held
        lease = Lease(
            token=token,
            incarnation=self._leases.incarnation,
            partition=old.partition,
            start=held[0] if held else old.start,
            end=held[-1] if held else old.start,
            attempts=old.attempts,
            redelivered=old.redelivered,
            lane=False,
            group=self._leases.group(old.partition),
            seen=old.seen,
            stretch=held,
        )
        before = chunk.lost_records()
        hands, acks = take_over(chunk, lease, claimed, in_time=in_time)
        self._in_flight.lost += hands
        lost = chunk.lost_records() > before
        if token == 0:
            lease.lost = True
            return lost, acks
        self._leases.add(lease)
        self._leases.have = max(self._leases.have, token)
        self._in_flight.add(chunk)
        lease.group.turn.hand_out(chunk.verdicts.count(HANDED))
        self._in_flight.note_hold(chunk, chunk.low, chunk.handed)
        return lost, acks
