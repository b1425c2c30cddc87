"""Offsets of which Kafka knows some: none is wrong, and an unknown one does not hide the others."""

import time
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient

from kafkadur.admin.topics import TopicAdmin
from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import KafkaUnavailable
from tests.integration.subscriptions.helpers import wait_until

LIMIT_S = 30.0
PARTITIONS = 2


def test_an_offset_of_a_partition_that_does_not_exist_is_an_error(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    """Kafka's client leaves the time that was asked for in the place of the offset."""
    topic = kafkadur_topic(PARTITIONS)
    with closing(Topics({"bootstrap.servers": kafkadur_stack.kafka}, timeout=LIMIT_S)) as topics:
        now = round(time.time() * 1_000)
        assert topics.offsets_at(topic, PARTITIONS, now) == {0: 0, 1: 0}
        assert topics.offsets_at(topic, PARTITIONS, -1) == {0: 0, 1: 0}, "a time before 1970"
    with closing(Topics({"bootstrap.servers": kafkadur_stack.kafka}, timeout=1)) as topics:
        with pytest.raises(KafkaUnavailable):
            topics.offsets(topic, PARTITIONS + 1, "latest")
        with pytest.raises(KafkaUnavailable):  # `offsets_at` asks for ends as well, which alone is refused
            topics._offsets(topic, PARTITIONS + 1, now, stable=False)  # noqa: SLF001 - this question only


def test_a_topic_that_was_deleted_does_not_hide_the_sizes_of_others(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory, kafkadur_admin: AdminClient
) -> None:
    """If a broker refuses one partition, Kafka's client returns the offset of none."""
    kept, gone = kafkadur_topic(PARTITIONS), kafkadur_topic(PARTITIONS)
    topics = {name: list(range(PARTITIONS)) for name in (kept, gone)}
    both_known = {kept: 0, gone: 0}
    found: list[dict[str, int | None]] = []
    with closing(TopicAdmin({"bootstrap.servers": kafkadur_stack.kafka}, timeout=LIMIT_S)) as admin:

        def changes() -> bool:
            found.append(admin._sizes(topics))  # noqa: SLF001 - the public method asks for names first
            return found[-1] != both_known

        assert not changes()
        kafkadur_admin.delete_topics([gone])[gone].result(LIMIT_S)
        wait_until(changes, "the broker refuses the deleted topic")
    assert found[-1] == {kept: 0, gone: None}, "the first answer after the deletion"
