"""`kafkadur sub create | alter`: the definition of a subscription."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args

import typer

from kafkadur.cli.ages import age
from kafkadur.cli.call import Call, command
from kafkadur.cli.naming import NameArgument, complete_topic
from kafkadur.cli.options import with_parameters
from kafkadur.cli.output import Output
from kafkadur.cli.subscriptions import definition_facts
from kafkadur_sharing.changing import Changes
from kafkadur_sharing.definition import AckLevel, Definition, HeaderType, Scope, Start, SubscriptionType
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.keys import SubscriptionKey

_DEFINITION, _REDELIVERY = "Definition", "Redelivery"
_HEADER_TYPES = ", ".join(get_args(HeaderType))
_TYPES = ", ".join(SubscriptionType)
_LEVELS = ", ".join(get_args(AckLevel))
#: Parts whose value is None where the option is 0 or empty.
_OR_NONE = {
    "selector", "key_lanes", "max_consumers", "history", "max_attempts", "max_hold", "dead_letter_topic",
}  # fmt: skip


def _part(name: str, help: str, panel: str = _DEFINITION, **more: Any) -> Any:  # noqa: A002, ANN401 - as typer.Option
    return typer.Option(name, help=help, rich_help_panel=panel, **more)


def _seconds(name: str, help: str) -> Any:  # noqa: A002, ANN401 - as typer.Option
    return _part(name, help, _REDELIVERY, metavar="SECONDS")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Options for the parts of a definition; None: not given."""

    selector: Annotated[
        str | None, _part("--selector", "Messages that it takes, by their properties; an empty text: all.")
    ] = None
    no_local: Annotated[
        bool | None,
        _part("--no-local/--local", "Whether it leaves out messages of the same connection or client id."),
    ] = None
    header_types: Annotated[
        list[str] | None,
        _part(
            "--header-type",
            f"Type of a header whose producer does not write its type: {_HEADER_TYPES}; repeatable.",
            metavar="NAME=TYPE",
        ),
    ] = None
    strict_order: Annotated[
        bool | None,
        _part(
            "--strict-order/--no-strict-order", "Whether later messages wait for one that was rolled back."
        ),
    ] = None
    key_lanes: Annotated[
        int | None,
        _part(
            "--key-lanes",
            "Key-ordered: members that can share a partition; 0: kafkadur chooses.",
            metavar="N",
        ),
    ] = None
    scope: Annotated[
        Scope | None,
        _part(
            "--scope",
            "Serial: one turn for all partitions (subscription), or one for each (partition).",
            metavar="SCOPE",
        ),
    ] = None
    ack_level: Annotated[
        AckLevel | None,
        _part(
            "--ack-level",
            f"What an acknowledgement waits for, unless it names a level: {_LEVELS}.",
            metavar="LEVEL",
        ),
    ] = None
    max_consumers: Annotated[
        int | None, _part("--max-consumers", "The most consumers at a time; 0: any number.", metavar="N")
    ] = None
    history: Annotated[
        str | None,
        _part(
            "--history",
            "How long the history of its deliveries is kept (`sub history`): 12h, 7d; 0: it has none.",
            metavar="AGE",
        ),
    ] = None
    max_attempts: Annotated[
        int | None,
        _part(
            "--max-attempts",
            "Attempts before a message is a dead letter; 0: no limit.",
            _REDELIVERY,
            metavar="N",
        ),
    ] = None
    backoff: Annotated[
        float | None,
        _seconds("--backoff", "Wait before the second attempt; it doubles with each further one."),
    ] = None
    max_backoff: Annotated[float | None, _seconds("--max-backoff", "The longest wait.")] = None
    max_hold: Annotated[
        float | None,
        _seconds("--max-hold", "How long a message may be held without a verdict; 0: no limit."),
    ] = None
    dead_letter_topic: Annotated[
        str | None,
        _part(
            "--dead-letter-topic",
            "Topic of the dead letters; an empty text: TOPIC.dead.",
            _REDELIVERY,
            metavar="TOPIC",
        ),
    ] = None
    rescue: Annotated[
        bool | None,
        _part(
            "--rescue/--no-rescue",
            "Whether messages that retention is about to remove become dead letters.",
            _REDELIVERY,
        ),
    ] = None

    def changes(self) -> Changes:
        """Return the parts that were given; 0 and an empty text say that there is none."""
        parts = {name: value for name, value in vars(self).items() if value is not None}
        if self.history is not None:
            parts["history"] = None if self.history == "0" else age(self.history)
        for name in _OR_NONE & parts.keys():
            parts[name] = parts[name] or None
        if self.header_types is not None:
            parts["header_types"] = dict(map(_header_type, self.header_types))
        return cast("Changes", parts)


