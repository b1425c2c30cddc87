"""`kafkadur sub pause | resume | drain | seek | snapshot | restore | fork | export`: changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from kafkadur.admin.changes import Move
from kafkadur.admin.snapshots import Snapshot
from kafkadur.cli.call import Call, YesOption, command
from kafkadur.cli.naming import NameArgument
from kafkadur.cli.output import Column, count, plural
from kafkadur_sharing.errors import IllegalState

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="File of the snapshot (JSON).")]


# --- pause, resume --------------------------------------------------------------------------------------


@command
def pause(call: Call, name: NameArgument) -> None:
    """Stop handing out messages; those in flight can be settled, and members stay attached."""
    _pause(call, name, paused=True)


@command
def resume(call: Call, name: NameArgument) -> None:
    """Resume a paused subscription."""
    _pause(call, name, paused=False)


@command
def drain(
    call: Call,
    name: NameArgument,
    *,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Longest wait, seconds.")] = 60.0,
    resume: Annotated[bool, typer.Option("--resume", help="Resume when nothing is in flight.")] = False,
) -> None:
    """Pause, and wait until nothing is in flight; exit status 1 if messages still are at the time-out.

    The subscription stays paused, unless --resume is given and nothing is in flight any more.
    """
    with call.admin() as admin, call.out.progress() as progress:
        key = admin.key(name)
        task = progress.add_task("waiting", total=None)
        found = admin.drain(
            key,
            timeout=timeout,
            on_progress=lambda info: progress.update(task, description=f"in flight: {info.in_flight:,}"),
        )
        holders = {member.name or member.id: member.leases for member in found.held}
        goes_on = resume and not holders
        if goes_on:
            admin.pause(key, paused=False)
    if call.options.json:
        told = {"drained": not holders, "in_flight": found.in_flight, "paused": not goes_on}
        call.out.json({"subscription": str(key)} | told)
    elif goes_on:
        call.out.say(f"None of the messages of subscription {key} was in flight; it goes on.")
    elif not holders:
        call.out.say(
            f"None of the messages of subscription {key} is in flight. It stays paused: "
            "`kafkadur sub resume` lets it go on."
        )
    else:
        call.out.complain(
            f"Subscription {key} still has {plural(found.in_flight, 'message')} in flight, at "
            f"{', '.join(holders)}. It stays paused: `kafkadur sub resume` lets it go on."
        )
    if holders:
        raise typer.Exit(1)


def _pause(call: Call, name: str, *, paused: bool) -> None:
    with call.admin() as admin:
        key = admin.key(name)
        admin.pause(key, paused=paused)
    if call.options.json:
        call.out.json({"subscription": str(key), "paused": paused})
    else:
        call.out.say(f"Subscription {key} {'is paused' if paused else 'goes on'}.")


# --- seek -----------------------------------------------------------------------------------------------


@command
def seek(
    call: Call,
    name: NameArgument,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="earliest, latest, group:GROUP, a time (ISO 8601; local unless it says its zone), or "
            "P:OFFSET,...",
        ),
    ],
    *,
    yes: YesOption = False,
) -> None:
    """Move a subscription: messages from there on are delivered again. Only looks, unless --yes is given."""
    with call.admin() as admin:
        key = admin.key(name)
        moves = admin.seek(key, _place(to), dry_run=not yes)
    _show(call, str(key), moves, moved=yes)


def _show(call: Call, key: str, moves: Sequence[Move], *, moved: bool) -> None:
    """Show the moves that were made, or would be."""
    if call.options.json:
        call.out.json({"subscription": key, "moved": moved, "partitions": [asdict(move) for move in moves]})
        return
    call.out.table(
        moves,
        Column("partition", lambda move: str(move.partition), number=True),
        Column("settled to", lambda move: str(move.before), number=True),
        Column("goes to", lambda move: str(move.after), number=True),
        Column("backlog before", lambda move: count(move.backlog), number=True),
        Column("come again", lambda move: count(move.again), number=True),
        Column("skipped", lambda move: count(move.skipped), number=True),
    )
    again, skipped = sum(move.again for move in moves), sum(move.skipped for move in moves)
    if moved:
        call.out.say(
            f"Moved subscription {key}. Settled before, delivered again: at most {plural(again, 'message')}. "
            f"Unsettled before, skipped: at most {plural(skipped, 'message')}."
        )
    else:
        call.out.say(
            f"Nothing was moved. With --yes at most {plural(again, 'settled message')} would be delivered "
            f"again, and at most {plural(skipped, 'unsettled message')} would be skipped."
        )


# --- snapshot, restore, fork ----------------------------------------------------------------------------


@command
def snapshot(call: Call, name: NameArgument, file: FileArgument) -> None:
    """Write which messages are settled, and the attempts of the others, to a file; members may go on."""
    with call.admin() as admin:
        key = admin.key(name)
        taken = admin.snapshot(key)
    taken.save(file)
    waiting = sum(place.unsettled for place in taken.settlements.values())
    if call.options.json:
        call.out.json({"subscription": str(key), "file": str(file), "taken": taken.taken, "waiting": waiting})
        return
    call.out.table(
        taken.settlements.items(),
        Column("partition", lambda item: str(item[0]), number=True),
        Column("settled to", lambda item: str(item[1].floor), number=True),
        Column("granted to", lambda item: str(item[1].next), number=True),
        Column("waiting", lambda item: count(item[1].unsettled), number=True),
    )
    call.out.say(f"Wrote a snapshot of subscription {key} to {file}.")


@command
def restore(call: Call, name: NameArgument, file: FileArgument, *, yes: YesOption = False) -> None:
    """Bring a subscription to where it stood in a snapshot. Only looks, unless --yes is given."""
    taken = Snapshot.load(file)
    with call.admin() as admin:
        key = admin.key(name)
        if taken.subscription != str(key):
            call.out.say(f"{file} is a snapshot of subscription {taken.subscription}, not of {key}.")
        moves = admin.seek(key, taken, dry_run=not yes)
    _show(call, str(key), moves, moved=yes)


@command
def fork(
    call: Call,
    name: NameArgument,
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="Name of the new subscription, or CLIENT_ID/NAME.")
    ],
) -> None:
    """Make a second subscription at the same position; from then on they are independent."""
    with call.admin() as admin:
        key, other = admin.key(name), admin.key(new)
        admin.fork(key, other)
    if call.options.json:
        call.out.json({"subscription": str(key), "fork": str(other)})
    else:
        call.out.say(f"Subscription {other} starts at the position of {key}.")


# --- export ---------------------------------------------------------------------------------------------


@command
def export(
    call: Call,
    name: NameArgument,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group; it must have no members.")],
) -> None:
    """Set the offsets of a consumer group to the lowest unsettled offsets of a subscription."""
    with call.admin() as admin:
        key = admin.key(name)
        floors = admin.export(key, group)
    if call.options.json:
        call.out.json({"subscription": str(key), "group": group, "offsets": floors})
        return
    call.out.table(
        floors.items(),
        Column("partition", lambda item: str(item[0]), number=True),
        Column("offset", lambda item: str(item[1]), number=True),
    )
    call.out.say(f"Consumer group {group} continues at these offsets.")


def _place(text: str) -> Mapping[int, int] | str | datetime:
    """Read the position to move to. Raises `IllegalState`."""
    if text in {"earliest", "latest"} or text.startswith("group:"):
        return text
    try:
        if ":" in text and "-" not in text:
            pairs = (part.split(":") for part in text.split(","))
            return {int(partition): int(offset) for partition, offset in pairs}
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise IllegalState(
            f"{text!r} is no place to move to.",
            remedy="give earliest, latest, group:GROUP, a time (2026-01-31T12:00:00+00:00), or 0:17,1:4",
        ) from error
    return time if time.tzinfo is not None else time.astimezone()
