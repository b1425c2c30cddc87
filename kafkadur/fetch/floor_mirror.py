"""Which floors of a member have to be mirrored to Kafka, as offsets of its subscription's group."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Mapping
from typing import Final

from confluent_kafka import KafkaException

from kafkadur.fetch.kafka_thread import Receiver

_log = logging.getLogger("kafkadur.readers")

#: Seconds after a change at which a floor is committed again by a reader that waits for no answer. While the
#: group's coordinator is not known, librdkafka may send a commit after a later one, or give it up
#: (docs/internals/reliability.md). Repeats end: other members of the subscription may know a higher floor.
#: A partition that the reader does not follow is not repeated: it would not notice that the log was cut off.
REPEATS: Final = (5.0, 60.0)


class FloorMirror:
    """The floors that were mirrored for one member."""

    def __init__(
        self,
        member: Receiver,
        commit: Callable[[Mapping[int, int]], None],
        *,
        followed: Container[int] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`commit` commits the floors of partitions without waiting; it may raise `KafkaException`.

        `followed`: the partitions whose floors are repeated (`REPEATS`), as they are at each call.
        """
        self._member = member
        self._commit = commit
        self._followed = followed
        self._monotonic = monotonic
        self._mirrored: dict[int, int] = {}
        #: partition -> when its floor is committed again (monotonic seconds)
        self._again: dict[int, list[float]] = {}

    def mirror(self) -> None:
        """Commit the floors that have changed, and those to be repeated; what fails is tried again."""
        floors, now = self._member.floors(), self._monotonic()
        changed = {p: offset for p, offset in floors.items() if self._mirrored.get(p) != offset}
        due = {p for p, times in self._again.items() if times[0] <= now}
        repeated = {p: floors[p] for p in due if p in floors and p in self._followed}
        if changed or repeated:
            try:
                self._commit(repeated | changed)
            except KafkaException as error:
                _log.info("mirroring floors of %s: %s", self._member.display, error)
                return
        self._mirrored |= changed
        for partition in due:
            self._again[partition] = [at for at in self._again[partition] if at > now]
        self._again |= {partition: [now + after for after in REPEATS] for partition in changed}
        self._again = {partition: times for partition, times in self._again.items() if times}

    def forget(self) -> None:
        """Mirror all floors again: the last commits may not have reached Kafka."""
        self._mirrored.clear()
