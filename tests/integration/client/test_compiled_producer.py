"""The compiled client of producers, beside confluent-kafka's: the same messages, reports and errors."""

import enum
import logging
import math
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

import kafkadur
from kafkadur.message.headers import Property, decode
from kafkadur.native import choice
from kafkadur.native.choice import is_native, module
from kafkadur.producer.client import confluent_client, new_client
from kafkadur.producer.producer import Producer
from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_sharing.errors import ConnectionClosed, DeliveryFailed, IllegalState, InvalidProperty
from tests.integration.client.test_producer import LIMIT, read
from tests.integration.subscriptions.helpers import wait_until

pytestmark = pytest.mark.skipif(not is_native(), reason="the compiled client was not built")

#: Nothing listens there.
NOWHERE = "127.0.0.1:1"


class Text(str):
    __slots__ = ()


class Number(enum.IntEnum):
    ONE = 1


#: Properties that are written by the compiled client itself, and such that it leaves to the longer way.
PROPERTIES: list[dict[str, Property] | None] = [
    None,
    {},
    {"text": "hello", "empty": "", "more": "ä€😀", "long": "x" * 10_000},
    {"small": 0, "one": 1, "minus": -1, "most": 2**63 - 1, "least": -(2**63), "ten": 10, "nine": -1234567890},
    {"zero": 0.0, "minus": -0.0, "tenth": 0.1, "third": 1 / 3, "large": 1e308, "tiny": 5e-324, "whole": 1e16},
    {"nan": math.nan, "more": math.inf, "less": -math.inf, "e": 1e22, "f": 123456789.0},
    {"yes": True, "no": False, "nothing": None, "raw": b"\x00\xff", "no_raw": b""},
    {"$a": 1, "_b": 2.5, "äb": "c", "a" * 300: 1, "b" * 300: 2},
    {f"p{number}": number for number in range(12)},
    {f"p{number}": number for number in range(40)},
    {"text": Text("sub"), "number": Number.ONE},
]


@pytest.fixture
def compiled(kafkadur_stack: Stack) -> Iterator[Producer[Any, Any]]:
    with Producer({"bootstrap.servers": kafkadur_stack.kafka}, "app", "conn-1") as producer:
        assert vars(producer)["publish"], "the compiled client publishes"
        yield producer


@pytest.mark.parametrize("connection_id", ["conn-1", "0123456789abcdef" * 2])
@pytest.mark.parametrize("client_id", ["app", None])
def test_messages_are_the_same(
    client_id: str | None, connection_id: str, kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    """Those of both ways of the compiled client, and those of confluent-kafka's."""
    settings = {"bootstrap.servers": kafkadur_stack.kafka}
    found: list[list[tuple[Any, ...]]] = []
    with (
        Producer(settings, client_id, connection_id) as compiled,
        Producer(settings, client_id, connection_id, client=confluent_client) as other,
    ):
        assert vars(compiled)["publish"], "the compiled client publishes"
        ways = [compiled.publish, lambda *given, **named: Producer.publish(compiled, *given, **named)]
        for publish in (*ways, other.publish):
            topic = kafkadur_topic()
            for value in (None, "", b"", "ä€", b"\x00", "x" * 100_000):
                for key in (None, "", b"k", "ö"):
                    publish(topic, value, key=key)
            for _ in range(2):  # names are known at the second time
                for properties in PROPERTIES:
                    publish(topic, "v", properties=properties)
            for way in (compiled, other):
                way.flush(LIMIT)
            messages = read(kafkadur_stack, topic, 24 + 2 * len(PROPERTIES))
            found.append([told(message) for message in messages])
    assert found[0] == found[1] == found[2]
    assert {each[-1] for each in found[0]} == {connection_id}


def told(message: confluent_kafka.Message) -> tuple[Any, ...]:
    """Return what a message says, except its unique id."""
    headers: Any = message.headers()
    without_id = [each for each in headers if each[0] != "JMSMessageID"]
    return (message.value(), message.key(), without_id, decode(headers).fields.connection_id)


def test_every_message_has_an_id_of_its_own(
    compiled: Producer[Any, Any], kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()

    def publish() -> None:
        for number in range(500):
            compiled.publish(topic, "v")
            compiled.publish(topic, "v", correlation_id=f"{number}")  # the longer way

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compiled.flush(LIMIT)
    ids = [decode(message.headers()).fields.message_id for message in read(kafkadur_stack, topic, 4_000)]  # type: ignore[arg-type]
    assert len(set(ids)) == 4_000
    assert all(each is not None and each.startswith("ID:conn-1-") for each in ids)


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"JMSType": 1}, InvalidProperty),
        ({"a b": 1}, InvalidProperty),
        ({"and": 1}, InvalidProperty),
        ({5: 1}, (InvalidProperty, AttributeError)),
        ({"n": 2**63}, InvalidProperty),
        ({"n": -(2**63) - 1}, InvalidProperty),
        ({"t": "\ud800"}, InvalidProperty),
        ({"l": []}, InvalidProperty),
    ],
    ids=str,
)
def test_what_is_refused_is_refused_as_ever(
    compiled: Producer[Any, Any], kafkadur_topic: TopicFactory, properties: dict[Any, Any], error: Any
) -> None:
    topic = kafkadur_topic()
    for _ in range(2):
        with pytest.raises(error):
            compiled.publish(topic, "v", properties={"good": 1, **properties})
    compiled.flush(LIMIT)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("t", 5), IllegalState),
        (("t", bytearray(b"changes")), IllegalState),
        (("t", memoryview(b"view")), IllegalState),
        ((5, "v"), TypeError),
        (("a\0b", "v"), ValueError),
        (("t", "\ud800"), UnicodeEncodeError),
        (("t", b"x" * 3_000_000), DeliveryFailed),
    ],
    ids=["number", "bytearray", "memoryview", "topic", "zero byte", "surrogate", "too large"],
)
def test_a_message_that_cannot_be_is_an_error_of_the_call(
    kafkadur_stack: Stack, given: tuple[Any, Any], error: type[Exception]
) -> None:
    for client in (new_client, confluent_client):
        with Producer({"bootstrap.servers": kafkadur_stack.kafka}, None, "c", client=client) as producer:
            with pytest.raises(error):
                producer.publish(*given)
            assert len(producer._kafka) == 0  # noqa: SLF001 - nothing of it is in the buffer


