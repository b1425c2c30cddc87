"""What an exchange costs where many messages wait: ``python -m benchmarks.holes``.

Lays a partition in which every second message waits for a far time, and lets a member take, settle and roll
back new ones. Measures exchanges and memory with this state and with that of the version before, and draws a
chart. The server is the embedded stack's. There is no peer to compare with: no other system keeps such state.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import redis
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kafkadur.stack import embedded
from kafkadur_coordinators.changes import CHANGE_MS
from kafkadur_coordinators.interface import Exchange, How, PartitionReport, Returned, Settled
from kafkadur_coordinators.redis.coordinator import (
    STATE_VERSION,
    STATE_VERSION_BEFORE,
    RedisCoordinator,
    SubscriptionAddress,
)
from kafkadur_coordinators.redis.member_session import MemberSession
from kafkadur_coordinators.redis.wire import ChangeRequest, InstallRequest, Laid, PartitionsRequest, Policy
from kafkadur_coordinators.settlement_states import SettlementState, Waiting, earliest, packed

if TYPE_CHECKING:
    from collections.abc import Iterator

_ID, _STATE, _TOKEN = "0.holes", "topic-1", "token"
#: Records that a member takes at once, and which of them it rolls back.
_WINDOW, _ROLLED_BACK = 100, range(50, 60)
#: Messages wait for so long, ms.
_FAR_MS = 86_400_000
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


def _lay(coordinator: RedisCoordinator, address: SubscriptionAddress, holes: int) -> None:
    """Create a shared subscription of one partition, of which every second message waits."""
    due = round(time.time() * 1000) + _FAR_MS
    waiting = tuple(Waiting(2 * n, 2 * n + 1, 1, redelivered=True, due=due + n) for n in range(holes))
    state = SettlementState(next=2 * holes, waiting=waiting)
    laid = Laid(0, state.next, 0, packed(state), earliest(state))
    install = InstallRequest(
        id=_ID,
        version=1,
        definition='{"topic_id": "topic-1"}',
        type="shared",
        partitions=1,
        incarnation=1,
        token=_TOKEN,
        quiet=0,
        policy=Policy(0, 0, 0, 0, 1, 0),
        anew=0,
        unclaimed=0,
    )
    common, keys = coordinator.common(), address.fixed()
    coordinator.call("change", keys, [*common, *ChangeRequest(0, _TOKEN, CHANGE_MS)])
    partitions = [*keys, *address.partition(_ID, _STATE, 0)]
    coordinator.call("partitions", partitions, [*common, *PartitionsRequest([laid], _TOKEN, 1, 1)])
    coordinator.call("install", keys, [*common, *install])


def _exchanges(session: MemberSession, first: int, rounds: int) -> Iterator[float]:
    """Take, settle and roll back; yield how long each exchange took, ms."""
    number, have, end = 0, 0, first

    def say(report: PartitionReport, credit: int) -> Any:  # noqa: ANN401 - as the reply
        nonlocal number
        number += 1
        exchange = Exchange(
            number=number, credit=credit, have=have, ask_presence=False, span=_WINDOW, parts=[report]
        )
        began = time.perf_counter()
        reply = session.exchange(exchange)
        return reply, (time.perf_counter() - began) * 1000

    for _ in range(rounds):
        end += _WINDOW
        reply, took = say(PartitionReport(partition=0, readable_end=end), _WINDOW)
        yield took
        (grant,) = reply.grants
        have = grant.token
        start, stop = grant.start + _ROLLED_BACK.start, grant.start + _ROLLED_BACK.stop
        said = PartitionReport(
            partition=0,
            settled=[Settled(have, (grant.start, start, stop, grant.horizon))],
            returned=[
                Returned(have, offset, offset + 1, int(How.ROLLED_BACK), _FAR_MS + offset)
                for offset in range(start, stop)
            ],
        )
        yield say(said, 0)[1]


def measure(url: str, admin_url: str, version: int, holes: int, rounds: int) -> Figures:
    """Measure exchanges with so many waiting messages."""
    coordinator = RedisCoordinator(url, state_version=version)
    address = SubscriptionAddress(prefix="kafkadur", namespace="holes", tag=uuid.uuid4().hex[:16])
    admin: Any = redis.Redis.from_url(admin_url)
    with admin:
        _lay(coordinator, address, holes)
        session = MemberSession(coordinator, address, subscription_id=_ID, state=_STATE, member="m")
        session.attach(name="m", session_ms=60_000, version=1, most=0)
        admin.config_resetstat()
        times = list(_exchanges(session, 2 * holes, rounds))
        server = admin.info("commandstats")["cmdstat_evalsha"]["usec_per_call"] / 1000
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
