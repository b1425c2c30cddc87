"""Destinations in Kafka: whether they exist, where messages to them are written, and making queues."""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from kafkadur.aio.connection import Connection
from kafkadur.gateway.destinations import Destination, home_of
from kafkadur.gateway.options import GatewaySettings
from kafkadur.gateway.permissions import Action, Allowed
from kafkadur.gateway.temporary import TemporaryDestinations
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import IllegalState, InvalidDestination
from kafkadur_sharing.names import validate_topic

#: Seconds for which the answer is kept that a topic exists.
_KNOWN_S: Final = 5.0
#: Seconds for which the answer is kept that there is no such topic, and how many answers are kept.
_UNKNOWN_S, _MOST_KNOWN = 1.0, 10_000


class Place(NamedTuple):
    """Where messages are written."""

    topic: str
    partition: int


class Nodes:
    """Looks destinations up, and makes queues. Used in one event loop."""

    def __init__(
        self, host: Connection, topics: Topics, options: GatewaySettings, temporary: TemporaryDestinations
    ) -> None:
        """`host` is the connection without a client id, to which queues belong."""
        self.temporary = temporary
        self._host = host
        self._topics = topics
        self._options = options
        #: destinations that were found: when (monotonic seconds), and their partitions
        self._known: dict[Destination, tuple[float, int]] = {}

    async def place(self, destination: Destination, number: int, allowed: Allowed) -> Place | None:
        """Return where a link writes messages to a destination; None if that does not exist.

        `number` of the link decides which partition; a temporary destination has its own. Makes a queue whose
        topic exists, if the user is `allowed` to. Raises `Refused`, `KafkaUnavailable`, and errors of
        `Connection.create`.
        """
        if destination.is_temporary:
            if not self.temporary.exists(destination):
                return None
            await self.temporary.prepare()
            return Place(self.temporary.topic, home_of(destination)[0])
        count = await self.partitions(destination, allowed)
        return Place(destination.name, number % count) if count else None

    async def partitions(self, destination: Destination, allowed: Allowed) -> int:
        """Return the number of partitions of a topic or queue; 0: there is none. Raises as `place`."""
        validate_topic(destination.name)
        found_at, count = self._known.get(destination, (float("-inf"), 0))
        if time.monotonic() - found_at < (_KNOWN_S if count else _UNKNOWN_S):
            return count
        try:
            count = (await asyncio.to_thread(self._topics.describe, destination.name)).partitions
        except InvalidDestination:
            count = 0
        if count and destination.is_queue:
            await self._make_queue(destination, allowed)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[destination] = time.monotonic(), count
        return count

    async def _make_queue(self, queue: Destination, allowed: Allowed) -> None:
        """Create the subscription of a queue if there is none: it has all messages of its topic."""
        if await self._host.known(queue.subscription) is not None:
            return
        allowed.check(Action.CREATE, queue)
        redelivery = self._options.redelivery
        try:
            if redelivery is None:
                await self._host.create(queue.subscription, queue.name, start="earliest")
            else:
                await self._host.create(
                    queue.subscription, queue.name, start="earliest", redelivery=redelivery
                )
        except IllegalState:
            if await self._host.known(queue.subscription) is None:
                raise  # else another gateway was faster

    async def close(self) -> None:
        """Close the clients."""
        await self.temporary.close()
        self._topics.close()
