"""What a soak has shown: a judgement, a table and a chart."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.soak.driving import SETTLING_S, Record
from benchmarks.soak.measures import Point, Slope, outside, percentile, slope
from benchmarks.soak.working import TYPES

#: This part of the run is left out of slopes: caches fill, and the JVM of Kafka grows to its size.
_WARM_UP = 1 / 4
#: What a value may grow in the run, as a part of its mean.
_TOLERATED_MEMORY, _TOLERATED_P99 = 0.05, 0.5
#: Seconds of which a percentile is made.
_STEP_S = 10.0


@dataclass
class Findings:
    """What is judged."""

    hours: float
    #: messages a second at most, and published
    peak: float
    rate: float
    published: int
    repeated: int
    #: offsets that no member was handed, by type
    lost: dict[str, int]
    #: p99 of the undisturbed seconds, ms
    p99_ms: float
    #: of memory (MB), and of the 99th percentile of ages (ms)
    slopes: dict[str, Slope]
    disturbances: dict[str, int]
    #: lines of the log outside of disturbances
    warnings: list[str]
    faults: list[str] = field(default_factory=list[str])

    def as_json(self) -> dict[str, object]:
        """Return the document for machines."""
        return {**asdict(self), "slopes": {name: one._asdict() for name, one in self.slopes.items()}}


def judge(record: Record, peak: float, rate: float) -> Findings:
    """Judge a run that published at this rate."""
    warm = record.began + (record.ended - record.began) * _WARM_UP
    hours = (record.ended - warm) / 3_600
    disturbed = [(one.at, one.at + SETTLING_S) for one in record.disturbances]
    calm = outside(record.latencies, disturbed)
    slopes: dict[str, Slope] = {}
    untold: list[str] = []
    for name, points in (*sorted(record.memory.items()), ("p99, ms", percentiles(calm))):
        try:
            slopes[name] = slope([point for point in points if point.at >= warm])
        except ValueError as error:  # the run was broken off early
            untold.append(f"nothing is known of {name}: {error}")
    found = Findings(
        hours=(record.ended - record.began) / 3_600,
        peak=peak,
        rate=rate,
        published=record.published,
        repeated=record.repeated,
        lost=record.lost,
        p99_ms=percentile([point.value for point in calm], 0.99) if calm else 0.0,
        slopes=slopes,
        disturbances=dict(Counter(one.kind for one in record.disturbances)),
        warnings=[
            one.text for one in record.warnings if not any(start <= one.at <= end for start, end in disturbed)
        ],
    )
    found.faults += untold
    found.faults += [
        f"{many:,} messages of {kind} were not handled" for kind, many in found.lost.items() if many
    ]
    found.faults += [f"{len(found.warnings)} warnings while nothing was disturbed"] if found.warnings else []
    for name, one in slopes.items():
        tolerated = _TOLERATED_P99 if name.startswith("p99") else _TOLERATED_MEMORY
        if one.grows(tolerated, hours):
            found.faults.append(f"{name} grows by {one.per_hour:.2f} an hour, mean {one.mean:.1f}")
    return found


def percentiles(points: Sequence[Point]) -> list[Point]:
    """Return the 99th percentile of each few seconds."""
    steps: defaultdict[int, list[float]] = defaultdict(list)
    for point in points:
        steps[int(point.at / _STEP_S)].append(point.value)
    return [Point(step * _STEP_S, percentile(values, 0.99)) for step, values in sorted(steps.items())]


def show(found: Findings, console: Console) -> None:
    """Print the report."""
    console.print(
        f"{found.hours * 60:.0f} minutes at {found.rate:,.0f} messages a second, half of the peak "
        f"({found.peak:,.0f}): {found.published:,} published, each handled by {len(TYPES)} subscriptions; "
        f"{sum(found.lost.values()):,} lost, {found.repeated:,} handled again; p99 {found.p99_ms:.0f} ms"
    )
    console.print(", ".join(f"{kind}: {many}" for kind, many in found.disturbances.items()))
    table = Table("", "mean", "change an hour", "standard error")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, one in found.slopes.items():
        unit = name if name.startswith("p99") else f"memory of {name}, MB"
        table.add_row(unit, f"{one.mean:.1f}", f"{one.per_hour:+.2f}", f"{one.error:.2f}")
    console.print(table)
    for text, many in Counter(found.warnings).most_common(20):
        console.print(f"{many} x {text}", markup=False)
    for fault in found.faults:
        console.print(f"FAULT: {fault}", markup=False)


def draw(record: Record, file: Path) -> None:
    """Draw rates, ages and memory by time; disturbances are thin lines."""
    # only this needs it, and it takes half a second
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(12, 9), layout="constrained")
    axes = figure.subplots(2, 2).flat
    titles = (
        "messages a second",
        "age of the first message of a batch, p99, ms",
        "clients, MB",
        "servers, MB",
    )
    began = record.began

    def line(axis: int, points: Sequence[Point], label: str) -> None:
        axes[axis].plot([(p.at - began) / 60 for p in points], [p.value for p in points], label=label, lw=1)

    for name, points in record.rates.items():
        line(0, _by_second(points, len(TYPES) if name == "handled" else 1), name)
    line(1, percentiles(record.latencies), "p99")
    for name, points in record.memory.items():
        line(3 if name.startswith(("Redis", "Kafka")) else 2, points, name)
    for axis, title in zip(axes, titles, strict=True):
        for one in record.disturbances:
            axis.axvline((one.at - began) / 60, color="grey", lw=0.3)
        axis.set(title=title, xlabel="minutes")
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
        axis.legend()
    axes[1].set(yscale="log", ylim=(1, None))
    figure.savefig(file, dpi=110)


def _by_second(points: Sequence[Point], parts: int) -> list[Point]:
    """Return sums a second over a few seconds, divided into so many parts."""
    steps: defaultdict[int, float] = defaultdict(float)
    for point in points:
        steps[int(point.at / _STEP_S)] += point.value
    return [Point(step * _STEP_S, total / _STEP_S / parts) for step, total in sorted(steps.items())]
