"""Drivers on a Spark cluster of several processes: what they read there and settle, each record once."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkadur_spark
from tests.end_to_end.spark.cluster import cluster
from tests.end_to_end.spark.drivers import Driver, drivers, readers, written
from tests.end_to_end.spark.helpers import in_partition
from tests.integration.subscriptions.helpers import Place


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Provide the URL of a real master with a real worker."""
    with cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.mark.long
def test_a_driver_that_is_killed_on_a_cluster(place: Place, tmp_path: Path, master: str) -> None:
    """In its second batch, while an executor reads it: the next driver reads that one again, and no other."""
    topic = place.topic(range(15), partitions=2)
    place.publish(topic, range(15), partition=1)
    for die in ("during", ""):
        driver = Driver(place.settings(), topic, tmp_path, die=die, at=1, master=master)
        try:
            assert driver.ended() == (-signal.SIGKILL if die else 0)
        finally:
            driver.end()
        if die:
            # were it read again, it would be there twice
            (tmp_path / "1-0.json").rename(tmp_path / "settled.json")
    assert {path.name for path in tmp_path.glob("*.json")} == {"settled.json", "1-1.json", "1-2.json"}
    assert written(tmp_path) == [*in_partition(0, *range(15)), *in_partition(1, *range(15))]
    _were_others(tmp_path)
    with (
        place.connect_sync() as connection,
        kafkadur_spark.hold(connection, topic, durable="d", start="earliest") as holder,
    ):
        places = holder.whereabouts().settlements
    assert {partition: (where.floor, where.unsettled) for partition, where in places.items()} == {
        0: (15, 0),
        1: (15, 0),
    }


def _were_others(folder: Path) -> None:
    """Check that what was read was read by other processes than the drivers, with this Python."""
    two, others = drivers(folder), readers(folder)
    assert len(two) == 2
    assert others
    assert not {each.java for each in others} & {each.java for each in two}
    assert not {each.python for each in others} & {each.python for each in two}
    assert {each.executable for each in others | two} == {sys.executable}
