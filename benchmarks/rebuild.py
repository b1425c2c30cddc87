"""How long a lost Redis takes to come back: ``python -m benchmarks.rebuild``.

Writes the definitions of many subscriptions and the checkpoints of all their partitions to the journal, of
which Redis knows nothing, and brings everything back; then wipes Redis and brings back one at a time, as
members do that are at work. The servers are the embedded stack's. There is no peer to compare with: Kafka's
groups are never rebuilt.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.children import BenchmarkError
from kafkadur.stack import embedded
from kafkadur.stack.kafka import quiet_admin
from kafkadur_coordinators.journal import checkpoints, records
from kafkadur_coordinators.journal.origins import Origin
from kafkadur_coordinators.journal.rebuilding import Outcome
from kafkadur_coordinators.journal.records import Change
from kafkadur_coordinators.journal.topic import Journal, Record
from kafkadur_coordinators.lifecycle import Lifecycle
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_coordinators.settlement_states import SettlementState, Waiting
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.keys import SubscriptionKey

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from kafkadur.stack import Stack

NAMESPACE, _TOPIC = "rebuild", "flights"
#: Records that are written to the journal at once.
_AT_ONCE = 50_000
#: What each checkpoint says: two stretches wait.
_PLACE = SettlementState(next=1_000, waiting=(Waiting(5, 6), Waiting(70, 90, 1, redelivered=True)))
_talk = Console(stderr=True)


def _definitions(
    journal: Journal, keys: list[SubscriptionKey], topic_id: str, partitions: int
) -> list[Record]:
    definition = Definition(type=SubscriptionType.SHARED, topic=_TOPIC, start="earliest").to_record()
    found: list[Record] = []
    for key in keys:
        change = Change(
            tag=key.tag,
            key=key.to_record(),
            expected=0,
            under=0,
            definition=definition,
            id=None,
            topic_id=topic_id,
            starts=dict.fromkeys(range(partitions), 0),
        )
        found.append(
            (journal.shard(key.tag), f"change/{key.tag}/0/x".encode(), records.encode_change(change))
        )
    return found


def _checkpoints(shard: int, id_: str, topic_id: str, partitions: int) -> Iterator[Record]:
    for partition in range(partitions):
        key = checkpoints.key_of(Origin(id_, 0, topic_id), partition, "w", 1)
        yield shard, key, checkpoints.encode(_PLACE)


@dataclass(frozen=True, kw_only=True)
class Written:
    """Subscriptions that the journal has and Redis does not know."""

    keys: list[SubscriptionKey]
    coordinator: RedisCoordinator
    journal: Journal
    lifecycle: Lifecycle

    def rebuild_all(self, progress: Progress) -> float:
        """Rebuild all of them; return the seconds. Raises `BenchmarkError` if some are missing."""
        task = progress.add_task("rebuilding all", total=len(self.keys))
        began = time.monotonic()
        found = self.lifecycle.rebuild_all(lambda done, _: progress.update(task, completed=done))
        took = time.monotonic() - began
        if found.count(Outcome.REBUILT) != len(self.keys):
            message = f"only {found.count(Outcome.REBUILT)} of {len(self.keys)} were rebuilt"
            raise BenchmarkError(message)
        return took


@contextlib.contextmanager
def written(stack: Stack, subscriptions: int, partitions: int, progress: Progress) -> Generator[Written]:
    """Write subscriptions on one topic, and checkpoints of all their partitions, to the journal."""
    quiet = quiet_admin(stack.kafka)
    quiet.create_topics([NewTopic(_TOPIC, partitions, 1)])[_TOPIC].result(20)
    kafka = {"bootstrap.servers": stack.kafka}
    coordinator, journal, topics = (
        RedisCoordinator(stack.admin_redis),
        Journal(kafka, NAMESPACE),
        Topics(kafka),
    )
    lifecycle = Lifecycle(
        coordinator=coordinator, journal=journal, topics=topics, prefix="kafkadur", session_ms=10_000
    )
    keys = [
        SubscriptionKey(namespace=NAMESPACE, client_id="c", name=f"s{number}")
        for number in range(subscriptions)
    ]
    topic_id = topics.describe(_TOPIC).id
    task = progress.add_task("writing the journal", total=subscriptions * (partitions + 1))
    made = _definitions(journal, keys, topic_id, partitions)
    offsets = journal.append(made)
    progress.advance(task, subscriptions)
    lanes = [
        record
        for (shard, _, _), offset in zip(made, offsets, strict=True)
        for record in _checkpoints(shard, f"{shard}.{offset}", topic_id, partitions)
    ]
    for first in range(0, len(lanes), _AT_ONCE):
        progress.advance(task, len(journal.append(lanes[first : first + _AT_ONCE])))
    try:
        yield Written(keys=keys, coordinator=coordinator, journal=journal, lifecycle=lifecycle)
    finally:
        journal.close()
        coordinator.close()


def measure(stack: Stack, subscriptions: int, partitions: int, in_use: int) -> dict[str, float]:
    """Times in seconds: `all`; of `in_use` subscriptions one after the other `one_median` and `one_max`."""
    with (
        Progress(console=_talk, transient=True) as progress,
        written(stack, subscriptions, partitions, progress) as there,
    ):
        times = {"all": there.rebuild_all(progress)}
        there.coordinator.command("FLUSHALL")
        singles: list[float] = []
        for key in progress.track(there.keys[:in_use], description="rebuilding those in use"):
            began = time.monotonic()
            known = there.lifecycle.known(key)
            singles.append(time.monotonic() - began)
            if known is None or known.partitions != partitions:
                message = f"{key} was not rebuilt"
                raise BenchmarkError(message)
    return times | {"one_median": sorted(singles)[len(singles) // 2], "one_max": max(singles)}


def main(
    *,
    subscriptions: Annotated[int, typer.Option(min=1, help="How many.")] = 10_000,
    partitions: Annotated[int, typer.Option(min=1, max=1_000, help="Of their topic.")] = 12,
    in_use: Annotated[int, typer.Option(min=1, help="Rebuilt one at a time afterwards.")] = 20,
    runs: Annotated[int, typer.Option(min=1, help="Each with servers of its own.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
) -> None:
    """Measure how long it takes to rebuild what a wiped Redis has lost."""
    found: list[dict[str, float]] = []
    for _ in range(runs):
        with embedded() as stack:
            found.append(measure(stack, subscriptions, partitions, min(in_use, subscriptions)))
    if as_json:
        print(json.dumps({"subscriptions": subscriptions, "partitions": partitions, "runs_s": found}))
        return
    table = Table(title=f"{subscriptions:,} subscriptions x {partitions} partitions, seconds")
    for name in ("run", "all", "one of those in use, median", "max"):
        table.add_column(name, justify="right")
    for number, times in enumerate(found, start=1):
        table.add_row(str(number), *(f"{value:.2f}" for value in times.values()))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
