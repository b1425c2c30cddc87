"""Which floors of a member have to be mirrored to Kafka, as offsets of its subscription's group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException

from kafkadur.fetch.kafka_thread import Receiver

_log = logging.getLogger("kafkadur.readers")


class FloorMirror:
    """The floors that were mirrored for one member."""

    def __init__(self, member: Receiver, *, commit: Callable[[Mapping[int, int]], None]) -> None:
        """`commit` commits the floors of partitions without waiting; it may raise `KafkaException`."""
        self._member = member
        self._commit = commit
        self._mirrored: dict[int, int] = {}

    def mirror(self) -> None:
        """Commit floors that changed since the last time; after a failure the next time tries again."""
        floors = {p: o for p, o in self._member.floors().items() if self._mirrored.get(p) != o}
        if not floors:
            return
        try:
            self._commit(floors)
        except KafkaException as error:
            _log.info("mirroring floors of %s: %s", self._member.display, error)
            return
        self._mirrored |= floors

    def forget(self) -> None:
        """Mirror all floors again: the last commits may not have reached Kafka."""
        self._mirrored.clear()
