"""A Kafka in memory, as tests of applications use it: it does what a real one does."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import kafkadur
import kafkadur.sync
from kafkadur.stack import Stack
from kafkadur.testing.in_memory import InMemoryKafka
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_sharing.errors import DeliveryFailed, IllegalState, InvalidDestination

TYPES = ("shared", "exclusive", "priority", "serial", "key-ordered")

Connect = Callable[[], kafkadur.sync.Connection]


@pytest.fixture
def kafka(kafkadur_in_memory: InMemoryKafka) -> InMemoryKafka:
    """Provide a Kafka with one topic of two partitions."""
    kafkadur_in_memory.create_topic("orders", partitions=2)
    return kafkadur_in_memory


def publish(connection: kafkadur.sync.Connection, *values: str, topic: str = "orders", **more: Any) -> None:
    """Publish messages, and wait until they are written."""
    with connection.producer() as producer:
        for value in values:
            producer.publish(topic, value, **more)


# -- as a real one


def story(connect: Connect, topic: str, kind: Any) -> tuple[list[Any], list[Any]]:
    """Have messages acknowledged, retried and rejected; return what handler and dead-letter topic got."""
    handled: list[Any] = []
    dead = f"{topic}-dead"
    with connect() as connection:
        with connection.producer() as producer:
            for number, value in enumerate(("plain", "again", "bad", "late", "filtered", "last")):
                producer.publish(topic, value, key=f"key-{number % 2}", properties={"number": number})
        with connection.subscribe(
            topic,
            durable="story",
            type=kind,
            start="earliest",
            selector="number <> 4",
            redelivery=kafkadur.Redelivery(dead_letter_topic=dead),
        ) as subscription:

            def handle(delivery: kafkadur.sync.Delivery) -> None:
                value = (delivery.value or b"").decode()
                place = (delivery.partition, delivery.offset, delivery.attempt, delivery.redelivered)
                handled.append((value, delivery.key, dict(delivery.properties), *place))
                if len(handled) == 6:
                    subscription.stop()
                if value == "bad":
                    raise kafkadur.Reject("it is bad")
                if value in {"again", "late"} and delivery.attempt == 1:
                    raise ValueError("not yet")

            subscription.run(handle, retry_delay=0)
        with connection.subscribe(dead, start="earliest") as letters:
            letter = letters.receive(timeout=60)
            assert letter is not None
            sent: Any = letter.message.headers()
            headers = {
                name: value
                for name, value in sent
                if name.startswith("kafkadur-dead") and name != "kafkadur-dead-timestamp"
            }
            letter.ack()
    return handled, [letter.value, letter.key, dict(letter.properties), headers]


@pytest.mark.parametrize("kind", TYPES)
def test_it_does_what_a_real_kafka_does(
    kafkadur_in_memory: InMemoryKafka,
    kafkadur_stack: Stack,
    kafkadur_topic: TopicFactory,
    kafkadur_namespace: str,
    kind: str,
) -> None:
    topic = kafkadur_topic(partitions=1)
    kafkadur_in_memory.create_topic(topic)

    def real() -> kafkadur.sync.Connection:
        return kafkadur.sync.connect(
            kafka=kafkadur_stack.kafka,
            redis=kafkadur_stack.redis,
            namespace=kafkadur_namespace,
            client_id="c",
        )

    expected_handled, expected_letter = story(real, topic, kind)
    handled, letter = story(lambda: kafkadur_in_memory.connect_sync(client_id="c"), topic, kind)
    key = str if kind in {"shared", "key-ordered"} else lambda _: 0  # these two do not order all messages
    expected_letter[3]["kafkadur-dead-subscription"] = letter[3][
        "kafkadur-dead-subscription"
    ]  # its namespace
    assert sorted(handled, key=key) == sorted(expected_handled, key=key)
    assert letter == expected_letter


# -- the parts


def test_a_retry_and_a_reject_settle_their_messages(kafka: InMemoryKafka) -> None:
    attempts = list[int]()

    def handle(delivery: kafkadur.sync.Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.value == b"bad":
            raise kafkadur.Reject("no customer")
        if delivery.attempt < 3:
            raise ValueError("not yet")

    with kafka.connect_sync() as connection:
        publish(connection, "good", "bad")
        redelivery = kafkadur.Redelivery(dead_letter_topic="dead")
        with (
            connection.subscribe(
                "orders", durable="billing", start="earliest", redelivery=redelivery
            ) as subscription,
            kafka.until_settled(subscription),
        ):
            subscription.run(handle, retry_delay=0)
    assert sorted(attempts) == [1, 1, 2, 3]
    assert [message.value() for message in kafka.messages("dead")] == [b"bad"]


async def test_the_asynchronous_surface(kafka: InMemoryKafka) -> None:
    handled = list[bytes | None]()

    async def handle(delivery: kafkadur.Delivery) -> None:
        handled.append(delivery.value)

    async with kafka.connect() as connection, connection.producer() as producer:
        receipt = await producer.send("orders", b"1", partition=1)
        assert (receipt.partition, receipt.offset) == (1, 0)
        async with await connection.subscribe("orders", durable="d", start="earliest") as subscription:
            with kafka.until_settled(subscription):
                await subscription.run(handle)
    assert handled == [b"1"]


def test_a_subscription_goes_on_where_it_was(kafka: InMemoryKafka) -> None:
    with kafka.connect_sync(client_id="c") as connection:
        publish(connection, "1", "2", key="k")
        with connection.subscribe("orders", durable="d", type="exclusive", start="earliest") as subscription:
            first = subscription.receive(timeout=10)
            assert first is not None
            first.ack()
    with kafka.connect_sync(client_id="c") as connection:
        publish(connection, "3", key="k")
        with connection.subscribe("orders", durable="d", type="exclusive") as subscription:
            values = [subscription.receive(timeout=10), subscription.receive(timeout=10)]
            assert [each and each.value for each in values] == [b"2", b"3"]


def test_consumers_share_the_messages(kafka: InMemoryKafka) -> None:
    with kafka.connect_sync() as connection:
        publish(connection, *map(str, range(100)))
        taken: list[list[bytes | None]] = [[], []]
        with (
            connection.subscribe("orders", durable="d", start="earliest", window=5) as one,
            connection.subscribe("orders", durable="d", window=5) as two,
            kafka.until_settled(one, two),
        ):
            other = threading.Thread(target=two.run, args=(lambda d: taken[1].append(d.value),))
            other.start()
            one.run(lambda d: taken[0].append(d.value))
            other.join()
    assert sorted(int(value or b"-1") for value in taken[0] + taken[1]) == list(range(100))


@pytest.mark.parametrize("level", ["redis", "journal"])
def test_a_journal_in_memory_confirms(kafka: InMemoryKafka, level: Any) -> None:
    with kafka.connect_sync() as connection:
        publish(connection, "1")
        with connection.subscribe("orders", durable="d", start="earliest", ack_level=level) as subscription:
            delivery = subscription.receive(timeout=10)
            assert delivery is not None
            delivery.ack()


def test_a_rollback_with_a_delay_waits(kafka: InMemoryKafka) -> None:
    with kafka.connect_sync() as connection:
        publish(connection, "1")
        with connection.subscribe("orders", durable="d", start="earliest") as subscription:
            first = subscription.receive(timeout=10)
            assert first is not None
            first.rollback(delay=0.2)
            assert subscription.receive(timeout=0.05) is None
            again = subscription.receive(timeout=10)
            assert again is not None
            assert again.attempt == 2


def test_a_large_backlog_is_read_in_steps(kafka: InMemoryKafka) -> None:
    seen = list[int]()
    with kafka.connect_sync(client_id="c") as connection:
        publish(connection, *map(str, range(5_000)), key="k")
        with (
            connection.subscribe(
                "orders", durable="d", type="exclusive", start="earliest", window=10
            ) as subscription,
            kafka.until_settled(subscription, timeout=60),
        ):
            for delivery in subscription:
                seen.append(int(delivery.value or b"-1"))
                delivery.ack_nowait()
    assert seen == list(range(5_000))


def test_a_timestamp_is_kept(kafka: InMemoryKafka) -> None:
    with kafka.connect_sync() as connection:
        with connection.producer() as producer:
            for value, timestamp in (("old", 1_000), ("new", 2_000)):
                producer.publish("orders", value, partition=0, timestamp=timestamp)
        assert [m.timestamp()[1] for m in kafka.messages("orders")] == [1_000, 2_000]


# -- what it refuses


def test_a_topic_that_does_not_exist(kafka: InMemoryKafka) -> None:
    with kafka.connect_sync() as connection:
        with pytest.raises(InvalidDestination, match="create_topic"):
            connection.subscribe("nowhere", durable="d")
        with pytest.raises(DeliveryFailed, match="UNKNOWN_TOPIC_OR_PART"):
            publish(connection, "1", topic="nowhere")
        with pytest.raises(DeliveryFailed, match="UNKNOWN_TOPIC_OR_PART"):
            publish(connection, "1", partition=2)
    with pytest.raises(InvalidDestination):
        kafka.messages("nowhere")


def test_topics_are_made_once(kafka: InMemoryKafka) -> None:
    with pytest.raises(IllegalState, match="exists"):
        kafka.create_topic("orders")
    with pytest.raises(IllegalState, match="not 0"):
        kafka.create_topic("none", partitions=0)


def test_transactions_need_a_real_kafka(kafka: InMemoryKafka) -> None:
    with kafka.connect_sync() as connection, pytest.raises(IllegalState, match="kafkadur_stack"):
        connection.session(transacted=True)


def test_a_message_that_nobody_settles_ends_the_wait(kafka: InMemoryKafka) -> None:
    with kafka.connect_sync() as connection:
        publish(connection, "1", "2", key="k")
        with connection.subscribe("orders", durable="d", start="earliest") as subscription:
            waits = kafka.until_settled(subscription, timeout=0.3)
            with pytest.raises(TimeoutError, match="2 offsets of topic orders are not settled"), waits:
                subscription.run(lambda _: 1 / 0, retry_delay=60)


def test_an_error_in_the_block_is_raised(kafka: InMemoryKafka) -> None:
    with kafka.connect_sync() as connection:
        publish(connection, "1")
        with connection.subscribe("orders", durable="d", start="earliest") as subscription:
            with pytest.raises(KeyError), kafka.until_settled(subscription):
                raise KeyError
            assert subscription.receive(timeout=10) is not None, "it was stopped"
