"""Statistics of Kafka's clients: the application's `stats_cb` gets them, and they do not pile up."""

import json
import os
import subprocess
import sys
import threading
from typing import Any

import confluent_kafka
import pytest

import kafkadur
from kafkadur.fetch import native
from kafkadur.native.choice import is_native, module
from kafkadur.producer.client import new_client
from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_coordinators.client_settings import for_own_messages, without_statistics
from tests.integration.subscriptions.helpers import LIMIT_S, wait_until

#: Uses all kinds of clients, hears 3,000 statistics while they rest, and prints by how many bytes it grew.
LISTENER = """
import queue, resource, sys
from pathlib import Path
import kafkadur.sync
from kafkadur.fetch import range_fetcher

kafka, redis, namespace, topic = sys.argv[1:]
range_fetcher._POLLED_EVERY_S = 0.05
told = queue.SimpleQueue()

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def hear(count):
    for _ in range(count):
        told.get(timeout=60)

config = {"bootstrap.servers": kafka, "statistics.interval.ms": 2}
config["stats_cb"] = lambda text: told.put(len(text))
with kafkadur.sync.connect(kafka=config, redis=redis, namespace=namespace) as connection:
    with (
        connection.subscribe(topic, durable="d", type="shared") as subscription,
        connection.producer() as producer,
        connection.session(transacted=True) as session,
    ):
        producer.publish(topic, b"")
        producer.flush(60)
        subscription.receive(timeout=60).rollback()
        subscription.receive(timeout=60).ack()
        session.producer().publish(topic, b"")
        session.commit()
        hear(1_000)
        before = rss()
        hear(3_000)
        print(rss() - before)
"""


@pytest.mark.parametrize("pure", [False, True])
def test_statistics_do_not_pile_up_in_clients_that_rest(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory, kafkadur_namespace: str, *, pure: bool
) -> None:
    """In a process of its own: what the threads of other tests free stays with their arenas of malloc."""
    servers = (kafkadur_stack.kafka, kafkadur_stack.redis)
    done = subprocess.run(
        [sys.executable, "-c", LISTENER, *servers, kafkadur_namespace, kafkadur_topic(partitions=1)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KAFKADUR_PURE": str(int(pure)), "MALLOC_ARENA_MAX": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16_000_000  # with those of all clients it would be 100 MB


async def test_an_error_of_the_applications_function_does_not_stop_reading(
    kafkadur_stack: Stack,
    kafkadur_topic: TopicFactory,
    kafkadur_namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = threading.Event()

    def fail(_: str) -> None:
        told.set()
        raise ZeroDivisionError

    topic = kafkadur_topic(partitions=1)
    kafka = {"bootstrap.servers": kafkadur_stack.kafka, "statistics.interval.ms": 5, "stats_cb": fail}
    async with (
        kafkadur.connect(kafka=kafka, redis=kafkadur_stack.redis, namespace=kafkadur_namespace) as connection,
        await connection.subscribe(topic, durable="d", type="shared") as subscription,
    ):
        wait_until(told.is_set, "statistics")
        raw = confluent_kafka.Producer({"bootstrap.servers": kafkadur_stack.kafka})
        raw.produce(topic, b"x")
        assert raw.flush(LIMIT_S) == 0
        delivery = await subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        assert delivery.value == b"x"
    assert "the stats_cb of the configuration failed" in caplog.text


@pytest.mark.skipif(not is_native(), reason="the compiled client was not built")
def test_compiled_clients_tell_statistics(kafkadur_stack: Stack) -> None:
    told: list[str] = []
    config: dict[str, Any] = {
        "bootstrap.servers": kafkadur_stack.kafka,
        "statistics.interval.ms": 5,
        "stats_cb": told.append,
    }
    producer: Any = new_client(config)
    assert isinstance(producer, module().Producer)
    wait_until(lambda: producer.poll(0.01) >= 0 and len(told) > 1, "statistics")
    assert {json.loads(text)["type"] for text in told} == {"producer"}
    told.clear()
    producer.close()
    consumer: Any = native.new_consumer({**config, "group.id": "g"}, logger=None, topic="t")  # type: ignore[arg-type] # nothing is logged
    assert isinstance(consumer, module().Consumer)
    wait_until(lambda: consumer.consume(1, 0.01) == [] and len(told) > 1, "statistics")
    assert {json.loads(text)["type"] for text in told} == {"consumer"}
    consumer.close()


@pytest.mark.skipif(not is_native(), reason="the compiled client was not built")
def test_an_error_of_the_function_is_raised_by_the_call(kafkadur_stack: Stack) -> None:
    def fail(_: str) -> None:
        raise ZeroDivisionError

    producer: Any = new_client(
        {"bootstrap.servers": kafkadur_stack.kafka, "statistics.interval.ms": 5, "stats_cb": fail}
    )

    def raises() -> bool:
        try:
            producer.poll(0.05)
        except ZeroDivisionError:
            return True
        return False

    wait_until(raises, "its error")
    producer.close()


def test_what_clients_are_given_that_the_application_does_not_know_of() -> None:
    kafka = {"a": 1, "statistics.interval.ms": 5, "stats_cb": print, "error_cb": print, "oauth_cb": repr}
    assert without_statistics(kafka) == {"a": 1, "error_cb": print, "oauth_cb": repr}
    assert for_own_messages(kafka) == {"a": 1, "oauth_cb": repr}
