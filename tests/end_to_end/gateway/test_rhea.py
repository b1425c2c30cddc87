"""Scenarios with rhea, the AMQP 1.0 client that users of JavaScript have."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from tests.end_to_end.gateway.jms import FETCH_S, SCENARIO_S
from tests.integration.subscriptions.helpers import Place

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


@pytest.mark.parametrize("scenario", ["messages", "durable", "asking"])
def test_a_scenario(rhea: Callable[..., None], port: int, place: Place, scenario: str) -> None:
    rhea(scenario, port, place.topic())