def test_headers_are_tuples(kafkadur_stack: Stack) -> None:
    """The addresses of their names and values are kept while others are looked at."""
    client = module().Producer({"bootstrap.servers": kafkadur_stack.kafka}, logger=None)
    for wrong in (["ab"], [["a", b"b"]], [("a", b"b", b"c")], [iter(("a", b"b"))], [("a", 5)], [(5, b"b")]):
        with pytest.raises(TypeError):
            client.produce("t", "v", None, -1, None, None, 0, wrong)
    assert len(client) == 0
    client.close()


# --- reports ------------------------------------------------------------------------------------------------


def test_failures_count_without_a_report_of_each_message() -> None:
    config = {"bootstrap.servers": NOWHERE, "message.timeout.ms": 300, "log_level": 0}
    producer = Producer(config, None, "c")
    for number in range(700):
        producer.publish("t", "v", properties={"n": number})
    with pytest.raises(DeliveryFailed) as failed:
        producer.flush(LIMIT)
    assert (failed.value.failed, failed.value.pending) == (700, 0)
    assert failed.value.reasons == {"_MSG_TIMED_OUT": 700}
    producer.close()


def test_a_report_comes_at_once_after_messages_without_one(
    compiled: Producer[Any, Any], kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    told: list[Any] = []
    for round_ in range(20):
        for _ in range(300):
            compiled.publish(topic, "v")
        compiled.publish(topic, "asked", on_report=told.append)
        wait_until(lambda round_=round_: len(told) > round_, "its report")  # type: ignore[misc]
    offsets = [receipt.offset for receipt in told]
    assert offsets == sorted(offsets)
    assert compiled._kafka.reports == 0  # type: ignore[attr-defined] # noqa: SLF001 - of the compiled client


def test_reports_are_let_go_of(kafkadur_stack: Stack, kafkadur_topic: TopicFactory) -> None:
    """Of messages that were written, that were purged, and that librdkafka refused."""
    report: Any = lambda *_: None  # noqa: E731 - its references are counted
    client = module().Producer({"bootstrap.servers": kafkadur_stack.kafka}, logger=logging.getLogger("t"))
    before = sys.getrefcount(report)
    topic = kafkadur_topic()
    for _ in range(100):
        client.produce(topic, "v", None, -1, report, None, 0, None)
    assert sys.getrefcount(report) == before + 100
    assert client.flush(LIMIT) == 0
    assert sys.getrefcount(report) == before
    with pytest.raises(KafkaException):
        client.produce(topic, b"x" * 3_000_000, None, -1, report, None, 0, None)
    client.produce("other", "v", None, -1, report, None, 0, [("h", None)] * 100)
    client.purge()
    client.flush(LIMIT)
    assert (sys.getrefcount(report), client.reports) == (before, 0)
    client.close()


def test_a_full_buffer_is_an_error_and_what_waits_for_room_gets_it(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    config = {"queue.buffering.max.messages": 100, "linger.ms": 0}
    client = module().Producer({"bootstrap.servers": NOWHERE, **config, "log_level": 0}, logger=None)
    for _ in range(100):
        client.produce("t", "v", None, -1, None, None, 0, None)
    with pytest.raises(BufferError):
        client.produce("t", "v", None, -1, None, None, 0, None)
    assert len(client) >= 100, "with what librdkafka has to tell of brokers"
    client.close()
    assert len(client) == 0
    with pytest.raises(RuntimeError):
        client.produce("t", "v", None, -1, None, None, 0, None)
    topic = kafkadur_topic()
    with Producer({"bootstrap.servers": kafkadur_stack.kafka, **config}, None, "c") as producer:
        for number in range(5_000):
            producer.publish(topic, str(number))
        producer.flush(LIMIT)
    assert [int(each.value() or b"") for each in read(kafkadur_stack, topic, 5_000)] == list(range(5_000))


# --- its end ------------------------------------------------------------------------------------------------


def test_it_is_closed_while_other_threads_publish_and_flush(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    for _ in range(5):
        topic = kafkadur_topic()
        producer = Producer({"bootstrap.servers": kafkadur_stack.kafka}, None, "c")
        publish = producer.publish
        ended: list[type[Exception]] = []

        def work(how: Any = publish, topic: str = topic, ended: list[Any] = ended) -> None:
            try:
                while True:
                    how(topic, "v") if topic else how(0.01)
            except (ConnectionClosed, DeliveryFailed) as error:
                ended.append(type(error))

        threads = [threading.Thread(target=work) for _ in range(2)]
        threads += [threading.Thread(target=work, args=(producer.flush, ""))]
        for thread in threads:
            thread.start()
        wait_until(lambda producer=producer: len(producer._kafka) > 0, "messages")  # type: ignore[misc] # noqa: SLF001
        producer.close(LIMIT)
        for thread in threads:
            thread.join(LIMIT)
        assert ended.count(ConnectionClosed) >= 2


def test_nothing_is_published_while_it_is_being_closed() -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1"}, None, "c")
    publish = producer.publish  # as a program may have it in a variable
    publish("t", "v")
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(producer.close, 1.0)
        wait_until(lambda: producer._closed, "closing has begun")  # noqa: SLF001 - nothing else shows it
        with pytest.raises(ConnectionClosed):
            publish("t", "v")
        with pytest.raises(DeliveryFailed, match="1 published message"):
            closing.result(LIMIT)


def test_a_replaced_client_publishes_nothing(
    compiled: Producer[Any, Any], kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    publish = compiled.publish  # as a program may have it in a variable
    publish(topic, "first")
    compiled.flush(LIMIT)
    compiled._replace(compiled._make())
    publish(topic, "second")
    compiled.publish(topic, "third")
    compiled.flush(LIMIT)


def test_clients_that_nobody_closes_end_with_their_last_reference(kafkadur_stack: Stack) -> None:
    def threads() -> int:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads:"))

    before = threads()
    for _ in range(10):
        client = module().Producer({"bootstrap.servers": kafkadur_stack.kafka}, logger=None)
        del client
    wait_until(lambda: threads() <= before, "the threads of librdkafka to end")


# --- settings -----------------------------------------------------------------------------------------------


def test_settings_are_those_of_confluent_kafka(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_told", set[tuple[str, str]]())
    assert isinstance(new_client({"bootstrap.servers": NOWHERE}), module().Producer)
    for name in ("on_delivery", "dr_cb"):
        assert type(new_client({"bootstrap.servers": NOWHERE, name: print})) is confluent_kafka.Producer
    with caplog.at_level(logging.INFO):
        client = new_client({"bootstrap.servers": NOWHERE, "throttle_cb": print})
    assert type(client) is confluent_kafka.Producer
    assert "throttle_cb is a Python function" in caplog.text
    with caplog.at_level(logging.INFO):
        client = new_client({"bootstrap.servers": NOWHERE, "default.topic.config": {"acks": "all"}})
    assert type(client) is confluent_kafka.Producer
    assert "default.topic.config is neither text nor number" in caplog.text
    for wrong in ({"no.such.setting": 1}, {"acks": "perhaps"}):
        for make in (new_client, confluent_client):
            with pytest.raises(KafkaException) as refused:
                make({"bootstrap.servers": NOWHERE, **wrong})
            assert refused.value.args[0].code() == KafkaError._INVALID_ARG  # noqa: SLF001 - its public name


def test_errors_of_the_client_are_told() -> None:
    heard: list[KafkaError] = []
    with Producer({"bootstrap.servers": NOWHERE, "error_cb": heard.append, "log_level": 0}, None, "c"):
        wait_until(lambda: bool(heard), "an error")
    assert heard[0].code() == KafkaError._TRANSPORT  # noqa: SLF001 - its public name


def test_a_subclass_keeps_its_own_publish(kafkadur_stack: Stack, kafkadur_topic: TopicFactory) -> None:
    class Upper(Producer[str, str]):
        def publish(self, topic: str, value: str | None, **more: Any) -> None:
            super().publish(topic, value and value.upper(), **more)

    topic = kafkadur_topic()
    with Upper({"bootstrap.servers": kafkadur_stack.kafka}, None, "c") as producer:
        producer.publish(topic, "loud", properties={"n": 1})
    assert [message.value() for message in read(kafkadur_stack, topic, 1)] == [b"LOUD"]
    assert issubclass(kafkadur.Producer, Producer)
