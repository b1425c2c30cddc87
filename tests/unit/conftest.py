"""Unit tests do no I/O: a test of this folder that connects somewhere or starts a process fails."""

import sys
from collections.abc import Iterator

import pytest

#: What Python's runtime reports before it happens, and a unit test must not do.
FORBIDDEN = {"socket.connect", "socket.bind", "subprocess.Popen", "os.posix_spawn", "os.fork"}

#: The unit test that runs now.
running: list[str] = []


def refuse(event: str, _arguments: object) -> None:
    """Raise RuntimeError for I/O of a unit test."""
    if running and event in FORBIDDEN:
        raise RuntimeError(
            f"{running[-1]} is a unit test, but {event} was called: move it to tests/integration"
        )


sys.addaudithook(refuse)


@pytest.fixture(autouse=True)
def no_io(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have I/O refused while a test of this folder runs."""
    running.append(request.node.nodeid)
    yield
    running.pop()
