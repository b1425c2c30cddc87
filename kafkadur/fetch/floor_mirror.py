"""Mirrors the floors of a member to Kafka, as offsets of its subscription's group."""

from __future__ import annotations

import logging

from confluent_kafka import Consumer, KafkaException

from kafkadur.fetch.kafka_thread import Receiver
from kafkadur_coordinators.topics import mirror_floors

_log = logging.getLogger("kafkadur.readers")


class FloorMirror:
    """The floors that were mirrored for one member."""

    def __init__(self, member: Receiver, topic: str, metadata: str) -> None:
        """`metadata` names the subscription; empty: nothing is mirrored."""
        self._member = member
        self._topic = topic
        self._metadata = metadata
        self._mirrored: dict[int, int] = {}

    def mirror(self, consumer: Consumer) -> None:
        """Commit floors that changed since the last time; after a failure the next time tries again."""
        if not self._metadata:
            return
        floors = {p: o for p, o in self._member.floors().items() if self._mirrored.get(p) != o}
        try:
            mirror_floors(consumer, self._topic, floors, self._metadata)
        except KafkaException as error:
            _log.info("mirroring floors of %s: %s", self._member.display, error)
            return
        self._mirrored |= floors

    def forget(self) -> None:
        """Mirror all floors again: the last commits may not have reached Kafka."""
        self._mirrored.clear()
