"""What a delivery history costs: ``python -m benchmarks.history``.

Takes and settles the same messages with and without a history, on the servers of the embedded stack: run 1 of
each, then run 2, in turns. The first tenth of the messages is not counted. A run ends when the coordinator
has confirmed all. There is no peer to compare with: no other system records deliveries of Kafka.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Annotated, NamedTuple

import confluent_kafka
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import kafkadur.sync
from benchmarks.children import BenchmarkError
from kafkadur.admin.topics import TopicAdmin
from kafkadur.history.entries import topic_of
from kafkadur.stack import Stack, embedded
from kafkadur_sharing.definition import TypeName

#: The least part of the rate without a history that is left.
GOAL = 0.95
_HOUR_S = 3_600
_PARTITIONS, _BYTES, _KEYS, _BATCH = 4, 100, 1_000, 500
#: One message in so many is rolled back where that is measured.
_ROLLED_BACK = 20
_talk = Console(stderr=True)

Work = Callable[[kafkadur.sync.Subscription, int], None]


def one_by_one(subscription: kafkadur.sync.Subscription, count: int) -> None:
    """Acknowledge each message without waiting."""
    for number, delivery in enumerate(subscription, 1):
        delivery.ack_nowait()
        if number == count:
            return


def some_rolled_back(subscription: kafkadur.sync.Subscription, count: int) -> None:
    """Roll one message in 20 back, and acknowledge it when it comes again."""
    for delivery in subscription:
        if delivery.attempt == 1 and delivery.offset % _ROLLED_BACK == 0:
            delivery.rollback()
            continue
        delivery.ack_nowait()
        count -= 1
        if count == 0:
            return


def in_batches(subscription: kafkadur.sync.Subscription, count: int) -> None:
    """Acknowledge batches without waiting."""
    while count > 0:
        batch = subscription.receive_batch(min(count, _BATCH), timeout=60)
        if batch is None:
            message = f"{count} messages did not come"
            raise BenchmarkError(message)
        count -= len(batch)
        batch.ack_nowait()


class Case(NamedTuple):
    """What is compared."""

    label: str
    kind: TypeName
    window: int
    #: of the messages of the topic
    fraction: float
    work: Work


CASES = (
    Case("shared, each message", "shared", 10_000, 1.0, one_by_one),
    Case("shared, batches", "shared", 10_000, 1.0, in_batches),
    Case("shared, 1 in 20 rolled back", "shared", 10_000, 0.03, some_rolled_back),
    Case("exclusive, each message", "exclusive", 10_000, 1.0, one_by_one),
    Case("exclusive, window 1", "exclusive", 1, 0.5, one_by_one),
    Case("key-ordered, each message", "key-ordered", 10_000, 0.1, one_by_one),
)


class Figures(NamedTuple):
    """What one run measured."""

    #: messages a second
    rate: float
    #: seconds of CPU of this process for 100,000 messages
    cpu: float


def fill(stack: Stack, count: int) -> str:
    """Write so many messages to a new topic."""
    topic = f"history-{uuid.uuid4().hex[:8]}"
    admin = TopicAdmin({"bootstrap.servers": stack.kafka})
    admin.create(topic, partitions=_PARTITIONS)
    admin.close()
    producer = confluent_kafka.Producer({"bootstrap.servers": stack.kafka, "linger.ms": 50})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, b"x" * _BYTES, b"k%d" % (number % _KEYS))
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush()
    return topic


def measure(stack: Stack, topic: str, case: Case, count: int, *, recorded: bool) -> Figures:
    """Settle the messages once."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    with kafkadur.sync.connect(
        kafka=stack.kafka, redis=stack.redis, namespace=namespace, client_id="c"
    ) as connection:
        subscription: kafkadur.sync.Subscription = connection.subscribe(
            topic, durable="d", type=case.kind, start="earliest", window=case.window,
            history=_HOUR_S if recorded else None,
        )  # fmt: skip
        warm_up(stack, subscription)
        first = count // 10
        case.work(subscription, first)
        count -= first + 1
        began, used = time.monotonic(), cpu()
        case.work(subscription, count)
        subscription.close()
        took = time.monotonic() - began
    return Figures(count / took, (cpu() - used) / count * 100_000)


def warm_up(stack: Stack, subscription: kafkadur.sync.Subscription) -> None:
    """Settle one message, and wait until the topic of the history is there, if there is one."""
    first = subscription.receive(timeout=60)
    if first is None:
        message = "no message came"
        raise BenchmarkError(message)
    first.ack()
    admin = TopicAdmin({"bootstrap.servers": stack.kafka})
    topic, deadline = topic_of(subscription.definition.key), time.monotonic() + 60
    while subscription.definition.definition.history is not None and topic not in admin.names():
        if time.monotonic() > deadline:
            message = "the topic of the history was not created"
            raise BenchmarkError(message)
    admin.close()


def cpu() -> float:
    """Return the CPU that this process has used, seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(
    *,
    messages: Annotated[int, typer.Option(min=1_000, help="Messages of the topic.")] = 600_000,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what a delivery history costs."""
    found: dict[str, dict[bool, list[Figures]]] = {case.label: {False: [], True: []} for case in CASES}
    with embedded() as stack, Progress(console=_talk, transient=True) as progress:
        topic = fill(stack, messages)
        task = progress.add_task("measuring", total=runs * len(CASES) * 2)
        for run in range(runs):
            for case in CASES:
                for recorded in (False, True) if run % 2 else (True, False):
                    count = round(messages * case.fraction)
                    found[case.label][recorded].append(measure(stack, topic, case, count, recorded=recorded))
                    progress.advance(task)
    rows: dict[str, dict[str, float]] = {
        label: {
            "without": statistics.median(each.rate for each in some[False]),
            "with": statistics.median(each.rate for each in some[True]),
            "cpu_without": statistics.median(each.cpu for each in some[False]),
            "cpu_with": statistics.median(each.cpu for each in some[True]),
        }
        for label, some in found.items()
    }
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("settled", "messages/s", "with a history", f"ratio (goal: {GOAL})", "CPU s/100,000", "with")
    for label, row in rows.items():
        table.add_row(
            label, f"{row['without']:,.0f}", f"{row['with']:,.0f}", f"{row['with'] / row['without']:.2f}",
            f"{row['cpu_without']:.3f}", f"{row['cpu_with']:.3f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
