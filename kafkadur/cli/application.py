"""The tree of commands. The commands are in the files named for their groups."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kafkadur.cli import acl
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

_EPILOG = (
    "Exit status: 0 done, 1 failed (standard error says why), 2 wrong command line, 130 interrupted. "
    "Where Kafka and Redis are is taken from the options, else from KAFKADUR_KAFKA, KAFKADUR_REDIS and the "
    "other KAFKADUR_ settings of the environment, else from the stack that `kafkadur up` started in this "
    "folder."
)

app = typer.Typer(
    help="Durable subscriptions for Apache Kafka.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
sub = typer.Typer(help="Look at subscriptions, change and delete them.", no_args_is_help=True)


class _Command(TyperCommand):
    """A command that shows --help as a flag, without a value."""

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401 - typer has the types of a click of its own
        """Return the option --help."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option


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
recovery = typer.Typer(help="Show and repair a loss of Redis.", no_args_is_help=True)
dead = typer.Typer(help="Look at dead letters, send them again, remove them.", no_args_is_help=True)
rights = typer.Typer(help="Print what users of Redis and Kafka must be allowed.", no_args_is_help=True)
for each in (up, status, down):
    app.command(rich_help_panel=LOCAL, cls=_Command)(each)
for each in (publish, consume, run, metrics, doctor):
    app.command(rich_help_panel=DATA, cls=_Command)(each)
for group, commands in {
    sub: (
        ls, info, explain, parked, create, alter, pause, resume, drain, seek, snapshot, restore, fork, export,
        unsubscribe, abandoned,
    ),
    recovery: (recoveries.report, recoveries.run),
    dead: (letters.ls, letters.show, letters.redrive, letters.purge),
    rights: (acl.redis, acl.kafka),
}.items():  # fmt: skip
    for each in commands:
        group.command(cls=_Command)(each)
app.add_typer(sub, name="sub", rich_help_panel=DATA)
app.add_typer(recovery, name="recovery", rich_help_panel=DATA)
app.add_typer(rights, name="acl", rich_help_panel=DATA)
sub.add_typer(dead, name="dead")
