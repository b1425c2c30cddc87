"""Which floors of a member have to be mirrored to Kafka, as offsets of its subscription's group."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaException

from kafkadur.fetch.kafka_thread import Receiver

_log = logging.getLogger("kafkadur.readers")

#: Seconds after a change at which a floor is committed again by a reader that waits for no answer. While the
#: group's coordinator is not known, librdkafka may send a commit after a later one, or give it up
#: (docs/internals/reliability.md). Repeats end: other members of the subscription may know a higher floor.
REPEATS: Final = (5.0, 60.0)


class FloorMirror:
    """The floors that were mirrored for one member."""

    def __init__(
        self,
        member: Receiver,
        commit: Callable[[Mapping[int, int]], None],
        *,
        repeats: Sequence[float] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`commit` commits the floors of partitions without waiting; it may raise `KafkaException`.

        `repeats`: seconds after a change at which a floor is committed again, ascending.
        """
        self._member = member
        self._commit = commit
        self._repeats = repeats
        self._monotonic = monotonic
        self._mirrored: dict[int, int] = {}
        #: partition -> when its floor is committed again (monotonic seconds)
        self._again: dict[int, list[float]] = {}

    def mirror(self) -> None:
        """Commit the floors that have changed, and those to be repeated; a failed commit is tried again."""
        floors, now = self._member.floors(), self._monotonic()
        changed = {p: offset for p, offset in floors.items() if self._mirrored.get(p) != offset}
        due = {p: floors[p] for p, times in self._again.items() if times[0] <= now and p in floors}
        if not (changed or due):
            return
        try:
            self._commit(due | changed)
        except KafkaException as error:
            _log.info("mirroring floors of %s: %s", self._member.display, error)
            return
        self._mirrored |= changed
        for partition in due:
            self._plan(partition, [at for at in self._again[partition] if at > now])
        for partition in changed:
            self._plan(partition, [now + after for after in self._repeats])

    def _plan(self, partition: int, times: list[float]) -> None:
        if times:
            self._again[partition] = times
        else:
            self._again.pop(partition, None)

    def forget(self) -> None:
        """Mirror all floors again: the last commits may not have reached Kafka."""
        self._mirrored.clear()
