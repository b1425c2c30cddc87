"""What the tests of the embedded stack share and is no fixture: waiting, and a look at processes."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

LIMIT_S = 180.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll a real condition; fail the test with ``what`` after a minute."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {LIMIT_S:g} s")
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Tell whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
