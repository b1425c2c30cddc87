"""Rules O1 and O2: every instance of an application gets a message, or the application as a whole."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kafkadur import IllegalState, InvalidClientId, InvalidName, Subscription
from kafkadur.one_copy import Copies, one_copy_per_application, one_copy_per_instance
from tests.integration.subscriptions.helpers import LIMIT_S, Place, nothing, number
from tests.integration.subscriptions.workers import Worker

Start = Callable[..., Worker]


@pytest.fixture
def start_instance(place: Place) -> Iterator[Start]:
    """Provide a starter of instances: `start(topic, copies)`."""
    with ExitStack() as ending:

        def start(topic: str, copies: Copies) -> Worker:
            worker = Worker(place.settings(**copies.connection), topic, dict(copies.subscription))
            ending.callback(worker.end)
            return worker

        yield start


async def all_of(subscription: Subscription, count: int) -> list[int]:
    found: list[int] = []
    for _ in range(count):
        delivery = await subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        await delivery.ack()
        found.append(number(delivery))
    return found


@pytest.mark.parametrize("durable", [None, "d"])
def test_o1_every_instance_gets_every_message(
    place: Place, start_instance: Start, durable: str | None
) -> None:
    topic = place.topic()
    instances = [
        start_instance(topic, one_copy_per_instance("shop", name, durable=durable))
        for name in ("a", "b", "c")
    ]
    place.publish(topic, range(1, 6))
    for instance in instances:
        assert [value for value, _ in instance.receive(5)] == [1, 2, 3, 4, 5]


async def test_o1_an_instance_that_is_away_finds_what_came(place: Place) -> None:
    topic = place.topic()
    copies = one_copy_per_instance("shop", "a", durable="d")
    async with place.connect(**copies.connection) as connection:
        await (await connection.subscribe(topic, **copies.subscription)).close()
    place.publish(topic, range(1, 4))
    async with place.connect(**copies.connection) as connection:
        assert await all_of(await connection.subscribe(topic, **copies.subscription), 3) == [1, 2, 3]


async def test_o1_two_instances_of_one_name_are_a_mistake(place: Place) -> None:
    copies = one_copy_per_instance("shop", "a")
    async with place.connect(**copies.connection):
        with pytest.raises(InvalidClientId):
            await place.connect(**copies.connection).open()


@pytest.mark.parametrize("durable", [None, "d"])
def test_o2_the_application_gets_one_copy(place: Place, start_instance: Start, durable: str | None) -> None:
    topic = place.topic()
    copies = one_copy_per_application("shop", durable=durable)
    instances = [start_instance(topic, copies) for _ in range(3)]
    place.publish(topic, range(1, 301))
    for instance in instances:
        instance.work()
    got = [instance.answer() for instance in instances]
    assert sorted(value for some in got for value in some) == list(range(1, 301))


async def test_o2_two_applications_get_one_copy_each(place: Place) -> None:
    topic = place.topic()
    one, other = (one_copy_per_application(name, durable="d") for name in ("shop", "bank"))
    async with place.connect(**one.connection) as shop, place.connect(**other.connection) as bank:
        both = [
            await shop.subscribe(topic, **one.subscription),
            await bank.subscribe(topic, **other.subscription),
        ]
        place.publish(topic, [1, 2])
        for subscription in both:
            assert await all_of(subscription, 2) == [1, 2]
            await nothing(subscription)


def test_o2_a_type_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(IllegalState, match="one_copy_per_instance"):
        one_copy_per_application("shop", type="exclusive")
    assert one_copy_per_application("shop", type="serial").subscription["type"] == "serial"


def test_o1_o2_names_are_checked() -> None:
    with pytest.raises(InvalidName):
        one_copy_per_instance("shop", "a b")
    with pytest.raises(InvalidName):
        one_copy_per_application("shop", durable="")
