"""`kafkadur recovery`: what a loss of Redis may bring again, and bringing everything back at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kafkadur.admin.changes import Admin
from kafkadur.cli.call import Call, command
from kafkadur.cli.output import Column, clock, count, iso
from kafkadur_coordinators.journal.rebuilding import Outcome
from kafkadur_coordinators.journal.recoveries import Cause, PartitionRecovery, Recovery
from kafkadur_sharing.errors import StateLost

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Subscriptions; none: all of the namespace.")
]
#: Ranges that a line of the table shows.
_SHOWN = 6
_WHY = {
    Cause.LOST: "Redis had lost it",
    Cause.KEPT: "another or restarted server had kept it",
    Cause.OLDER: "a server had kept an older copy",
}


@dataclass(frozen=True, kw_only=True)
class _Ranges:
    """Ranges of offsets for people."""

    partition: PartitionRecovery

    def __str__(self) -> str:
        listed = [
            str(start) if end == start + 1 else f"{start}-{end - 1}"
            for start, end in self.partition.ranges[:_SHOWN]
        ]
        more = len(self.partition.ranges) - _SHOWN
        return ", ".join(listed) + (f" and {more} more ranges (--json lists them)" if more > 0 else "")


@command
def report(call: Call, names: NamesArgument = None) -> None:
    """Show the last recovery of each subscription: which offsets may come again, though settled or held."""
    with Admin(call.settings()) as admin:
        keys = {admin.key(name).tag for name in names or []}
        found = [item for item in admin.recoveries() if not names or item.tag in keys]
    if call.options.json:
        call.out.json([_record(item) for item in found])
        return
    if not found:
        call.out.say("Nothing was ever recovered.")
        return
    columns = [
        Column(title="partition", number=True),
        Column(title="lane", number=True, wide=True),
        Column(title="floor", number=True),
        Column(title="offsets", number=True),
        Column(title="may come again"),
    ]
    for item in found:
        call.out.title(f"Subscription {item.subscription}")
        call.out.facts(
            [
                ("recovered", f"{clock(item.at)}: {_WHY[item.cause]}"),
                ("incarnation", str(item.incarnation)),
                ("may come again", f"{count(item.offsets)} offsets"),
            ]
        )
        rows = [
            [str(p.partition), str(p.lane), str(p.floor), count(p.offsets), str(_Ranges(partition=p))]
            for p in item.partitions
        ]
        if rows:
            call.out.table(columns, rows)


def _record(item: Recovery) -> dict[str, object]:
    record = item.model_dump(mode="json", exclude={"format", "kind", "at"})
    return {
        "subscription": str(item.subscription),
        "at": iso(item.at),
        "offsets": item.offsets,
        **record,
    }


@command
def run(call: Call) -> None:
    """Bring back at once what Redis lost of all subscriptions; else each comes back when it is used."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Admin(call.settings()) as admin,
        Progress(*columns, console=call.out.talk, transient=True) as progress,
    ):
        task = progress.add_task("subscriptions", total=None)
        found = admin.rebuild(lambda done, total: progress.update(task, completed=done, total=total))
    failed = {str(key): str(error) for key, error in found.failed.items()}
    if call.options.json:
        counts = {outcome.value: found.count(outcome) for outcome in Outcome}
        call.out.json({**counts, "failed": failed})
    else:
        call.out.say(
            f"{count(found.count(Outcome.REBUILT))} subscriptions were brought back, "
            f"{count(found.count(Outcome.INTACT))} were there, "
            f"{count(found.count(Outcome.BUSY))} are being brought back by others."
        )
        for name, error in failed.items():
            call.out.complain(f"{name}: {error}")
    if failed:
        raise StateLost(
            f"{len(failed)} subscriptions could not be brought back.",
            remedy="look at the reasons above, then run this again; nothing is lost",
        )
