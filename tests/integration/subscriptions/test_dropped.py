"""A connection that is dropped without being closed: its window goes to others when it is collected."""

import asyncio
import gc

import pytest

import kafkadur
from kafkadur_sharing.errors import InvalidClientId
from tests.integration.subscriptions.helpers import LIMIT_S, Place, next_of, number

COUNT = 10


def test_a_dropped_synchronous_connection_gives_its_window_back(place: Place) -> None:
    topic = place.topic(range(COUNT))

    def drop() -> None:
        connection = place.connect_sync()
        connection.open()
        subscription = connection.subscribe(topic, durable="d", start="earliest", window=COUNT)
        for _ in range(COUNT):
            assert subscription.receive(timeout=LIMIT_S) is not None

    drop()
    with pytest.warns(ResourceWarning, match="kafkadur connection .* was not closed"):
        gc.collect()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", window=COUNT) as subscription,
    ):
        again = [subscription.receive(timeout=LIMIT_S) for _ in range(COUNT)]
        assert all(delivery is not None and delivery.redelivered for delivery in again)
        assert {delivery.attempt for delivery in again if delivery is not None} == {1}, "nobody had died"


async def is_free(place: Place, restricted: dict[str, str]) -> bool:
    """Say whether a connection can take a client id."""
    try:
        async with place.connect(**restricted):
            return True
    except InvalidClientId:  # the connection that holds it is being closed
        return False


async def test_a_dropped_connection_gives_its_client_id_back(place: Place) -> None:
    topic = place.topic(range(COUNT))
    restricted = {"client_id": "only", "client_id_policy": "restricted"}

    async def drop() -> None:
        connection = place.connect(**restricted)
        await connection.open()
        subscription = await connection.subscribe(topic, durable="d", start="earliest")
        await next_of(subscription)

    await drop()
    with pytest.warns(ResourceWarning, match="was not closed"):
        gc.collect()
    async with asyncio.timeout(LIMIT_S):
        while not await is_free(place, restricted):
            pass
    async with (
        place.connect(**restricted) as connection,
        await connection.subscribe(topic, durable="d") as subscription,
    ):
        assert sorted([number(await next_of(subscription)) for _ in range(COUNT)]) == [*range(COUNT)]


async def test_a_connection_that_was_closed_is_collected_in_silence(
    place: Place, recwarn: pytest.WarningsRecorder
) -> None:
    async def use() -> None:
        async with place.connect() as connection, await connection.subscribe(place.topic(), durable="d"):
            pass
        with pytest.raises(kafkadur.ConnectionClosed):
            await connection.subscribe("t", durable="d")

    await use()
    gc.collect()
    assert not [each for each in recwarn if "was not closed" in str(each.message)]
