"""Rows (medians and ranges over the runs), the table for people and the JSON document.

Void runs count in no figure. Ratios name their baseline; absolute numbers are shown, never judged.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table

from benchmarks.goals import GOALS, evaluate
from benchmarks.rows import Row, rounded
from benchmarks.systems.base import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from benchmarks.goals import Verdict
    from benchmarks.workloads import Subject

#: The peer each workload's ratios are named against, by preference: (system, variant).
BASELINES: dict[Workload, tuple[tuple[str, str], ...]] = {
    Workload.DRAIN: (("raw", "tuned"), ("share", "explicit"), ("redis", "batch")),
    Workload.WINDOW1: (("raw", "sync-each"), ("redis", "one-trip")),
    Workload.TURNS: (("redis", "one-trip"), ("raw", "sync-each")),
    Workload.FANOUT: (),
    Workload.LATENCY: (("raw", "poll"), ("redis", "each")),
    Workload.FIRST: (("raw", "group"), ("raw", "assign")),
    Workload.FAILOVER: (),
    Workload.AMPLIFICATION: (("raw", "group"),),
}

#: What the ratios of a workload are about; the rate where nothing is said.
_JUDGED: dict[Workload, str] = {
    Workload.LATENCY: "p50_ms",
    Workload.FIRST: "p50_ms",
    Workload.FAILOVER: "p50_ms",
    Workload.AMPLIFICATION: "amplification",
}
#: Workloads without ratios: they are judged by what is ideal, or promised.
_ABSOLUTE = frozenset({Workload.FANOUT, Workload.FAILOVER})


@dataclass(slots=True)
class Report:
    """All rows of one call."""

    workload: Workload
    runs: int
    #: Nanoseconds a message that the recorder costs every system: through a batch, one by one.
    recorder_ns: tuple[float, float]
    rows: list[Row] = field(default_factory=list[Row])

    def row(self, subject: Subject) -> Row:
        """Return the row of a subject, a new one at its first run."""
        new = Row.of(subject)
        for row in self.rows:
            if (row.case, row.system, row.variant) == (new.case, new.system, new.variant):
                return row
        self.rows.append(new)
        return new

    def goals(self) -> list[Verdict]:
        """Judge the goals of this workload."""
        return [evaluate(goal, self.rows) for goal in GOALS if goal.workload == self.workload]

    def as_json(self) -> dict[str, object]:
        """Return the whole report as one JSON document."""
        return {
            "workload": self.workload.value,
            "runs": self.runs,
            "recorder_ns_per_message": {
                "batch": round(self.recorder_ns[0]),
                "one": round(self.recorder_ns[1]),
            },
            "rows": [row.as_json() for row in self.rows],
            "goals": [
                {"name": found.name, "goal": found.goal, "value": rounded(found.value), "met": found.met}
                for found in self.goals()
            ],
        }

    def show(self, console: Console) -> None:
        """Print one table a case, ratios first, then the goals."""
        for case in dict.fromkeys(row.case for row in self.rows):
            self._show_case(console, case)
        table = Table(title=f"goals of {self.workload.value}", title_justify="left")
        for heading in ("goal", "value", "bound", "met"):
            table.add_column(heading, overflow="fold")
        for goal, found in zip(
            (goal for goal in GOALS if goal.workload == self.workload), self.goals(), strict=True
        ):
            value = "not measured" if found.value is None else f"{found.value:.3g}"
            met = "[green]yes[/green]" if found.met else "[red]no[/red]"
            table.add_row(found.name, value, f"{goal.comparison} {goal.bound:g}", met)
        console.print(table)
        console.print(
            f"Medians (lowest - highest) of {self.runs} runs; a run with one lost message is void; so is one "
            "with a repeated or disordered message where nothing excuses it. "
            f"The recorder costs every system {self.recorder_ns[0]:.0f} ns a message in batches, "
            f"{self.recorder_ns[1]:.0f} ns one by one."
        )

    def _show_case(self, console: Console, case: str) -> None:
        rows = [row for row in self.rows if row.case == case]
        figure = _JUDGED.get(self.workload, "rate")
        # Peers of the turns have one member in the only case that has peers: they know no turns.
        peers = self.rows if self.workload is Workload.TURNS else rows
        baseline = _baseline(self.workload, peers)
        against = f"{figure} / {baseline.system} {baseline.variant}" if baseline else "of ideal"
        columns = [
            column for column in _COLUMNS[self.workload] if any(column[0] in row.figures for row in rows)
        ]
        table = Table(title=f"{self.workload.value}: {case}", title_justify="left")
        ratios = [against] if baseline or self.workload is Workload.FANOUT else []
        for heading in (
            "system",
            "variant",
            *ratios,
            *(title for _, title, _ in columns),
            "lost",
            "repeated",
        ):
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(
                row.system,
                row.variant,
                *(
                    _ratio(row, baseline, figure) if baseline else _ranged(row.figures.get("of_ideal"), ".3f")
                    for _ in ratios
                ),
                *(_ranged(row.figures.get(name), style) for name, _, style in columns),
                f"{row.lost} ({row.void} void)" if row.void else str(row.lost),
                str(row.repeated),
            )
        console.print(table)
        for row in rows:
            console.print(
                f"  {row.system} {row.variant}, {row.messages:,} {_UNIT.get(self.workload, 'messages')}: "
                f"{row.confirmed}",
                style="dim",
            )


#: Columns of a workload: figure, heading, format.
_COLUMNS: dict[Workload, tuple[tuple[str, str, str], ...]] = {
    Workload.DRAIN: (
        ("rate", "messages/s", ",.0f"),
        ("cpu_s_per_100k", "client CPU s/100k", ".3f"),
        ("script_calls_per_message", "script calls a message", ".4f"),
        ("first_ms", "join to first ms", ",.0f"),
    ),
    Workload.WINDOW1: (
        ("rate", "messages/s", ",.0f"),
        ("cpu_s_per_100k", "client CPU s/100k", ".2f"),
        ("script_calls_per_message", "script calls a message", ".4f"),
        ("largest_poll", "largest poll", ".0f"),
    ),
    Workload.FANOUT: (
        ("rate", "messages/s", ",.0f"),
        ("spread", "spread", ".3f"),
        ("cpu_s_per_100k", "client CPU s/100k", ".2f"),
        ("script_calls_per_message", "script calls a message", ".4f"),
    ),
    Workload.LATENCY: (
        ("p50_ms", "p50 ms", ".2f"),
        ("p99_ms", "p99 ms", ".2f"),
        ("p999_ms", "p99.9 ms", ".2f"),
        ("producer_late_p99_ms", "producer late p99 ms", ".2f"),
        ("spread", "spread", ".3f"),
    ),
    Workload.TURNS: (
        ("rate", "messages/s", ",.0f"),
        ("messages_a_turn", "messages a turn", ",.1f"),
        ("handover_p50_ms", "hand-over p50 ms", ".2f"),
        ("handover_p99_ms", "hand-over p99 ms", ".2f"),
        ("script_calls_per_message", "script calls a message", ".4f"),
        ("spread", "spread", ".3f"),
    ),
    Workload.FIRST: (
        ("p50_ms", "p50 ms", ",.1f"),
        ("max_ms", "longest ms", ",.1f"),
    ),
    Workload.FAILOVER: (
        ("p50_ms", "p50 ms", ",.1f"),
        ("max_ms", "longest ms", ",.1f"),
    ),
    Workload.AMPLIFICATION: (
        ("amplification", "bytes read / delivered", ".2f"),
        ("rate", "messages/s", ",.0f"),
        ("spread", "spread", ".3f"),
    ),
}

#: What a row counts, if not messages.
_UNIT = {Workload.FIRST: "rounds", Workload.FAILOVER: "rounds"}


def _baseline(workload: Workload, rows: Sequence[Row]) -> Row | None:
    """Return the row that ratios are against: the first known peer with a figure, else the first row."""
    measured = {(row.system, row.variant): row for row in rows if row.figures}
    for name in BASELINES[workload]:
        if name in measured:
            return measured[name]
    if workload in _ABSOLUTE:
        return None
    return next(iter(measured.values()), None)


def _ratio(row: Row, baseline: Row, figure: str) -> str:
    """Return the ratio of medians and its range run by run (no range where void runs break the pairs)."""
    ours, theirs = row.figures.get(figure), baseline.figures.get(figure)
    if not ours or not theirs:
        return "void"
    ratio = statistics.median(ours) / statistics.median(theirs)
    if len(ours) != len(theirs):
        return f"{ratio:.3g}"
    each = [mine / peer for mine, peer in zip(ours, theirs, strict=True)]
    return f"{ratio:.3g} ({min(each):.3g} - {max(each):.3g})"


def _ranged(values: Sequence[float] | None, style: str) -> str:
    if not values:
        return "-"
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{style}}" if low == high else f"{middle:{style}} ({low:{style}} - {high:{style}})"
