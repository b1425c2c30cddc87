"""A Kafka in memory for tests of handlers: connections to it run in this process and answer in milliseconds.

Its connections, producers and subscriptions are those of kafkadur; only the topics are in memory. The state
of subscriptions is in a real Redis or Valkey, which starts in a few milliseconds. There are no transactions,
no retention and no faults of Kafka: tests of those need a real one (`kafkadur.stack`).
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from confluent_kafka import Message
from typing_extensions import Unpack

import kafkadur.aio.connection
import kafkadur.sync.connection
from kafkadur.runtime.clients import coordinator_of, lifecycle_of
from kafkadur.settings import MoreSettings, Settings, settings
from kafkadur.testing.clients import MemoryClients
from kafkadur.testing.log import Log
from kafkadur_coordinators.lifecycle import Lifecycle
from kafkadur_coordinators.lifecycle import Subscription as Attachment
from kafkadur_sharing.errors import IllegalState, InvalidDestination

#: Seconds between two looks whether all messages are settled.
_LOOK_EVERY = 0.002


class Stopping(Protocol):
    """A subscription, of either surface."""

    @property
    def definition(self) -> Attachment:
        """The attached subscription."""
        ...

    def stop(self) -> None:
        """End its iterators and runs."""


class InMemoryKafka:
    """A Kafka in memory. Nothing of it outlives the object."""

    def __init__(self, *, redis: str, topics: Mapping[str, int] | None = None) -> None:
        """Create `topics`: names, and numbers of partitions. `redis` is the URL of a Redis or Valkey.

        The object uses a namespace of its own there, so tests that share a server never meet.
        """
        self._redis = redis
        self._namespace = f"memory-{uuid.uuid4().hex}"
        self._log = Log()
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions=partitions)

    def create_topic(self, name: str, *, partitions: int = 1) -> None:
        """Create a topic; raises `IllegalState` if it exists, or for a number of partitions below 1."""
        if partitions < 1:
            raise IllegalState(
                f"A topic has at least one partition, not {partitions}.", owner=f"topic {name}"
            )
        self._log.create(name, partitions)

    def messages(self, topic: str) -> Sequence[Message]:
        """Return all messages of a topic, such as one of dead letters, in the order of their arrival.

        Raises `InvalidDestination` if there is no such topic.
        """
        found = self._log.topic(topic)
        if found is None:
            raise InvalidDestination("The topic does not exist.", owner=f"topic {topic}")
        return list(found.messages)

    # -- connections

    def connect(
        self, *, client_id: str | None = None, **more: Unpack[MoreSettings]
    ) -> kafkadur.aio.connection.Connection:
        """Return an asynchronous connection that opens when its context is entered.

        The settings are those of `kafkadur.connect`; the environment is not read.
        """
        return kafkadur.aio.connection.Connection(self._settings(client_id, more), kafka=self._clients)

    def connect_sync(
        self, *, client_id: str | None = None, **more: Unpack[MoreSettings]
    ) -> kafkadur.sync.connection.Connection:
        """Return a connection of the synchronous surface; parameters as of `connect`."""
        return kafkadur.sync.connection.Connection(self._settings(client_id, more), kafka=self._clients)

    def _settings(self, client_id: str | None, more: Mapping[str, Any]) -> Settings:
        own = {"kafka": "memory", "redis": self._redis, "namespace": self._namespace, "client_id": client_id}
        return settings({**more, **own}, environment={})

    def _clients(self, chosen: Settings) -> MemoryClients:
        return MemoryClients(chosen, self._log)

    # -- the end of a test

    @contextlib.contextmanager
    def until_settled(self, *subscriptions: Stopping, timeout: float = 10.0) -> Generator[None]:
        """Stop subscriptions as soon as every message of their topics is settled for them.

        `run` and iterators, called in the block, then end. A message that waits for another attempt is not
        settled. Raises `TimeoutError` at the end of the block if `timeout` seconds passed before; the
        subscriptions are stopped then, too.
        """
        left = threading.Event()

        def watch() -> list[str]:
            try:
                return self._watch(subscriptions, timeout, left)
            finally:
                if not left.is_set():
                    for each in subscriptions:
                        each.stop()

        with ThreadPoolExecutor(1, thread_name_prefix="kafkadur-until-settled") as thread:
            watching = thread.submit(watch)
            try:
                yield
            finally:
                left.set()
        if unsettled := watching.result():
            raise TimeoutError(f"after {timeout:g} s {'; '.join(unsettled)}")

    def _watch(self, subscriptions: Sequence[Stopping], timeout: float, left: threading.Event) -> list[str]:
        """Wait until all is settled, or the block was left; returns what is not settled at the time-out."""
        deadline = time.monotonic() + timeout
        with self._lifecycle() as lifecycle:
            while unsettled := list(
                filter(None, (self._unsettled(lifecycle, each) for each in subscriptions))
            ):
                if time.monotonic() > deadline:
                    return unsettled
                if left.wait(_LOOK_EVERY):
                    break
        return []

    @contextlib.contextmanager
    def _lifecycle(self) -> Generator[Lifecycle]:
        chosen = self._settings(None, {})
        clients, coordinator = self._clients(chosen), coordinator_of(chosen)
        try:
            yield lifecycle_of(
                chosen, coordinator=coordinator, journal=clients.journal(), topics=clients.topics()
            )
        finally:
            coordinator.close()

    def _unsettled(self, lifecycle: Lifecycle, subscription: Stopping) -> str:
        """Say how many messages of its topic a subscription has not settled; empty: it has settled all."""
        attachment = subscription.definition
        known = lifecycle.known(attachment.key)
        if known is None:
            return f"subscription {attachment.key} does not exist"
        views, topic = lifecycle.views(attachment.key, known), attachment.topic.name
        lanes = attachment.definition.lanes
        ends = {lane: self._log.end(topic, lane // lanes) for lane in views}
        if all(view.floor >= ends[lane] for lane, view in views.items()):
            return ""
        count = sum(
            view.backlog + max(ends[lane] - max(view.readable_end, view.next), 0)
            for lane, view in views.items()
        )
        are = f"1 offset of topic {topic} is" if count == 1 else f"{count} offsets of topic {topic} are"
        return f"{are} not settled for subscription {attachment.key}"
