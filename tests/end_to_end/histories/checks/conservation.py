"""I9: at any moment each offset up to what was granted is settled, leased or ready, and only one of them.

Checked of every inspection, which is of one moment: [floor, min(next, readable_end)) falls apart into what is
settled, what one lease holds and what is ready; that is what members have said about it by then; and what was
handed out before lies below the dispatch bound (next, or what may have been seen of a lease that has ended).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kafkadur_coordinators.interface import LeaseView, PartitionView
from kafkadur_sharing.keys import SLOTS, key_slot
from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import Delivery, History, Inspection, Place, Verdict

#: A message, or a lane: subscription and partition.
_Where = Place | tuple[str, int]
_IN_RUNS = {"runs", "ahead"}
#: Of each subscription and lane: places by their offsets.
_Places = Mapping[tuple[str, int], Sequence[Place]]


def check(history: History) -> Iterator[Finding]:
    """What was in no state, in several, or in a wrong one."""
    places = _places(history)
    settling = {place: _Settling.of(history, place) for place in history.truth}
    dispatched = _dispatched(history)
    told: set[tuple[str, _Where]] = set()
    for inspection in history.inspections:
        for view in inspection.partitions:
            leases = {lease.token: lease for lease in inspection.leases if lease.partition == view.partition}
            lane = (inspection.subscription, view.partition)
            wrong: list[tuple[_Where, str, str]] = [
                *((lane, kind, text) for kind, text in _form(view)),
                *((lane, kind, text) for kind, text in _states(view, leases)),
                *_against_verdicts(history, inspection, view, places.get(lane, ()), settling),
                *_against_deliveries(inspection, view, dispatched),
            ]
            for where, kind, text in wrong:
                if (kind, where) not in told:  # it stays wrong
                    told.add((kind, where))
                    yield _finding(history, inspection, where, kind, text)


def _finding(history: History, inspection: Inspection, where: _Where, kind: str, text: str) -> Finding:
    shown: list[object] = [inspection]
    if isinstance(where, Place):
        shown += [*history.deliveries_of.get(where, ()), *history.verdicts_of.get(where, ())]
    where_text = str(where) if isinstance(where, Place) else f"{where[0]}[{where[1]}]"
    return Finding(invariant="I9", kind=kind, text=f"{where_text}: {text}", lines=history.tell(*shown))


def _form(view: PartitionView) -> Iterator[tuple[str, str]]:
    """Base, bits and exceptions fit together."""
    if not view.base <= view.next:
        yield "malformed", f"base {view.base} lies above next {view.next}"
    elif view.base < view.next and view.is_decided(view.base):
        yield "malformed", f"base {view.base} is decided, and did not move on"
    if any(view.is_decided(offset) for offset in range(view.next, view.next + 8)):
        yield "malformed", f"something at or above next {view.next} is decided"
    end = 0
    for run in view.runs:
        if not end <= run.start < run.end <= view.next:
            yield (
                "malformed",
                f"exceptions [{run.start}, {run.end}) overlap others, or lie above next {view.next}",
            )
        if not all(view.is_decided(offset) for offset in range(run.start, run.end)):
            yield "malformed", f"exceptions [{run.start}, {run.end}) can be granted as new once more"
        end = run.end


def _states(view: PartitionView, leases: Mapping[int, LeaseView]) -> Iterator[tuple[str, str]]:
    """Every offset has one state, and one holder if it is leased."""
    for run in view.runs:
        lease = leases.get(run.token)
        if run.token and lease is None:
            yield (
                "held by nobody",
                f"[{run.start}, {run.end}) is held under token {run.token}, which is no more",
            )
        elif lease is not None and not lease.start <= run.start < run.end <= lease.horizon:
            yield (
                "held by nobody",
                f"[{run.start}, {run.end}) lies outside the lease of its token {run.token}",
            )
    plain = [lease for lease in leases.values() if lease.kind not in _IN_RUNS]
    for lease in plain:
        if lease.horizon > view.next:
            yield "beyond the bound", f"lease {lease.token} ends at {lease.horizon}, above next {view.next}"
    for offset in range(view.base, view.next):
        if not view.is_decided(offset):
            holders = [lease.token for lease in plain if lease.start <= offset < lease.horizon]
            if not holders:
                yield "held by nobody", f"{offset} was granted, and is neither settled, leased nor ready"
            elif len(holders) > 1:
                yield "held twice", f"{offset} is held under the tokens {holders}"


class _Settling(NamedTuple):
    """When a message was settled (ns)."""

    #: not before; None: that is not known, it became a dead letter by itself
    first: int | None
    #: verdicts that were confirmed, and settle for good
    confirmed: Sequence[Verdict]
    dead: bool

    @classmethod
    def of(cls, history: History, place: Place) -> _Settling:
        verdicts = history.verdicts_of.get(place, ())
        return cls(
            first=history.settled_from(place),
            confirmed=[v for v in verdicts if v.kind in {"ack", "reject"} and v.confirmed],
            dead=place in history.dead_places,
        )


def _against_verdicts(
    history: History,
    inspection: Inspection,
    view: PartitionView,
    places: Sequence[Place],
    settling: Mapping[Place, _Settling],
) -> Iterator[tuple[Place, str, str]]:
    """What is settled is what members have settled; what nobody can have settled is not."""
    bound = min(view.next, view.readable_end)
    for place in places[bisect_left([place.offset for place in places], view.floor) :]:
        known = settling[place]
        settled = view.is_decided(place.offset) and view.run_of(place.offset) is None
        if settled and place.offset < bound:
            if not known.dead and (known.first is None or known.first > inspection.at):
                yield place, "settled by nobody", "it is settled, and nobody can have settled it yet"
        elif not settled:
            for verdict in known.confirmed:
                before = verdict.at is not None and verdict.at < inspection.called
                if before and not history.forgotten(verdict, inspection.at):
                    yield place, "not settled", f"its {verdict.kind} was confirmed, and it is leased or ready"


def _against_deliveries(
    inspection: Inspection,
    view: PartitionView,
    dispatched: Mapping[tuple[str, int, int], tuple[Sequence[int], Sequence[Delivery]]],
) -> Iterator[tuple[Place, str, str]]:
    """What was handed out before, under this incarnation, lies below the dispatch bound."""
    times, highest = dispatched.get(
        (inspection.subscription, view.partition, inspection.incarnation), ((), ())
    )
    before = bisect_left(times, inspection.called)
    bound = max(view.next, view.seen)
    if before and highest[before - 1].place.offset >= bound:
        yield (
            highest[before - 1].place,
            "beyond the bound",
            f"it was handed out, and the dispatch bound is {bound}",
        )


def _places(history: History) -> _Places:
    found: defaultdict[tuple[str, int], list[Place]] = defaultdict(list)
    for place, message in history.truth.items():
        found[_lane(history, place, message.key)].append(place)
    return {lane: sorted(of) for lane, of in found.items()}


def _lane(history: History, place: Place, key: str) -> tuple[str, int]:
    """What is a partition to the coordinator."""
    lanes = history.plan.subscriptions[place.subscription].lanes
    if lanes == 1:
        return place.subscription, place.partition
    return place.subscription, place.partition * lanes + key_slot(key.encode(), place.offset) * lanes // SLOTS


def _dispatched(
    history: History,
) -> Mapping[tuple[str, int, int], tuple[Sequence[int], Sequence[Delivery]]]:
    """Of each lane and incarnation: times of deliveries, and the one with the highest offset by then."""
    found: defaultdict[tuple[str, int, int], tuple[list[int], list[Delivery]]] = defaultdict(lambda: ([], []))
    for delivery in history.deliveries:
        times, highest = found[*_lane(history, delivery.place, delivery.key), delivery.token[0]]
        top = highest[-1] if highest and highest[-1].place.offset > delivery.place.offset else delivery
        times.append(delivery.at)
        highest.append(top)
    return found
