"""`kafkadur sub history`, and the definition that has one."""

from pathlib import Path

import pytest

import kafkadur.sync
from kafkadur.settings import settings
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.cli.conftest import Run

LIMIT_S = 180.0


@pytest.fixture
def delivered(here: Path, run: Run, kafkadur_topic: TopicFactory) -> str:
    """Provide a topic with three messages: one was acknowledged, one rejected, one rolled back for long."""
    del here
    topic = kafkadur_topic(1)
    assert run("sub", "create", "d", topic, "--start", "earliest", "--history", "7d").code == 0
    with kafkadur.sync.Connection(settings({})) as connection, connection.producer() as producer:
        for number in range(3):
            producer.publish(topic, str(number), key=f"k{number}")
        with connection.subscribe(topic, durable="d", type="shared", name="ann") as subscription:
            held = [subscription.receive(timeout=LIMIT_S) for _ in range(3)]
            first, second, third = (each for each in held if each is not None)
            first.ack()
            second.reject("no good")
            third.rollback(delay=600)
    return topic


@pytest.mark.usefixtures("delivered")
def test_the_history_is_a_table(run: Run) -> None:
    shown = run("sub", "history", "d")
    assert shown.code == 0
    lines = [line.split() for line in shown.out.splitlines()]
    told = {line[2]: " ".join(line[3:]) for line in lines if line and line[-1] == "ann"}
    assert told.keys() == {"0:0", "0:1", "0:2"}
    assert "1 acknowledged" in told["0:0"]
    assert "1 dead letter: rejected" in told["0:1"]
    assert "1 rolled back, again in 10 min" in told["0:2"]


@pytest.mark.usefixtures("delivered")
def test_parts_of_the_history(run: Run) -> None:
    def outcomes(*options: object) -> list[str]:
        return [each["outcome"] for each in run("sub", "history", "d", "--json", *options).data]

    assert sorted(outcomes()) == ["acknowledged", "dead letter", "rolled back"]
    assert outcomes("--offset", "0:2") == ["rolled back"]
    assert outcomes("--key", "k1") == ["dead letter"]
    assert outcomes("--key", "k7") == []
    assert len(outcomes("--member", "ann", "--since", "1h")) == 3
    assert outcomes("--member", "eve") == []
    assert "There are earlier ones" in run("sub", "history", "d", "--limit", "1").err
    assert "No delivery is recorded." in run("sub", "history", "d", "--offset", "0:9").err
    assert run("sub", "history", "d", "--offset", "9").code == 2
    assert run("sub", "history", "d", "--since", "soon").code == 2


def test_a_history_begins_and_ends_with_the_definition(run: Run, kafkadur_topic: TopicFactory) -> None:
    assert run("sub", "create", "d", kafkadur_topic(1)).code == 0
    assert "kept for" not in run("sub", "info", "d").out
    refused = run("sub", "history", "d")
    assert refused.code == 1
    assert "sub alter NAME --history 7d" in " ".join(refused.err.split())
    assert run("sub", "alter", "d", "--history", "12h").code == 0
    assert "kept for 12.0 h" in run("sub", "info", "d").out
    assert run("sub", "info", "d", "--json").data["definition"]["history"] == 12 * 3_600_000
    assert run("sub", "alter", "d", "--history", "1s").code == 1
    assert run("sub", "alter", "d", "--history", "long").code == 2
    assert run("sub", "alter", "d", "--history", "0").code == 0
    assert run("sub", "info", "d", "--json").data["definition"]["history"] is None
