"""The goals, as data, and their evaluation from the rows of a report. What a row is, ``rows.py`` says.

A goal compares one figure of a kafkadur row with a bound, or its ratio to the same figure of a peer.
A goal whose rows are missing, or void, has the value None and is not met.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from benchmarks.systems.base import FAILOVER_SESSION_S, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.rows import Row

Figure = Literal[
    "rate",
    "of_ideal",
    "spread",
    "p50_ms",
    "p99_ms",
    "max_ms",
    "messages_a_turn",
    "amplification",
    "cpu_s_per_100k",
    "script_calls_per_message",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """Names one row: system, variant and the label of a case."""

    system: str
    variant: str
    case: str

    def __str__(self) -> str:
        """Return it as people read it."""
        return f"{self.system} {self.variant} ({self.case})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """One line of the table of goals."""

    name: str
    workload: Workload
    numerator: Pick
    #: The baseline; None where the figure itself is judged.
    denominator: Pick | None = None
    figure: Figure = "rate"
    comparison: Literal[">=", "<="] = ">="
    bound: float

    @property
    def text(self) -> str:
        """Return the goal as a sentence."""
        against = f" x {self.denominator}" if self.denominator else ""
        return f"{self.figure} of {self.numerator} {self.comparison} {self.bound:g}{against}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A goal, what was reached, and whether that is enough."""

    name: str
    goal: str
    value: float | None
    met: bool


_ONE, _SMALL, _SINGLE, _FOUR = "big, 1 member", "small, 1 member", "single, 1 member", "big, 4 members"
_ALONE, _TURNS = "window 1, 1 member", "window 1, 2 members"
_TOPICS = {"small": "1,000 messages, 1 partition", "big": "600,000 messages, 12 partitions"}
_FANOUT = {shape: f"{shape}, 8 members" for shape in ("big", "small", "single", "skewed")}


def _kafkadur(variant: str, case: str) -> Pick:
    return Pick(system="kafkadur", variant=variant, case=case)


def _raw(variant: str, case: str) -> Pick:
    return Pick(system="raw", variant=variant, case=case)


def _share(case: str) -> Pick:
    return Pick(system="share", variant="explicit", case=case)


def _one_trip(case: str) -> Pick:
    return Pick(system="redis", variant="one-trip", case=case)


_DRAIN = (
    Goal(name="drain, ack_nowait, against share groups", workload=Workload.DRAIN,
         numerator=_kafkadur("ack-nowait", _ONE), denominator=_share(_ONE), bound=2.0),
    Goal(name="drain, ack_nowait, against tuned raw", workload=Workload.DRAIN,
         numerator=_kafkadur("ack-nowait", _ONE), denominator=_raw("tuned-each", _ONE), bound=1.2),
    Goal(name="drain, receive_batch, against tuned raw", workload=Workload.DRAIN,
         numerator=_kafkadur("batch", _ONE), denominator=_raw("tuned", _ONE), bound=1.5),
    Goal(name="drain of single-record batches, against share groups", workload=Workload.DRAIN,
         numerator=_kafkadur("ack-nowait", _SINGLE), denominator=_share(_SINGLE), bound=10.0),
    Goal(name="drain of single-record batches, against tuned raw", workload=Workload.DRAIN,
         numerator=_kafkadur("ack-nowait", _SINGLE), denominator=_raw("tuned-each", _SINGLE), bound=1.2),
    Goal(name="drain, 4 processes, against share groups", workload=Workload.DRAIN,
         numerator=_kafkadur("ack-nowait", _FOUR), denominator=_share(_FOUR), bound=2.0),
    Goal(name="drain, 4 processes, against tuned raw", workload=Workload.DRAIN,
         numerator=_kafkadur("ack-nowait", _FOUR), denominator=_raw("tuned-each", _FOUR), bound=1.0),
)  # fmt: skip

_WINDOW1 = (
    Goal(name="window 1 on a lane, budget 100, against raw with a commit each", workload=Workload.WINDOW1,
         numerator=_kafkadur("lane-budget-100", _ONE), denominator=_raw("sync-each", _ONE), bound=300.0),
    Goal(name="window 1 on a lane, budget 100, against tuned raw", workload=Workload.WINDOW1,
         numerator=_kafkadur("lane-budget-100", _ONE), denominator=_raw("tuned", _ONE), bound=0.6),
    *(
        Goal(name=f"window 1, every ack confirmed, {kind}, against {against}", workload=Workload.WINDOW1,
             numerator=_kafkadur(f"{kind}-each", _ONE), denominator=peer, bound=bound)
        for kind, of_raw, of_streams in (("lane", 4.0, 2.0), ("shared", 3.0, 1.5))
        for against, peer, bound in (
            ("raw with a commit each", _raw("sync-each", _ONE), of_raw),
            ("Redis Streams in one trip", _one_trip(_ONE), of_streams),
        )
    ),
)  # fmt: skip

