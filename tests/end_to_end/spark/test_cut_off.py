"""A query whose Redis or Kafka is cut off in the middle of a batch, for a while or for too long."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import kafkadur_spark
from kafkadur.stack import Stack, embedded
from kafkadur.stack.proxy import TcpProxy
from kafkadur_sharing.errors import KafkadurError
from tests.end_to_end.spark.helpers import At, Lab, ack, in_partition
from tests.integration.subscriptions.helpers import place_on

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]

#: Seconds.
SESSION = 5.0
#: Three batches of ten records; a task that gets none of its records gives up soon.
OPTIONS = {"maxOffsetsPerTrigger": "10", "kafkaConsumer.pollTimeoutMs": "4000"}
ALL = in_partition(0, *range(30))


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """Provide servers that are reached through proxies."""
    with embedded(users=True, proxy=True) as stack:
        yield stack


@pytest.fixture
def lab(own_stack: Stack, spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    with place_on(own_stack) as place:
        yield Lab(place, spark, tmp_path)


@pytest.fixture(params=["redis", "kafka"])
def link(own_stack: Stack, request: pytest.FixtureRequest) -> Iterator[TcpProxy]:
    """Provide the way to one of the servers; it is whole again after the test."""
    proxy = own_stack.redis_proxy if request.param == "redis" else own_stack.kafka_proxies[0]
    assert proxy is not None
    yield proxy
    proxy.resume()


def in_second_batch(act: Callable[[], None]) -> Callable[[kafkadur_spark.Reading, int, list[At]], None]:
    """Settle each batch; in the second one, act between its work and that."""

    def work(reading: kafkadur_spark.Reading, batch: int, found: list[At]) -> None:
        if batch == 1:
            act()
        ack(reading, batch, found)

    return work


def test_a_query_goes_on_after_its_server_was_away_for_a_while(lab: Lab, link: TcpProxy) -> None:
    topic = lab.place.topic(range(30))

    def cut_for_a_while() -> None:
        link.cut(refuse=True)
        threading.Timer(SESSION / 2, link.resume).start()

    with lab.hold(topic, session_timeout=SESSION) as holder:
        run = lab.go(holder, in_second_batch(cut_for_a_while), **OPTIONS)
        assert [batch for batch, _ in run.batches] == [0, 1, 2]
        assert run.records == ALL
        assert holder.whereabouts().settlements[0].floor == 30


def test_a_query_whose_server_stays_away_ends_and_its_batch_is_read_again(lab: Lab, link: TcpProxy) -> None:
    topic = lab.place.topic(range(30))
    batches: dict[int, list[At]] = {}

    def work(reading: kafkadur_spark.Reading, batch: int, found: list[At]) -> None:
        batches[batch] = found
        in_second_batch(lambda: link.cut(refuse=True))(reading, batch, found)

    try:
        with (
            pytest.raises((StreamingQueryException, KafkadurError)),
            lab.hold(topic, session_timeout=SESSION) as holder,
        ):
            lab.go(holder, work, **OPTIONS)
    finally:
        link.resume()
    assert [*batches] in ([0, 1], [0, 1, 2])
    second = lab.run(topic, ack, **OPTIONS)
    again = dict(second.batches)
    assert all(found == batches[batch] for batch, found in again.items() if batch in batches)
    assert sorted({*second.records, *(at for found in batches.values() for at in found)}) == ALL
    with lab.hold(topic) as holder:
        assert holder.whereabouts().settlements[0].floor == 30
