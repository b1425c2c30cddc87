"""The command ``python -m benchmarks plan``: shows a plan, or measures the costs of this machine first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.plan.costs import COSTS, load, save
from benchmarks.plan.planning import Bottleneck, Demand, Machine, Plan, bottleneck, plan

_GIB = 2**30


def main(
    *,
    subscriptions: Annotated[int, typer.Option(min=1, help="Durable subscriptions.")] = 10_000,
    members: Annotated[int, typer.Option(min=1, help="Attached consumers, of all subscriptions.")] = 5_000,
    rate: Annotated[float, typer.Option(min=1, help="Messages a second that are published.")] = 1_000_000,
    topics: Annotated[
        int, typer.Option(min=0, help="Topics; 0: one for each subscription with a consumer.")
    ] = 0,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a message.")] = 500,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of each topic.")] = 12,
    window: Annotated[int, typer.Option(min=1, help="Window of each consumer, messages.")] = 1_000,
    waiting: Annotated[int, typer.Option(min=0, help="Messages that wait for another attempt.")] = 0,
    replication: Annotated[int, typer.Option(min=1, help="Replicas of each partition.")] = 3,
    linger: Annotated[float, typer.Option(min=0.1, help="Time that producers gather a batch, ms.")] = 5.0,
    cores: Annotated[int, typer.Option(min=1, help="Cores of a broker.")] = 8,
    gbits: Annotated[float, typer.Option(min=0.1, help="Network of a server, Gbit/s.")] = 10.0,
    used: Annotated[float, typer.Option(min=0.1, max=1.0, help="Part of a server to be used.")] = 0.6,
    costs: Annotated[Path, typer.Option(help="File of measured costs.")] = COSTS,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the costs here first (2 minutes), and write the file.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """Calculate what an installation needs, from measured costs."""
    if measure:
        # only this needs servers and their clients
        from benchmarks.plan.measuring import measured  # noqa: PLC0415

        save(measured(), costs)
    demand = Demand(
        subscriptions=subscriptions,
        members=members,
        rate=rate,
        topics=topics or min(subscriptions, members),
        size=size,
        partitions=partitions,
        window=window,
        waiting=waiting,
        replication=replication,
        linger=linger / 1_000,
    )
    machine = Machine(cores=cores, gbits=gbits, load=used)
    known = load(costs)
    found, first = plan(demand, machine, known), bottleneck(demand, machine, known)
    if as_json:
        needs = [asdict(each) | {"used": each.used} for each in found.needs]
        document = asdict(found) | {"needs": needs, "bottleneck": first._asdict()}
        typer.echo(json.dumps({"demand": asdict(demand), "machine": asdict(machine), "plan": document}))
        return
    show(demand, found, first, Console())


def show(demand: Demand, found: Plan, first: Bottleneck, console: Console) -> None:
    """Print a plan."""
    console.print(
        f"{demand.topics:,} topics of {demand.partitions:,} partitions; {demand.active:,} of "
        f"{demand.subscriptions:,} subscriptions have a consumer; each message goes to "
        f"{demand.followers:,.3g} of them."
    )
    table = Table("", "needed", title="What it needs", title_justify="left")
    for what, needed in (
        ("Kafka brokers", f"{found.brokers:,}"),
        ("Redis primaries (each with a replica)", f"{found.primaries:,}"),
        ("memory of Redis", f"{found.redis_bytes / _GIB:,.2f} GiB"),
        ("exchanges a second", f"{found.exchanges:,.0f}"),
        ("cores of consumers", f"{found.client_cores:,.0f}"),
        ("network of consumers", f"{found.client_gbits:,.1f} Gbit/s"),
        ("memory of consumers, a process each", f"{found.client_bytes / _GIB:,.0f} GiB"),
    ):
        table.add_row(what, needed)
    table.columns[1].justify = "right"
    console.print(table)
    use = Table(
        "", "needed", "one has", "how many", "used", title="How much of it is used", title_justify="left"
    )
    for each in found.needs:
        use.add_row(
            each.what,
            f"{each.need:,.2f} {each.unit}".strip(),
            f"{each.of_one:,.0f} {each.unit}".strip(),
            f"{each.count:,}" if each.divisible else "only one",
            f"{each.used:.1%}",
        )
    for column in use.columns[1:]:
        column.justify = "right"
    console.print(use)
    console.print(
        f"First bottleneck: {first.what}, at {first.times:,.1f} times the rate. More servers do not lift it."
    )
