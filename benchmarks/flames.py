"""Where the time of a message goes, drawn: ``python -m benchmarks.flames FOLDER``.

Writes three flame graphs as SVG: a consumer that drains a backlog, one that confirms each message, and Redis
meanwhile. The width of a frame is its share of the samples that were taken while it was on the stack. py-spy
looks at the consumers (uv fetches it): at threads while they have Python's lock. `perf` of Linux looks at the
server.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from redis import Redis
from rich.console import Console

import kafkadur.sync
from benchmarks.source import Backlog, Shape, fill
from benchmarks.systems.base import Store
from kafkadur.stack import Stack, embedded

#: Messages that are drained, and that are confirmed one by one.
_DRAINED, _CONFIRMED = 3_000_000, 20_000
_PARTITIONS = 4
_RATE: Final = 500
_LIMIT_S = 120.0
_PERF, _UNKNOWN = "perf", "[unknown]"
#: Frames that are narrower than this share of the whole are left out.
_NARROWEST = 0.004
#: Frames of how Python starts a module, and of how it imports one.
_STARTING, _IMPORTING = ("(<frozen runpy>", "<module> ("), "(<frozen importlib"
_PLACE = re.compile(r"^(?P<name>.*) \((?:.*/)?(?P<module>[^/().:]+)[^/()]*\)$")

_talk = Console(stderr=True)


@dataclass
class Frame:
    """A function on the stack, with those that it called."""

    name: str
    samples: int = 0
    called: dict[str, Frame] = field(default_factory=dict[str, "Frame"])

    def add(self, stack: Iterable[str], samples: int) -> None:
        """Count samples of a stack, whose outermost function comes first."""
        self.samples += samples
        frame = self
        for name in stack:
            frame = frame.called.setdefault(name, Frame(name))
            frame.samples += samples

    def rows(self, left: int = 0, depth: int = 0) -> Iterator[tuple[Frame, int, int]]:
        """Yield each frame with the samples to the left of it, and its depth."""
        yield self, left, depth
        for frame in sorted(self.called.values(), key=lambda each: each.name):
            yield from frame.rows(left, depth + 1)
            left += frame.samples


def of_py_spy(text: str) -> Frame:
    """Return the frames of what `py-spy record --format raw` wrote; importing modules is left out."""
    root = Frame("Python")
    for line in text.splitlines():
        stack, _, samples = line.rpartition(" ")
        if _IMPORTING not in stack:
            names = [name for name in stack.split(";") if not any(start in name for start in _STARTING)]
            root.add(map(_short, names), int(samples))
    return root


def of_perf(text: str) -> Frame:
    """Return the frames of what `perf script` wrote: a head, and one line for each frame, innermost first.

    Frames without a name are left out: the Lua of Redis is built so that most of its callers are not found.
    """
    root = Frame("Redis")
    stacks: Counter[tuple[str, ...]] = Counter()
    for sample in text.split("\n\n"):
        lines = [line.split() for line in sample.strip().splitlines()[1:]]
        names = [words[1].partition("+")[0] for words in lines if len(words) > 1 and words[1] != _UNKNOWN]
        if names:
            stacks[tuple(reversed(names))] += 1
    for stack, samples in stacks.items():
        root.add(stack, samples)
    return root


def _short(name: str) -> str:
    """Return `module.function` for a frame that names the file of its function."""
    found = _PLACE.match(name)
    return name if found is None else f"{found['module']}.{found['name']}"


def draw(root: Frame, title: str, file: Path) -> None:
    """Draw frames, callers above those that they called, into an SVG file."""
    # only this needs them, and they take half a second
    from matplotlib import colormaps, rcParams  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    rcParams["svg.fonttype"] = "none"  # texts stay texts
    rcParams["svg.hashsalt"] = "flames"  # the same file from the same samples
    if not root.samples:
        message = f"no samples were taken: {title}"
        raise ValueError(message)
    shown = [row for row in root.rows() if row[0].samples >= _NARROWEST * root.samples]
    deepest = max(depth for _, _, depth in shown)
    figure = Figure(figsize=(14, 0.2 * deepest + 0.8), layout="constrained")
    axes = figure.add_subplot()
    warm = colormaps["autumn"]
    for frame, left, depth in shown:
        width = frame.samples / root.samples
        shade = 0.25 + (zlib.crc32(frame.name.encode()) % 100) / 150
        axes.barh(
            depth, width, 0.95, left / root.samples, color=warm(shade), edgecolor="white", linewidth=0.4
        )
        if room := int(width * 190):
            name = frame.name if len(frame.name) <= room else f"{frame.name[: room - 1]}…"
            if room > 3:  # noqa: PLR2004 - fewer letters say nothing
                axes.text(left / root.samples + 0.001, depth, name, fontsize=6.5, va="center", clip_on=True)
    axes.set(xlim=(0, 1), ylim=(deepest + 0.5, -0.5), title=title)
    axes.set_axis_off()
    figure.savefig(file, metadata={"Date": None})


def drain(kafka: str, redis: str, topic: str, count: int) -> None:
    """Receive so many messages, and acknowledge each without waiting."""
    with (
        kafkadur.sync.connect(kafka=kafka, redis=redis, namespace="flames") as connection,
        connection.subscribe(topic, durable="drained", start="earliest", window=10_000) as subscription,
    ):
        for number, delivery in enumerate(subscription, 1):
            delivery.ack_nowait()
            if number == count:
                break
        subscription.flush()


def confirm(kafka: str, redis: str, topic: str, count: int) -> None:
    """Receive so many messages, and wait for the confirmation of each."""
    with (
        kafkadur.sync.connect(kafka=kafka, redis=redis, namespace="flames", client_id="c") as connection,
        connection.subscribe(
            topic, durable="confirmed", type="exclusive", start="earliest", window=1
        ) as subscription,
    ):
        for _ in range(count):
            delivery = subscription.receive(timeout=_LIMIT_S)
            if delivery is None:
                message = f"no message came for {_LIMIT_S:.0f} s"
                raise TimeoutError(message)
            delivery.ack()


def _publish(stack: Stack, topic: str, count: int) -> None:
    backlog = Backlog(store=Store.KAFKA, name=topic, shape=Shape.BIG, partitions=_PARTITIONS, messages=count)
    fill(backlog, kafka=stack.kafka, redis_at=stack.redis)


def _consumer(work: str, stack: Stack, topic: str, count: int) -> list[str]:
    """Return the command of a consumer."""
    return [sys.executable, "-m", "benchmarks.flames", work, stack.kafka, stack.redis, topic, str(count)]


def _watched(command: list[str], folder: Path) -> Frame:
    """Run a consumer under py-spy."""
    file = folder / "stacks"
    spy = [sys.executable, "-m", "uv", "tool", "run", "py-spy", "record", "--format", "raw", "--gil"]
    options = ["--rate", str(_RATE), "--output", str(file)]
    subprocess.run([*spy, *options, "--", *command], check=True, stdout=subprocess.DEVNULL)
    return of_py_spy(file.read_text(encoding="utf-8"))


def _server(stack: Stack, command: list[str], folder: Path) -> Frame:
    """Run a consumer, and look at the server meanwhile."""
    file = str(folder / "perf.data")
    with Redis.from_url(stack.redis) as client:
        process = str(client.info("server")["process_id"])
    watch = [_PERF, "record", "--event", "cpu-clock", "--freq", "2000", "--call-graph", "fp"]
    options = ["--output", file, "--pid", process]
    subprocess.run([*watch, *options, "--", *command], check=True, stdout=subprocess.DEVNULL)
    show = [_PERF, "script", "--input", file, "--fields", "comm,ip,sym"]
    found = subprocess.run(show, check=True, stdout=subprocess.PIPE, text=True)
    return of_perf(found.stdout)


def _draw_all(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with embedded() as stack, tempfile.TemporaryDirectory() as place, _talk.status("publishing") as status:
        _publish(stack, "drained", _DRAINED)
        _publish(stack, "confirmed", 2 * _CONFIRMED)
        status.update("a consumer drains a backlog")
        root = _watched(_consumer("drain", stack, "drained", _DRAINED), Path(place))
        draw(root, "A consumer drains a backlog and acknowledges each message", folder / "flame-drain.svg")
        status.update("a consumer confirms each message")
        root = _watched(_consumer("confirm", stack, "confirmed", _CONFIRMED), Path(place))
        draw(root, "A consumer waits for the confirmation of each message", folder / "flame-confirm.svg")
        status.update("the server confirms each message")
        root = _server(stack, _consumer("confirm", stack, "confirmed", _CONFIRMED), Path(place))
        draw(root, "Redis while each message is confirmed", folder / "flame-redis.svg")


def main(folder: Annotated[Path, typer.Argument(help="Where the SVG files go.")]) -> None:
    """Draw where the time of a message goes."""
    if shutil.which(_PERF) is None:
        message = f"{_PERF} of Linux is not installed; it looks at the server"
        raise typer.BadParameter(message)
    _draw_all(folder)


if __name__ == "__main__":
    works = {"drain": drain, "confirm": confirm}
    if len(sys.argv) > 1 and sys.argv[1] in works:
        name, kafka_servers, redis_url, from_topic, messages = sys.argv[1:]
        works[name](kafka_servers, redis_url, from_topic, int(messages))
    else:
        typer.run(main)
