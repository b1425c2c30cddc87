"""What people and programs are told of a run: faults, operations, violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kafkadur.cli.output import Column, Output, count
from tests.end_to_end.histories.checks.fairness import waited
from tests.end_to_end.histories.faults import FAULTS
from tests.end_to_end.histories.findings import INVARIANTS, Finding
from tests.end_to_end.histories.history import History
from tests.end_to_end.histories.recording import FAIL, OK, UNKNOWN

#: Violations of a kind that are shown with their lines.
_SHOWN = 3
_LINES = 24


def document(history: History, findings: Sequence[Finding], folder: Path | None) -> dict[str, object]:
    """The result for programs."""
    return {
        "seed": history.plan.seed,
        "commit": history.plan.commit,
        "command": history.plan.command,
        "folder": None if folder is None else str(folder),
        "minutes": history.plan.minutes,
        "messages": len(history.truth),
        "deliveries": len(history.deliveries),
        "dead_letters": len(history.dead),
        "faults": dict(_faults(history)),
        "inspections": len(history.inspections),
        "grants_while_others_waited": waited(history),
        "operations": {
            name: {outcome: history.counts.get((name, outcome), 0) for outcome in (OK, FAIL, UNKNOWN)}
            for name in _names(history)
        },
        "drained_seconds": {end.subscription: end.drained for end in history.ends},
        "violations": [
            {"invariant": f.invariant, "kind": f.kind, "text": f.text, "lines": list(f.lines)}
            for f in findings
        ],
    }


def show(history: History, findings: Sequence[Finding], output: Output) -> None:
    """The result for people."""
    output.title(f"History of seed {history.plan.seed}, commit {history.plan.commit}")
    output.table(
        sorted((dict.fromkeys(history.plan.faults, 0) | _faults(history)).items()),
        Column("fault", lambda fault: fault[0]),
        Column("times", lambda fault: count(fault[1]) if fault[1] else "NEVER", number=True),
        Column(
            "what it is",
            lambda fault: FAULTS[fault[0]].text if fault[0] in FAULTS else "noticed by a process",
            wide=True,
        ),
    )
    output.table(
        _names(history),
        Column("operation", str),
        *(Column(each, partial(_times, history, each), number=True) for each in (OK, FAIL, UNKNOWN)),
    )
    counted = Counter(finding.invariant for finding in findings)
    output.table(
        INVARIANTS.items(),
        Column("invariant", lambda item: item[0]),
        Column("in words", lambda item: item[1]),
        Column("violations", lambda item: count(counted[item[0]]), number=True),
    )
    output.line(
        f"{count(len(history.truth))} messages, {count(len(history.deliveries))} deliveries, "
        f"{count(len(history.dead))} dead letters; {count(len(history.inspections))} inspections, "
        f"{count(waited(history))} grants while others waited for one; {len(findings)} violations"
    )
    _show_findings(findings, output)
    if findings:
        output.line(f"repeat with: {history.plan.command}")


def _times(history: History, outcome: str, name: str) -> str:
    return count(history.counts.get((name, outcome), 0))


def _show_findings(findings: Sequence[Finding], output: Output) -> None:
    shown: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        kind = (finding.invariant, finding.kind)
        shown[kind] += 1
        if shown[kind] > _SHOWN:
            continue
        output.line("")
        output.line(f"{finding.invariant} {finding.kind}: {finding.text}")
        for line in finding.lines[:_LINES]:
            output.line(f"    {line}")
    for (invariant, what), times in shown.items():
        if times > _SHOWN:
            output.line("")
            output.line(f"{invariant} {what}: {times - _SHOWN} more")


def _faults(history: History) -> Counter[str]:
    return Counter(fault.kind for fault in history.faults if fault.certain)


def _names(history: History) -> list[str]:
    """Operations that have outcomes."""
    order = ("connect", "attach", "deliver", "ack", "ack_nowait", "rollback", "rollback_nowait")
    names = {name for name, _ in history.counts} - {"lost", "stall"}
    return [name for name in order if name in names] + sorted(names - set(order))
