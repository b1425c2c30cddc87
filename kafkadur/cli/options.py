"""The options that all commands share. It imports little, because each command and each help needs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kafkadur_sharing.keys import ClientIdPolicy


def _connection(name: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002, ANN401 - as typer.Option
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel="Connection")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The common options as they were given; None: not given."""

    kafka: Annotated[str | None, _connection("--kafka", "Bootstrap servers.", "HOST:PORT")] = None
    kafka_config: Annotated[
        str | None,
        _connection(
            "--kafka-config", "Further settings of Kafka's client, name=value a line: SASL, TLS.", "FILE"
        ),
    ] = None
    redis: Annotated[str | None, _connection("--redis", "Redis or Valkey.", "URL")] = None
    namespace: Annotated[str | None, _connection("--namespace", "Namespace of subscriptions.", "NAME")] = None
    client_id: Annotated[str | None, _connection("--client-id", "Client id of the connection.", "ID")] = None
    client_id_policy: Annotated[
        ClientIdPolicy | None,
        _connection(
            "--client-id-policy",
            "Restricted: one connection at a time may have the client id; unrestricted: any number.",
            "POLICY",
        ),
    ] = None
    context: Annotated[
        str | None,
        _connection("--context", "Where Kafka and Redis are, by a name of `kafkadur context`.", "CONTEXT"),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False

    def over(self, outer: Options) -> Options:
        """Join with the options before the command's name; those behind it win."""
        return Options(**{name: value or getattr(outer, name) for name, value in vars(self).items()})


#: The options that are settings of a connection, as contexts have them.
CONNECTION = ("kafka", "kafka_config", "redis", "namespace", "client_id", "client_id_policy")

#: The common options as parameters of a function.
OPTIONS = tuple(inspect.signature(Options, eval_str=True).parameters.values())


def with_parameters(
    function: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Make typer read these parameters instead of those of the function."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    # Older versions of typer take the types from here.
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function
