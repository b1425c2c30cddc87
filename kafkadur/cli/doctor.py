"""`kafkadur doctor`: what is wrong with Kafka and Redis, and what to change."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kafkadur.cli.call import FAILED, Call, command
from kafkadur.cli.output import Column
from kafkadur.doctor import Level, examine

#: Exit status if there are warnings and no problem; 2 is a wrong command line.
WARNED = 3


@command
def doctor(
    call: Call,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Also look at this topic; may be repeated."),
    ] = None,
) -> None:
    """Look at Redis, Kafka, the journal and the subscriptions, and say what to change. Changes nothing.

    Exit status 0: nothing to change; 1: a problem, kafkadur does not work or could lose state; 3: warnings.
    """
    with call.out.status("Checking..."):
        found = list(examine(call.settings(quick=True), topics or ()))
    if call.options.json:
        call.out.json([asdict(each) for each in found])
    elif call.out.narrow:
        for each in found:
            call.out.title(f"{_MARKS[each.level]}: {each.check}")
            call.out.facts([("  state", each.state or None), ("  remedy", each.remedy or None)])
    else:
        call.out.table(
            found,
            Column("", lambda each: _MARKS[each.level]),
            Column("CHECK", lambda each: each.check),
            Column("STATE", lambda each: each.state),
            Column("REMEDY", lambda each: each.remedy),
        )
    levels = {each.level for each in found}
    if Level.PROBLEM in levels:
        raise typer.Exit(FAILED)
    if levels & {Level.WARNING, Level.UNKNOWN}:
        raise typer.Exit(WARNED)


_MARKS = {Level.GOOD: "good", Level.WARNING: "WARNING", Level.PROBLEM: "PROBLEM", Level.UNKNOWN: "unknown"}