_OPTIONS = tuple(inspect.signature(Parts, eval_str=True).parameters.values())


def _header_type(text: str) -> tuple[str, str]:
    name, equals, kind = text.partition("=")
    if not equals or kind not in get_args(HeaderType):
        raise typer.BadParameter(
            f"{text!r} is not NAME=TYPE with a TYPE of {_HEADER_TYPES}", param_hint="--header-type"
        )
    return name, kind


def _with_parts(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Parts` in place of its parameter `parts`."""

    @functools.wraps(function)
    def run(call: Call, **given: Any) -> None:  # noqa: ANN401 - the options of any command
        parts = Parts(**{option.name: given.pop(option.name) for option in _OPTIONS})
        function(call, parts=parts, **given)

    own = inspect.signature(function, eval_str=True).parameters.values()
    return with_parameters(run, [*(each for each in own if each.name != "parts"), *_OPTIONS])


@command
@_with_parts
def create(
    call: Call,
    name: NameArgument,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic of the subscription.", autocompletion=complete_topic)
    ],
    *,
    kind: Annotated[
        SubscriptionType, _part("--type", f"How its messages are shared out: {_TYPES}.", metavar="TYPE")
    ] = SubscriptionType.SHARED,
    start: Annotated[
        Start,
        _part(
            "--start",
            "Where it begins: behind the messages of the topic (latest), or before them (earliest).",
            metavar="PLACE",
        ),
    ] = "latest",
    parts: Parts,
) -> None:
    """Create a durable subscription without attaching to it; messages wait in it from now on."""
    with call.admin() as admin:
        key = admin.key(name)
        definition = admin.create(key, topic, start=start, **(parts.changes() | {"type": kind}))
    _show(call.out, key, definition, "was created")


@command
@_with_parts
def alter(
    call: Call,
    name: NameArgument,
    *,
    kind: Annotated[
        SubscriptionType | None, _part("--type", f"Another type: {_TYPES}.", metavar="TYPE")
    ] = None,
    retroactive: Annotated[
        bool,
        typer.Option("--retroactive", help="Deliver the messages that only the new selector matches."),
    ] = False,
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade",
            help="Rewrite the state in the format of this version; any other change does so, too.",
        ),
    ] = False,
    parts: Parts,
) -> None:
    """Change parts of the definition in place; what is settled stays settled, and what waits is kept.

    No member may be attached.
    """
    changes = parts.changes()
    if kind is not None:
        changes["type"] = kind
    if retroactive and "selector" not in changes:
        raise IllegalState("Without a new selector nothing is retroactive.", remedy="give --selector")
    if not (changes or upgrade):
        raise IllegalState(
            "There is nothing to change.", remedy="give --type, --selector, --max-attempts or another part"
        )
    with call.admin() as admin, call.out.progress() as progress:
        key = admin.key(name)
        task = progress.add_task("reading the topic again", total=None, visible=retroactive)
        after = admin.alter(
            key,
            retroactive=retroactive,
            on_progress=lambda read: progress.update(task, description=f"{read:,} records read again"),
            **changes,
        )
    _show(call.out, key, after, "is now")


def _show(out: Output, key: SubscriptionKey, definition: Definition, what: str) -> None:
    """Print a definition."""
    if out.as_json:
        out.json({"subscription": str(key), "definition": definition.to_record()})
        return
    out.say(f"Subscription {key} {what}:")
    out.facts(definition_facts(definition))
