"""`kafkadur sub dead ls | show | redrive | purge`: the dead letters of a subscription."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

import typer

from kafkadur.admin.dead_letters import OWN_FACTS, DeadLetter, DeadLetterAdmin
from kafkadur.admin.documents import dead_letter, readable
from kafkadur.cli.call import Call, YesOption, command
from kafkadur.cli.naming import NameArgument
from kafkadur.cli.output import Column, clock, count
from kafkadur_sharing.errors import InvalidDestination
from kafkadur_sharing.selector import Selector, parse_selector

WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="SELECTOR",
        help="Only letters that match a selector; it can also test _cause, _reason, _attempts, _origin and "
        "_timestamp.",
    ),
]
#: What was done, by the name of the command.
_DONE = {"redrive": "Published again:", "purge": "Purged"}
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Show at most this number.")]


@command
def ls(call: Call, name: NameArgument, *, where: WhereOption = None, limit: LimitOption = 100) -> None:
    """List the dead letters that were neither redriven nor purged."""
    selector = _where(where)
    settings = call.settings(quick=True)
    with call.admin(settings) as admin:
        letters = list(islice(DeadLetterAdmin(settings, admin).letters(admin.key(name), selector), limit + 1))
    more, letters = len(letters) > limit, letters[:limit]
    if call.options.json:
        call.out.json([dead_letter(letter) for letter in letters])
        return
    if not letters:
        call.out.say("There are no dead letters." if selector is None else "No dead letter matches --where.")
        _hint(call, selector)
        return
    call.out.table(
        letters,
        Column("letter", lambda letter: f"{letter.partition}:{letter.offset}"),
        Column("message", lambda letter: letter.origin),
        Column("cause", lambda letter: letter.cause),
        Column("attempts", lambda letter: count(letter.attempts), number=True),
        Column("reason", lambda letter: letter.reason or "-"),
        Column("sent", lambda letter: clock(letter.timestamp)),
    )
    if more:
        call.out.say(f"There are more than {limit}: use --limit or --where.")


@command
def show(
    call: Call,
    name: NameArgument,
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="PARTITION:OFFSET, as `ls` shows it.")],
    *,
    payload: Annotated[bool, typer.Option("--payload", help="Show value and key, too.")] = False,
) -> None:
    """Show one dead letter: why it was given up, where it comes from, its properties."""
    settings = call.settings(quick=True)
    with call.admin(settings) as admin:
        letters = DeadLetterAdmin(settings, admin).letters(admin.key(name))
        found = next((item for item in letters if f"{item.partition}:{item.offset}" == letter), None)
    if found is None:
        raise InvalidDestination(
            f"There is no dead letter {letter} of subscription {name}.",
            remedy="list the dead letters with `kafkadur sub dead ls`",
        )
    if call.options.json:
        body = {"value": readable(found.value), "key": readable(found.key)} if payload else {}
        call.out.json({**dead_letter(found), "properties": _plain(found.properties), **body})
        return
    call.out.title(f"Dead letter {letter} on topic {found.topic}")
    facts = [
        ("message", found.origin),
        ("sent", clock(found.timestamp)),
        ("cause", found.cause),
        ("reason", found.reason or "-"),
        ("attempts", count(found.attempts)),
        *((f"property {name}", str(value)) for name, value in found.properties.items()),
    ]
    if payload:
        facts += [("key", readable(found.key) or "-"), ("value", readable(found.value) or "-")]
    call.out.facts(facts)


@command
def redrive(
    call: Call,
    name: NameArgument,
    *,
    where: WhereOption = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.01, help="The most letters per second.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Publish dead letters to their topic again. Only counts them, unless --yes is given.

    Every subscription of the topic gets them again. Each goes to the partition that it came from.
    """
    _work(call, name, where=where, yes=yes, rate=rate, verb="redrive")


@command
def purge(call: Call, name: NameArgument, *, where: WhereOption = None, yes: YesOption = False) -> None:
    """Discard dead letters. Only counts them, unless --yes is given."""
    _work(call, name, where=where, yes=yes, rate=None, verb="purge")


def _work(call: Call, name: str, *, where: str | None, yes: bool, rate: float | None, verb: str) -> None:
    selector = _where(where)
    settings = call.reached()
    with call.admin(settings) as admin:
        office, key = DeadLetterAdmin(settings, admin), admin.key(name)
        waiting = sum(1 for _ in office.letters(key, selector))
        done = 0
        if yes and waiting:
            with call.out.progress() as progress:
                task = progress.add_task(verb, total=waiting)

                def step(_: DeadLetter) -> None:
                    progress.advance(task)

                if verb == "redrive":
                    done = office.redrive(key, selector, rate=rate, done=step)
                else:
                    done = office.purge(key, selector, done=step)
    if call.options.json:
        call.out.json({"subscription": str(key), "letters": waiting, "done": done})
    else:
        number = done if yes else waiting
        letters = f"{count(number)} dead {'letter' if number == 1 else 'letters'} of subscription {key}"
        again = " Every subscription of the topic gets them again." if verb == "redrive" and number else ""
        if yes:
            call.out.say(f"{_DONE[verb]} {letters}.{again}")
        else:
            call.out.say(f"Would {verb} {letters}.{again} To do it, add --yes.")
        if not waiting:
            _hint(call, selector)


def _where(text: str | None) -> Selector | None:
    """Read the value of --where; raises `InvalidSelector`, `typer.BadParameter` for an unknown `_name`."""
    selector = parse_selector(text)
    for name in sorted(selector.names if selector is not None else ()):
        if name.startswith("_") and name not in OWN_FACTS:
            raise typer.BadParameter(
                f"{name} is none of {', '.join(sorted(OWN_FACTS))}", param_hint="--where"
            )
    return selector


def _hint(call: Call, selector: Selector | None) -> None:
    """Say which names of a filter without a match are properties, but could be meant for the letter."""
    for name in sorted(selector.names if selector is not None else ()):
        if f"_{name}" in OWN_FACTS:
            call.out.say(f"{name} is a property of the message; that of the dead letter is _{name}.")


def _plain(properties: Any) -> dict[str, Any]:  # noqa: ANN401 - a mapping of any property
    return {
        name: readable(value) if isinstance(value, bytes) else value for name, value in properties.items()
    }
