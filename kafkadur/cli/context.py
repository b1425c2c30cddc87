"""`kafkadur context`: names for the places of Kafka and Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kafkadur.cli import context_file
from kafkadur.cli.call import Call, command, local_command
from kafkadur.cli.context_file import Context, Contexts
from kafkadur.cli.output import Column
from kafkadur.settings import kafka_file, settings
from kafkadur_coordinators.redis.server import shown
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.names import validate_name


def _complete(incomplete: str) -> list[str]:
    """Return the names of contexts that begin with `incomplete`."""
    try:
        return sorted(name for name in context_file.read().contexts if name.startswith(incomplete))
    except IllegalState:
        return []


NameArgument = Annotated[
    str, typer.Argument(metavar="CONTEXT", help="Name of the context.", autocompletion=_complete)
]


@command
def add(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="CONTEXT", help="Name of the new context.")],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a context of the same name.")] = False,
) -> None:
    """Keep the connection options of this command under a name.

    For example: kafkadur context add prod --kafka kafka:9092 --redis rediss://redis:6379/0
    """
    validate_name("name of a context", name)
    known = context_file.read()
    if name in known.contexts and not replace:
        raise IllegalState(
            f"There is a context {name!r} already.",
            owner=f"file {context_file.place()}",
            remedy="give --replace, or choose another name",
        )
    new = _context(call)
    known.model_copy(update={"contexts": {**known.contexts, name: new}}).write()
    if call.options.json:
        call.out.json({"context": name, "file": str(context_file.place())})
    else:
        call.out.say(
            f"Kept context {name}. Use it for one command with --context {name}, or for all that follow:"
        )
        call.out.say(f"  kafkadur context use {name}")


def _context(call: Call) -> Context:
    """Return the context of the options; raises `IllegalState` for a wrong or missing one."""
    given: dict[str, Any] = {
        name: value for name, value in vars(call.options).items() if name in Context.model_fields and value
    }
    if "kafka_config" in given:
        given["kafka_config"] = str(Path(given["kafka_config"]).absolute())
        given.setdefault("kafka", kafka_file(given["kafka_config"]).get("bootstrap.servers"))
    if not given.get("kafka"):
        raise IllegalState(
            "It is not said where Kafka of the context is.",
            remedy="give --kafka HOST:PORT, or bootstrap.servers in the file of --kafka-config",
        )
    checked = settings(given, environment={})
    return Context.model_validate({**given, "redis": checked.redis, "namespace": checked.namespace})


@local_command
def ls(call: Call) -> None:
    """List the contexts; an asterisk marks the one in use."""
    known = context_file.read()
    if call.options.json:
        call.out.json(
            [
                {"context": name, "in_use": name == known.in_use, **_visible(each)}
                for name, each in sorted(known.contexts.items())
            ]
        )
        return
    if not known.contexts:
        call.out.say("There are no contexts. Make one with: kafkadur context add")
        return
    call.out.table(
        sorted(known.contexts.items()),
        Column("", lambda row: "*" if row[0] == known.in_use else ""),
        Column("context", lambda row: row[0]),
        Column("kafka", lambda row: row[1].kafka),
        Column("redis", lambda row: shown(row[1].redis)),
        Column("namespace", lambda row: row[1].namespace),
        Column("client id", lambda row: row[1].client_id or "-", wide=True),
        Column("file of Kafka settings", lambda row: row[1].kafka_config or "-", wide=True),
    )


def _visible(context: Context) -> dict[str, Any]:
    """Return the fields of a context for JSON, without the password of Redis."""
    return {**context.model_dump(mode="json"), "redis": shown(context.redis)}


@local_command
def use(call: Call, name: NameArgument) -> None:
    """Use a context in all commands that nothing else tells where the servers are."""
    known = context_file.read()
    known.named(name)
    _put_in_use(call, known, name)
    call.out.say(f"Commands use context {name} now.")


@local_command
def leave(call: Call) -> None:
    """Use no context, except where a command names one."""
    known = context_file.read()
    _put_in_use(call, known, None)
    call.out.say(
        "No context was in use." if known.in_use is None else f"Context {known.in_use} is not used any more."
    )


def _put_in_use(call: Call, known: Contexts, name: str | None) -> None:
    known.model_copy(update={"in_use": name}).write()
    if call.options.json:
        call.out.json({"in_use": name})


@local_command
def rm(call: Call, name: NameArgument) -> None:
    """Forget a context; its servers are not touched."""
    known = context_file.read()
    known.named(name)
    kept = {each: context for each, context in known.contexts.items() if each != name}
    in_use = None if known.in_use == name else known.in_use
    known.model_copy(update={"contexts": kept, "in_use": in_use}).write()
    call.out.say(f"Forgot context {name}.")
    if call.options.json:
        call.out.json({"removed": name})
