"""What is measured of one system in one case: medians and ranges over the runs that are not void."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from benchmarks import payload
from benchmarks.systems.base import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.runner import Pace, Run
    from benchmarks.workloads import Subject


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Return a percentile of sorted samples (nearest rank, no interpolation); NaN without samples."""
    return ordered[max(0, math.ceil(len(ordered) * fraction) - 1)] if ordered else math.nan


def _percentiles(ordered: Sequence[float], prefix: str = "") -> dict[str, float]:
    """Return the percentiles that are shown of sorted samples; nothing without samples."""
    shown = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    if not ordered:
        return {}
    return {f"{prefix}{name}": percentile(ordered, fraction) for name, fraction in shown.items()}


@dataclass(slots=True)
class Row:
    """One system in one variant and one case, over all runs."""

    workload: Workload
    case: str
    system: str
    variant: str
    confirmed: str
    members: int
    shape: str
    messages: int
    #: Messages a second that members without a pause would reach; fan-out only.
    ideal: float | None = None
    lost: int = 0
    repeated: int = 0
    disordered: int = 0
    void: int = 0
    #: Figure -> its value in each run that is not void.
    figures: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    @classmethod
    def of(cls, subject: Subject) -> Row:
        """Return an empty row for a subject."""
        case = subject.case
        return cls(
            workload=case.workload,
            case=case.label,
            system=subject.system,
            variant=subject.variant.name,
            confirmed=subject.variant.confirmed,
            members=case.members,
            shape="skewed" if case.skewed else case.shape.value,
            messages=subject.messages,
            ideal=case.ideal,
        )

    def add(self, run: Run) -> None:
        """Take in one run."""
        self.lost += run.lost
        self.repeated += run.repeated
        self.disordered += run.disordered
        if run.void:
            self.void += 1
            return
        found: dict[str, float] = {"elapsed_s": run.elapsed_s, **run.figures}
        if run.pace is not None:
            found |= self._pace(run.pace)
        if "script_calls" in run.figures:
            found["script_calls_per_message"] = run.figures["script_calls"] / run.messages
        if "fetched_bytes" in run.figures:
            found["amplification"] = run.figures["fetched_bytes"] / (run.messages * payload.SIZE)
        found |= _percentiles(run.delays_ms) | _percentiles(run.failovers_ms)
        found |= _percentiles(run.handovers_ms, "handover_")
        if self.workload is Workload.TURNS and self.members > 1:
            found["messages_a_turn"] = run.messages / (len(run.handovers_ms) + 1)
        if self.workload is Workload.LATENCY:
            found["producer_late_p99_ms"] = run.producer_late_ms
        for name, value in found.items():
            self.figures.setdefault(name, []).append(value)

    def _pace(self, pace: Pace) -> dict[str, float]:
        """Return the figures of members that one clock measured."""
        found: dict[str, float] = {
            "rate": pace.rate,
            "cpu_s_per_100k": pace.cpu_s_per_100k,
            "join_ms": pace.join_ms,
            "first_ms": pace.first_ms,
            "in_hand": pace.in_hand,
        }
        if self.members > 1:
            found["spread"] = pace.spread
        if self.ideal:
            found["of_ideal"] = pace.rate / self.ideal
        return found

    def median(self, figure: str) -> float | None:
        """Return the median of a figure over the runs that are not void; None without any."""
        values = self.figures.get(figure)
        return statistics.median(values) if values else None

    def as_json(self) -> dict[str, object]:
        """Return the row as JSON: every figure as its median, and ``<figure>_runs`` with all values."""
        found: dict[str, object] = {
            name: value for name, value in asdict(self).items() if name != "figures" and value is not None
        }
        found.setdefault("rate", None)
        for name, values in self.figures.items():
            found[name] = rounded(self.median(name))
            found[f"{name}_runs"] = [rounded(value) for value in values]
        return found


def rounded(value: float | None) -> float | None:
    """Round for JSON, which knows neither NaN nor infinity."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
