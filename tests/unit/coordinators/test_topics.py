"""Offsets that Kafka's client answers, and its end."""

import threading

import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kafkadur_coordinators.topics import Topics, known


def test_an_offset_that_the_client_does_not_know_is_no_answer() -> None:
    with pytest.raises(KafkaException) as caught:
        known({0: 5, 1: OFFSET_INVALID})
    assert caught.value.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE
    assert known({0: 5, 1: OFFSET_END}) == {0: 5, 1: -1}, "no record so late"


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
