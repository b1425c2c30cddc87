"""The compiled reader of Kafka, beside confluent-kafka's: the same records, events and errors."""

import copy
import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, cast

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

import kafkadur
from kafkadur.fetch import native
from kafkadur.fetch.kafka_thread import consumer_config
from kafkadur.fetch.reader_log import ReaderLog
from kafkadur.native import choice
from kafkadur.native.choice import is_native, module
from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, ack_all, next_of, take, wait_until

pytestmark = pytest.mark.skipif(not is_native(), reason="the compiled client was not built")

#: Key, value, headers, timestamp (ms since 1970) of messages of odd shapes.
SHAPES: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]] = [
    (None, None, None, 1),
    (b"", b"", [], 2),
    (b"k", b"v", [("a", b"1")], 1_700_000_000_000),
    (b"\x00\xff", b"\x00" * 10, [("a", None), ("a", b""), ("a", b"\x00"), ("ä€", b"x" * 1_000)], 3),
    (b"k" * 1_000, b"v" * 500_000, [(f"h{n}", b"%d" % n) for n in range(100)], 4),
]


@pytest.fixture
def topic(kafkadur_stack: Stack, kafkadur_topic: TopicFactory) -> str:
    """Provide a topic of two partitions, with the messages of odd shapes in the first."""
    name = kafkadur_topic(partitions=2, retention_ms=-1)  # messages of 1970 are to stay
    producer = confluent_kafka.Producer({"bootstrap.servers": kafkadur_stack.kafka, "linger.ms": 0})
    for key, value, headers, timestamp in SHAPES:
        sent: Any = headers
        producer.produce(name, value, key, 0, timestamp=timestamp, headers=sent)
    assert producer.flush(LIMIT_S) == 0
    return name


@pytest.fixture
def make(kafkadur_stack: Stack, topic: str) -> Iterator[Callable[..., confluent_kafka.Consumer]]:
    """Provide a maker of clients of either kind, which are closed at the end."""
    made: list[confluent_kafka.Consumer] = []

    def new(*, compiled: bool, **more: Any) -> confluent_kafka.Consumer:
        config = consumer_config({"bootstrap.servers": kafkadur_stack.kafka, **more}, "g")
        logger = ReaderLog(topic, "", config)
        if compiled:
            consumer = native.new_consumer({**logger.config}, logger=logger, topic=topic)
            assert not isinstance(consumer, confluent_kafka.Consumer)
        else:
            consumer = confluent_kafka.Consumer(logger.config, logger=logger)
        made.append(consumer)
        return consumer

    yield new
    for consumer in made:
        consumer.close()


def read(consumer: confluent_kafka.Consumer, records: int, events: int) -> list[Message]:
    """Read so many records and events."""
    found: list[Message] = []
    while len(found) < records + events:
        found += consumer.consume(100, 0.05)
    return found


def read_runs(consumer: confluent_kafka.Consumer, count: int) -> list[Message]:
    """Read so many records and events, for `by_partition`."""
    found: list[Message] = []
    there = 0
    while there < count:
        native.read(consumer, 100, 0.05, found)
        there = sum(len(some) for _, some, _ in native.by_partition(found)) if found else 0
    return found


def told(message: Message) -> tuple[object, ...]:
    """Return everything that a message says."""
    error = message.error()
    return (
        message.topic(),
        message.partition(),
        message.offset(),
        message.key() if error is None else None,
        message.value() if error is None else None,
        message.headers(),
        message.timestamp() if error is None else None,
        message.leader_epoch(),
        len(message) if error is None else None,
        None if error is None else (error.code(), error.str()),
    )


def test_records_and_events_are_the_same(make: Callable[..., Any], topic: str) -> None:
    both: list[list[tuple[object, ...]]] = []
    for compiled in (False, True):
        consumer = make(compiled=compiled)
        consumer.incremental_assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
        found = read(consumer, len(SHAPES), 2)
        assert isinstance(found[0], Message) is not compiled
        both.append(sorted(map(told, found), key=lambda each: (str(each[1]), str(each[2]), str(each[9]))))
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=True) == (0, len(SHAPES))
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=LIMIT_S) == (0, len(SHAPES))
        assert sorted(each.offset for each in consumer.position(consumer.assignment())) == [-1001, 5]
    assert both[0] == both[1]


