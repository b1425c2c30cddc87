"""What Spark makes of messages: each bad record has its reason, and the totals are those of plain Python."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from examples.demo import delays
from examples.demo.bad_records import BAD
from examples.demo.chart import MOST, draw, worst
from examples.demo.flights import flights, rows
from examples.demo.totals import Row, totals

# py4j leaves it to the garbage collector to close its sockets
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

MESSAGES = "partition int, offset long, value binary"


@pytest.mark.long
def test_bad_records_are_found_and_the_sums_of_batches_are_the_totals(spark: SparkSession) -> None:
    good: list[bytearray | None] = [bytearray(flight.value) for flight in flights(2_000)]
    bad = [None if value is None else bytearray(value) for value in BAD]
    halves = [good[:1_000] + bad, good[1_000:]]
    written: list[DataFrame] = []
    reasons: list[tuple[int, int, str]] = []
    for partition, half in enumerate(halves):
        messages = [(partition, offset, value) for offset, value in enumerate(half)]
        read = delays.flights(spark.createDataFrame(messages, MESSAGES))
        count, found = delays.counted(read)
        assert count == len(half)
        reasons += found
        written.append(delays.sums(read))
    assert reasons == [(0, 1_000 + number, why) for number, why in enumerate(BAD.values())]
    report = delays.totals(written[0].union(written[1])).collect()
    assert [Row(**row.asDict()) for row in report] == totals(rows(2_000))


def test_the_worst_routes_have_flights_enough() -> None:
    found = worst(totals(rows(20_000)))
    means = [delays.arrival_delay or 0.0 for _, delays in found]
    assert len(found) == MOST
    assert means == sorted(means, reverse=True)
    assert min(delays.flights for _, delays in found) >= 20


@pytest.mark.parametrize("flown", [1, 20_000])
def test_a_picture_of_few_flights_and_of_many(tmp_path: Path, flown: int) -> None:
    draw(totals(rows(flown)), tmp_path / "delays.png")
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
