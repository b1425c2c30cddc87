"""What people see of a query while a driver holds a subscription: `sub info`, and the key it stands in."""

import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import DataFrame, SparkSession

from kafkadur.stack import as_administrator
from kafkadur_coordinators.holder_progress import KEPT_MS, HolderProgress, read
from tests.alerting import fired, scrape
from tests.end_to_end.spark.helpers import Lab
from tests.integration.cli.conftest import Run
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]

NAME = "c1/d (unrestricted)"


def test_info_shows_what_the_query_of_a_holder_did_last(
    place: Place, spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    lab = Lab(place, spark, tmp_path / "checkpoints")
    topic = place.topic(range(25))
    looked = [threading.Event() for _ in range(3)]
    with lab.hold(topic) as holder:
        reading = lab.read(holder, options={"maxOffsetsPerTrigger": "10"})

        def shown() -> dict[str, Any]:
            (member,) = run("sub", "info", NAME, "--json").data["members"]
            return member["progress"] or {}

        def is_shown(batch: int) -> bool:
            return shown().get("batch") == batch

        def work(frame: DataFrame, batch: int) -> None:
            assert batch == 0 or looked[batch - 1].wait(LIMIT_S)
            assert frame.count() in {5, 10}
            reading.ack_batch(batch)

        query = reading.start(reading.frame.writeStream.foreachBatch(work))
        for batch, (rows, lag) in enumerate([(10, 15), (10, 5), (5, 0)]):
            wait_until(partial(is_shown, batch), f"batch {batch} is shown")
            told = shown()
            assert (told["generation"], told["rows"], told["lag"]) == (1, rows, lag)
            if shutil.which("promtool") is not None:  # else the tests of alerts are skipped, too
                stalled = {"KafkadurQueryStalled"} if lag else set[str]()
                alerts = fired(tmp_path, (25, scrape(place)))
                assert alerts & {"KafkadurQueryStalled"} == stalled
                assert "KafkadurQueryStalled" not in fired(tmp_path, (10, scrape(place)))
            looked[batch].set()
        table = run("sub", "info", NAME).out.partition("Queries")[2].splitlines()
        (line,) = [line.split() for line in table if line.startswith("spark-")]
        assert line[1:4] == ["-", "1", "2"]  # query, generation, batch
        assert line[-4:-3] + line[-1:] == ["5", "0"]  # rows, lag
        metrics = run("metrics", "--once").out
        assert re.search(
            rf'^kafkadur_query_batch{{.*subscription="d",topic="{topic}".*}} 2.0$', metrics, re.MULTILINE
        )
        assert re.search(r"^kafkadur_query_lag_messages{.*} 0.0$", metrics, re.MULTILINE)
        assert re.search(r"^kafkadur_subscription_members{.*} 1.0$", metrics, re.MULTILINE)
        assert [0 < left <= KEPT_MS for left in times_left(place)] == [True]
        query.stop()
        wait_until(lambda: shown() == {}, "nothing is shown of a query that has ended")
        assert "Queries" not in run("sub", "info", NAME).out
    assert times_left(place) == []


def test_a_holder_that_leaves_takes_with_it_what_it_told(
    place: Place, spark: SparkSession, tmp_path: Path
) -> None:
    lab = Lab(place, spark, tmp_path)
    with lab.hold(place.topic(range(5))) as holder:
        reading = lab.read(holder)
        reading.start(reading.frame.writeStream.foreachBatch(settling(reading.ack_batch)))
        wait_until(lambda: times_left(place) != [], "it is told")
    assert times_left(place) == []


def settling(ack: Callable[[int], int]) -> Callable[[DataFrame, int], None]:
    def work(_frame: DataFrame, batch: int) -> None:
        ack(batch)

    return work


def times_left(place: Place) -> list[int]:
    """For how long what was told in this namespace is kept, ms."""
    with redis.Redis.from_url(as_administrator(place.stack.redis)) as client:
        return [client.pttl(key) for key in client.scan_iter(f"kafkadur:{place.namespace}:*:progress:*")]


GOOD = b'{"generation":1,"batch":0,"rows":5,"input_rate":null,"processed_rate":2,"lag":null,"at":7}'


def test_what_was_told_is_read() -> None:
    told = HolderProgress(generation=1, batch=0, rows=5, input_rate=None, processed_rate=2.0, lag=None, at=7)
    assert read(GOOD) == (told,)
    named = GOOD.replace(b"{", b'{"query":"totals",')
    assert read(b"[" + named + b"," + GOOD + b"]") == (replace(told, query="totals"), told)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (b'"rows":5', b'"rows":-1'),
        (b'"rows":5', b'"rows":true'),
        (b'"rows":5', b'"rows":"5"'),
        (b'"rows":5,', b""),
        (b'"at":7', b'"at":1e3'),
        (b'"at":7', b'"at":99999999999999999999'),
        (b'"processed_rate":2', b'"processed_rate":NaN'),
        (b'"processed_rate":2', b'"processed_rate":1e999'),
        (GOOD, b"[]"),
        (GOOD, b"[1]"),
        (b'{"gen', b'{"query":7,"gen'),
        (GOOD, b"\xff"),
        (GOOD, GOOD + b" " * 10_000),
    ],
)
def test_what_is_damaged_counts_as_nothing(good: bytes, bad: bytes) -> None:
    assert read(GOOD.replace(good, bad)) == ()
