"""Scenarios with rhea, the AMQP 1.0 client that users of JavaScript have."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from kafkadur.gateway.bodies import body
from tests.end_to_end.gateway.jms import FETCH_S, SCENARIO_S, Jms
from tests.end_to_end.gateway.test_jms import url
from tests.integration.subscriptions.helpers import LIMIT_S, Place

HERE = Path(__file__).parent / "rhea"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def rhea(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Provide a function that runs a scenario; npm fetches the client as the lock file says."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("Node.js is not installed")
    folder = tmp_path_factory.mktemp("rhea")
    shutil.copytree(HERE, folder, dirs_exist_ok=True)
    subprocess.run([npm, "ci", "--silent"], cwd=folder, check=True, timeout=FETCH_S)

    def run(scenario: str, port: int, topic: str) -> None:
        command = [node, "scenarios.js", scenario, str(port), topic]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=SCENARIO_S, check=False
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    return run


def test_messages_of_qpid_jms_python_and_rhea_are_read_by_the_others(
    rhea: Callable[..., None], jms: Jms, port: int, place: Place
) -> None:
    topic = place.topic()
    with place.connect_sync(client_id=None) as python:
        for name in ("python", "rhea", "jms"):
            python.create(name, topic, type="shared")
        jms.run("kinds", url(port), topic)
        rhea("kinds", port, topic)
        with python.subscribe(
            topic, durable="python", type="shared", value_deserializer=body
        ) as subscription:
            found = [subscription.receive(timeout=LIMIT_S) for _ in range(6)]
            values = [each.value for each in found if each is not None]
            assert values[:4] == ["text", b"\x01\xff", {"a": 1, "s": "x", "b": b"\x01\x02"}, [4, "z"]]
            assert isinstance(values[4], bytes)
            assert values[4].startswith(b"\xac\xed")  # as Java serializes it
            assert values[5] is None
            properties = {
                "bo": True,
                "by": -1,
                "sh": 300,
                "it": 70_000,
                "lo": 5,
                "fl": 1.5,
                "du": 2.25,
                "st": "s",
            }
            for each in found:
                assert each is not None
                assert each.properties == properties
                each.ack()
        python.unsubscribe("jms")  # what Qpid JMS has sent itself is read by the others
        python.create("jms", topic, type="shared")
        with python.producer() as producer:
            sent: dict[str, Any] = {"n": 7, "big": 2**40, "half": 0.5, "yes": True}
            producer.publish(topic, b"\x01\xff", properties=sent, partition=0)
        rhea("sending", port, topic)
        jms.run("foreign", url(port), topic)


@pytest.mark.parametrize("scenario", ["messages", "durable", "asking"])
def test_a_scenario(rhea: Callable[..., None], port: int, place: Place, scenario: str) -> None:
    rhea(scenario, port, place.topic())