def test_what_becomes_of_a_record(make: Callable[..., Any], topic: str) -> None:
    """Detached, after the end of its client, and as a message of confluent-kafka it says the same."""
    consumer = make(compiled=True)
    consumer.incremental_assign([TopicPartition(topic, 0, 0)])
    found = [each for each in read(consumer, len(SHAPES), 1) if each.error() is None]
    before = list(map(told, found))
    native.detach(found[:2])
    assert list(map(told, found)) == before
    del found[3]
    consumer.close()
    assert list(map(told, found)) == before[:3] + before[4:]
    messages = list(map(native.as_message, found))
    assert all(isinstance(message, Message) for message in messages)
    assert list(map(told, messages)) == before[:3] + before[4:]
    assert native.values(found) == [value for _, value, _, _ in (*SHAPES[:3], *SHAPES[4:])]
    with pytest.raises(RuntimeError, match="closed"):
        consumer.consume(1, 0)


def test_a_reader_that_rests_keeps_no_message_of_a_dropped_record(
    make: Callable[..., Any], topic: str
) -> None:
    """The next read frees the messages of records that are gone: there may be none for long."""
    consumer, before = make(compiled=True), native.kept()
    consumer.incremental_assign([TopicPartition(topic, 0, 0)])
    found = read(consumer, len(SHAPES), 1)
    count, first = len(found), found.pop(0)
    found.clear()
    assert native.kept() == before + count, "they wait for the next read"
    native.rest(consumer)
    assert native.kept() == before + 1, "the one that is used"
    del first
    assert native.kept() == before, "and from now on they do not wait"


def test_records_are_split_by_partition(make: Callable[..., Any], topic: str) -> None:
    consumer = make(compiled=True)
    consumer.incremental_assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    split: dict[int, list[Message]] = {0: [], 1: []}
    for partition, some, eventful in native.by_partition(read_runs(consumer, len(SHAPES) + 2)):
        assert eventful == any(each.error() is not None for each in some)
        assert {each.partition() for each in some} == {partition}
        split[partition] += some
    assert [each.offset() for each in split[0]] == [*range(len(SHAPES)), len(SHAPES)]
    assert [len(split[0]), len(split[1])] == [len(SHAPES) + 1, 1]
    as_messages = [native.as_message(each) for each in split[0] if each.error() is None]
    assert native.by_partition(as_messages) == [(0, as_messages, False)]


def test_records_are_like_a_list(make: Callable[..., Any], topic: str) -> None:
    """Those that a slice, an index and an iterator give; only the first or the last can be deleted."""
    before = native.kept()
    records: Any = ()
    while len(records) < len(SHAPES):  # a read may bring fewer
        consumer, runs = make(compiled=True), list[Message]()
        consumer.incremental_assign([TopicPartition(topic, 0, 0)])
        while not runs:
            native.read(consumer, 100, 0.05, runs)
        ((_, records, _),) = native.by_partition(runs[:1])
        runs.clear()
        native.rest(consumer)
    count = len(records)
    assert [each.offset() for each in records] == list(range(count))
    assert [records[0].offset(), records[-1].offset()] == [0, count - 1]
    assert [each.offset() for each in records[1:3]] == [1, 2]
    assert (len(records[4:2]), len(records[9:]), list(records[:0])) == (0, 0, [])
    with pytest.raises(IndexError):
        records[count]
    with pytest.raises(IndexError):
        records[-count - 1]
    with pytest.raises(ValueError, match="no step"):
        records[::2]
    with pytest.raises(ValueError, match="first or the last"):
        del records[1:2]
    sizes = [len(value or b"") for _, value, _, _ in SHAPES]
    assert native.size_of(records) == sum(sizes)
    assert native.size_of(records[1:4]) == sum(sizes[1:4])
    assert native.values(records[1:4]) == [value for _, value, _, _ in SHAPES[1:4]]
    assert native.kept() == before + count
    two, one = records[1:3], records[2]
    del records[:2]
    assert records[0].offset() == 2
    assert native.kept() == before + count - 1, "the first one is not used any more"
    del records[1:]
    assert ([each.offset() for each in records], native.kept()) == ([2], before + 2)
    native.detach(two)
    assert native.kept() == before
    assert [told(each)[2:5] for each in two] == [(1, b"", b""), (2, b"k", b"v")]
    del two, records
    assert one.value() == b"v"
    with pytest.raises(TypeError):
        type(one)()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_one_message_with_headers_is_found_among_others(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory, codec: str
) -> None:
    """Whatever its value is: the byte behind the value of another message says that it has no headers.

    Where this fails with a new version of librdkafka, that byte cannot be relied on (`_lacks_headers`);
    otherwise `_KNOWN` is to be set to that version.
    """
    compiled = module()
    assert compiled.known()
    values = (None, b"", b"\0", b"\0" * 10, b"v", b"x" * 300_000)
    name = kafkadur_topic(partitions=len(values))
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafkadur_stack.kafka, "linger.ms": 20, "compression.type": codec}
    )
    for partition, value in enumerate(values):
        for n in range(41):
            key = None if n % 3 else b"k" * n
            one: list[tuple[str, str | bytes | None]] = [("a", b"1")]
            producer.produce(
                name, value if n == 20 else values[n % 5], key, partition, headers=one if n == 20 else []
            )
    assert producer.flush(LIMIT_S) == 0
    for partition in range(len(values)):
        logger = ReaderLog(name, "", consumer_config({"bootstrap.servers": kafkadur_stack.kafka}, "g"))
        consumer = native.new_consumer({**logger.config}, logger=logger, topic=name)
        consumer.incremental_assign([TopicPartition(name, partition, 0)])
        found = [each for each in read(consumer, 41, 1) if each.error() is None]
        assert compiled.with_headers(found, b"a", b"b") == {20: (b"1", None)}
        consumer.close()


