"""How costs grow with the number of things there are: ``python -m benchmarks growth``.

Exchanges against waiting messages, leases and members of a subscription, and against subscriptions; memory of
a subscription in Redis; CPU and threads of a process with idle attached subscriptions; bytes that members
read from Kafka; time to rebuild a lost Redis. Draws all of it in one chart. The servers are the embedded
stack's; there is no peer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import redis
import typer
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import kafkadur.sync
from benchmarks import rebuild
from benchmarks.exchanges import Taker, lay, new_address, server_ms
from benchmarks.systems.traffic import TOLD_S, Traffic
from kafkadur.stack import embedded
from kafkadur.stack.kafka import quiet_admin
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_sharing.definition import SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkadur.stack import Stack

#: Messages that a member takes at once, and how often it does.
_WINDOW, _ROUNDS = 100, 200
#: Partitions of a subscription whose memory is measured, and of those that are rebuilt.
_PARTITIONS = 12
#: Seconds for which an idle process is measured: once a minute it looks at the retention of its topics.
_IDLE_S = 60.0
#: Messages that members share, their size in bytes, keys, and seconds of work for each.
_SHARED, _SIZE, _KEYS, _WORK_S = 8_000, 100, 1_000, 0.001
#: Seconds after attaching from which on nothing is left to do.
_SETTLED_S = 20
_talk = Console(stderr=True)


class Point(NamedTuple):
    """What was measured with so many."""

    many: int
    #: by the name of the figure
    values: dict[str, float]


class Curve(NamedTuple):
    """One thing that grows, and what is measured of it."""

    name: str
    #: what there are many of
    things: str
    counts: tuple[int, ...]
    #: figures and their unit, on the axis
    figures: str
    measure: Callable[[Stack, int], dict[str, float]]
    #: whether the figures grow with the things: then both axes are logarithmic
    grows: bool = False


class _Place:
    """A coordinator on a Redis that holds nothing else."""

    def __init__(self, stack: Stack) -> None:
        self.coordinator = RedisCoordinator(stack.redis)
        self.admin: Any = redis.Redis.from_url(stack.admin_redis)
        self.admin.flushall()

    def exchanges(self, member: Taker) -> dict[str, float]:
        """Measure a member's exchanges."""
        self.admin.config_resetstat()
        times = list(member.exchanges(_ROUNDS, _WINDOW))
        found = {"client": statistics.median(times), "server": server_ms(self.admin)}
        self.coordinator.close()
        self.admin.close()
        return found


def against_holes(stack: Stack, count: int) -> dict[str, float]:
    """Exchanges where so many messages wait for another attempt."""
    place, address = _Place(stack), new_address()
    lay(place.coordinator, address, holes=count)
    return place.exchanges(Taker(place.coordinator, address, end=2 * count))


def against_leases(stack: Stack, count: int) -> dict[str, float]:
    """Exchanges of a member that holds so many other leases."""
    place, address = _Place(stack), new_address()
    lay(place.coordinator, address)
    member = Taker(place.coordinator, address)
    for _ in range(count):
        member.take(1)
    return place.exchanges(member)


def against_members(stack: Stack, count: int) -> dict[str, float]:
    """Exchanges of one of so many members."""
    place, address = _Place(stack), new_address()
    lay(place.coordinator, address)
    members = [Taker(place.coordinator, address, name=f"m{number}") for number in range(count)]
    return place.exchanges(members[0])


def against_subscriptions(stack: Stack, count: int) -> dict[str, float]:
    """Exchanges of one of so many subscriptions."""
    place, address = _Place(stack), new_address()
    for each in (*(new_address() for _ in range(count - 1)), address):
        lay(place.coordinator, each)
    return place.exchanges(Taker(place.coordinator, address))


