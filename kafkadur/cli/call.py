"""What all commands have in common: the connection's options and --json, and what becomes of errors.

`@command` gives a function these options and calls it with a `Call`. What a command does with it, and how it
prints, is not here.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from kafkadur.cli.output import Output
from kafkadur.settings import Settings, settings
from kafkadur.stack import FOLDER, status
from kafkadur_coordinators.redis.server import shown
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import ClientIdPolicy

FAILED, INTERRUPTED = 1, 130

_PANEL = "Connection"

KafkaOption = Annotated[
    str | None,
    typer.Option("--kafka", metavar="HOST:PORT", help="Bootstrap servers.", rich_help_panel=_PANEL),
]
KafkaConfigOption = Annotated[
    str | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        help="Further settings of Kafka's client, name=value a line: SASL, TLS.",
        rich_help_panel=_PANEL,
    ),
]
RedisOption = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="Redis or Valkey.", rich_help_panel=_PANEL),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="Namespace of subscriptions.", rich_help_panel=_PANEL),
]
ClientIdOption = Annotated[
    str | None,
    typer.Option("--client-id", metavar="ID", help="Client id of the connection.", rich_help_panel=_PANEL),
]
PolicyOption = Annotated[
    ClientIdPolicy | None,
    typer.Option(
        "--client-id-policy",
        help="Whether one connection at a time may have the client id, or any number.",
        rich_help_panel=_PANEL,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]

_CONNECTION: dict[str, Any] = {
    "kafka": KafkaOption,
    "kafka_config": KafkaConfigOption,
    "redis": RedisOption,
    "namespace": NamespaceOption,
    "client_id": ClientIdOption,
    "client_id_policy": PolicyOption,
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The common options as they were given; None: not given."""

    kafka: str | None = None
    kafka_config: str | None = None
    redis: str | None = None
    namespace: str | None = None
    client_id: str | None = None
    client_id_policy: ClientIdPolicy | None = None
    json: bool = False

    def over(self, outer: Options) -> Options:
        """Join with those before the command's name; what stands behind it wins."""
        return Options(
            kafka=self.kafka or outer.kafka,
            kafka_config=self.kafka_config or outer.kafka_config,
            redis=self.redis or outer.redis,
            namespace=self.namespace or outer.namespace,
            client_id=self.client_id or outer.client_id,
            client_id_policy=self.client_id_policy or outer.client_id_policy,
            json=self.json or outer.json,
        )


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a command: what was asked for, and where the answer goes."""

    options: Options
    out: Output = field(compare=False)

    def settings(self) -> Settings:
        """Return the settings: from the options, else the environment, else the stack of the current folder.

        Raises IllegalState for a wrong setting, and when nothing says where Kafka is.
        """
        given: dict[str, Any] = {
            "kafka": self.options.kafka,
            "kafka_config": self.options.kafka_config,
            "redis": self.options.redis,
            "namespace": self.options.namespace,
            "client_id": self.options.client_id,
            "client_id_policy": self.options.client_id_policy,
        }
        said = {
            name
            for name in ("kafka", "kafka_config", "redis")
            if given[name] or f"KAFKADUR_{name.upper()}" in os.environ
        }
        if not said and (running := status(FOLDER).stack) is not None:
            self.out.say(
                f"Using the stack of {Path(FOLDER)}: Kafka {running.kafka}, Redis {shown(running.redis)}"
            )
            given |= {"kafka": running.kafka, "redis": running.redis}
        chosen = settings(given)
        # What goes wrong is said by our own errors; librdkafka would write it to standard error on its own.
        quiet = {"log_level": 0, "error_cb": _ignore}
        return chosen.model_copy(update={"kafka": {**quiet, **chosen.kafka}})


def _ignore(_error: object) -> None:
    """Take the place of librdkafka's own complaint."""


P = ParamSpec("P")


def command(
    function: Callable[Concatenate[Call, P], None], *, connection: bool = True
) -> Callable[..., None]:
    """Make a typer command of a function whose first parameter is the `Call`.

    Its options get company by the common ones, so that they are understood behind the command's name too;
    those of the connection only if `connection` is true. Errors of kafkadur become one message and exit
    status 1.
    """
    signature = inspect.signature(function, eval_str=True)
    own = list(signature.parameters.values())[1:]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (_CONNECTION if connection else {}).items()
    ]
    common.append(
        inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption)
    )
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @functools.wraps(function)
    def run(*, ctx: typer.Context, **given: Any) -> None:  # noqa: ANN401 - the options of any command
        inner = Options(**{parameter.name: given.pop(parameter.name) for parameter in common})
        options = inner.over(ctx.obj)
        call = Call(options=options, out=Output(as_json=options.json))
        _guarded(call.out, functools.partial(function, call, **given))

    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    # typer reads the options from the signature.
    parameters = [*keywords, context, *common]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    # Older versions of typer take the types from here.
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__  # its signature is not this one's
    return run


#: `command` for what has to do with this machine alone.
local_command = functools.partial(command, connection=False)


def _guarded(out: Output, act: Callable[[], None]) -> None:
    """Run `act`; turn what ends it early into an exit status."""
    try:
        act()
        sys.stdout.flush()
    except KafkadurError as error:
        out.complain(str(error))
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        out.complain("Interrupted.")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Who read standard output has gone, as `head` does; what Python still wants to write has no reader.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
