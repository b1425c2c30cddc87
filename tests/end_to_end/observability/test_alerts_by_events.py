"""Each alert fires after the event that it is for, made to happen on real servers, and not before.

The loss of the end of a log is in `tests/integration/faults/test_brokers.py`, a Spark query that stalls in
`tests/end_to_end/spark/test_telling.py`.
"""

import re
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import kafkadur.sync
from kafkadur.stack.proxy import TcpProxy
from tests.alerting import ALERTS, Scrape, fired, promtool, scrape
from tests.end_to_end.service.helpers import Process, Shop
from tests.integration.cli.conftest import Run, Spawn
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until

pytestmark = promtool

HOUR: dict[str, Any] = {"retention.ms": 3_600_000}


def served(address: str) -> Scrape:
    """Scrape an address; without an answer the scrape is empty."""
    try:
        with urllib.request.urlopen(address, timeout=LIMIT_S) as answer:  # its own loopback
            return Scrape(answer.read().decode())
    except urllib.error.URLError:
        return Scrape("")


def taken(subscription: kafkadur.sync.Subscription, count: int) -> list[kafkadur.sync.Delivery]:
    """Receive so many messages."""
    found = [subscription.receive(timeout=LIMIT_S) for _ in range(count)]
    return [delivery for delivery in found if delivery is not None]


def counted(found: Scrape, *parts: str) -> list[float]:
    """Return the values of the samples whose series has these parts."""
    return [value for series, value in found.samples().items() if all(part in series for part in parts)]


