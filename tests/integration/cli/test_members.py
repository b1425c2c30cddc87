"""`kafkadur member ls | evict`, against members that live."""

import time
from collections.abc import Callable

import pytest

import kafkadur.sync
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.cli.conftest import Run


def soon(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_evicted_member_loses_its_messages_to_another_one(
    run: Run, here: object, kafkadur_topic: TopicFactory
) -> None:
    del here
    topic = kafkadur_topic()
    with (
        kafkadur.sync.connect() as connection,
        kafkadur.sync.connect() as other,
        connection.subscribe(topic, durable="d", type="shared", start="earliest", window=2) as first,
    ):
        with connection.producer() as producer:
            producer.publish(topic, b"one")
        held = first.receive(timeout=60)
        assert held is not None
        with other.subscribe(topic, durable="d", type="shared", start="earliest", window=2) as second:
            listed = run("member", "ls", "d", "--json").data
            assert len(listed) == 2
            assert "attached" in run("member", "ls", "d").out
            (holder,) = [each["id"] for each in listed if each["leases"]]
            looked = run("member", "evict", "d", holder)
            assert looked.code == 0
            assert "Would evict" in looked.err
            assert run("member", "evict", "d", holder, "--yes", "--json").data["evicted"] is True
            again = second.receive(timeout=60)
            assert again is not None
            assert (again.value, again.attempt, again.redelivered) == (b"one", 2, True)
            again.ack()
            with pytest.raises(kafkadur.LeaseLost):
                held.ack()
            # it lives, so it attaches again, and gets what comes
            soon(lambda: len(run("member", "ls", "d", "--json").data) == 2)
            second.close()
            with connection.producer() as producer:
                producer.publish(topic, b"two")
            new = first.receive(timeout=60)
            assert new is not None
            assert (new.value, new.attempt) == (b"two", 1)
            new.ack()


def test_the_stand_by_of_an_evicted_holder_takes_over(
    run: Run, here: object, kafkadur_topic: TopicFactory
) -> None:
    del here
    topic = kafkadur_topic()
    with (
        kafkadur.sync.connect() as connection,
        kafkadur.sync.connect() as other,
        connection.subscribe(topic, durable="d", type="serial", start="earliest", window=1) as first,
    ):
        with connection.producer() as producer:
            producer.publish(topic, b"one")
        held = first.receive(timeout=60)
        assert held is not None
        with other.subscribe(topic, durable="d", type="serial", start="earliest", window=1) as second:
            (holder,) = [each["id"] for each in run("member", "ls", "d", "--json").data if each["leases"]]
            run("member", "evict", "d", holder, "--yes")
            again = second.receive(timeout=60)
            assert again is not None
            assert (again.value, again.attempt) == (b"one", 2)
            again.ack()


def test_a_member_that_is_not_there_or_not_the_only_one_of_its_name(
    run: Run, here: object, kafkadur_topic: TopicFactory
) -> None:
    del here
    topic = kafkadur_topic()
    with kafkadur.sync.connect() as connection, kafkadur.sync.connect() as other:
        with (
            connection.subscribe(topic, durable="d", type="shared"),
            other.subscribe(topic, durable="d", type="shared"),
        ):
            names = {each["name"] for each in run("member", "ls", "d", "--json").data}
            assert len(names) == 1
            several = run("member", "evict", "d", names.pop())
            assert several.code == 1
            assert "name one of these ids" in several.err
            unknown = run("member", "evict", "d", "nobody")
            assert unknown.code == 1
            assert "has no member 'nobody'" in unknown.err
        assert "No member is attached" in run("member", "ls", "d").err
