"""`kafkadur sub history`: which member had a message, when, for how long, and what became of it."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkadur.admin.documents import delivered
from kafkadur.admin.history import History, HistoryAdmin
from kafkadur.cli.ages import age
from kafkadur.cli.call import Call, command
from kafkadur.cli.naming import NameArgument
from kafkadur.cli.output import Column, clock, count, duration, plural
from kafkadur.history.entries import Outcome
from kafkadur.history.reading import Delivered


def _place(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    partition, colon, offset = text.partition(":")
    if not (colon and partition.isdecimal() and offset.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not PARTITION:OFFSET", param_hint="--offset")
    return int(partition), int(offset)


@command
def history(
    call: Call,
    name: NameArgument,
    *,
    offset: Annotated[
        str | None, typer.Option("--offset", metavar="PARTITION:OFFSET", help="Only those of one message.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Only those of messages with this key; reads the topic.")
    ] = None,
    member: Annotated[
        str | None, typer.Option("--member", help="Only those to the member with this name or id.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="AGE", help="Only entries written in the last 90m, 12h, 7d."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="The most lines: the last ones are shown.")
    ] = 50,
) -> None:
    """Show which member had which messages, when, and what became of them; the newest last.

    The subscription must have a history: `kafkadur sub alter NAME --history 7d`.
    """
    place, longest = _place(offset), None if since is None else age(since)
    settings = call.reached()
    with call.admin(settings) as admin, call.out.progress() as progress:
        task = progress.add_task("reading the history", total=None)
        found = HistoryAdmin(settings, admin).last(
            admin.key(name),
            limit,
            offset=place,
            message_key=None if key is None else key.encode(),
            member=member,
            since=longest,
            told=lambda read: progress.update(task, description=f"{read:,} records read"),
        )
    if call.options.json:
        call.out.json([delivered(each) for each in found.deliveries])
    else:
        _show(call, found)


def _show(call: Call, found: History) -> None:
    if not found.deliveries:
        call.out.say("No delivery is recorded.")
    else:
        call.out.table(
            found.deliveries,
            Column("at", lambda each: clock(each.at)),
            Column("offsets", _offsets),
            Column("attempt", lambda each: "-" if each.attempt is None else count(each.attempt), number=True),
            Column("outcome", _outcome),
            Column("held", lambda each: "-" if each.held is None else duration(each.held), number=True),
            Column("member", lambda each: each.name),
        )
    if found.more and found.deliveries:
        call.out.say("There are earlier ones: use --limit, --since, --offset or --member.")
    if found.missing:
        call.out.say(f"{plural(found.missing, 'message')} not recorded: Kafka did not take the entries.")
    if found.unread:
        call.out.say(f"{plural(found.unread, 'record')} not read: damaged, or of a newer version.")


def _offsets(each: Delivered) -> str:
    first = f"{each.partition}:{each.start}"
    return first if each.end - each.start == 1 else f"{first}-{each.end - 1}"


def _outcome(each: Delivered) -> str:
    if each.outcome is Outcome.DEAD and each.cause is not None:
        return f"{each.outcome}: {each.cause}"
    if each.delay is not None and each.delay > 0:
        return f"{each.outcome}, again in {duration(each.delay)}"
    return each.outcome
