"""Fixtures for the tests of the embedded stack: a folder to look into, a child process to kill."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have stacks make their temporary folders in a folder of the test's own, and return it."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def run_python(temporary: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Provide a starter of Python programs given as text, whose standard output is a pipe."""
    del temporary
    started: list[subprocess.Popen[str]] = []

    def start(program: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
