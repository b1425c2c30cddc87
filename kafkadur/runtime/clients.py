"""Makes the clients of Redis and Kafka, and what uses them, from the settings of a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kafkadur.runtime.checkpoint_thread import Rebuild
from kafkadur.runtime.waiters import Waiters
from kafkadur.settings import Settings
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.lifecycle import Lifecycle
from kafkadur_coordinators.redis.cluster import Listener
from kafkadur_coordinators.redis.coordinator import Recorder, RedisCoordinator
from kafkadur_coordinators.topics import Topics, asking_group
from kafkadur_sharing.keys import SubscriptionKey


def coordinator_of(
    settings: Settings,
    *,
    recorder: Recorder | None = None,
    on_warning: Callable[[str], None] | None = None,
    listener: Listener | None = None,
) -> RedisCoordinator:
    """Return a client of Redis, not connected yet; parameters as of `RedisCoordinator`."""
    return RedisCoordinator(
        settings.redis,
        timeout=settings.redis_timeout.total_seconds(),
        state_version=settings.state_version,
        recorder=recorder,
        on_warning=on_warning,
        listener=listener,
    )


def journal_of(settings: Settings, *, checked: Journal | None = None) -> Journal:
    """Return a client of the journal; `checked` is a client that has already checked the topic."""
    return Journal(
        settings.kafka,
        settings.namespace,
        shards=settings.journal_partitions,
        replication=settings.journal_replication,
        timeout=settings.kafka_timeout.total_seconds(),
        checked=checked,
    )


def topics_of(settings: Settings) -> Topics:
    """Return a client that asks Kafka about topics; raises `IllegalState` for wrong Kafka settings."""
    return Topics(
        settings.kafka,
        timeout=settings.kafka_timeout.total_seconds(),
        group=asking_group(settings.namespace),
    )


def lifecycle_of(
    settings: Settings, *, coordinator: RedisCoordinator, journal: Journal, topics: Topics
) -> Lifecycle:
    """Return a `Lifecycle`, which creates, changes and rebuilds subscriptions, with these clients."""
    return Lifecycle(
        coordinator=coordinator,
        journal=journal,
        topics=topics,
        prefix=settings.prefix,
        session_ms=settings.session_ms,
    )


def rebuild_of(settings: Settings, *, topics: Callable[[], Topics]) -> Rebuild:
    """Return the parameter `rebuild` of `CheckpointThread`; `topics` makes a client that looks up topics."""

    def rebuild(coordinator: RedisCoordinator, journal: Journal, seen: Mapping[SubscriptionKey, int]) -> None:
        asked = topics()
        try:
            lifecycle_of(settings, coordinator=coordinator, journal=journal, topics=asked).rebuild(seen)
        finally:
            asked.close()

    return rebuild


def waiters_of(
    settings: Settings, *, coordinator: Callable[[], RedisCoordinator]
) -> Callable[[Callable[[], None]], Waiters]:
    """Return the parameter `waiters` of `CheckpointThread`; `coordinator` makes their client of Redis."""
    return partial(
        Waiters,
        coordinator=coordinator,
        replicas=settings.replicas,
        patience=settings.level_timeout.total_seconds(),
    )
