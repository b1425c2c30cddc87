"""I10 as far as it can be seen from outside: the floor never lies above a message that is not settled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import History, Place


def check(history: History) -> Iterator[Finding]:
    """Floors, as an administrator was told them, above what nobody had settled."""
    #: of each partition: offset, and when it may have been settled first (ns); None: never
    settled: defaultdict[tuple[str, int], list[tuple[int, int | None]]] = defaultdict(list)
    for place in sorted(history.truth):
        if place not in history.dead_places:
            settled[place[:2]].append((place.offset, history.settled_from(place)))
    for floor in history.floors:
        for offset, since in settled[floor.subscription, floor.partition]:
            if offset >= floor.floor:
                break
            if since is None or since > floor.at:
                place = Place(floor.subscription, floor.partition, offset)
                text = f"{place} was settled before anybody can have settled it"
                shown = [*history.deliveries_of.get(place, ()), *history.verdicts_of.get(place, ()), floor]
                yield Finding(
                    invariant="I10", kind="settled too early", text=text, lines=history.tell(*shown)
                )
                return
