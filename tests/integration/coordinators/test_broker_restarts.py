"""What is asked of Kafka while its broker restarts or cannot be reached: an answer comes when it is back.

These tests break Kafka, so they have a stack of their own, with a proxy before it.
"""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from kafkadur.stack import Stack, embedded
from kafkadur.stack.kafka import quiet_admin
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import IllegalState

LIMIT_S = 180.0
PARTITIONS = 2

#: Asks for the offsets of a group while Kafka cannot be reached, and again when it can.
ASKER = """
import sys
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import StateLost

topics = Topics({"bootstrap.servers": sys.argv[1]}, timeout=0.5)

def floors():
    try:
        return topics.floors("g", "t", 2, "m")
    except StateLost:
        return None

assert floors() is None
print("asked", flush=True)
sys.stdin.readline()
while floors() is None:
    pass
print(floors(), flush=True)
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Provide a Kafka that may be broken, with a topic."""
    with embedded(proxy=True, valkey=False) as stack:
        admin = quiet_admin(stack.kafka)
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(LIMIT_S)
        yield stack


def test_offsets_of_a_group_that_came_too_late_end_no_process(stack: Stack) -> None:
    """librdkafka's admin client ends the process here, when it finds the coordinator after the time-out."""
    (proxy,) = stack.kafka_proxies
    proxy.cut(refuse=True)
    with subprocess.Popen(
        [sys.executable, "-c", ASKER, stack.kafka], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "asked\n"
        proxy.resume()
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.wait(LIMIT_S) == 0
        assert child.stdout.read() == "{}\n"


@pytest.mark.long
def test_questions_are_answered_after_each_restart(stack: Stack) -> None:
    """The client knows leaders of an earlier epoch, and may have forgotten where Kafka is."""
    (broker,) = stack.brokers
    topics = Topics({"bootstrap.servers": stack.kafka, "metadata.recovery.strategy": "none"}, timeout=LIMIT_S)
    for end in (broker.kill, broker.stop):
        topic = topics.describe("t")
        assert topics.offsets("t", PARTITIONS, "latest") == {0: 0, 1: 0}
        end()
        broker.start()
        assert topics.offsets("t", PARTITIONS, "latest") == {0: 0, 1: 0}
        assert topics.offsets_at("t", PARTITIONS, 1) == {0: 0, 1: 0}
        assert topics.retention("t") is not None
        assert topics.describe("t") == topic


def test_floors_are_told_by_their_metadata(stack: Stack) -> None:
    topics = Topics({"bootstrap.servers": stack.kafka})
    consumer = Consumer({"bootstrap.servers": stack.kafka, "group.id": "floors", "enable.auto.commit": False})
    offsets = [TopicPartition("t", 0, 5, "kafkadur;1;a"), TopicPartition("t", 1, 6, "kafkadur;1;b")]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    assert topics.floors("floors", "t", PARTITIONS, "kafkadur;1;a") == {0: 5}
    assert topics.floors("floors", "t", PARTITIONS, "kafkadur;1;b") == {1: 6}
    assert topics.floors("nobody", "t", PARTITIONS, "kafkadur;1;a") == {}
    assert topics.committed("floors", "t", PARTITIONS) == {0: 5, 1: 6}


def test_floors_are_set_as_they_are_asked_for(stack: Stack) -> None:
    topics = Topics({"bootstrap.servers": stack.kafka})
    topics.commit("set", "t", {0: 3, 1: 4}, metadata="m")
    assert topics.floors("set", "t", PARTITIONS, "m") == {0: 3, 1: 4}
    assert topics.floors("set", "t", PARTITIONS, "other") == {}


def test_offsets_of_a_group_in_use_are_not_set(stack: Stack) -> None:
    topics = Topics({"bootstrap.servers": stack.kafka})
    member = Consumer({"bootstrap.servers": stack.kafka, "group.id": "used"})
    try:
        member.subscribe(["t"])
        deadline = time.monotonic() + LIMIT_S
        while not member.assignment():
            member.poll(0.05)
            assert time.monotonic() < deadline, "the consumer became no member"
        with pytest.raises(IllegalState, match="consumer group used") as caught:
            topics.commit("used", "t", {0: 3})
        assert "stop its consumers" in (caught.value.remedy or "")
    finally:
        member.close()
