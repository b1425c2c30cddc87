"""The tree of commands. The commands are in the files named for their groups."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from kafkadur.cli import acl, topics
from kafkadur.cli import dead as letters
from kafkadur.cli import recovery as recoveries
from kafkadur.cli.abandoned import abandoned
from kafkadur.cli.call import OPTIONS, Options, with_parameters
from kafkadur.cli.defining import alter, create
from kafkadur.cli.doctor import doctor
from kafkadur.cli.messages import consume, publish
from kafkadur.cli.metrics import metrics
from kafkadur.cli.moving import drain, export, fork, pause, restore, resume, seek, snapshot
from kafkadur.cli.run import run
from kafkadur.cli.stack import down, status, up
from kafkadur.cli.subscriptions import explain, info, ls, parked, unsubscribe
from kafkadur.cli.watching import peek, watch

_EPILOG = (
    "Exit status: 0 done, 1 failed (standard error says why), 2 wrong command line, 130 interrupted. "
    "Where Kafka and Redis are is taken from the options, else from KAFKADUR_KAFKA, KAFKADUR_REDIS and the "
    "other KAFKADUR_ settings of the environment, else from the stack that `kafkadur up` started in this "
    "folder."
)


class _Flags:
    """Shows flags without a value; a part of the commands and groups of typer."""

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - typer has the types of a click of its own
        """Return the options and arguments."""
        params = super().get_params(ctx)  # type: ignore[misc]  # of the command that it is mixed into
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class _Command(_Flags, TyperCommand):
    """A command."""


class _Group(_Flags, TyperGroup):
    """A group of commands."""


app = typer.Typer(
    cls=_Group,
    help="Durable subscriptions for Apache Kafka.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _group(text: str) -> typer.Typer:
    """Return a group of commands with this help text."""
    return typer.Typer(cls=_Group, help=text, no_args_is_help=True)


LOCAL, DATA = "Kafka and Valkey on this machine", "Messages and subscriptions"


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer passes the value of the option
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - needed by nothing else

        typer.echo(f"kafkadur {version('kafkadur')}")
        raise typer.Exit


def common(
    *,
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
    **given: Any,  # noqa: ANN401 - the common options
) -> None:
    """Durable subscriptions for Apache Kafka: every message of a subscription is settled by itself."""
    del version
    ctx.obj = Options(**given)


_ctx, _show_version, _ = inspect.signature(common, eval_str=True).parameters.values()
app.callback()(with_parameters(common, [_ctx, *OPTIONS, _show_version]))
sub = _group("Create subscriptions, look at them, change and delete them.")
recovery = _group("Show and repair a loss of Redis.")
dead = _group("Look at dead letters, send them again, remove them.")
topic = _group("Create and list topics.")
rights = _group("Print what users of Redis and Kafka must be allowed.")
for each in (up, status, down):
    app.command(rich_help_panel=LOCAL, cls=_Command)(each)
for each in (publish, consume, run, metrics, doctor):
    app.command(rich_help_panel=DATA, cls=_Command)(each)
for group, commands in {
    sub: (
        ls, info, watch, peek, explain, parked, create, alter, pause, resume, drain, seek, snapshot,
        restore, fork, export, unsubscribe, abandoned,
    ),
    recovery: (recoveries.report, recoveries.run),
    dead: (letters.ls, letters.show, letters.redrive, letters.purge),
    rights: (acl.redis, acl.kafka),
    topic: (topics.create, topics.ls),
}.items():  # fmt: skip
    for each in commands:
        group.command(cls=_Command)(each)
app.add_typer(sub, name="sub", rich_help_panel=DATA)
app.add_typer(topic, name="topic", rich_help_panel=DATA)
app.add_typer(recovery, name="recovery", rich_help_panel=DATA)
app.add_typer(rights, name="acl", rich_help_panel=DATA)
sub.add_typer(dead, name="dead")
