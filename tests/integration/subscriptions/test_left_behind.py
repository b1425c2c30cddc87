"""Clients of Kafka end when they are closed or not needed, without the garbage collector."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkadur.admin.changes import Admin
from kafkadur.settings import settings
from kafkadur_coordinators import kept_client
from kafkadur_coordinators.journal import topic as journal_topic
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import Place, numbers, take, wait_until

#: One of its threads is in every client of librdkafka that is there.
_MAIN = "rdk:main"


def clients() -> int:
    """Clients of librdkafka in this process that are not destroyed."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "comm").read_text().strip() == _MAIN
        except FileNotFoundError:  # it ended meanwhile
            continue
        except ProcessLookupError:
            continue
    return found


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Nothing is collected but what nobody refers to any more."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


on_linux = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="threads are counted as Linux lists them"
)


@on_linux
@pytest.mark.parametrize("kind", ["shared", "exclusive", "priority", "serial", "key-ordered"])
async def test_a_closed_connection_leaves_no_client_behind(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1))
    async with place.connect():  # the first one creates the journal
        pass
    before = clients()
    async with (
        place.connect() as connection,
        connection.producer() as producer,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        for delivery in await take(subscription, 1):
            await delivery.ack()
        await producer.send(topic, b"2")
        assert clients() > before
    wait_until(lambda: clients() == before, "clients that are gone")


def test_closed_administration_leaves_no_client_behind(place: Place) -> None:
    before = clients()
    with Admin(settings(place.settings())) as admin:
        admin.list()
        assert clients() > before
    wait_until(lambda: clients() == before, "clients that are gone")


@on_linux
async def test_of_an_idle_connection_only_the_reader_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (kept_client, journal_topic):
        monkeypatch.setattr(module, "REST_S", 0.1)
    topics = [place.topic(range(1)), place.topic(range(1))]
    async with place.connect():  # the first one creates the journal
        pass
    before = clients()
    async with (
        place.connect(retention_check=3_600) as connection,
        await connection.subscribe(topics[0], durable="d", type="shared", start="earliest") as first,
    ):
        for delivery in await take(first, 1):
            await delivery.ack(level="journal")
        assert clients() > before + 1
        wait_until(lambda: clients() == before + 1, "clients that rest")
        # all that needs Kafka finds it again
        async with await connection.subscribe(topics[1], durable="e", start="earliest") as second:
            for delivery in await take(second, 1):
                await delivery.ack(level="journal")
        place.publish(topics[0], [1])
        (later,) = await take(first, 1)
        assert numbers([later]) == [1]
        await later.ack(level="journal")
    wait_until(lambda: clients() == before, "clients that are gone")