def memory(stack: Stack, count: int) -> dict[str, float]:
    """Memory of a subscription of 12 partitions, KiB by partition, with so many waiting messages in each."""
    place, address = _Place(stack), new_address()
    lay(place.coordinator, address, partitions=_PARTITIONS, holes=count)
    keys = list(place.admin.scan_iter(match=f"{address.root}*", count=1000))
    size = sum(place.admin.memory_usage(key, samples=0) for key in keys)
    place.coordinator.close()
    place.admin.close()
    return {"KiB": size / 1024 / _PARTITIONS}


def idle(stack: Stack, count: int) -> dict[str, float]:
    """CPU of a process with so many attached subscriptions, in hundredths of a core; and its threads."""
    topic = f"idle-{uuid.uuid4().hex[:8]}"
    admin = quiet_admin(stack.kafka)  # must outlive what it promises
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    with kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis, namespace=topic) as connection:
        began = time.monotonic()
        for number in range(count):
            connection.subscribe(topic, durable=f"s{number}")
        created = time.monotonic() - began
    before = threads()
    with kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis, namespace=topic) as connection:
        began = time.monotonic()
        for number in range(count):
            connection.subscribe(topic, durable=f"s{number}")
        attached = time.monotonic() - began
        time.sleep(_SETTLED_S)  # until those that wait share a reader
        cpu = time.process_time()
        time.sleep(_IDLE_S)  # what is measured
        cpu = time.process_time() - cpu
        return {
            "CPU, %": cpu / _IDLE_S * 100,
            "threads": threads() - before,
            "creating, s": created,
            "attaching, s": attached,
        }


def threads() -> int:
    """Return the threads of this process, where the system says; else those of Python."""
    tasks = Path("/proc/self/task")
    return sum(1 for _ in tasks.iterdir()) if tasks.exists() else threading.active_count()


def reading(stack: Stack, count: int) -> dict[str, float]:
    """Bytes that so many members of one partition read, for each byte that they are given."""
    return {
        "shared": _read_for_one_byte(stack, SubscriptionType.SHARED, count),
        "key-ordered": _read_for_one_byte(stack, SubscriptionType.KEY_ORDERED, count),
    }


def _read_for_one_byte(stack: Stack, kind: SubscriptionType, members: int) -> float:
    """Bytes that all members read for each byte delivered; each member has a connection of its own."""
    topic = f"reading-{uuid.uuid4().hex[:8]}"
    admin = quiet_admin(stack.kafka)  # must outlive what it promises
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    traffic = Traffic(topic)
    kafka = {"bootstrap.servers": stack.kafka, **traffic.settings}
    handled = itertools.count(1)
    done = threading.Event()

    def handle(subscription: kafkadur.sync.Subscription[Any, Any]) -> None:
        while not done.is_set():
            delivery = subscription.receive(timeout=0.2)
            if delivery is not None:
                time.sleep(_WORK_S)  # the work on a message
                delivery.ack_nowait()
                if next(handled) >= _SHARED:
                    done.set()

    with contextlib.ExitStack() as opened:
        threads: list[threading.Thread] = []
        for _ in range(members):
            connection = kafkadur.sync.connect(kafka=kafka, redis=stack.redis, namespace=topic)
            subscription = opened.enter_context(connection).subscribe(
                topic, type=kind, durable="all", window=_WINDOW
            )
            threads.append(threading.Thread(target=handle, args=(subscription,)))
        for thread in threads:
            thread.start()
        producer = Producer({"bootstrap.servers": stack.kafka, "linger.ms": 20})
        for number in range(_SHARED):
            key = b"%d" % (number % _KEYS)
            producer.produce(topic, bytes(_SIZE), key)
        producer.flush()
        for thread in threads:
            thread.join()
        time.sleep(TOLD_S)  # until librdkafka has told all that it received
    return traffic.received / (_SHARED * _SIZE)


