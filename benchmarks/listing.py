"""How long lists of very many subscriptions take: ``python -m benchmarks.listing``.

Makes the subscriptions, on the servers of the embedded stack, and serves them with `kafkadur serve`. Then it
asks for what the page asks for. There is no peer to compare with: no other tool lists such subscriptions.
"""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.children import BenchmarkError
from benchmarks.rebuild import NAMESPACE, written
from kafkadur.admin.changes import Admin
from kafkadur.service.application import server
from kafkadur.settings import settings
from kafkadur.stack import embedded

if TYPE_CHECKING:
    from kafkadur.stack import Stack

#: Seconds that a list may take.
GOAL_S = 1.0
#: What is asked for: parameters of the list.
_ASKED: dict[str, dict[str, Any]] = {
    "the first page": {},
    "sorted by backlog": {"sort": "backlog", "descending": True},
    "searched": {"search": "s99"},
    "of a type and state": {"type": "shared", "state": "inactive"},
    "the last page": {"offset": -100},
    "1,000 of them": {"limit": 1_000},
}
_READING = "reading all, in the background"
_PATIENCE_S = 600.0
_talk = Console(stderr=True)


def measure(stack: Stack, subscriptions: int, partitions: int, runs: int) -> dict[str, float]:
    """Seconds of each request, the median of `runs`, and of one reading of all subscriptions."""
    chosen = settings({"kafka": stack.kafka, "redis": stack.admin_redis, "namespace": NAMESPACE})
    with Progress(console=_talk, transient=True) as progress:
        with written(stack, subscriptions, partitions, progress) as there:
            there.rebuild_all(progress)
        with Admin(chosen) as admin:
            began = time.monotonic()
            found = len(admin.list())
            times = {_READING: time.monotonic() - began}
        if found != subscriptions:
            message = f"{found} of {subscriptions} subscriptions are there"
            raise BenchmarkError(message)
        listening = socket.create_server(("127.0.0.1", 0))
        serving = server(chosen, None, every=5.0)
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            with httpx.Client(base_url=address, timeout=_PATIENCE_S, trust_env=False) as client:
                _wait_for(client, subscriptions)
                for name, query in progress.track(_ASKED.items(), description="asking"):
                    asked = {**query, "offset": max(subscriptions - 100, 0)} if "offset" in query else query
                    times[name] = statistics.median(_took(client, asked) for _ in range(runs))
                until = time.monotonic() + 2 * times[_READING] + 1  # it reads half of the time
                slowest = 0.0
                while time.monotonic() < until:
                    slowest = max(slowest, _took(client, {}))
                times["the first page, the slowest while it reads"] = slowest
        finally:
            serving.should_exit = True
            thread.join()
            listening.close()
    return times


def _wait_for(client: httpx.Client, subscriptions: int) -> None:
    """Wait until the service has read all subscriptions."""
    deadline = time.monotonic() + _PATIENCE_S
    while client.get("/api/v1/subscriptions").json()["total"] < subscriptions:
        if time.monotonic() > deadline:
            message = "the service has not read all subscriptions in time"
            raise BenchmarkError(message)
        time.sleep(0.2)


def _took(client: httpx.Client, query: dict[str, Any]) -> float:
    began = time.monotonic()
    answer = client.get("/api/v1/subscriptions", params=query)
    answer.raise_for_status()
    entries = answer.json()["entries"]
    took = time.monotonic() - began
    if not isinstance(entries, list):
        message = f"the list is {type(entries).__name__}"
        raise BenchmarkError(message)
    return took


def main(
    *,
    subscriptions: Annotated[int, typer.Option(min=1, help="How many.")] = 10_000,
    partitions: Annotated[int, typer.Option(min=1, max=1_000, help="Of their topic.")] = 12,
    runs: Annotated[int, typer.Option(min=1, help="Of each request.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
) -> None:
    """Measure how long lists of very many subscriptions take."""
    with embedded() as stack:
        times = measure(stack, subscriptions, partitions, runs)
    if as_json:
        print(json.dumps({"subscriptions": subscriptions, "partitions": partitions, "seconds": times}))
        return
    table = Table(
        title=f"{subscriptions:,} subscriptions x {partitions} partitions (goal of a list: {GOAL_S:g} s)"
    )
    table.add_column("list")
    table.add_column("seconds", justify="right")
    for name, took in times.items():
        table.add_row(name, f"{took:.3f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
