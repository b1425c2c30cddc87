"""The service, in a thread of the test, on the stack of the test run; and how tests ask it."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import kafkadur.sync
from kafkadur.service.access import Role, Tokens, add_token, read_tokens
from kafkadur.service.application import server
from kafkadur.settings import Settings, settings
from kafkadur.stack import Stack

WRITE = {"X-Kafkadur-Write": "yes"}
#: Seconds in which the service must have done what a test waits for: the machine may be busy.
PATIENCE_S = 60.0


@pytest.fixture
def place(kafkadur_stack: Stack, kafkadur_namespace: str) -> Settings:
    """Provide the settings of the service."""
    return settings(
        {
            "kafka": kafkadur_stack.kafka, "redis": kafkadur_stack.redis, "namespace": kafkadur_namespace,
            "journal_partitions": 2, "kafka_timeout": 60.0, "redis_timeout": 30.0,
        }
    )  # fmt: skip


@pytest.fixture
def connection(place: Settings) -> Iterator[kafkadur.sync.Connection]:
    """Provide a connection of an application in the same namespace."""
    with kafkadur.sync.Connection(place) as connection:
        yield connection


@contextlib.contextmanager
def served(place: Settings, tokens: Tokens | None, *, prometheus: str | None = None) -> Generator[str]:
    """Run the service within the context; yields its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    serving = server(place, tokens, every=0.2, prometheus=prometheus)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        serving.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture
def address(place: Settings) -> Iterator[str]:
    """Provide the address of a service without tokens."""
    with served(place, None) as address:
        yield address


class Api:
    """Asks a service."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.client = httpx.Client(
            base_url=address,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=PATIENCE_S,
            trust_env=False,
        )

    def get(self, path: str, **query: Any) -> Any:
        answer = self.client.get(f"/api/v1/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **order: Any) -> Any:
        answer = self.client.post(f"/api/v1/{path}", json=order, headers=WRITE)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def listed(self, condition: Callable[[list[Any]], bool] = bool, **query: Any) -> list[Any]:
        """Return the list when it is as a test waits for."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(entries := self.get("subscriptions", **query)["entries"]):
            assert time.monotonic() < deadline, entries
            time.sleep(0.05)
        return entries  # type: ignore[no-any-return]  # of JSON


@pytest.fixture
def api(address: str) -> Iterator[Api]:
    """Provide a caller that may do everything."""
    asks = Api(address)
    with asks.client:
        yield asks


@pytest.fixture
def callers(place: Settings, tmp_path: Path) -> Iterator[dict[str, Api]]:
    """Provide a caller of each role, and one without a token."""
    file = tmp_path / "tokens"
    tokens = {role.word: add_token(file, f"a-{role.word}", role) for role in Role}
    with served(place, read_tokens(file)) as address, contextlib.ExitStack() as open_:
        found = {word: Api(address, token) for word, token in tokens.items()} | {"nobody": Api(address)}
        for each in found.values():
            open_.enter_context(each.client)
        yield found
