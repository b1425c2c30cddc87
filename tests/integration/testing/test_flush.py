"""`Subscription.flush`: every verdict given so far is confirmed when it returns."""

import asyncio

import pytest

import kafkadur
import kafkadur.sync
from kafkadur.testing.in_memory import InMemoryKafka
from kafkadur_sharing.definition import TypeName
from kafkadur_sharing.errors import LeaseLost

TYPES = ("shared", "exclusive", "priority", "serial", "key-ordered")
COUNT = 10


@pytest.fixture
def connection(kafkadur_in_memory: InMemoryKafka) -> kafkadur.sync.Connection:
    """Provide a connection to a topic with ten messages."""
    kafkadur_in_memory.create_topic("t")
    connection = kafkadur_in_memory.connect_sync(client_id="c")
    with connection, connection.producer() as producer:
        for number in range(COUNT):
            producer.publish("t", str(number), key=str(number))
    return kafkadur_in_memory.connect_sync(client_id="c")


def take(
    subscription: kafkadur.sync.Subscription, count: int = COUNT
) -> list[kafkadur.sync.Delivery[bytes | None, bytes | None]]:
    """Receive so many messages."""
    found = [subscription.receive(timeout=60) for _ in range(count)]
    return [delivery for delivery in found if delivery is not None]


@pytest.mark.parametrize("kind", TYPES)
def test_all_verdicts_are_confirmed(
    connection: kafkadur.sync.Connection, kafkadur_in_memory: InMemoryKafka, kind: TypeName
) -> None:
    with connection, connection.subscribe("t", durable="d", type=kind, start="earliest") as subscription:
        deliveries = take(subscription)
        for delivery in deliveries[:5]:
            delivery.ack_nowait()
        deliveries[5].reject_nowait("it is bad")
        deliveries[6].rollback_nowait(delay=3_600)
        subscription.flush()
        assert len(kafkadur_in_memory.messages("t.dead")) == 1
        assert subscription.statistics()["in_hands"] == 3
        looking = kafkadur_in_memory.until_settled(subscription, timeout=0)
        with pytest.raises(TimeoutError, match="4 offsets of topic t are not settled"), looking:
            assert subscription.receive(timeout=60) is None, "it is stopped after a look at Redis"


def test_nothing_to_confirm(connection: kafkadur.sync.Connection) -> None:
    with connection, connection.subscribe("t", durable="d", start="earliest") as subscription:
        subscription.flush()
        take(subscription, 1)
        subscription.flush()


def test_refused_acknowledgements_are_reported_once(connection: kafkadur.sync.Connection) -> None:
    with connection, connection.subscribe("t", durable="d", start="earliest") as subscription:
        for delivery in take(subscription)[:4]:
            delivery.ack_nowait()
        subscription._member.lose("as if Redis had been lost")  # noqa: SLF001 - a loss at this moment
        with pytest.raises(LeaseLost, match="4 acknowledgements made without waiting were not confirmed"):
            subscription.flush()
        subscription.flush()  # and closing raises nothing either


async def test_the_asynchronous_surface(kafkadur_in_memory: InMemoryKafka) -> None:
    kafkadur_in_memory.create_topic("t")
    async with kafkadur_in_memory.connect() as connection, connection.producer() as producer:
        await asyncio.gather(*(producer.send("t", str(number)) for number in range(COUNT)))
        async with await connection.subscribe("t", durable="d", start="earliest") as subscription:
            for _ in range(COUNT):
                delivery = await subscription.receive(timeout=60)
                assert delivery is not None
                delivery.ack_nowait()
            await subscription.flush()
            assert subscription.statistics()["in_hands"] == 0


def test_a_transacted_session_commits_instead(kafkadur_in_memory: InMemoryKafka) -> None:
    kafkadur_in_memory.create_topic("t")
    with kafkadur_in_memory.connect_sync() as connection:
        subscription = connection.subscribe("t", durable="d")
        subscription._member.judged_by_session = True  # noqa: SLF001 - there are no transactions in memory
        with pytest.raises(kafkadur.IllegalState, match="transacted session"):
            subscription.flush()
        subscription._member.judged_by_session = False  # noqa: SLF001 - as above
