"""The loss of every lease of a member, and the claims by which it leases messages in flight again.

When Redis restarted, failed over or was wiped, leases end. A member that is attached again in time may claim
the messages that are in flight, and those whose verdict was not confirmed (`lua/reclaim-7+3.lua`): then that
verdict is sent again, under the new lease, and a roll back is counted as if nothing had happened. Key-ordered
subscriptions make no claims: they would have to know which messages wait behind a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import is_

from kafkadur.consumer.chunk import HANDED, LOST, Chunk, Confirmation, Lease
from kafkadur.consumer.lag import Lag
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import Part, State
from kafkadur_coordinators.interface import (
    MAX_PARTITIONS,
    PRESENCE_GRACE,
    Claim,
    Claimed,
    Exchange,
    How,
    Returned,
    Standing,
)
from kafkadur_sharing.errors import KafkadurError

#: Callers, and the errors to resolve them with, after the lock was released; None: confirmed.
Outcomes = list[tuple[Confirmation, KafkadurError | None]]


class Losses(Part):
    """The losses of one member."""

    def __init__(self, state: State, *, policy: Policy, lag: Lag, clear: Callable[[], None]) -> None:
        """`clear` empties every part of the member."""
        super().__init__(state)
        self._policy = policy
        self._lag = lag
        self._clear = clear
        #: chunks to be leased again after a loss
        self.kept: Sequence[Chunk] = ()
        #: when this member was heard last before the loss (monotonic seconds); after several losses in a row,
        #: before the first of them, as long as `kept` is not empty
        self._heard_before = float("-inf")
        #: whether other processes heard this member until the last loss, or until less than `PRESENCE_GRACE`
        #: before it: then no other member can have had its messages
        self.heard = False

    # -- every lease is lost

    def lose(self, reason: str, *, keeps: bool) -> Outcomes:
        """Forget everything; with `keeps` the messages in flight are leased again later.

        A member that was not heard for a session keeps nothing: its session may have ended before the loss,
        and another member may have settled its messages since.
        """
        pending, confirmations = self._pending, self._confirmations
        if not self.kept:
            self._heard_before = self._gate.last_ok
        unheard = self._terms.monotonic() - self._heard_before
        self.heard = unheard < PRESENCE_GRACE or self._gate.heard_throughout(self._heard_before)
        keeps = keeps and self._policy.RECLAIMS and unheard < self._terms.session
        taken = {id(chunk): chunk for chunk in [*self.kept, *pending.taken, *self._in_flight]}
        for lease in self._leases:
            lease.group.frozen = True  # `one_by_one` stops
        kept, unsent = keep(taken.values(), pending.exchange) if keeps else ([], 0)
        stay = set(map(id, kept))
        if self._notes is not None:
            self._notes.unanswered(stay)
        unknown = [item for item in pending.confirm if id(item.chunk) not in stay]
        refused = [item for item in confirmations.waiting if id(item.chunk) not in stay]
        again = [w for w in (*pending.confirm, *confirmations.waiting) if id(w.chunk) in stay]
        letters = {place: who for place, who in confirmations.dead_letters.items() if place[0] in stay}
        gone = [who for place, who in confirmations.dead_letters.items() if place[0] not in stay]
        self._forget([chunk for chunk in taken.values() if id(chunk) not in stay], kept)
        # it is not known whether these acknowledgements arrived: they count as failed. Dead letters may be
        # among those that are sent again
        confirmations.fenced_acks += max(pending.acked - unsent, 0)
        # callers that wait get an error of their own instead
        confirmations.fenced_acks -= sum(item.acks for item in [*unknown, *refused])
        for lease in self._leases:
            lease.lost = lease.lost or not any(chunk.lease is lease for chunk in kept)
        self._forget_state()
        self.kept = kept
        confirmations.waiting, confirmations.dead_letters = again, letters
        fenced = [*gone, *(item.confirmation for item in refused)]
        outcomes: Outcomes = [(who, confirmations.fenced(reason)) for who in fenced]
        return outcomes + [(item.confirmation, confirmations.unknown(reason)) for item in unknown]

    def _forget(self, chunks: Iterable[Chunk], kept: Iterable[Chunk]) -> None:
        """Lose these chunks, and all records that were not dispatched, except in chunks that are `kept`."""
        stay, leases = {id(chunk) for chunk in kept}, {id(chunk.lease) for chunk in kept}
        queued = [chunk for chunk in self._queue if id(chunk) not in stay]
        for chunk in [*chunks, *queued]:
            self._in_flight.lost += chunk.handed_out()
            self._confirmations.fenced_acks += chunk.acks()
            # another chunk of the same lease may be leased again
            chunk.lease.lost = chunk.lease.lost or id(chunk.lease) not in leases
            self._lose(chunk)

    def _forget_state(self) -> None:
        followed = list(self._fetch.buffers)
        was_active = self._policy.standing is not Standing.STANDBY
        self._gate.losses += 1
        self._clear()
        self._lag.leave()
        if was_active:
            self._lag.note_standing(active=False)
        for partition in followed:
            self._fetch.reading.unfollow(partition)

    # -- chunks that were kept are leased again

    def claims(self) -> dict[int, list[tuple[Chunk, Claim]]]:
        """The claims to make before the first exchange of a new incarnation, by partition (at most 16)."""
        found: dict[int, list[tuple[Chunk, Claim]]] = {}
        for chunk in self.kept:
            if len(found) < MAX_PARTITIONS or chunk.lease.partition in found:
                found.setdefault(chunk.lease.partition, []).append((chunk, claim(chunk)))
        return found

    def reclaimed(self, answers: Iterable[tuple[Chunk, Claimed]]) -> Outcomes:
        """Claims were answered."""
        outcomes, confirmations = Outcomes(), self._confirmations
        unknown = partial(confirmations.unknown, "its lease was not granted again")
        session_lasts = self._terms.monotonic() - self._heard_before < self._terms.session
        for chunk, claimed in answers:
            was_attached = bool(claimed.attached) or self.heard
            lost, acks = self._take_over(chunk, claimed, own=session_lasts and was_attached)
            if lost or not claimed.token:
                waiting = confirmations.take(partial(is_, chunk))
                # callers that wait get the outcome themselves
                confirmations.fenced_acks += max(acks - sum(item.acks for item in waiting), 0)
                outcomes += [(item.confirmation, unknown() if lost else None) for item in waiting]
                outcomes += [(letter, unknown()) for letter in confirmations.take_lost_letters(chunk)]
            self.kept = [other for other in self.kept if other is not chunk]
        self._in_flight.recount()
        self._schedule.request()
        return outcomes

    def _take_over(self, chunk: Chunk, claimed: Claimed, *, own: bool) -> tuple[bool, int]:
        """One claim was answered; returns whether a record is lost, and how many acknowledgements are."""
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
            pairs=held,
        )
        before = bytes(chunk.verdicts)
        deliveries, acks = take_over(chunk, lease, claimed, own=own)
        if self._notes is not None:
            self._notes.changed(chunk, before)
        self._in_flight.lost += deliveries
        lost = chunk.verdicts.count(LOST) > before.count(LOST)
        if token == 0:
            lease.lost = True
            return lost, acks
        self._leases.add(lease)
        self._leases.have = max(self._leases.have, token)
        self._in_flight.add(chunk)
        lease.group.turn.hand_out(chunk.verdicts.count(HANDED))
        self._in_flight.note_hold(chunk, chunk.low, chunk.handed)
        return lost, acks


def keep(chunks: Iterable[Chunk], unanswered: Exchange | None) -> tuple[list[Chunk], int]:
    """Cut chunks down to the records that can be claimed; returns those with any left.

    The verdicts in the `unanswered` exchange are to be sent again; the number says how many of them are
    acknowledgements.
    """
    unsent = 0
    sent, returned = _said_in(unanswered)
    kept: list[Chunk] = []
    for chunk in chunks:
        if chunk.lease.lost or chunk.lease.isolated:
            continue
        chunk.cut(chunk.handed)
        token = chunk.lease.token
        for index in range(len(chunk.verdicts)):
            if chunk.offset(index) in sent.get(token, ()):
                unsent += chunk.unsend(index)
            said = returned.get((token, chunk.offset(index)))
            if said is not None:
                chunk.take_back(index, released=said.how == How.RELEASED, delay=said.delay)
        if chunk.keep_open():
            kept.append(chunk)
    return kept, unsent


def _said_in(exchange: Exchange | None) -> tuple[dict[int, set[int]], dict[tuple[int, int], Returned]]:
    """The offsets that an exchange settled, by token, and the returns in it, by token and offset."""
    sent: dict[int, set[int]] = {}
    returned: dict[tuple[int, int], Returned] = {}
    for part in () if exchange is None else exchange.parts:
        for item in part.settled:
            sent.setdefault(item.token, set()).update(_offsets(item.ranges, item.blob_from, item.blob))
        for back in part.returned:
            if back.how != How.UNREAD:
                returned |= {(back.token, offset): back for offset in range(back.start, back.end)}
    return sent, returned


def _offsets(ranges: Sequence[int], first: int, blob: bytes) -> Iterator[int]:
    for start, end in zip(ranges[::2], ranges[1::2], strict=True):
        yield from range(start, end)
    for at, byte in enumerate(blob):
        for bit in range(8):
            if byte & (128 >> bit):
                yield first + at * 8 + bit


def claim(chunk: Chunk) -> Claim:
    """The claim for the records that a chunk still holds."""
    pairs: list[int] = []
    for first, end in chunk.kept_runs():
        chunk.add_ranges(pairs, first, end)
    lease = chunk.lease
    redelivered = lease.redelivered or bool(pairs and pairs[-1] <= lease.seen)
    return Claim(lease.incarnation, lease.token, 2 * lease.attempts + int(redelivered), pairs)


def take_over(chunk: Chunk, lease: Lease, claimed: Claimed, *, own: bool) -> tuple[int, int]:
    """Give a chunk the new lease of its claim; returns how many deliveries, and acknowledgements, are lost.

    With `own` no other member can have had the lease: then a settled offset whose acknowledgement was not
    answered was settled by that acknowledgement. All other records that the lease does not hold are lost.
    """
    held, settled = set(_offsets(claimed.held, 0, b"")), set(_offsets(claimed.settled, 0, b""))
    lost = chunk.take_over(held=held.__contains__, arrived=lambda offset: own and offset in settled)
    lease.stretch.clear()
    lease.fill = lease.end
    chunk.lease = lease
    return lost
