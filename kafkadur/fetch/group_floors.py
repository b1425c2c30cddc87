"""Mirrors the floors of subscriptions that share a reader: each has a group of its own in Kafka."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kafkadur_coordinators.client_log import client_log

_log = logging.getLogger("kafkadur.readers")


class GroupFloors:
    """Commits floors under any group, with one client of Kafka for all; it is made when it is first used."""

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        """`kafka`: confluent-kafka configuration."""
        self._kafka = kafka
        self._admin: AdminClient | None = None

    def mirror(self, group: str, topic: str, floors: Mapping[int, int], metadata: str) -> Future[Any] | None:
        """Commit floors without waiting; they are a best effort, and never ahead of the truth.

        Returns the commit under way; None: it failed at once.
        """
        places = [TopicPartition(topic, partition, offset, metadata) for partition, offset in floors.items()]
        try:
            if self._admin is None:
                self._admin = AdminClient(dict(self._kafka), logger=client_log)
            asked = self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
        except KafkaException as error:
            _log.info("mirroring floors of group %s: %s", group, error)
            return None
        return asked[group]
