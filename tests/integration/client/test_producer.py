"""The producer against a real broker: what arrives, where, and what becomes of what does not arrive."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from kafkadur.message.headers import decode
from kafkadur.producer.producer import Producer
from kafkadur.producer.receipt import Receipt
from kafkadur_coordinators.client_log import Repeats, client_log
from kafkadur_sharing.errors import (
    ConnectionClosed,
    DeliveryFailed,
    ForkedConnection,
    IllegalState,
    InvalidProperty,
)
from tests.integration.subscriptions.helpers import wait_until

if TYPE_CHECKING:
    from kafkadur.stack import Stack
    from kafkadur.testing.pytest_plugin import TopicFactory

#: Seconds after which a test gives up waiting for Kafka.
LIMIT = 60.0


@pytest.fixture
def producer(kafkadur_stack: Stack) -> Iterator[Producer]:
    """Provide a producer connected to the stack."""
    with Producer({"bootstrap.servers": kafkadur_stack.kafka}, "app", "conn-1") as made:
        yield made


@pytest.fixture
def nowhere() -> Iterator[dict[str, object]]:
    """Provide the configuration for a Kafka that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"}


def read(stack: Stack, topic: str, count: int) -> list[confluent_kafka.Message]:
    """Return `count` messages of a topic, in order within a partition; fail if there are fewer or more."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": stack.kafka,
            "group.id": f"read-{topic}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=LIMIT).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        found: list[confluent_kafka.Message] = []
        ends = 0
        deadline = time.monotonic() + LIMIT
        while ends < len(partitions) and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF  # noqa: SLF001 - its public name
                ends += 1
    finally:
        consumer.close()
    assert len(found) == count
    return found


# --- what arrives -------------------------------------------------------------------------------------------


def test_published_message_arrives_with_fields_and_properties(
    producer: Producer, kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic(retention_ms=-1)
    producer.publish(
        topic,
        "hello",
        key="k",
        properties={"carrier": "UA", "dep_delay": -3.5, "month": 1, "late": False, "note": None},
        correlation_id="c-1",
        type="flight",
        priority=9,
        delivery_mode="NON_PERSISTENT",
        message_id="ID:mine",
        timestamp=1_700_000_000_123,
    )
    producer.flush(LIMIT)
    [message] = read(kafkadur_stack, topic, 1)
    assert message.value() == b"hello"
    assert message.key() == b"k"
    assert message.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, 1_700_000_000_123)
    properties, fields = decode(message.headers())  # type: ignore[arg-type]
    assert properties == {"carrier": "UA", "dep_delay": -3.5, "month": 1, "late": False, "note": None}
    assert fields._asdict() == {
        "message_id": "ID:mine",
        "correlation_id": "c-1",
        "type": "flight",
        "priority": 9,
        "delivery_mode": "NON_PERSISTENT",
        "client_id": "app",
        "connection_id": "conn-1",
        "delivery_time": None,
        "expiration": None,
    }


def test_a_bare_message_has_an_id_of_its_own_and_says_who_sent_it(
    producer: Producer, kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    connection = uuid.uuid4().hex
    with Producer({"bootstrap.servers": kafkadur_stack.kafka}, None, connection) as second:
        for sender in (producer, second):
            for _ in range(50):
                sender.publish(topic, b"")
            sender.flush(LIMIT)
    messages = read(kafkadur_stack, topic, 100)
    fields = [decode(message.headers()).fields for message in messages]  # type: ignore[arg-type]
    assert all((one.message_id or "").startswith("ID:") for one in fields)
    assert len({one.message_id for one in fields}) == 100
    assert {(one.client_id, one.connection_id) for one in fields} == {("app", "conn-1"), (None, connection)}
    # the id of a connection is the beginning of its message ids, so that no header repeats it
    assert [header[0] for header in messages[-1].headers() or ()] == ["JMSMessageID"]


def test_without_a_message_id_and_with_a_tombstone(
    producer: Producer, kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    producer.publish(topic, None, key=b"k", message_id=None)
    producer.flush(LIMIT)
    [message] = read(kafkadur_stack, topic, 1)
    assert message.value() is None
    assert decode(message.headers()).fields.message_id is None  # type: ignore[arg-type]


def test_send_returns_the_place_of_the_message(
    producer: Producer, kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic(partitions=3, retention_ms=-1)

    async def main() -> list[Receipt]:
        sent = [
            producer.send(topic, str(number), partition=2, timestamp=1000 + number) for number in range(20)
        ]
        return await asyncio.wait_for(asyncio.gather(*sent), LIMIT)

    receipts = asyncio.run(main())
    assert [(one.topic, one.partition, one.offset, one.timestamp) for one in receipts] == [
        (topic, 2, number, 1000 + number) for number in range(20)
    ]
    messages = read(kafkadur_stack, topic, 20)
    assert [message.value() for message in messages] == [str(number).encode() for number in range(20)]
    ids = [decode(message.headers()).fields.message_id for message in messages]  # type: ignore[arg-type]
    assert ids == [one.message_id for one in receipts]


def test_one_producer_serves_several_event_loops_and_threads(
    producer: Producer, kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    offsets: list[int] = []

    async def main() -> None:
        receipts = await asyncio.wait_for(
            asyncio.gather(*(producer.send(topic, b"x") for _ in range(100))), LIMIT
        )
        offsets.extend(one.offset for one in receipts)

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    asyncio.run(main())
    assert sorted(offsets) == list(range(500))
    read(kafkadur_stack, topic, 500)


# --- where it arrives: vectors of org.apache.kafka.common.utils.UtilsTest -----------------------------------

MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_keys_go_where_the_java_default_puts_them(producer: Producer, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic(partitions=7)

    async def main() -> dict[bytes, int]:
        sent = {key: producer.send(topic, b"", key=key) for key in MURMUR2}
        await asyncio.wait_for(asyncio.gather(*sent.values()), LIMIT)
        return {key: future.result().partition for key, future in sent.items()}

    assert asyncio.run(main()) == {key: (value & 0x7FFFFFFF) % 7 for key, value in MURMUR2.items()}


# --- a full buffer ------------------------------------------------------------------------------------------


def test_publish_waits_while_the_buffer_is_full(kafkadur_stack: Stack, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    config = {"bootstrap.servers": kafkadur_stack.kafka, "queue.buffering.max.messages": 10}
    with Producer(config, None, "conn-1") as producer:
        for number in range(500):
            producer.publish(topic, str(number))
    assert [int(message.value() or b"") for message in read(kafkadur_stack, topic, 500)] == list(range(500))


def test_send_keeps_the_order_while_the_buffer_is_full_and_the_loop_runs_on(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    config = {"bootstrap.servers": kafkadur_stack.kafka, "queue.buffering.max.messages": 10}

    async def main() -> list[Receipt]:
        async with Producer(config, None, "conn-1") as producer:
            # The first message waits for the connection; after it, room comes up all the time.
            sent = [producer.send(topic, "0")]
            await asyncio.wait_for(sent[0], LIMIT)
            for number in range(1, 500):
                sent.append(producer.send(topic, str(number)))
                # Whoever is sent when there is room again must not overtake those who wait.
                await asyncio.sleep(0.001 if number % 50 == 0 else 0)
            # The calls returned although the buffer holds ten: the rest waits without blocking the loop.
            assert not sent[-1].done()
            return await asyncio.wait_for(asyncio.gather(*sent), LIMIT)

    receipts = asyncio.run(main())
    assert [one.offset for one in receipts] == list(range(500))
    assert [int(message.value() or b"") for message in read(kafkadur_stack, topic, 500)] == list(range(500))


def test_leaving_the_block_delivers_what_still_waits_for_room(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    config = {"bootstrap.servers": kafkadur_stack.kafka, "queue.buffering.max.messages": 10}

    async def main() -> list[asyncio.Future[Receipt]]:
        async with Producer(config, None, "conn-1") as producer:
            sent = [producer.send(topic, str(number)) for number in range(100)]
        await asyncio.wait_for(asyncio.gather(*sent), LIMIT)
        return sent

    assert len(asyncio.run(main())) == 100
    read(kafkadur_stack, topic, 100)


def test_what_waits_when_another_thread_closes_is_told(nowhere: dict[str, object]) -> None:
    async def main() -> list[BaseException | Receipt]:
        producer = Producer({**nowhere, "queue.buffering.max.messages": 1}, None, "conn-1")
        sent = [producer.send("t", b"") for _ in range(3)]
        await asyncio.to_thread(producer.close, 0.0)
        return await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), LIMIT)

    first, *waiting = asyncio.run(main())
    assert isinstance(first, DeliveryFailed)
    assert all(isinstance(one, ConnectionClosed) for one in waiting)


# --- what does not arrive -----------------------------------------------------------------------------------


def test_flush_raises_how_many_failed_and_why_once(nowhere: dict[str, object]) -> None:
    producer = Producer({**nowhere, "message.timeout.ms": 200}, None, "conn-1")
    for _ in range(3):
        producer.publish("t", b"very secret", properties={"p": "secret too"})
    with pytest.raises(DeliveryFailed) as caught:
        producer.flush(LIMIT)
    assert (caught.value.failed, caught.value.pending) == (3, 0)
    assert caught.value.reasons == {"_MSG_TIMED_OUT": 3}
    assert "not delivered to Kafka (topic t: _MSG_TIMED_OUT 3)" in str(caught.value)
    assert "secret" not in str(caught.value)
    producer.flush(LIMIT)
    producer.close(LIMIT)


def test_flush_raises_what_is_under_way_when_the_time_is_up(nowhere: dict[str, object]) -> None:
    producer = Producer(nowhere, None, "conn-1")
    for _ in range(3):
        producer.publish("t", b"")
    with pytest.raises(DeliveryFailed) as caught:
        producer.flush(0.05)
    assert (caught.value.failed, caught.value.pending) == (0, 3)
    with pytest.raises(DeliveryFailed) as caught:
        producer.close(0.05)
    assert caught.value.failed + caught.value.pending == 3
    assert "_PURGE_QUEUE" in caught.value.reasons


def test_send_raises_when_awaited_and_flush_does_not_repeat_it(nowhere: dict[str, object]) -> None:
    async def main() -> None:
        producer = Producer({**nowhere, "message.timeout.ms": 200}, None, "conn-1")
        with pytest.raises(DeliveryFailed) as caught:
            await asyncio.wait_for(producer.send("t", b"secret"), LIMIT)
        assert caught.value.reasons == {"_MSG_TIMED_OUT": 1}
        assert "secret" not in str(caught.value)
        producer.flush(LIMIT)
        producer.close(LIMIT)

    asyncio.run(main())


def test_the_error_for_many_topics_is_bounded(nowhere: dict[str, object]) -> None:
    producer = Producer({**nowhere, "message.timeout.ms": 200}, None, "conn-1")
    for number in range(8):
        producer.publish(f"t{number}", b"")
    with pytest.raises(DeliveryFailed) as caught:
        producer.close(LIMIT)
    assert "topic t4: _MSG_TIMED_OUT 1; 3 more)" in str(caught.value)
    assert caught.value.reasons == {"_MSG_TIMED_OUT": 8}


def test_an_event_that_waits_is_no_message_under_way(
    nowhere: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer({**nowhere, "statistics.interval.ms": 1, "stats_cb": lambda _: None}, None, "conn-1")
    join = producer._poller.join  # noqa: SLF001 - what comes after it is the subject

    def join_until_an_event_waits() -> None:
        join()
        wait_until(lambda: len(producer._kafka) > 0, "an event")  # noqa: SLF001

    monkeypatch.setattr(producer._poller, "join", join_until_an_event_waits)  # noqa: SLF001
    producer.close(LIMIT)


@pytest.mark.parametrize(("value", "key", "part"), [({"secret": 1}, None, "value"), (b"", 5, "key")])
def test_a_value_or_key_that_needs_a_serializer_is_named(
    producer: Producer, value: Any, key: Any, part: str
) -> None:
    with pytest.raises(IllegalState, match=f"make the producer with a {part}_serializer") as caught:
        producer.publish("t", value, key=key)
    assert "secret" not in str(caught.value)

    async def main() -> None:
        with pytest.raises(IllegalState, match=f"The {part} of a message cannot be of type"):
            await producer.send("t", value, key=key)

    asyncio.run(main())


def test_properties_that_are_no_mapping_are_refused_in_words(producer: Producer) -> None:
    wrong: Any = [1]
    with pytest.raises(InvalidProperty, match="not of type list"):
        producer.publish("t", b"", properties=wrong)


def test_a_topic_that_does_not_exist_is_said(producer: Producer) -> None:
    producer.publish("no-such-topic", b"")
    with pytest.raises(DeliveryFailed, match=r"create the topics that do not exist \(no-such-topic\)"):
        producer.flush(LIMIT)

    async def main() -> None:
        with pytest.raises(DeliveryFailed, match="create the topic, then send it again"):
            await producer.send("no-such-topic", b"")

    asyncio.run(main())


def test_a_message_that_is_too_large_is_refused_at_once(producer: Producer) -> None:
    with pytest.raises(DeliveryFailed) as caught:
        producer.publish("t", b"x" * 2_000_000)
    assert caught.value.reasons == {"MSG_SIZE_TOO_LARGE": 1}

    async def main() -> None:
        with pytest.raises(DeliveryFailed):
            await producer.send("t", b"x" * 2_000_000)

    asyncio.run(main())


def test_a_partition_that_does_not_exist_fails(producer: Producer, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    producer.publish(topic, b"", partition=0)
    producer.flush(LIMIT)

    def publish_and_flush() -> None:
        # Whether librdkafka notices in the call or in the report is its own affair.
        producer.publish(topic, b"", partition=5)
        producer.flush(LIMIT)

    with pytest.raises(DeliveryFailed) as caught:
        publish_and_flush()
    assert caught.value.reasons == {"_UNKNOWN_PARTITION": 1}


def test_a_wrong_property_is_raised_before_anything_is_sent(
    producer: Producer, kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    with pytest.raises(InvalidProperty):
        producer.publish(topic, b"", properties={"JMSPriority": 1})
    producer.flush(LIMIT)
    read(kafkadur_stack, topic, 0)


def test_cancelling_an_awaitable_disturbs_nobody(
    producer: Producer, kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()

    async def main() -> None:
        first, second = producer.send(topic, b"1"), producer.send(topic, b"2")
        first.cancel()
        assert (await asyncio.wait_for(second, LIMIT)).offset == 1

    asyncio.run(main())
    read(kafkadur_stack, topic, 2)


# --- the end ------------------------------------------------------------------------------------------------


def test_close_delivers_ends_the_thread_and_may_be_repeated(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    before = set(threading.enumerate())
    producer = Producer({"bootstrap.servers": kafkadur_stack.kafka, "linger.ms": 1000}, None, "conn-1")
    producer.publish(topic, b"")
    producer.close(LIMIT)
    producer.close()
    assert set(threading.enumerate()) <= before
    read(kafkadur_stack, topic, 1)
    with pytest.raises(ConnectionClosed):
        producer.publish(topic, b"")
    with pytest.raises(ConnectionClosed):
        producer.flush()


def test_a_signal_ends_closing(nowhere: dict[str, object]) -> None:
    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    producer = Producer(nowhere, None, "conn-1")
    producer.publish("t", b"")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            producer.close()
        # Without a signal it would wait five minutes.
        assert time.monotonic() - started < LIMIT
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_leaving_the_block_raises_what_failed(nowhere: dict[str, object]) -> None:
    config = {**nowhere, "message.timeout.ms": 200}
    with pytest.raises(DeliveryFailed), Producer(config, None, "conn-1") as producer:
        producer.publish("t", b"")


def test_a_failed_delivery_does_not_hide_the_error_of_the_block(nowhere: dict[str, object]) -> None:
    def block() -> None:
        with Producer({**nowhere, "message.timeout.ms": 200}, None, "conn-1") as producer:
            producer.publish("t", b"")
            raise KeyError

    with pytest.raises(KeyError) as caught:
        block()
    assert "1 published messages were not delivered" in caught.value.__notes__[0]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_is_refused(nowhere: dict[str, object]) -> None:
    producer = Producer(nowhere, None, "conn-1")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            producer.publish("t", b"")
        except ForkedConnection:
            producer.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.close()


# --- configuration ------------------------------------------------------------------------------------------


def test_a_setting_nobody_knows_is_refused() -> None:
    with pytest.raises(IllegalState, match="colour"):
        Producer({"bootstrap.servers": "127.0.0.1:1", "colour": "blue"}, None, "conn-1")


def test_switched_off_reports_are_refused() -> None:
    with pytest.raises(IllegalState, match="only"):
        Producer({"bootstrap.servers": "127.0.0.1:1", "delivery.report.only.error": True}, None, "conn-1")


@pytest.mark.parametrize(
    "config",
    [
        {"acks": 1},
        {"request.required.acks": 0},
        {"acks": "all"},
        {"acks": -1, "enable.idempotence": True},
        {"linger.ms": 0},
        {"queue.buffering.max.ms": 1},
        {"compression.type": "lz4"},
        {"partitioner": "consistent"},
    ],
)
def test_the_users_configuration_goes_over_the_defaults(
    config: dict[str, object], kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    with Producer({"bootstrap.servers": kafkadur_stack.kafka, **config}, None, "conn-1") as producer:
        producer.publish(topic, b"")
    read(kafkadur_stack, topic, 1)


@pytest.mark.long
def test_what_is_reported_as_sent_is_in_a_new_topic(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    """A new topic may refuse the first request: it is sent again, and not taken for a duplicate."""
    servers = {"bootstrap.servers": kafkadur_stack.kafka}
    consumer = confluent_kafka.Consumer({**servers, "group.id": "ends"})
    try:
        with Producer({**servers, "linger.ms": 0}, None, "conn-1") as producer:
            for _ in range(100):
                topic = kafkadur_topic(partitions=4)
                for number in range(100):
                    producer.publish(topic, b"%d" % number)
                producer.flush(LIMIT)
                places = [confluent_kafka.TopicPartition(topic, partition) for partition in range(4)]
                assert sum(consumer.get_watermark_offsets(place)[1] for place in places) == 100
    finally:
        consumer.close()


def test_a_callback_of_the_user_is_served_and_its_failure_stops_nothing(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafkadur_topic()
    seen: list[int | None] = []

    def on_delivery(_error: object, message: confluent_kafka.Message) -> None:
        seen.append(message.offset())
        raise KeyError

    config = {"bootstrap.servers": kafkadur_stack.kafka, "on_delivery": on_delivery}
    with caplog.at_level(logging.ERROR), Producer(config, None, "conn-1") as producer:
        for _ in range(5):
            producer.publish(topic, b"secret")
    assert seen == [0, 1, 2, 3, 4]
    assert "callback" in caplog.text
    assert "secret" not in caplog.text


def test_librdkafka_logs_to_logging_and_not_to_stderr(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # another test of this process may have been told the same a moment ago: it is not told again
    monkeypatch.setattr(client_log, "filters", [Repeats()])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    config = {"bootstrap.servers": f"127.0.0.1:{port}", "message.timeout.ms": 1000}
    producer = Producer(config, None, "conn-1")
    producer.publish("t", b"secret")
    with pytest.raises(DeliveryFailed):
        producer.close(LIMIT)
    assert f"127.0.0.1:{port}" in caplog.text
    assert {record.name for record in caplog.records} == {"kafkadur.kafka"}
    assert "secret" not in caplog.text
    assert capfd.readouterr().err == ""
