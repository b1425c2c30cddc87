"""The clients of Redis and Kafka that belong to the settings of a connection, each made in one place."""

from __future__ import annotations

from collections.abc import Callable

from kafkadur.settings import Settings
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.lifecycle import Lifecycle
from kafkadur_coordinators.redis.coordinator import Recorder, RedisCoordinator
from kafkadur_coordinators.topics import Topics


def coordinator_of(
    settings: Settings,
    *,
    recorder: Recorder | None = None,
    on_warning: Callable[[str], None] | None = None,
    on_connect: Callable[[str], None] | None = None,
) -> RedisCoordinator:
    """A client of the shared state, not connected yet; the rest as `RedisCoordinator` takes it."""
    return RedisCoordinator(
        settings.redis,
        timeout=settings.redis_timeout.total_seconds(),
        recorder=recorder,
        on_warning=on_warning,
        on_connect=on_connect,
    )


def journal_of(settings: Settings, *, checked: Journal | None = None) -> Journal:
    """A client of the journal; `checked` is one that has looked at the topic already."""
    return Journal(
        settings.kafka,
        settings.namespace,
        shards=settings.journal_partitions,
        replication=settings.journal_replication,
        timeout=settings.kafka_timeout.total_seconds(),
        checked=checked,
    )


def topics_of(settings: Settings) -> Topics:
    """A client that asks Kafka about topics. Raises `IllegalState` for wrong settings of Kafka."""
    return Topics(settings.kafka, timeout=settings.kafka_timeout.total_seconds())


def lifecycle_of(
    settings: Settings, *, coordinator: RedisCoordinator, journal: Journal, topics: Topics
) -> Lifecycle:
    """What creates, changes and rebuilds subscriptions, over these clients."""
    return Lifecycle(
        coordinator=coordinator,
        journal=journal,
        topics=topics,
        prefix=settings.prefix,
        session_ms=settings.session_ms,
    )