def test_each_record_is_freed_by_itself(make: Callable[..., Any], topic: str) -> None:
    consumer, before = make(compiled=True), native.kept()
    consumer.incremental_assign([TopicPartition(topic, 0, 0)])
    found = read(consumer, len(SHAPES), 1)
    native.rest(consumer)
    assert native.kept() == before + len(found)
    again = [found[1], found[1]]
    while found:
        del found[0]
        assert native.kept() == before + len(found) + (len(found) < len(SHAPES))
    again.pop()
    assert native.kept() == before + 1
    again.pop()
    assert native.kept() == before


def test_a_detached_record_keeps_no_parts_of_others(make: Callable[..., Any], topic: str) -> None:
    consumer = make(compiled=True)
    consumer.incremental_assign([TopicPartition(topic, 0, 0)])
    found = read(consumer, len(SHAPES), 1)
    tracemalloc.start()
    try:
        native.detach(found)
        assert tracemalloc.get_traced_memory()[0] > 500_000, "the parts of the largest"
        del found[1:]
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert told(found[0])[2:5] == (0, None, None)


class Garbage:
    """Runs a function when the collector finds it."""

    def __init__(self, act: Callable[[], object], *kept: object) -> None:
        self.itself, self.act, self.kept = self, act, kept

    def __del__(self) -> None:
        self.act()


