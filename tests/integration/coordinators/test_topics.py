"""What is asked of a Kafka that is not there: every question ends in time, and says what to do."""

from collections.abc import Callable
from contextlib import closing

import pytest

from kafkadur.stack.ports import free_ports
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import KafkaUnavailable, StateLost

QUESTIONS: dict[str, Callable[[Topics], object]] = {
    "describe": lambda topics: topics.describe("t"),
    "retention": lambda topics: topics.retention("t"),
    "offsets": lambda topics: topics.offsets("t", 2, "latest"),
    "offsets_at": lambda topics: topics.offsets_at("t", 2, 1_700_000_000_000),
    "floors": lambda topics: topics.floors("g", "t", 2, "m"),
    "committed": lambda topics: topics.committed("g", "t", 2),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_kafka_that_is_not_there_is_said_in_time(question: str) -> None:
    (port,) = free_ports(1)
    topics = Topics({"bootstrap.servers": f"127.0.0.1:{port}"}, timeout=0.2)
    # closed, because the error keeps the client: if the garbage collector destroyed it in a thread of
    # librdkafka, the process would abort
    with closing(topics), pytest.raises(StateLost, match="Kafka does not answer") as caught:
        QUESTIONS[question](topics)
    assert type(caught.value) is KafkaUnavailable
    assert caught.value.owner == f"Kafka at 127.0.0.1:{port}"
    assert caught.value.state
    assert "check that Kafka runs" in (caught.value.remedy or "")
