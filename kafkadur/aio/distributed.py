"""A distributed topic on a connection: subscribing on its topic members, sending, unsubscribing (rules M).

`kafkadur/sync/distributed.py` is generated from this file. `kafkadur_sharing.distributed` decides where
messages go, and on which topic members a subscription is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kafkadur.aio.subscription import Subscription
from kafkadur.aio.waiting import ClosingContext
from kafkadur.producer.distributed import AVOIDED_S, DistributedProducer
from kafkadur.producer.producer import Producer
from kafkadur.runtime.closing import FirstError
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


class _Connection(Protocol):
    """The part of `Connection`, which imports this module, that a distributed topic uses."""

    settings: Settings

    async def beside(self, kafka: Mapping[str, Any]) -> _Connection: ...
    async def subscribe(self, *args: Any, **options: Any) -> Subscription[Any, Any]: ...  # noqa: ANN401 - checked there
    async def unsubscribe(self, *args: Any, **options: Any) -> None: ...  # noqa: ANN401 - as above
    async def known(self, *args: Any, **options: Any) -> Known | None: ...  # noqa: ANN401 - as above
    def producer(self, *args: Any, **options: Any) -> Producer[Any, Any]: ...  # noqa: ANN401 - as above
    async def close(self) -> None: ...


class Distributed(ClosingContext):
    """A distributed topic; a context manager, made by `Connection.distributed`.

    Topic members on other Kafka clusters get connections of their own, under the same client id, when they
    are first used; these are closed with this object.
    """

    def __init__(self, connection: _Connection, topic: DistributedTopic) -> None:
        """Use `connection` for the topic members on its own cluster."""
        self._connection = connection
        self._others: dict[str, _Connection] = {}
        self._producers: list[DistributedProducer] = []
        self.topic = topic

    async def _at(self, member: TopicMember) -> _Connection:
        """Return the connection to the cluster of a topic member."""
        if member.kafka is None:
            return self._connection
        if member.name not in self._others:
            made = await self._connection.beside(member.kafka)
            if self._others.setdefault(member.name, made) is not made:  # two tasks connected at once
                await made.close()
        return self._others[member.name]

    async def subscribe(
        self,
        member: str,
        **options: Any,  # noqa: ANN401 - those of `Connection.subscribe`, checked there
    ) -> Subscription[Any, Any]:
        """Attach to a subscription on one topic member; options as of `Connection.subscribe`.

        Only consumers on the same topic member share it (M1); the same name on another topic member is
        another subscription (M2). Raises as `Connection.subscribe`, `InvalidDestination` for a name that is
        no member of this topic, and `StateLost` or `KafkaRefused` while its cluster cannot be reached (M3).
        """
        found = self.topic.member(member)
        connection = await self._at(found)
        return await connection.subscribe(found.topic, topic_member=found.name, **options)

    async def known(self, durable: str, member: str) -> Known | None:
        """Return what is known of a durable subscription on a topic member; None if it does not exist."""
        found = self.topic.member(member)
        return await (await self._at(found)).known(durable, found.name)

    async def unsubscribe(self, durable: str, member: str | None = None) -> tuple[str, ...]:
        """Delete a durable subscription on one topic member, or on all; returns the names of these members.

        With an unrestricted client id a member must be named (rules X6, X7: `InvalidDestination`). On all
        members: those that can be reached, then `Unreached` names the others, where the subscription still
        exists (M3): repeat the call when they are back, or find it then with `kafkadur sub abandoned`. Raises
        `InvalidDestination` if the subscription exists on no member, and, when all members were tried, the
        first error of `Connection.unsubscribe`.
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
        """Return a producer that sends to the topic members; `config` is confluent-kafka configuration.

        `avoided`: seconds for which a topic member is left out after it did not take a message without a
        key. confluent-kafka's `delivery.timeout.ms` says how long Kafka has to take a message.
        """
        producers = {member.name: (await self._at(member)).producer(config) for member in self.topic.members}
        producer = DistributedProducer(self.topic, producers, avoided=avoided)
        self._producers.append(producer)
        return producer

    async def close(self) -> None:
        """Close its producers, and its connections to other clusters with everything opened on them.

        Raises the first error of closing them, when all are closed.
        """
        first = FirstError()
        for producer in self._producers:
            with first:
                producer.close()
        for connection in self._others.values():
            with first:
                await connection.close()
        first.reraise()