@pytest.fixture
def collector() -> Iterator[None]:
    """Have garbage collected only between `gc.enable` and `gc.disable`, and then often."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.disable()
    gc.set_threshold(20, 1, 1)
    yield
    gc.set_threshold(*thresholds)
    gc.enable()


@pytest.mark.usefixtures("collector")
def test_a_client_closes_while_its_last_records_are_collected(make: Callable[..., Any], topic: str) -> None:
    consumer, before, collected = make(compiled=True), native.kept(), list[int]()
    consumer.incremental_assign([TopicPartition(topic, 0, 0)])
    Garbage(lambda: collected.append(1), read(consumer, len(SHAPES), 1))
    gc.enable()
    consumer.close()
    gc.disable()
    assert collected
    gc.collect()
    assert native.kept() == before


@pytest.mark.usefixtures("collector")
def test_a_client_closes_while_headers_are_read(make: Callable[..., Any], topic: str) -> None:
    consumer, reading, closed = make(compiled=True), threading.Event(), threading.Event()
    consumer.incremental_assign([TopicPartition(topic, 0, 0)])
    found = read(consumer, len(SHAPES), 1)

    def stay() -> None:
        if threading.current_thread() is not thread:  # it was collected too early
            Garbage(stay)
            return
        reading.set()
        assert closed.wait(LIMIT_S)

    headers = list[Any]()

    def read_headers() -> None:
        gc.enable()
        headers.extend(found[4].headers() or ())
        gc.disable()

    thread = threading.Thread(target=read_headers)
    Garbage(stay)
    thread.start()
    assert reading.wait(LIMIT_S)
    gc.disable()
    consumer.close()
    closed.set()
    thread.join(LIMIT_S)
    assert headers == SHAPES[4][2]


def test_an_offset_that_is_not_there(make: Callable[..., Any], topic: str) -> None:
    codes = list[int]()
    for compiled in (False, True):
        consumer = make(compiled=compiled)
        consumer.incremental_assign([TopicPartition(topic, 0, 1_000)])
        (event,) = read(consumer, 0, 1)
        codes.append(event.error().code())  # type: ignore[union-attr]  # it is an event
    assert codes == [KafkaError._AUTO_OFFSET_RESET] * 2  # noqa: SLF001 - the library's name for it


def test_offsets_are_committed_with_their_metadata(make: Callable[..., Any], topic: str) -> None:
    place = TopicPartition(topic, 0, 3, "kafkadur;1;x")
    make(compiled=True).commit(offsets=[place], asynchronous=False)
    (found,) = make(compiled=False).committed([TopicPartition(topic, 0)], timeout=LIMIT_S)
    assert (found.offset, found.metadata) == (3, "kafkadur;1;x")


@pytest.mark.parametrize("length", [1, 8, 24, 39, 40, 200])
def test_metadata_ends_where_it_ends(make: Callable[..., Any], topic: str, length: int) -> None:
    """What is written has the zero byte that confluent-kafka expects: else it reads behind the end."""
    place = TopicPartition(topic, 0, 3, "x" * length)
    make(compiled=True).commit(offsets=[place], asynchronous=False)
    reader = make(compiled=False)
    for _ in range(3):
        (found,) = reader.committed([TopicPartition(topic, 0)], timeout=LIMIT_S)
        assert found.metadata == "x" * length


def test_settings_that_are_wrong(make: Callable[..., Any]) -> None:
    for name, value in (("no.such.setting", "1"), ("fetch.wait.max.ms", "much"), ("fetch.wait.max.ms", -1)):
        said = list[str]()
        for compiled in (False, True):
            with pytest.raises(KafkaException) as raised:
                make(compiled=compiled, **{name: value})
            said.append(raised.value.args[0].str())
        assert said[0] == said[1]


def test_a_python_function_among_the_settings_selects_the_other_client(
    kafkadur_stack: Stack, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_told", set[tuple[str, str]]())
    config = consumer_config({"bootstrap.servers": kafkadur_stack.kafka, "throttle_cb": print}, "g")
    logger = ReaderLog(topic, "", config)
    with caplog.at_level(logging.INFO, "kafkadur.readers"):
        for _ in range(2):
            consumer = native.new_consumer(logger.config, logger=logger, topic=topic)
            assert isinstance(consumer, confluent_kafka.Consumer)
            consumer.close()
    assert [record.message for record in caplog.records] == [
        "Kafka is read by confluent-kafka, because throttle_cb is a Python function"
    ]
    monkeypatch.setenv("KAFKADUR_PURE", "1")
    assert not is_native()


def test_errors_and_lines_of_the_client_are_passed_on(topic: str, make: Callable[..., Any]) -> None:
    errors = list[KafkaError]()
    consumer = make(
        compiled=True, **{"bootstrap.servers": "127.0.0.1:1", "error_cb": errors.append, "log_level": 0}
    )
    consumer.incremental_assign([TopicPartition(topic, 0, 0)])
    wait_until(lambda: consumer.consume(1, 0.05) == [] and len(errors) > 1, "errors")
    assert KafkaError._ALL_BROKERS_DOWN in [error.code() for error in errors]  # noqa: SLF001 - as above
    with pytest.raises(KafkaException):
        consumer.list_topics(topic, timeout=0.05)


def test_an_error_of_the_error_callback_is_raised(topic: str, make: Callable[..., Any]) -> None:
    def fail(_: KafkaError) -> None:
        raise ZeroDivisionError

    consumer = make(compiled=True, **{"bootstrap.servers": "127.0.0.1:1", "error_cb": fail})
    consumer.incremental_assign([TopicPartition(topic, 0, 0)])

    def raises() -> bool:
        try:
            consumer.consume(1, 0.05)
        except ZeroDivisionError:
            return True
        return False

    wait_until(raises, "its error")


#: Reads a topic five times and then thirty times, and prints by how many bytes the process has grown.
READER = """
import resource, sys
from pathlib import Path
from confluent_kafka import TopicPartition
from kafkadur.fetch import native
from kafkadur.fetch.kafka_thread import consumer_config
from kafkadur.fetch.reader_log import ReaderLog

kafka, topic = sys.argv[1:]

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def drain():
    logger = ReaderLog(topic, "", consumer_config({"bootstrap.servers": kafka}, "g"))
    consumer = native.new_consumer(logger.config, logger=logger, topic=topic)
    consumer.incremental_assign([TopicPartition(topic, 1, 0)])
    found = []
    while len(found) < 1_001:  # with the end of the partition
        found += consumer.consume(100, 0.05)
    native.detach(found[:500])
    consumer.close()
    assert len({each.value() for each in found if each.error() is None}) == 1_000

for _ in range(5):
    drain()
before = rss()
for _ in range(30):
    drain()
