"""How a gateway is watched: probes, metrics, and a log that names clients."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from prometheus_client.parser import text_string_to_metric_families
from proton import ConnectionException
from proton.utils import LinkDetached

from kafkadur.gateway.users import add_user
from tests.integration.gateway.running import ANSWER_S, Message, client
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until


def page(address: str) -> tuple[int, str]:
    """The status and the text of a page."""
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def values(address: str) -> dict[str, float]:
    """The values of the metrics that are not 0, by name and the last label."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page(f"{address}/metrics")[1]):
        for sample in family.samples:
            name = sample.name.removeprefix("kafkadur_gateway_")
            more = [value for label, value in sample.labels.items() if label != "namespace"]
            if sample.value:
                found[".".join([name, *more])] = sample.value
    return found


def test_probes_metrics_and_log(place: Place, tmp_path: Path) -> None:
    topic = place.topic()
    for user in ("ada", "eve"):
        add_user(tmp_path / "users", user, "secret")
    rules = f"ada publish,consume {topic}\nada client-id app\neve publish other\n"
    (tmp_path / "permissions").write_text(rules)
    command = [
        sys.executable, "-m", "kafkadur.cli", "gateway", "--port", "0", "--probe-port", "0",
        "--users", str(tmp_path / "users"), "--permissions", str(tmp_path / "permissions"),
        "--kafka", place.stack.kafka, "--redis", place.stack.redis, "--namespace", place.namespace,
        "--log-format", "json",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stderr is not None
            probes = re.search(r"http://[^/]+", serving.stderr.readline())
            listening = re.search(r"amqp://127\.0\.0\.1:(\d+)", serving.stderr.readline())
            assert probes is not None
            assert listening is not None
            address, port = probes[0], int(listening[1])
            assert page(f"{address}/livez")[0] == 200
            known: dict[str, Any] = {"allowed_mechs": "PLAIN", "allow_insecure_mechs": True}
            with client(port, "app", user="ada", password="secret", **known) as connection:
                assert json.loads(page(f"{address}/readyz")[1]) == {"ready": True, "connections": 1}
                receiver = connection.create_receiver(topic, credit=10)
                sender = connection.create_sender(topic)
                for _ in range(3):
                    sender.send(Message(body="a secret of the message"))
                receiver.receive(timeout=ANSWER_S)
                receiver.accept()
                receiver.receive(timeout=ANSWER_S)
                receiver.release(delivered=False)
                sender.send(Message(body="another secret"))  # else Proton would keep what was said
                wait_until(lambda: values(address).get("settled_messages_total.released") == 1, "it is told")
                found = values(address)
                assert found.pop("delivered_messages_total") >= 2
                assert found == {
                    "connections": 1,
                    "links.from_client": 1,
                    "links.to_client": 1,
                    "published_messages_total.accepted": 4,
                    "settled_messages_total.accepted": 1,
                    "settled_messages_total.released": 1,
                }
            with (
                client(port, user="eve", password="secret", **known) as connection,
                pytest.raises(LinkDetached),
            ):
                connection.create_receiver(topic)
            with pytest.raises(ConnectionException), client(port, user="eve", password="x", **known):
                pass
            wait_until(lambda: "connections" not in values(address), "the clients have gone")
            found = values(address)
            assert found["refused_connections_total"] == 1
            assert found["refused_links_total.amqp:unauthorized-access"] == 1
            serving.send_signal(signal.SIGTERM)
            log = [json.loads(line) for line in serving.stderr]
            assert serving.wait(LIMIT_S) == 0
        finally:
            serving.kill()
    assert "secret" not in json.dumps(log)
    connected = next(each for each in log if each["message"] == "a client has connected")
    assert (connected["user"], connected["client_id"]) == ("ada", "app")
    assert connected["peer"].startswith("127.0.0.1:")
    warned = [
        (each["user"], each["message"]) for each in log if each["level"] == "WARNING" and "user" in each
    ]
    assert ("eve", "the credentials of a client are refused") in warned
    assert any(user == "eve" and "no permission to consume" in message for user, message in warned)


def test_a_trace_goes_through_in_both_directions(place: Place, port: int) -> None:
    trace = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "tracestate": "vendor=1"}
    topic = place.topic()
    with client(port) as connection, place.connect_sync() as python:
        receiver = connection.create_receiver(topic, credit=1)
        with python.subscribe(topic, start="earliest") as subscription:
            connection.create_sender(topic).send(Message(body="m", properties=trace))
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            assert {
                name: (value or b"").decode() for name, value in delivery.headers if name in trace
            } == trace
        assert receiver.receive(timeout=ANSWER_S).properties == trace
        receiver.accept()
