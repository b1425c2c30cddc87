"""`kafkadur recovery`: the messages that may come again after a loss of Redis; a rebuild of its state."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kafkadur.admin.changes import Admin
from kafkadur.admin.documents import iso
from kafkadur.cli.call import Call, command
from kafkadur.cli.output import Column, clock, count, plural
from kafkadur_coordinators.journal.rebuilding import Outcome
from kafkadur_coordinators.journal.recovery_reports import Cause, PartitionRecovery, Recovery
from kafkadur_sharing.errors import StateLost

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Subscriptions; without a name all of the namespace."),
]
#: The most ranges in a line of the table.
_SHOWN = 6
_WHY = {
    Cause.LOST: "Redis had lost it",
    Cause.KEPT: "another or restarted server had kept it",
    Cause.OLDER: "a server had kept an older copy",
}


def _ranges(partition: PartitionRecovery) -> str:
    """Return ranges of offsets as text."""
    listed = [
        str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in partition.ranges[:_SHOWN]
    ]
    more = len(partition.ranges) - _SHOWN
    return ", ".join(listed) + (f" and {more} more ranges (--json lists them)" if more > 0 else "")


@command
def report(call: Call, names: NamesArgument = None) -> None:
    """Show the last recovery of each subscription: which offsets may come again, though settled or held."""
    with Admin(call.settings(quick=True)) as admin:
        keys = {admin.key(name).tag for name in names or []}
        found = [item for item in admin.recoveries() if not names or item.tag in keys]
    if call.options.json:
        call.out.json([_record(item) for item in found])
        return
    if not found:
        call.out.say("Nothing was ever recovered.")
        return
    for item in found:
        call.out.title(f"Subscription {item.subscription}")
        call.out.facts(
            [
                ("recovered", f"{clock(item.at)}: {_WHY[item.cause]}"),
                ("incarnation", str(item.incarnation)),
                ("may come again", plural(item.offsets, "offset")),
            ]
        )
        if item.partitions:
            call.out.table(
                item.partitions,
                Column("partition", lambda p: str(p.partition), number=True),
                Column("lane", lambda p: str(p.lane), number=True, wide=True),
                Column("floor", lambda p: str(p.floor), number=True),
                Column("offsets", lambda p: count(p.offsets), number=True),
                Column("may come again", _ranges),
            )


def _record(item: Recovery) -> dict[str, object]:
    record = item.model_dump(mode="json", exclude={"format", "kind", "at"})
    return {"subscription": str(item.subscription), "at": iso(item.at), "offsets": item.offsets, **record}


@command
def run(call: Call) -> None:
    """Rebuild now the state that Redis lost of all subscriptions; else each is rebuilt when it is used."""
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
            f"{plural(len(failed), 'subscription')} could not be brought back.",
            remedy="look at the reasons above, then run this again; nothing is lost",
        )
