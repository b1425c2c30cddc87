"""Which floors of a member have to be mirrored to Kafka, as offsets of its subscription's group."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from kafkadur.fetch.kafka_thread import Receiver

_log = logging.getLogger("kafkadur.readers")


class Repeats(NamedTuple):
    """When all floors are committed again though they are unchanged, in seconds."""

    #: after a change
    first: float
    #: after a repeat
    later: float


#: Of a reader that commits without waiting for an answer. While the group's coordinator is not known,
#: librdkafka may send a commit after a later one, or give it up (docs/internals/reliability.md).
UNANSWERED: Final = Repeats(5.0, 60.0)
#: Of commits that are known to have succeeded. Kafka removes the offsets of a group that are older than
#: `offsets.retention.minutes`, seven days by default.
ANSWERED: Final = Repeats(43_200.0, 43_200.0)


class FloorMirror:
    """The floors that were mirrored for one member."""

    def __init__(
        self,
        member: Receiver,
        commit: Callable[[Mapping[int, int]], None],
        *,
        repeats: Repeats,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`commit` commits the floors of partitions without waiting; it may raise `KafkaException`."""
        self._member = member
        self._commit = commit
        self._repeats = repeats
        self._monotonic = monotonic
        self._mirrored: dict[int, int] = {}
        #: when all floors are committed again (monotonic seconds)
        self._again_at = math.inf

    def mirror(self) -> None:
        """Commit the floors that have changed, or all; after a failure the next call tries again."""
        floors, now = self._member.floors(), self._monotonic()
        again = now >= self._again_at
        chosen = {p: offset for p, offset in floors.items() if again or self._mirrored.get(p) != offset}
        if not chosen:
            return
        try:
            self._commit(chosen)
        except KafkaException as error:
            _log.info("mirroring floors of %s: %s", self._member.display, error)
            return
        self._mirrored |= chosen
        if again:
            self._again_at = now + self._repeats.later
        else:
            self._again_at = min(self._again_at, now + self._repeats.first)

    def forget(self) -> None:
        """Mirror all floors again: the last commits may not have reached Kafka."""
        self._mirrored.clear()