_SERIAL = (
    Goal(name="serial, window 1, two members taking turns, confirmed", workload=Workload.TURNS,
         numerator=_kafkadur("serial-each", _TURNS), denominator=_one_trip(_ALONE), bound=0.5),
    # A ratio says nothing where one member keeps the lane.
    Goal(name="serial, window 1, two members taking turns, messages a turn", workload=Workload.TURNS,
         numerator=_kafkadur("serial-each", _TURNS), figure="messages_a_turn", comparison="<=", bound=1.0),
)  # fmt: skip

_FAN_OUT = (
    *(
        goal
        for shape in ("big", "small", "single")
        for goal in (
            Goal(name=f"fan-out, {shape} batches, of ideal", workload=Workload.FANOUT,
                 numerator=_kafkadur("shared", _FANOUT[shape]), figure="of_ideal", bound=0.96),
            Goal(name=f"fan-out, {shape} batches, spread over members", workload=Workload.FANOUT,
                 numerator=_kafkadur("shared", _FANOUT[shape]), figure="spread", comparison="<=", bound=0.01),
        )
    ),
    Goal(name="fan-out, skewed work, of ideal", workload=Workload.FANOUT,
         numerator=_kafkadur("shared", _FANOUT["skewed"]), figure="of_ideal", bound=0.9),
    Goal(name="exchanges a message, 8 members, window 100", workload=Workload.FANOUT,
         numerator=_kafkadur("shared-window-100", _FANOUT["small"]), figure="script_calls_per_message",
         comparison="<=", bound=0.05),
)  # fmt: skip

_LATENCY = (
    *(
        Goal(name=f"latency, one member, {figure}", workload=Workload.LATENCY,
             numerator=_kafkadur("shared", _SINGLE), denominator=_raw("poll", _SINGLE),
             figure=figure, comparison="<=", bound=1.2)
        for figure in ("p50_ms", "p99_ms")
    ),
    Goal(name="latency, four members round-robin, p50_ms", workload=Workload.LATENCY,
         numerator=_kafkadur("shared", "single, 4 members"), denominator=_raw("poll", "single, 4 members"),
         figure="p50_ms", comparison="<=", bound=1.2),
    Goal(name="CPU of the client at 500 messages a second, one member", workload=Workload.LATENCY,
         numerator=_kafkadur("shared", _SINGLE), denominator=_raw("poll", _SINGLE),
         figure="cpu_s_per_100k", comparison="<=", bound=1.5),
    Goal(name="exchanges a message at 500 messages a second, one member", workload=Workload.LATENCY,
         numerator=_kafkadur("shared", _SINGLE), figure="script_calls_per_message", comparison="<=",
         bound=0.1),
)  # fmt: skip

_FIRST = tuple(
    Goal(name=f"subscribe to first message, {variant}, {size} topic, ms", workload=Workload.FIRST,
         numerator=_kafkadur(variant, case), figure="p50_ms", comparison="<=", bound=100.0)
    for variant in ("attach", "create")
    for size, case in _TOPICS.items()
)  # fmt: skip

#: Of the longest time: what is promised is promised every time.
_FAILOVER = tuple(
    Goal(name=f"failover, {kind}, holder {fault}, ms", workload=Workload.FAILOVER,
         numerator=_kafkadur(kind, fault), figure="max_ms", comparison="<=", bound=bound)
    for fault, bound in (("killed", 1_000.0), ("stopped", 1_000 * FAILOVER_SESSION_S + 300), ("closed", 50.0))
    for kind in ("exclusive", "priority", "serial")
)  # fmt: skip

#: A partition is read by as many members as share it when all are spread over the (two) partitions first. A
#: tenth more is no member's reading: requests, empty answers, the end of a batch fetched twice.
_AMPLIFICATION = tuple(
    Goal(name=f"read amplification, {kind}, {members} on 2 partitions, against raw",
         workload=Workload.AMPLIFICATION, numerator=_kafkadur(kind, case),
         denominator=_raw("group", case), figure="amplification", comparison="<=", bound=1.1 * readers)
    for kind in ("key-ordered", "shared")
    for members, readers in ((1, 1), (2, 1), (4, 2), (8, 4))
    for case in (f"small, {members} member{'s' if members > 1 else ''}",)
)  # fmt: skip

#: Every goal that the workloads can judge.
GOALS: tuple[Goal, ...] = (
    *_DRAIN,
    *_WINDOW1,
    *_SERIAL,
    *_FAN_OUT,
    *_LATENCY,
    *_FIRST,
    *_FAILOVER,
    *_AMPLIFICATION,
)

_COMPARE = {">=": operator.ge, "<=": operator.le}


def evaluate(goal: Goal, rows: Iterable[Row]) -> Verdict:
    """Judge one goal by the medians of the rows."""
    by_name = {(row.system, row.variant, row.case): row for row in rows if row.workload == goal.workload}

    def figure(pick: Pick) -> float | None:
        row = by_name.get((pick.system, pick.variant, pick.case))
        return row.median(goal.figure) if row else None

    value = figure(goal.numerator)
    if goal.denominator is not None and value is not None:
        baseline = figure(goal.denominator)
        value = value / baseline if baseline else None
    met = value is not None and _COMPARE[goal.comparison](value, goal.bound)
    return Verdict(name=goal.name, goal=goal.text, value=value, met=met)
