"""A distributed topic as a connection sees it: subscribe on its members, send to it, unsubscribe (rules M).

`kafkadur/sync/distributed.py` is generated from this file. Where messages go, and on which topic members a
subscription is deleted, is decided in `kafkadur_sharing.distributed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from kafkadur.aio.subscription import Subscription
from kafkadur.producer.distributed import AVOIDED_S, DistributedProducer
from kafkadur.producer.producer import Producer
from kafkadur.settings import Settings
from kafkadur_coordinators.interface import Known
from kafkadur_sharing.decisions import Refuse
from kafkadur_sharing.distributed import DistributedTopic, TopicMember
from kafkadur_sharing.errors import (
    IllegalState,
    InvalidDestination,
    KafkadurError,
    KafkaRefused,
    StateLost,
    SubscriptionActive,
    Unreached,
)


class Opener(Protocol):
    """A connection, as a distributed topic sees it."""

    @property
    def settings(self) -> Settings:
        """Its settings."""
        ...

    async def beside(self, kafka: Mapping[str, Any]) -> Opener:
        """Another connection of this client id, to another Kafka cluster."""
        ...

    async def subscribe(self, *args: Any, **options: Any) -> Subscription[Any, Any]:  # noqa: ANN401 - checked there
        """Attach to a subscription."""
        ...

    async def unsubscribe(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - checked there
        """Delete a durable subscription."""

    async def known(self, *args: Any, **options: Any) -> Known | None:  # noqa: ANN401 - checked there
        """What the coordinator knows of a subscription."""

    def producer(self, *args: Any, **options: Any) -> Producer[Any, Any]:  # noqa: ANN401 - checked there
        """A producer on this connection."""
        ...

    async def close(self) -> None:
        """Close everything opened on it."""


class Distributed:
    """A distributed topic; a context manager, made by `Connection.distributed`.

    Topic members on other Kafka clusters get connections of their own, under the same client id, when they
    are used first; they are closed with this.
    """

    def __init__(self, connection: Opener, topic: DistributedTopic) -> None:
        """Nothing is connected yet."""
        self._connection = connection
        self._others: dict[str, Opener] = {}
        self._producers: list[DistributedProducer] = []
        self.topic = topic

    async def _at(self, member: TopicMember) -> Opener:
        """The connection to the cluster of a topic member."""
        if member.kafka is None:
            return self._connection
        if member.name not in self._others:
            made = await self._connection.beside(member.kafka)
            if self._others.setdefault(member.name, made) is not made:  # two asked at once
                await made.close()
        return self._others[member.name]

    async def subscribe(
        self,
        member: str,
        **options: Any,  # noqa: ANN401 - those of `Connection.subscribe`, checked there
    ) -> Subscription[Any, Any]:
        """Attach to a subscription on one topic member; options as of `Connection.subscribe`.

        Consumers share it with those on the same member alone (M1); the same name on another member is
        another subscription (M2). Raises as `Connection.subscribe`, `InvalidDestination` for no member of
        this topic, and `StateLost` or `KafkaRefused` while its cluster cannot be reached (M3).
        """
        found = self.topic.member(member)
        connection = await self._at(found)
        return await connection.subscribe(found.topic, topic_member=found.name, **options)

    async def known(self, durable: str, member: str) -> Known | None:
        """What is known of a durable subscription on a topic member; None if there is none."""
        found = self.topic.member(member)
        return await (await self._at(found)).known(durable, found.name)

    async def unsubscribe(self, durable: str, member: str | None = None) -> tuple[str, ...]:
        """Delete a durable subscription on a topic member, or on all; returns the names of those.

        With an unrestricted client id one has to be named (rules X6, X7: `InvalidDestination`). On all: those
        that can be reached, then `Unreached` names the others, where it is left behind (M3): repeat the call
        when they are back, or delete it there (`kafkadur sub abandoned`). Raises `InvalidDestination` where
        there is none anywhere, and what `Connection.unsubscribe` raises first, when all were tried.
        """
        chosen = self.topic.to_unsubscribe(self._connection.settings.client_id_policy, member)
        if isinstance(chosen, Refuse):
            raise chosen.error
        done: list[str] = []
        unreached: dict[str, KafkadurError] = {}
        missing: InvalidDestination | None = None
        refused: KafkadurError | None = None
        for each in chosen:
            try:
                await (await self._at(each)).unsubscribe(durable, topic_member=each.name)
                done.append(each.name)
            except InvalidDestination as error:
                missing = error
            except (SubscriptionActive, IllegalState) as error:
                refused = refused or error
            except (StateLost, KafkaRefused) as error:
                unreached[each.name] = error
        if unreached:
            first = next(iter(unreached.values()))
            raise Unreached(
                f"Subscription {durable} could not be deleted on {len(unreached)} of the members of "
                f"{self.topic.name}.",
                members=tuple(unreached),
                done=tuple(done),
                state=f"deleted on {', '.join(done) or 'none'}",
                remedy="call this again when they can be reached, or find it then with "
                "`kafkadur sub abandoned`",
            ) from first
        if refused is not None:
            raise refused
        if not done and missing is not None:
            raise missing
        return tuple(done)

    async def producer(
        self, config: Mapping[str, Any] | None = None, *, avoided: float = AVOIDED_S
    ) -> DistributedProducer:
        """A producer that forwards to the topic members; `config` is confluent-kafka configuration of each.

        `avoided`: seconds a member is left out that did not take a message without a key. How long Kafka is
        given to take one is confluent-kafka's `delivery.timeout.ms`.
        """
        producers = {member.name: (await self._at(member)).producer(config) for member in self.topic.members}
        producer = DistributedProducer(self.topic, producers, avoided=avoided)
        self._producers.append(producer)
        return producer

    async def close(self) -> None:
        """Close its producers, and the connections to other clusters with what is open on them.

        Raises what closing the first of them raises, when all are closed.
        """
        failed: KafkadurError | None = None
        for producer in self._producers:
            try:
                producer.close()
            except KafkadurError as error:
                failed = failed or error
        for connection in self._others.values():
            try:
                await connection.close()
            except KafkadurError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def __aenter__(self) -> Self:
        """Nothing is to be done before it is used."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error on the way out does not hide the one that led here."""
        try:
            await self.close()
        except KafkadurError:
            if error is None:
                raise
