"""`kafkadur journal inspect | verify`: the records in Kafka that survive a loss of Redis."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer

from kafkadur.admin.documents import iso
from kafkadur.cli.call import Call, command
from kafkadur.cli.output import Column, clock, count, plural
from kafkadur_coordinators.journal.listing import Kind, Listed
from kafkadur_sharing.errors import StateLost


@command
def inspect(
    call: Call,
    *,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Only records of this subscription, or CLIENT_ID/NAME."),
    ] = None,
    kind: Annotated[Kind | None, typer.Option("--kind", help="Only records of this kind.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="The newest N records.")] = 50,
) -> None:
    """Show the records of the journal, the newest last."""
    with call.admin() as admin:
        wanted = None if name is None else str(admin.key(name))
        found = [
            each
            for each in admin.journal()
            if (wanted is None or each.subscription == wanted) and (kind is None or each.kind is kind)
        ]
    shown = found[-limit:]
    if call.options.json:
        call.out.json([_document(each) for each in shown])
        return
    if not shown:
        call.out.say("The journal has no such records.")
        return
    call.out.table(
        shown,
        Column("place", lambda each: f"{each.shard}@{each.offset}"),
        Column("written", lambda each: clock(each.written)),
        Column("kind", lambda each: each.kind.value),
        Column("subscription", lambda each: each.subscription or "-"),
        Column("what it says", _text),
    )
    if len(found) > limit:
        call.out.say(f"{plural(len(found) - limit, 'older record')} left out: use --limit.")


@command
def verify(call: Call) -> None:
    """Read all records of the journal; exit status 1 if some cannot be read.

    Also checks the settings of its topic: with wrong ones, records could be lost.
    """
    with call.admin() as admin:
        found = admin.journal()
    damaged = [each for each in found if each.damage is not None]
    kinds = Counter(each.kind.value for each in found)
    if call.options.json:
        told = {"records": len(found), "kinds": kinds, "damaged": [_document(each) for each in damaged]}
        call.out.json(told)
    else:
        rows = [(kind, count(number)) for kind, number in sorted(kinds.items())]
        call.out.facts([("records", count(len(found))), *rows])
    if not damaged:
        call.out.say("All records can be read.")
        return
    for each in damaged:
        place = f"{each.shard}@{each.offset}"
        call.out.complain(f"{place}, {each.kind} of {each.subscription or '-'}: {each.damage}")
    raise StateLost(
        f"{plural(len(damaged), 'record')} of the journal cannot be read.",
        owner="the journal",
        remedy="if a later version wrote them, use that; else see with `kafkadur sub ls` which subscriptions "
        "are whole. What Redis holds is not affected: take snapshots with `kafkadur sub snapshot`",
    )


def _text(each: Listed) -> str:
    return each.text if each.damage is None else f"{each.text} ({each.damage})"


def _document(each: Listed) -> dict[str, Any]:
    return asdict(each) | {"kind": each.kind.value, "written": iso(each.written)}