def test_servers_that_do_not_answer(
    place: Place, spawn: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = place.stack.redis.partition("://")[2].rpartition("@")[2].partition("/")[0].partition(":")
    with TcpProxy((host, int(port))) as proxy:
        monkeypatch.setenv("KAFKADUR_REDIS", place.stack.redis.replace(f"{host}:{port}", proxy.address))
        process = spawn("metrics", "--port", "0")
        assert process.stderr is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/metrics", process.stderr.readline())
        assert address is not None
        before = served(address[0])
        assert fired(tmp_path, (10, before)) == set()
        proxy.cut(refuse=True)
        assert fired(tmp_path, (10, before), (5, served(address[0]))) == {"KafkadurUnreachable"}
        proxy.resume()
        process.kill()
        process.wait(LIMIT_S)
        assert fired(tmp_path, (10, before), (10, served(address[0]))) == {"KafkadurMetricsAbsent"}


def test_messages_that_kafka_removes(place: Place, tmp_path: Path, kafkadur_admin: AdminClient) -> None:
    topic = place.topic(range(5))
    with place.connect_sync() as connection:
        connection.subscribe(topic, durable="d", start="earliest").close()
        before = scrape(place)
        for future in kafkadur_admin.delete_records([TopicPartition(topic, 0, 5)]).values():
            future.result(LIMIT_S)
        place.publish(topic, [5])
        with connection.subscribe(topic, durable="d") as subscription:
            taken(subscription, 1)[0].ack()
            wait_until(lambda: counted(scrape(place), "_expired_messages_total{") == [5], "five are counted")
            after = scrape(place)
    assert fired(tmp_path, (5, before)) == set()
    assert fired(tmp_path, (5, before), (5, after)) == {"KafkadurMessagesExpired"}


def test_messages_that_kafka_is_about_to_remove(place: Place, tmp_path: Path) -> None:
    topic = place.topic(**HOUR)
    with place.connect_sync() as connection, connection.subscribe(topic, durable="d", start="earliest"):
        before = scrape(place)
        place.raw.produce(topic, b"1", partition=0, timestamp=round((time.time() - 3_400) * 1000))
        assert place.raw.flush(LIMIT_S) == 0
        after = scrape(place)
    assert fired(tmp_path, (5, before)) == set()
    assert fired(tmp_path, (5, before), (5, after)) == {"KafkadurMessagesExpiring"}


def test_nobody_is_attached(
    run: Run, spawn: Spawn, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKADUR_CLIENT_ID", "c1")
    monkeypatch.setenv("KAFKADUR_CLIENT_ID_POLICY", "unrestricted")
    topic = place.topic([0])
    process = spawn("consume", topic, "--durable", "d", "--start", "earliest", "--count", "2")
    assert process.stdout is not None
    assert process.stdout.readline()
    wait_until(lambda: run("sub", "ls", "--json").data[0]["backlog"] == 0, "the first one is settled")
    before = scrape(place)
    process.kill()
    process.wait(LIMIT_S)
    place.publish(topic, [1])
    wait_until(lambda: run("sub", "ls", "--json").data[0]["attached"] == 0, "it is known to be gone")
    assert fired(tmp_path, (20, before)) == set()
    assert fired(tmp_path, (20, before), (15, scrape(place))) == {"KafkadurNobodyAttached"}


@pytest.mark.parametrize("acknowledged", [0, 1])
def test_a_consumer_that_is_stuck(run: Run, place: Place, tmp_path: Path, acknowledged: int) -> None:
    topic = place.topic([0, 1])
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        for delivery in taken(subscription, 2)[:acknowledged]:
            delivery.ack()
        held = scrape(place)
        assert fired(tmp_path, (10, held)) == set()
        assert fired(tmp_path, (30, held)) == {"KafkadurStuck"}
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("KAFKADUR_CLIENT_ID_POLICY", "unrestricted")
            assert run("--client-id", "c1", "sub", "pause", "d").code == 0
        assert fired(tmp_path, (30, scrape(place))) == set()


def test_a_backlog_that_grows(place: Place, tmp_path: Path) -> None:
    topic = place.topic(range(10_000))
    with place.connect_sync() as connection, connection.subscribe(topic, durable="d", start="earliest"):
        grown: list[tuple[int, Scrape]] = []
        for number in range(5):
            grown.append((10, scrape(place)))
            place.publish(topic, [number])
    assert "KafkadurBacklogGrows" not in fired(tmp_path, grown[0])
    assert "KafkadurBacklogGrows" in fired(tmp_path, *grown)


def test_many_messages_that_were_set_aside(place: Place, tmp_path: Path) -> None:
    topic = place.topic(range(1_501))
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest", window=2_000) as subscription,
    ):
        deliveries = taken(subscription, 1_501)
        for delivery in deliveries[:-1]:
            delivery.rollback_nowait(delay=3_600)
        wait_until(lambda: subscription.statistics()["in_hands"] == 1, "all but one are given back")
        few = scrape(place)
        deliveries[-1].rollback(delay=3_600)
        many = scrape(place)
    assert "KafkadurManyExceptions" not in fired(tmp_path, (15, few))
    assert "KafkadurManyExceptions" in fired(tmp_path, (15, many))


# -- of workers


def both(shop: Shop, address: str) -> Scrape:
    """Scrape a worker, and the metrics of its subscription."""
    return Scrape(served(address).text + scrape(shop.place).text)


def worker(shop: Shop, text: str) -> Process:
    """Start a worker with this module, and wait until it is ready."""
    shop.write(text)
    process = shop.start()
    process.ready()
    return process


def test_a_worker_that_cannot_attach(shop: Shop, tmp_path: Path) -> None:
    shop.write("""
        app = kafkadur.App()
        @app.subscription("no-such-topic", durable="d")
        async def bill(order): ...
    """)
    process = shop.start()
    address = f"http://{process.address}/metrics"
    wait_until(lambda: "kafkadur_worker_attached{" in served(address).text, "its state")
    found = both(shop, address)
    assert fired(tmp_path, (5, found)) == set()
    assert fired(tmp_path, (15, found)) == {"KafkadurNotServed"}


FAILING = """
    app = kafkadur.App()
    @app.subscription(TOPIC, durable="d", start="earliest", {options})
    async def bill(order):
        {what}
"""


def test_handlers_that_fail(shop: Shop, tmp_path: Path) -> None:
    process = worker(shop, FAILING.format(options="retry_delay=3600", what="raise ValueError('no')"))
    address, found = f"http://{process.address}/metrics", list[tuple[int, Scrape]]()

    def failed(number: int) -> bool:
        return counted(served(address), 'outcome="raised"') == [number]

    for number in range(5):
        wait_until(partial(failed, number), f"{number} failures")
        found.append((5, both(shop, address)))
        shop.place.publish(shop.topic, [number])
    assert fired(tmp_path, found[0]) == set()
    assert fired(tmp_path, *found) == {"KafkadurHandlersFail"}


@pytest.mark.parametrize(
    ("options", "what"),
    [("", "raise kafkadur.Reject('no')"), ("attempts=1", "raise ValueError('no')")],
    ids=["rejected", "failed at the last attempt"],
)
def test_dead_letters(shop: Shop, tmp_path: Path, options: str, what: str) -> None:
    process = worker(shop, FAILING.format(options=options, what=what))
    address = f"http://{process.address}/metrics"
    before = both(shop, address)
    shop.place.publish(shop.topic, [1])
    wait_until(lambda: counted(served(address), "_dead_letters_total{") == [1], "a dead letter")
    after = both(shop, address)
    assert fired(tmp_path, (10, before)) == set()
    assert fired(tmp_path, (10, before), (5, after)) == {"KafkadurDeadLetters"}


# -- all of them


def test_each_alert_has_an_event() -> None:
    tests = Path(__file__).resolve().parents[2]
    places = ("integration/faults/test_brokers.py", "end_to_end/spark/test_telling.py")
    texts = [Path(__file__).read_text(), *((tests / place).read_text() for place in places)]
    assert {alert for alert in ALERTS for text in texts if f'"{alert}"' in text} == set(ALERTS)
