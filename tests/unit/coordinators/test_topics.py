"""Offsets that Kafka's client answers, and its end."""

import gc
import threading

import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kafkadur_coordinators.kept_client import REST_S, KeptClient
from kafkadur_coordinators.topics import Topics, known
from kafkadur_sharing.errors import KafkaUnavailable


def test_an_offset_that_the_client_does_not_know_is_no_answer() -> None:
    for offset, end in ((OFFSET_INVALID, False), (OFFSET_INVALID, True), (OFFSET_END, True)):
        with pytest.raises(KafkaException) as caught:
            known({0: 5, 1: offset}, end=end)
        assert caught.value.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE
    assert known({0: 5, 1: OFFSET_END}, end=False) == {0: 5, 1: -1}, "no record so late"


def test_closing_destroys_the_client_outside_of_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The destructor of confluent-kafka runs signal handlers, and loses what they raise."""
    destroyers: list[threading.Thread] = []

    class Watched(AdminClient):
        def __del__(self) -> None:
            destroyers.append(threading.current_thread())

    monkeypatch.setattr("kafkadur_coordinators.topics.AdminClient", Watched)
    topics = Topics({"bootstrap.servers": "127.0.0.1:9"})
    topics.close()
    topics.close()
    assert len(destroyers) == 1, "destroyed by the first close, and not by the garbage collector"
    assert destroyers[0] is not threading.current_thread()


def test_a_client_that_is_not_asked_for_a_while_ends() -> None:
    ended = threading.Event()

    class Watched(AdminClient):
        def __del__(self) -> None:
            ended.set()

    now = 100.0
    kept = KeptClient(lambda: Watched({"bootstrap.servers": "127.0.0.1:9"}), monotonic=lambda: now)
    kept.rest()
    kept.get()
    now += REST_S
    kept.rest()
    assert not ended.is_set()
    kept.get()
    now += REST_S
    kept.rest()
    assert not ended.is_set(), "it was asked for meanwhile"
    now += 0.1
    kept.rest()
    assert ended.wait(30)
    ended.clear()
    kept.get()
    kept.close()
    assert ended.is_set(), "closing waits"


def _ask_in_vain() -> None:
    topics = Topics({"bootstrap.servers": "127.0.0.1:9"}, timeout=0.01)
    with pytest.raises(KafkaUnavailable):
        topics.offsets("t", 1, "latest")
    with pytest.raises(KafkaUnavailable):
        topics.describe("t")


def test_the_last_reference_destroys_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the garbage collector does it, in any thread: in one of librdkafka's that ends the process."""
    destroyed: list[str] = []

    class WatchedAdmin(AdminClient):
        def __del__(self) -> None:
            destroyed.append("admin client")

    class WatchedConsumer(Consumer):
        def __del__(self) -> None:
            destroyed.append("consumer")

    monkeypatch.setattr("kafkadur_coordinators.topics.AdminClient", WatchedAdmin)
    monkeypatch.setattr("kafkadur_coordinators.topics.Consumer", WatchedConsumer)
    gc.disable()
    try:
        _ask_in_vain()
        assert sorted(destroyed) == ["admin client", "consumer"]
    finally:
        gc.enable()
