"""Workers in processes of their own, and what the tests ask of them."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.integration.subscriptions.helpers import LIMIT_S, Place

T = TypeVar("T")

#: What the modules of the tests begin with: `note` writes a line that the test reads.
HEAD = """
import asyncio
import os
import time

import kafkadur


def note(message, what="done"):
    place = f"{message.partition}@{message.offset}"
    line = f"{what} {os.getpid()} {place} {message.attempt} {message.value.decode()}"
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(line + chr(10))

"""


def eventually(look: Callable[[], T], what: str) -> T:
    """What `look` finds as soon as it finds something true."""
    until = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < until, f"{what} did not come"
        time.sleep(0.02)
    return found


@dataclass(frozen=True)
class Note:
    """A line that a handler wrote."""

    what: str
    pid: int
    place: str
    attempt: int
    value: str


class Process:
    """`kafkadur run` in a process of its own."""

    def __init__(self, folder: Path, environment: dict[str, str], *arguments: str) -> None:
        """Start it."""
        self.log = folder / f"log-{len(list(folder.glob('log-*')))}"
        with self.log.open("w") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "kafkadur.cli", "run", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                cwd=folder,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def said(self) -> str:
        """What it wrote so far."""
        return self.log.read_text()

    @property
    def address(self) -> str:
        """Where its port is, as soon as it says so."""

        def look() -> str:
            assert self._process.poll() is None, self.said
            return self.said.partition("http://")[2].partition("/readyz")[0]

        return eventually(look, "the worker's port")

    def get(self, page: str) -> tuple[int, str]:
        """Status and text of a page of its port."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{page}", timeout=LIMIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def states(self) -> dict[str, str]:
        """What it says of its subscriptions."""
        told: list[dict[str, str]] = json.loads(self.get("/readyz")[1])["subscriptions"]
        return {each["subscription"]: each["state"] for each in told}

    def ready(self) -> None:
        """Wait until it is."""
        eventually(lambda: self.get("/readyz")[0] == 200, f"readiness: {self.said}")

    def tell(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; its exit status."""
        return self._process.wait(LIMIT_S)

    def stop(self) -> int:
        """Have it stop in order, and wait for that; its exit status."""
        self.tell()
        return self.ended()

    def kill(self) -> None:
        """Make sure that it is gone."""
        self._process.kill()
        self._process.wait()


@dataclass
class Shop:
    """A topic, a module with an app, and the workers that were started."""

    place: Place
    folder: Path
    topic: str
    started: list[Process] = field(default_factory=list[Process])

    def write(self, text: str, name: str = "app_under_test") -> None:
        """Write the module; TOPIC in it is the topic's name."""
        made = HEAD + textwrap.dedent(text).replace("TOPIC", repr(self.topic))
        (self.folder / f"{name}.py").write_text(made)

    @property
    def where(self) -> dict[str, str]:
        """The environment that says where everything is."""
        return {
            "KAFKADUR_KAFKA": self.place.stack.kafka,
            "KAFKADUR_REDIS": self.place.stack.redis,
            "KAFKADUR_NAMESPACE": self.place.namespace,
            "KAFKADUR_JOURNAL_PARTITIONS": "2",
        }

    def start(self, *arguments: str, module: str = "app_under_test", **environment: str) -> Process:
        """Start a worker."""
        given = self.where | {"NOTES": str(self.folder / "notes")} | environment
        process = Process(self.folder, given, module, "--port", "0", *arguments)
        self.started.append(process)
        return process

    def notes(self, what: str = "done") -> list[Note]:
        """What handlers wrote."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [line.split(" ", 4) for line in lines]
        return [
            Note(kind, int(pid), where, int(attempt), value)
            for kind, pid, where, attempt, value in found
            if kind == what
        ]

    def until(self, count: int, what: str = "done") -> list[Note]:
        """Wait for so many notes."""

        def look() -> list[Note]:
            found = self.notes(what)
            return found if len(found) >= count else []

        try:
            return eventually(look, f"{count} notes")
        except AssertionError:
            pytest.fail(f"{len(self.notes(what))} of {count} notes: {[each.said for each in self.started]}")

    def unsettled(self, durable: str, **environment: str) -> int:
        """How many messages of a subscription are not settled."""
        found = subprocess.run(
            [sys.executable, "-m", "kafkadur.cli", "--json", "sub", "info", durable],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | self.where | environment,
        )
        info: dict[str, Any] = json.loads(found.stdout)
        return int(info["backlog"])
