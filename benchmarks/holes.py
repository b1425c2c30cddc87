"""What an exchange costs where many messages wait: ``python -m benchmarks.holes``.

Lays a partition in which every second message waits for a far time, and lets a member take, settle and roll
back new ones. Measures exchanges and memory with this state and with that of the version before, and draws a
chart. The server is the embedded stack's. There is no peer to compare with: no other system keeps such state.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import redis
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.exchanges import Taker, lay, new_address, server_ms
from kafkadur.stack import embedded
from kafkadur_coordinators.redis.coordinator import STATE_VERSION, STATE_VERSION_BEFORE, RedisCoordinator

#: Records that a member takes at once, and which of them it rolls back.
_WINDOW, _ROLLED_BACK = 100, range(50, 60)
_COUNTS = (0, 10, 100, 1_000, 10_000, 100_000)
_NAMES = {STATE_VERSION: "this version", STATE_VERSION_BEFORE: "the version before"}
_talk = Console(stderr=True)


class Figures(NamedTuple):
    """What was measured with so many waiting messages."""

    version: int
    holes: int
    #: of one exchange in the client, median, ms
    client_ms: float
    #: of one script in the server, mean, ms
    server_ms: float
    #: bytes of all keys, by waiting message; 0: none waits
    bytes_each: float


def measure(url: str, admin_url: str, version: int, holes: int, rounds: int) -> Figures:
    """Measure exchanges with so many waiting messages."""
    coordinator = RedisCoordinator(url, state_version=version)
    address = new_address()
    admin: Any = redis.Redis.from_url(admin_url)
    with admin:
        lay(coordinator, address, holes=holes)
        member = Taker(coordinator, address, end=2 * holes)
        admin.config_resetstat()
        times = list(member.exchanges(rounds, _WINDOW, _ROLLED_BACK))
        server = server_ms(admin)
        keys = list(admin.scan_iter(match=f"{address.root}*", count=1000))
        memory = sum(admin.memory_usage(key, samples=0) for key in keys)
        admin.unlink(*keys)
    coordinator.close()
    waiting = holes + rounds * len(_ROLLED_BACK)
    return Figures(version, holes, statistics.median(times), server, memory / waiting if holes else 0)


def draw(figures: list[Figures], file: Path) -> None:
    """Draw the time of an exchange against the number of waiting messages."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only this needs it, and it takes half a second

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for version, name in _NAMES.items():
        some = [each for each in figures if each.version == version and each.holes]
        axes.plot([each.holes for each in some], [each.client_ms for each in some], marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="messages that wait", ylabel="one exchange, ms (median)")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(title="state as stored by")
    figure.savefig(file, dpi=120)


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Batches that are taken and settled.")] = 200,
    chart: Annotated[Path | None, typer.Option(help="Draw a chart into this PNG or SVG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure exchanges where many messages wait."""
    figures: list[Figures] = []
    with embedded(kafka=False, users=True) as stack, Progress(console=_talk, transient=True) as progress:
        for version, name in _NAMES.items():
            counts = progress.track(_COUNTS, description=name)
            figures += [measure(stack.redis, stack.admin_redis, version, holes, rounds) for holes in counts]
    if chart is not None:
        draw(figures, chart)
    if as_json:
        print(json.dumps([each._asdict() for each in figures]))
        return
    table = Table("state as stored by", "waiting", "exchange, ms", "in the server, ms", "bytes each")
    for each in figures:
        size = f"{each.bytes_each:.1f}" if each.holes else "-"
        numbers = (f"{each.holes:,}", f"{each.client_ms:.2f}", f"{each.server_ms:.2f}", size)
        table.add_row(_NAMES[each.version], *numbers)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
