"""One Spark session for all tests of this folder, and a place with a holder."""

import gc
import warnings
from collections.abc import Iterator

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

import kafkadur_spark
from kafkadur.pytest_plugin import TopicFactory
from kafkadur.stack import Stack
from tests.subscriptions.helpers import Place


@pytest.fixture
def no_sockets_left() -> Iterator[None]:
    """Have py4j's sockets collected before another test begins, one that forbids that."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Provide a real Spark, in this process and two threads."""
    session = kafkadur_spark.session(
        "tests",
        master="local[2]",
        config={
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def raw_producer(kafkadur_stack: Stack) -> confluent_kafka.Producer:
    """Provide a plain producer."""
    return confluent_kafka.Producer({"bootstrap.servers": kafkadur_stack.kafka, "linger.ms": 0})


@pytest.fixture
def place(
    kafkadur_stack: Stack,
    kafkadur_topic: TopicFactory,
    kafkadur_namespace: str,
    raw_producer: confluent_kafka.Producer,
) -> Place:
    """Provide a namespace and topics of the test's own on the run's stack."""
    return Place(
        stack=kafkadur_stack, make_topic=kafkadur_topic, namespace=kafkadur_namespace, raw=raw_producer
    )
