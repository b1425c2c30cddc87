"""The fixtures of `tests/integration/subscriptions`, the command line, and a Spark session for all tests."""

import gc
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import kafkadur_spark
from tests.end_to_end.spark.helpers import LOCAL
from tests.integration.cli.conftest import here, run
from tests.integration.subscriptions.conftest import place, raw_producer

__all__ = ["here", "place", "raw_producer", "run"]


@pytest.fixture
def no_sockets_left() -> Iterator[None]:
    """Have py4j's sockets collected before another test begins, one that forbids that."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Provide a real Spark, in this process and two threads."""
    session = kafkadur_spark.session("tests", master="local[2]", config=LOCAL)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