print(rss() - before)
"""


def test_memory_is_given_back(topic: str, kafkadur_stack: Stack) -> None:
    """Reading 30 times 10 MB, and closing clients, leaves less than 60 MB behind.

    In a process of its own: what the threads of other tests free stays with their arenas of malloc.
    """
    producer = confluent_kafka.Producer({"bootstrap.servers": kafkadur_stack.kafka})
    for _ in range(1_000):
        producer.produce(topic, os.urandom(10_000), partition=1)
    assert producer.flush(LIMIT_S) == 0
    done = subprocess.run(
        [sys.executable, "-c", READER, kafkadur_stack.kafka, topic],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MALLOC_ARENA_MAX": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60_000_000


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_no_more_is_kept_than_is_read_ahead(place: Place, kind: TypeName) -> None:
    count = 30_000
    topic = place.topic(range(count))
    gc.collect()
    before = native.kept()  # messages of other tests in this process
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=100
        ) as subscription,
    ):
        most = got = 0
        delivery = None
        async for delivery in subscription:
            delivery.ack_nowait()
            got += 1
            if got % 1_000 == 0:
                most = max(most, native.kept())
            if got == count:
                break
        assert most < 15_000, "what the reader may have ahead"
        await subscription.flush()
        wait_until(lambda: native.kept() < before + 1_000, "what is settled is let go of")
    del delivery
    gc.collect()
    wait_until(lambda: native.kept() <= before, "nothing is kept")


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_the_reader_pauses_when_large_messages_fill_its_memory(place: Place, kind: TypeName) -> None:
    """Ten thousand records, of any size, would be read ahead otherwise."""
    count, size = 400, 500_000
    topic = place.make_topic(1)
    for n in range(count):
        place.raw.produce(topic, n.to_bytes(4, "big") + bytes(size - 4), partition=0)
        if n % 50 == 0:
            place.raw.flush(LIMIT_S)
    assert place.raw.flush(LIMIT_S) == 0
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest", window=1) as subscription,
    ):
        first = await next_of(subscription)
        tail: Any = subscription._member.readers  # noqa: SLF001 - what it does shows only in its memory

        def paused() -> bool:
            return tail._tail._held_back or subscription.statistics()["records_read"] == count  # noqa: SLF001

        wait_until(paused, "the reader pauses")
        read = subscription.statistics()["records_read"]
        assert read * size < 150_000_000, "64 MiB ahead, and what one call has read"
        await first.ack()
        for n in range(1, count):
            delivery = await next_of(subscription)
            assert (delivery.value or b"")[:4] == n.to_bytes(4, "big")
            delivery.ack_nowait()


FORKING = """
    import os, sys
    from confluent_kafka import TopicPartition
    from kafkadur.fetch import native
    from kafkadur.fetch.kafka_thread import consumer_config
    from kafkadur.fetch.reader_log import ReaderLog

    kafka, topic = sys.argv[1:]
    config = consumer_config({"bootstrap.servers": kafka}, "g")
    logger = ReaderLog(topic, "", config)
    consumer = native.new_consumer(logger.config, logger=logger, topic=topic)
    consumer.incremental_assign([TopicPartition(topic, 0, 0)])
    found = []
    while len(found) < 6:
        found += consumer.consume(100, 0.05)
    child = os.fork()
    values = [each.value() for each in found if each.error() is None]
    del found, consumer
    if child == 0:
        sys.exit(7 if len(values) == 5 else 8)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(values))
"""


def test_a_forked_child_touches_nothing_of_the_parent(kafkadur_stack: Stack, topic: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKING), kafkadur_stack.kafka, topic],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout.split() == ["7", "5"], done.stderr


async def test_a_copy_of_a_delivery_counts(place: Place) -> None:
    topic = place.topic(range(3))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        deliveries = await take(subscription, 3)
        for _ in range(3):
            copy.copy(deliveries[0])
        assert copy.copy(deliveries[0]).raw_value == deliveries[0].raw_value
        await ack_all(deliveries)
    assert deliveries[0].raw_value is not None


async def test_deliveries_outlive_their_connection(place: Place) -> None:
    topic = place.topic(range(100))
    threads = threading.active_count()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        deliveries = await take(subscription, 100)
        record = deliveries[0]._message  # noqa: SLF001 - `message` would convert it
        assert not isinstance(cast("Any", record), Message), "it is read by the compiled reader"
    assert [int(delivery.value or b"-1") for delivery in deliveries] == list(range(100))
    assert isinstance(deliveries[0].message, Message)
    with pytest.raises(kafkadur.LeaseLost):
        deliveries[0].ack_nowait()
    wait_until(lambda: threading.active_count() <= threads, "the end of its threads")
