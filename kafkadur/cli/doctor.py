"""`kafkadur doctor`: what is wrong with Kafka and Redis, and what to change."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kafkadur.cli.call import FAILED, Call, command
from kafkadur.cli.output import Column
from kafkadur.doctor import Finding, Level, examine

#: Exit status where there are warnings, and nothing worse; 2 is a wrong command line.
WARNED = 3


@command
def doctor(
    call: Call,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Look at this one, too; may be repeated."),
    ] = None,
) -> None:
    """Look at Redis, Kafka, the journal and the subscriptions, and say what to change. Changes nothing.

    Exit status 0: nothing to change; 1: a problem, kafkadur does not work or could lose state; 3: warnings.
    """
    found: list[Finding] = []
    with call.out.talk.status("Inspector..."):
        found.extend(examine(call.settings(), topics or ()))
    if call.options.json:
        call.out.json([asdict(each) for each in found])
    else:
        columns = [Column(title=title) for title in ("", "CHECK", "STATE", "REMEDY")]
        call.out.table(columns, [(_MARKS[each.level], each.check, each.state, each.remedy) for each in found])
    levels = {each.level for each in found}
    if Level.PROBLEM in levels:
        raise typer.Exit(FAILED)
    if levels & {Level.WARNING, Level.UNKNOWN}:
        raise typer.Exit(WARNED)


_MARKS = {Level.GOOD: "good", Level.WARNING: "WARNING", Level.PROBLEM: "PROBLEM", Level.UNKNOWN: "unknown"}
