"""`kafkadur metrics`: what Prometheus reads of subscriptions."""

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.cli.conftest import Run, Spawn
from tests.integration.subscriptions.helpers import wait_until

LIMIT_S = 180.0
DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"


def values(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """All samples by name: labels and value."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_a_subscription_is_measured(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    assert values(run("metrics", "--once").out) == {"kafkadur_up": [({}, 1.0)]}, "there is none yet"
    consume = ("--client-id", "c", "consume", topic, "--durable", "d", "--start", "earliest")
    for number in range(5):
        run("publish", topic, str(number))
    assert run(*consume, "--count", "2").code == 0
    run("--client-id", "c", "sub", "pause", "d")
    ended = run("metrics", "--once")
    assert ended.code == 0
    found = values(ended.out)
    names = {
        "kafkadur_subscription_backlog_messages": 3.0,
        "kafkadur_subscription_lag_messages": 3.0,
        "kafkadur_subscription_in_flight_messages": 0.0,
        "kafkadur_subscription_members": 0.0,
        "kafkadur_subscription_leases": 0.0,
        "kafkadur_subscription_paused": 1.0,
        "kafkadur_subscription_expired_messages_total": 0.0,
    }
    assert {name: found[name][0][1] for name in names} == names
    (labels, verdict) = found["kafkadur_subscription_last_verdict_timestamp_seconds"][0]
    assert (labels["client_id"], labels["subscription"], labels["topic"]) == ("c", "d", topic)
    assert labels["type"] == "shared"
    assert verdict > 1_700_000_000
    assert found["kafkadur_subscription_unattended_timestamp_seconds"][0][1] >= verdict
    assert not any(name.startswith("kafkadur_query") for name in found), "no query runs"


def test_a_killed_consumer_is_no_member(run: Run, spawn: Spawn, kafkadur_topic: TopicFactory) -> None:
    """It stays listed until somebody else makes an exchange; the alert that nobody is attached must fire."""
    topic = kafkadur_topic()
    for number in range(3):
        run("publish", topic, str(number))
    process = spawn("consume", topic, "--durable", "d", "--start", "earliest", "--count", "4")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)]

    def numbers() -> tuple[float, float]:
        found = values(run("metrics", "--once").out)
        names = ("kafkadur_subscription_members", "kafkadur_subscription_backlog_messages")
        return found[names[0]][0][1], found[names[1]][0][1]

    wait_until(lambda: numbers() == (1.0, 0.0), "one member, and nothing to do")
    process.kill()
    run("publish", topic, "4")
    wait_until(lambda: numbers() == (0.0, 1.0), "no member, and a message that waits")
    info = run("sub", "info", "d", "--json").data
    assert (info["attached"], len(info["members"])) == (0, 1), "it is still listed"
    assert "gone" in run("sub", "info", "d").out
    assert [row["attached"] for row in run("sub", "ls", "--json").data] == [0]


def test_all_are_documented(run: Run) -> None:
    """Each family once, with or without samples, under the name that is on the wire."""
    told = set(re.findall(r"^# TYPE (\S+) ", run("metrics", "--once").out, re.MULTILINE))
    of_subscriptions = DOCS.read_text().partition("## Of the service")[0]
    documented = re.findall(r"^\| `(kafkadur_\w+)` \|", of_subscriptions, re.MULTILINE)
    assert sorted(documented) == sorted(told)


def test_they_are_served_until_the_end(spawn: Spawn) -> None:
    process = spawn("metrics", "--port", "0")
    assert process.stderr is not None
    address = re.search(r"http://127\.0\.0\.1:\d+/metrics", process.stderr.readline())
    assert address is not None
    with urllib.request.urlopen(address[0], timeout=LIMIT_S) as answer:  # its own loopback
        assert values(answer.read().decode())["kafkadur_up"] == [({}, 1.0)]
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 130


def test_a_port_that_is_taken_is_said(spawn: Spawn, run: Run) -> None:
    process = spawn("metrics", "--port", "0")
    assert process.stderr is not None
    port = re.search(r":(\d+)/metrics", process.stderr.readline())
    assert port is not None
    ended = run("metrics", "--port", port[1])
    assert ended.code == 1
    assert "--port" in ended.err


def test_redis_that_is_away_is_a_metric(run: Run) -> None:
    ended = run("--redis", "redis://127.0.0.1:1", "metrics", "--once")
    assert ended.code == 0
    assert values(ended.out) == {"kafkadur_up": [({}, 0.0)]}


def test_without_the_client_of_prometheus_that_is_said() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from kafkadur.cli import main\nsys.argv = ['kafkadur', 'metrics', '--once']\nmain()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 1
    assert "pip install 'kafkadur[cli,metrics]'" in ended.stderr
