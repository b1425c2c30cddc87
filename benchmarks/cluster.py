"""What an exchange costs on the nodes of a Redis Cluster: ``python -m benchmarks.cluster``.

Lays many subscriptions into one server and into clusters, makes the same exchanges in all of them, and
measures the CPU time of each server. One client makes all exchanges, and all servers share the cores of this
machine: so the rate is shown, and what the servers would allow is calculated from the CPU time of the busiest
one. There is no peer to compare with.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, NamedTuple

import redis
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.exchanges import Taker, lay, new_address, server_cpu_s
from kafkadur.stack import Stack, embedded
from kafkadur_coordinators.redis.coordinator import RedisCoordinator

#: Primaries of each measurement; 1 is a server that is no cluster.
_PRIMARIES = (1, 3, 6)
#: Records that a member takes at once.
_WINDOW = 100
_talk = Console(stderr=True)


class Figures(NamedTuple):
    """What was measured with so many primaries."""

    primaries: int
    exchanges: int
    #: as one client made them
    exchanges_a_second: float
    #: CPU time of all primaries for an exchange, microseconds
    cpu_us: float
    #: part of the CPU time that the busiest primary had
    busiest: float

    @property
    def allowed(self) -> float:
        """Exchanges a second when the busiest primary uses a whole core."""
        return 1e6 / (self.cpu_us * self.busiest)


def measure(stack: Stack, primaries: int, subscriptions: int, rounds: int) -> Figures:
    """Make exchanges of many subscriptions in turn."""
    coordinator = RedisCoordinator(stack.redis)
    takers: list[Taker] = []
    for _ in range(subscriptions):
        address = new_address()
        lay(coordinator, address)
        takers.append(Taker(coordinator, address))
    before = _cpu_s(stack)
    began = time.perf_counter()
    exchanges = 0
    for _ in range(rounds):
        for taker in takers:
            exchanges += sum(1 for _ in taker.exchanges(1, _WINDOW))
    took = time.perf_counter() - began
    used = [after - at_first for after, at_first in zip(_cpu_s(stack), before, strict=True)]
    coordinator.close()
    return Figures(primaries, exchanges, exchanges / took, sum(used) / exchanges * 1e6, max(used) / sum(used))


def _cpu_s(stack: Stack) -> list[float]:
    """Return the CPU time of each primary, s."""
    if stack.valkey_cluster is None:
        urls = [stack.admin_redis]
    else:
        urls = [node.admin_url for node in stack.valkey_cluster.nodes[: len(stack.valkey_cluster.nodes) // 2]]
    found: list[float] = []
    for url in urls:
        admin: Any = redis.Redis.from_url(url)
        with admin:
            found.append(server_cpu_s(admin))
    return found


def main(
    *,
    subscriptions: Annotated[int, typer.Option(min=1, help="Subscriptions that are used in turn.")] = 120,
    rounds: Annotated[int, typer.Option(min=1, help="Batches of each that are taken and settled.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure exchanges on the nodes of a cluster."""
    figures: list[Figures] = []
    with Progress(console=_talk, transient=True) as progress:
        for primaries in progress.track(_PRIMARIES, description="clusters"):
            wanted = primaries if primaries > 1 else 0
            with embedded(kafka=False, users=True, valkey_primaries=wanted) as stack:
                figures.append(measure(stack, primaries, subscriptions, rounds))
    if as_json:
        print(json.dumps([{**each._asdict(), "allowed": each.allowed} for each in figures]))
        return
    table = Table(
        "primaries", "exchanges/s, one client", "server CPU, µs each", "of the busiest", "exchanges/s allowed"
    )
    for each in figures:
        table.add_row(
            str(each.primaries),
            f"{each.exchanges_a_second:,.0f}",
            f"{each.cpu_us:.0f}",
            f"{each.busiest:.0%}",
            f"{each.allowed:,.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
