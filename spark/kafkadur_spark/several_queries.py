"""Several queries on one holder: the offsets that each query has settled.

An offset is settled in Redis when all queries have settled it. Until then it is recorded beside the
checkpoint of each query that has, so that after a restart this query does not read it again, and the others
still do.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.ranges import Ranges, joined, within, without

#: Offsets, by partition.
Offsets = Mapping[int, Ranges]
#: An offset after all others.
FAR = 2**63 - 1


class SeveralQueries:
    """The offsets that some queries of a holder have settled and others have not. Any thread may use it."""

    def __init__(self, queries: Iterable[str]) -> None:
        """No query has begun; `queries` are all that have to settle a message."""
        self._queries = frozenset(queries)
        #: by query; those that have begun
        self._settled: dict[str, dict[int, list[tuple[int, int]]]] = {}
        self._lock = threading.Lock()

    def begin(self, query: str, settled: Offsets) -> None:
        """Begin a query that has settled these offsets before."""
        with self._lock:
            self._settled[query] = {p: list(some) for p, some in settled.items()}

    def add(self, query: str, settled: Offsets) -> None:
        """Note that a query has settled these offsets."""
        with self._lock:
            found = self._settled[query]
            for partition, some in settled.items():
                found[partition] = joined([*found.get(partition, ()), *some])

    def of(self, query: str) -> dict[int, Ranges]:
        """Return the offsets that a query has settled and another one has not."""
        with self._lock:
            return {p: list(some) for p, some in self._settled.get(query, {}).items() if some}

    def by_all(self) -> dict[int, Ranges]:
        """Return the offsets that all queries have settled; none before all have begun."""
        with self._lock:
            if self._queries - self._settled.keys():
                return {}
            first, *others = self._settled.values()
            found: dict[int, Ranges] = {}
            for partition, some in first.items():
                common: Ranges = some
                for other in others:
                    common = without(common, without([(0, FAR)], other.get(partition, ())))
                if common:
                    found[partition] = common
            return found

    def forget(self, settled: Offsets) -> None:
        """Forget offsets that are settled."""
        with self._lock:
            for mine in self._settled.values():
                for partition, some in settled.items():
                    mine[partition] = without(mine.get(partition, ()), some)


def to_record(held: Subscription, settled: Offsets, truncated: Mapping[int, int]) -> str:
    """Return the record of what a query has settled, for this life of the subscription.

    `truncated` are the numbers of offsets that Kafka has lost with the ends of partitions so far.
    """
    return json.dumps(
        {
            "subscription": held.id,
            "epoch": held.epoch,
            "topic": held.topic.id,
            "truncated": {str(p): lost for p, lost in sorted(truncated.items()) if lost},
            "settled": {str(p): [list(pair) for pair in some] for p, some in sorted(settled.items())},
        }
    )


def from_record(
    text: str | None, held: Subscription, floors: Mapping[int, int], truncated: Mapping[int, int]
) -> dict[int, Ranges]:
    """Return what a query had settled from the floors on; nothing if it was in another life.

    Where Kafka has lost the end of a partition meanwhile, other messages may be at these offsets: nothing.
    Raises `IllegalState` for a damaged record.
    """
    if text is None:
        return {}
    try:
        content: Any = json.loads(text)
        if (content["subscription"], content["epoch"], content["topic"]) != (
            held.id,
            held.epoch,
            held.topic.id,
        ):
            return {}
        before = {int(p): int(lost) for p, lost in content["truncated"].items()}
        return {
            int(p): within([(int(a), int(b)) for a, b in some], floors.get(int(p), 0), FAR)
            for p, some in content["settled"].items()
            if before.get(int(p), 0) == truncated.get(int(p), 0)
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IllegalState(
            "The record of what a query has settled cannot be read.",
            state=text[:60],
            owner="the checkpoint",
            remedy="use another checkpoint_root: the query reads again what is not settled",
        ) from error