def recovery(stack: Stack, count: int) -> dict[str, float]:
    """Seconds until so many subscriptions of 12 partitions are rebuilt; and until one that is in use is."""
    del stack  # it needs servers of its own
    with embedded() as own:
        found = rebuild.measure(own, count, _PARTITIONS, min(count, 20))
    return {"all": found["all"], "one in use": found["one_median"]}


CURVES = (
    Curve(
        "holes", "messages that wait", (1, 10, 100, 1_000, 10_000, 100_000), "an exchange, ms", against_holes
    ),
    Curve("leases", "leases of the member", (1, 10, 50, 200, 500), "an exchange, ms", against_leases),
    Curve("members", "members", (1, 2, 4, 8, 16, 32, 64), "an exchange, ms", against_members),
    Curve(
        "subscriptions",
        "subscriptions",
        (1, 10, 100, 1_000, 10_000),
        "an exchange, ms",
        against_subscriptions,
    ),
    Curve(
        "memory",
        "messages that wait",
        (0, 10, 100, 1_000),
        "a partition in Redis, KiB",
        memory,
        grows=True,
    ),
    Curve("idle", "attached subscriptions", (1, 10, 50, 200, 1_000), "CPU, % of a core", idle, grows=True),
    Curve(
        "reading",
        "members of one partition",
        (1, 2, 4, 8),
        "bytes read / bytes delivered",
        reading,
    ),
    Curve("recovery", "subscriptions", (10, 100, 1_000, 10_000), "rebuilding, s", recovery, grows=True),
)


def draw(found: dict[str, list[Point]], file: Path) -> None:
    """Draw one picture for each curve."""
    # only this needs them, and they take half a second
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    figure = Figure(figsize=(12, 3.2 * ((len(found) + 2) // 3)), layout="constrained")
    shown = [curve for curve in CURVES if curve.name in found]
    for index, curve in enumerate(shown, 1):
        points = found[curve.name]
        axes = figure.add_subplot((len(shown) + 2) // 3, 3, index)
        drawn = ["CPU, %"] if curve.name == "idle" else list(points[0].values)
        counts = [max(point.many, 1) for point in points]
        for name in drawn:
            axes.plot(counts, [point.values[name] for point in points], marker="o", label=name)
        axes.set(xscale="log", xlabel=curve.things, ylabel=curve.figures, xticks=counts)
        if curve.grows:
            axes.set(yscale="log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        else:
            axes.set_ylim(bottom=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, alpha=0.3)
        if len(drawn) > 1:
            axes.legend()
    figure.savefig(file, dpi=110)


def main(
    *,
    curves: Annotated[
        str,
        typer.Option(help=f"Comma-separated: {', '.join(curve.name for curve in CURVES)}."),
    ] = "",
    most: Annotated[int | None, typer.Option(min=1, help="Leave out larger counts.")] = None,
    chart: Annotated[Path | None, typer.Option(help="Draw a chart into this PNG or SVG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how costs grow."""
    wanted = curves.split(",") if curves else [curve.name for curve in CURVES]
    if unknown := sorted(set(wanted) - {curve.name for curve in CURVES}):
        message = f"there is no curve {unknown[0]!r}"
        raise typer.BadParameter(message)
    found: dict[str, list[Point]] = {}
    with embedded(users=True) as stack, Progress(console=_talk, transient=True) as progress:
        for curve in (each for each in CURVES if each.name in wanted):
            counts = [count for count in curve.counts if most is None or count <= most]
            found[curve.name] = [
                Point(count, curve.measure(stack, count))
                for count in progress.track(counts, description=curve.name)
            ]
    if chart is not None:
        draw(found, chart)
    if as_json:
        print(json.dumps({name: [point._asdict() for point in points] for name, points in found.items()}))
        return
    for curve in (each for each in CURVES if each.name in found):
        points = found[curve.name]
        table = Table(curve.things, *points[0].values, title=curve.figures, title_justify="left")
        for point in points:
            table.add_row(f"{point.many:,}", *(f"{value:.2f}" for value in point.values.values()))
        Console().print(table)
