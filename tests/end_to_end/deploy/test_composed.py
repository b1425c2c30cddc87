"""The compose file brought up by an engine, with the image built from this tree.

It runs where `docker compose` is and the engine has, or gets, the images of Kafka and Valkey.
"""

import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kafkadur.containers import has_engine
from tests.end_to_end.service.helpers import eventually

ROOT = Path(__file__).resolve().parents[3]
#: Seconds an engine may take to pull and build.
BUILD_S = 900
#: No ports of the host are needed, and others may have them.
OVERRIDE = "services: {kafka: {ports: !reset []}, valkey: {ports: !reset []}, worker: {ports: !reset []}}"
ASK = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9465/metrics').read().decode())"
#: flights of the example, and the line that is none
FLIGHTS, WRONG = 400, 1


class Composed:
    """The services of one project of the engine."""

    def __init__(self, override: Path) -> None:
        files = ["-f", str(ROOT / "docker-compose.yml"), "-f", str(override)]
        self._command = ["docker", "compose", *files, "-p", f"kafkadur-{uuid.uuid4().hex[:8]}"]

    def __call__(self, *words: str, limit: float = 120, fails: bool = False) -> str:
        """Run a command of compose; what it writes."""
        done = subprocess.run(
            [*self._command, *words], capture_output=True, text=True, check=False, timeout=limit
        )
        assert fails or done.returncode == 0, done.stderr[-3_000:]
        return done.stdout

    def states(self) -> dict[str, tuple[str, int]]:
        """The state and exit status of each service."""
        lines = self("ps", "--all", "--format", "json").splitlines()
        found = [json.loads(line) for line in lines]
        return {each["Service"]: (each["Health"] or each["State"], each["ExitCode"]) for each in found}

    def handled(self) -> dict[str, int]:
        """How many messages the worker has handled since it started, by outcome."""
        text = self("exec", "-T", "worker", "python", "-c", ASK, fails=True)
        return {
            outcome: int(float(count))
            for outcome, count in re.findall(
                r'^kafkadur_worker_handled_messages_total\{.*outcome="(\w+)".*\} (\S+)$', text, re.MULTILINE
            )
        }

    def doctor(self) -> dict[str, str]:
        """What the doctor does not find good."""
        said = json.loads(self("exec", "-T", "worker", "kafkadur", "--json", "doctor"))
        return {each["check"]: each["state"] for each in said if each["level"] != "good"}


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """Provide the running services."""
    if not has_engine():
        pytest.skip("no container engine answers here")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no docker compose")
    for image in images():
        known = subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False)
        if known.returncode and subprocess.run(["docker", "pull", "-q", image], check=False).returncode:
            pytest.skip(f"the engine cannot get {image}")
    override = tmp_path_factory.mktemp("compose") / "override.yml"
    override.write_text(OVERRIDE)
    compose = Composed(override)
    try:
        compose("up", "--detach", "--build", limit=BUILD_S)
        yield compose
    finally:
        compose("down", "--volumes", "--timeout", "5")


def images() -> set[str]:
    """The images that are not built, and that of which ours is made."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    base = re.findall(r"^ARG PYTHON=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return {*base, *(each["image"] for each in services if "build" not in each and "profiles" not in each)}


def test_the_worker_handles_the_flights_and_goes_on_after_restarts(composed: Composed) -> None:
    eventually(lambda: sum(composed.handled().values()) == FLIGHTS + WRONG, "that all flights are handled")
    assert composed.handled() == {"returned": FLIGHTS, "rejected": WRONG, "raised": 0, "cancelled": 0}
    eventually(lambda: composed.states()["worker"][0] == "healthy", "that the worker is healthy")
    states = composed.states()
    assert states["kafka"][0] == states["valkey"][0] == "healthy"
    assert states["topic"] == states["flights"] == ("exited", 0)
    assert composed.doctor() == {}

    composed("restart", "kafka", "valkey")
    composed("stop", "worker")
    assert composed.states()["worker"] == ("exited", 0)
    # starts the worker, and publishes the flights once more
    composed("up", "--detach")
    eventually(lambda: sum(composed.handled().values()) >= FLIGHTS + WRONG, "that all flights are handled")
    assert composed.handled()["returned"] == FLIGHTS, "none of those that were settled came again"
