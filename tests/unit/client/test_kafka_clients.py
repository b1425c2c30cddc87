"""The clients of Kafka that the parts of a connection share."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kafkadur.runtime.kafka_clients import KafkaClients
from kafkadur.settings import Settings


class Counted(AdminClient):
    """Counts the admin clients that there are: each has several threads and connections."""

    there = 0

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        Counted.there += 1

    def __del__(self) -> None:
        Counted.there -= 1


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaClients]:
    monkeypatch.setattr("kafkadur_coordinators.topics.AdminClient", Counted)
    yield KafkaClients(Settings(kafka={"bootstrap.servers": "127.0.0.1:9"}, redis="redis://127.0.0.1:9"))
    assert Counted.there == 0


def test_all_parts_of_a_connection_ask_with_one_client_which_the_last_one_closes(
    clients: KafkaClients,
) -> None:
    users = [clients.topics() for _ in range(3)]
    for left in (3, 2, 1):
        assert Counted.there == 1, f"{left} users"
        users.pop().close()
    assert Counted.there == 0


def test_a_user_that_comes_after_the_last_one_gets_another_client(clients: KafkaClients) -> None:
    first = clients.topics()
    first.close()
    second = clients.topics()
    assert second is not first
    first.close()  # once more: it takes nothing from others
    assert Counted.there == 1
    second.close()
