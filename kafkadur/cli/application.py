"""The tree of commands.

The commands are in the files named for their groups. Each is imported when it is called, so that help and
completion of the others need not wait for the clients of Kafka and Redis.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from kafkadur.cli.options import OPTIONS, Options, with_parameters

_EPILOG = (
    "Exit status: 0 done, 1 failed (standard error says why), 2 wrong command line, 130 interrupted. "
    "Commands look for the addresses of Kafka and Redis in the options, else in the context that --context "
    "or KAFKADUR_CONTEXT names, else in KAFKADUR_KAFKA, KAFKADUR_REDIS and the other KAFKADUR_ settings of "
    "the environment, else in the stack that `kafkadur up` started in this folder, else in the context in "
    "use."
)
#: The base class of errors in the command line, which typer does not export.
_UsageError: Any = typer.BadParameter.__mro__[1]

LOCAL, DATA = "Kafka and Valkey on this machine", "Messages and subscriptions"

#: The commands: for each group the places of their functions, and what each does, in a few words.
COMMANDS: dict[str, dict[str, str]] = {
    LOCAL: {
        "stack.up": "Start Kafka and Valkey on this machine; they run until `kafkadur down`.",
        "stack.status": "Show the stack that `kafkadur up` started.",
        "stack.down": "Stop the stack that `kafkadur up` started and remove its data.",
    },
    DATA: {
        "messages.publish": "Publish a message, or each line of standard input as a message.",
        "messages.consume": "Receive messages of a durable subscription and print each on a line.",
        "run.run": "Run the handlers of an app until SIGTERM or Ctrl-C.",
        "serve.serve": "Serve a page and a JSON API for the subscriptions, until Ctrl-C.",
        "serve.token": "Make a token for the service.",
        "gateway.gateway": "Let clients of AMQP 1.0 use topics and subscriptions, until Ctrl-C.",
        "gateway.gateway_user": "Add a user of the gateway to a file.",
        "metrics.metrics": "Serve metrics of all durable subscriptions at /metrics, until Ctrl-C.",
        "doctor.doctor": "Look at the servers and the subscriptions, and say what to change.",
    },
    "sub": {
        "subscriptions.ls": "List the durable subscriptions of the namespace.",
        "subscriptions.info": "Show a subscription: definition, members, partitions.",
        "watching.watch": "Show how subscriptions change, in a table that is live on a terminal.",
        "watching.peek": "Show the messages that wait or are in flight; consumes nothing.",
        "subscriptions.explain": "Show the state of one message, and what it waits for.",
        "history.history": "Show which member had which messages, and what became of them.",
        "subscriptions.parked": "List the keys that are stuck behind a message.",
        "defining.create": "Create a durable subscription without attaching to it.",
        "defining.alter": "Change parts of the definition; what waits is kept.",
        "moving.pause": "Stop handing out messages; members stay attached.",
        "moving.resume": "Resume a paused subscription.",
        "moving.drain": "Pause, and wait until nothing is in flight.",
        "moving.seek": "Move to another position: messages come again, or are skipped.",
        "moving.snapshot": "Write which messages are settled to a file.",
        "moving.restore": "Bring a subscription to where it stood in a snapshot.",
        "moving.fork": "Make a second subscription at the same position.",
        "moving.export": "Set the offsets of a consumer group to this position.",
        "subscriptions.unsubscribe": "Delete a subscription with all that waits in it.",
        "abandoned.abandoned": "List durable subscriptions that have had no member for long.",
    },
    "member": {
        "members.ls": "List the members of a subscription.",
        "members.evict": "End the session of a member: its messages come again, elsewhere.",
    },
    "dead": {
        "dead.ls": "List the dead letters that were neither redriven nor purged.",
        "dead.show": "Show one dead letter: its cause, its origin, its properties.",
        "dead.redrive": "Publish dead letters to their topic again.",
        "dead.purge": "Discard dead letters.",
    },
    "topic": {
        "topics.create": "Create a topic, and wait until it takes messages.",
        "topics.ls": "List the topics, except those of Kafka itself.",
    },
    "recovery": {
        "recovery.report": "Show the last recovery of each subscription.",
        "recovery.run": "Rebuild now the state that Redis lost of all subscriptions.",
    },
    "journal": {
        "journal.inspect": "Show the records of the journal, the newest last.",
        "journal.verify": "Read all records of the journal; exit status 1 if some cannot be read.",
    },
    "context": {
        "context.add": "Keep the connection options of this command under a name.",
        "context.ls": "List the contexts; an asterisk marks the one in use.",
        "context.use": "Use a context in all commands that nothing else tells where the servers are.",
        "context.leave": "Use no context, except where a command names one.",
        "context.rm": "Forget a context; its servers are not touched.",
    },
    "acl": {
        "acl.redis": "Print the Redis user that kafkadur needs.",
        "acl.kafka": "Print, or apply, the rights that a Kafka principal needs.",
    },
}


#: What redis imports where it is installed, for metrics of its own: a tenth of the time of a command.
_METRICS_OF_REDIS = "opentelemetry.sdk.metrics"


def function_of(place: str) -> Callable[..., None]:
    """Import the function of a command, by its place in `COMMANDS`."""
    module, _, name = place.rpartition(".")
    # not for an app, which may want these metrics
    with contextlib.nullcontext() if module == "run" else _hidden(_METRICS_OF_REDIS):
        found: Callable[..., None] = getattr(import_module(f"kafkadur.cli.{module}"), name)
    return found


@contextlib.contextmanager
def _hidden(module: str) -> Generator[None]:
    """Have imports of a module fail within the context, as if it were not installed."""
    if module in sys.modules:
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules[module] = None
    try:
        yield
    finally:
        del modules[module]


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


class _Later(TyperCommand):
    """Stands for a command in the help of its group; the command is imported when it is called."""

    place: ClassVar[str]

    def make_context(self, info_name: Any, *rest: Any, **more: Any) -> Any:  # noqa: ANN401 - as above
        """Return the context of a call, or of the completion of one."""
        return self.command().make_context(info_name, *rest, **more)

    def command(self) -> Any:  # noqa: ANN401 - as above
        """Import the command, and return it with its parameters."""
        alone = typer.Typer(add_completion=False)
        alone.command(name=self.name, cls=_Command)(function_of(self.place))
        return typer.main.get_command(alone)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer passes the value of the option
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - needed by nothing else

        from kafkadur.native.choice import client_name  # noqa: PLC0415 - as above

        typer.echo(f"kafkadur {version('kafkadur')}, which reads and writes Kafka with {client_name()}")
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


def _group(text: str) -> typer.Typer:
    """Return a group of commands with this help text."""
    return typer.Typer(cls=_Group, help=text, no_args_is_help=True)


def _none() -> None:
    """Take no parameters: the command that this stands for has its own."""


app = typer.Typer(
    cls=_Group,
    help="Durable subscriptions for Apache Kafka.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_ctx, _show_version, _ = inspect.signature(common, eval_str=True).parameters.values()
app.callback()(with_parameters(common, [_ctx, *OPTIONS, _show_version]))
_GROUPS = {
    LOCAL: app,
    DATA: app,
    "sub": _group("Create subscriptions, look at them, change and delete them."),
    "dead": _group("Look at dead letters, send them again, remove them."),
    "member": _group("Look at the members of a subscription, and evict one."),
    "topic": _group("Create and list topics."),
    "recovery": _group("Show and repair a loss of Redis."),
    "journal": _group("Look at the records in Kafka that survive a loss of Redis."),
    "context": _group("Names for the places of Kafka and Redis."),
    "acl": _group("Print what users of Redis and Kafka must be allowed."),
}
for _name, _commands in COMMANDS.items():
    for _place, _help in _commands.items():
        _GROUPS[_name].command(
            _place.rpartition(".")[2].replace("_", "-"),
            cls=type("Later", (_Later,), {"place": _place}),
            help=_help,
            rich_help_panel=_name if _GROUPS[_name] is app else None,
        )(_none)
for _name in ("sub", "member", "topic", "recovery", "journal", "context", "acl"):
    app.add_typer(_GROUPS[_name], name=_name, rich_help_panel=DATA)
_GROUPS["sub"].add_typer(_GROUPS["dead"], name="dead")


def run(arguments: Sequence[str]) -> None:
    """Run a command line; does not return. With --json it also says in JSON what is wrong in the line."""
    if "--json" not in arguments:
        app(arguments, prog_name="kafkadur")
    try:
        status = app(arguments, prog_name="kafkadur", standalone_mode=False)
    except _UsageError as error:
        from kafkadur.cli.output import Output  # noqa: PLC0415 - most command lines are right

        path = "kafkadur" if error.ctx is None else error.ctx.command_path
        Output(as_json=True).fail_usage(error.format_message(), f"see `{path} --help`")
        status = error.exit_code
    sys.exit(status or 0)
