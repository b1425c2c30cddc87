"""Fixtures for the tests of the command line: run it against the real stack, in this process or another."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkadur.cli.application import app
from kafkadur.stack import Stack


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


#: Runs a command in this process.
Run = Callable[..., Ended]
#: Starts a command in a process of its own.
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kafkadur_stack: Stack,
    kafkadur_namespace: str,
) -> Path:
    """Have the environment say where everything is, in a folder without a stack of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKADUR_KAFKA", kafkadur_stack.kafka)
    monkeypatch.setenv("KAFKADUR_REDIS", kafkadur_stack.redis)
    monkeypatch.setenv("KAFKADUR_NAMESPACE", kafkadur_namespace)
    monkeypatch.setenv("KAFKADUR_JOURNAL_PARTITIONS", "2")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path.parent / f"{tmp_path.name}-config"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("KAFKADUR_KAFKA_TIMEOUT", "60")  # the machine may be busy
    monkeypatch.setenv("KAFKADUR_REDIS_TIMEOUT", "30")
    return tmp_path


@pytest.fixture
def run(here: Path) -> Run:
    """Provide a runner of commands in this process."""
    del here

    def run(*arguments: object, stdin: str | bytes | None = None) -> Ended:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(code=result.exit_code, out=result.stdout, err=result.stderr)

    return run


@pytest.fixture
def spawn(here: Path) -> Iterator[Spawn]:
    """Provide a starter of commands in processes of their own, standard output and error being pipes."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "kafkadur.cli", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
            cwd=here,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
