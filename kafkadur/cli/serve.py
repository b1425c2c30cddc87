"""`kafkadur serve` and `kafkadur token`: the service with its page, and who may use it."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from kafkadur.cli.call import Call, command, local_command, missing_extra
from kafkadur.service.access import PROXY, ROLES, Role, add_token, in_url, is_loopback, read_tokens
from kafkadur.worker.ending import end_early
from kafkadur_sharing.errors import IllegalState

FileOption = Annotated[Path, typer.Option("--tokens", metavar="FILE", help="File of tokens.")]


@command
def serve(
    call: Call,
    *,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port.")] = 9470,
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="Who may do what; needed beyond the loopback address."),
    ] = None,
    every: Annotated[
        float,
        typer.Option(
            "--every",
            min=1,
            max=300,
            metavar="SECONDS",
            help="Seconds between two readings of all subscriptions.",
        ),
    ] = 5.0,
    prometheus: Annotated[
        str | None,
        typer.Option(
            "--prometheus",
            metavar="URL",
            help="Prometheus that scrapes the metrics, for charts of more than an hour.",
        ),
    ] = None,
) -> None:
    """Serve a page and a JSON API for the subscriptions of the namespace, until Ctrl-C."""
    try:
        from kafkadur.service.application import server  # noqa: PLC0415 - it needs the extra
    except ImportError as error:
        raise missing_extra("The service needs packages of its own.", error, "serve") from error
    if tokens is None and not is_loopback(in_url(host)):
        raise IllegalState(
            "A service without tokens listens on the loopback address only.",
            state=f"--host {host}",
            remedy="make tokens with `kafkadur token NAME --role ROLE --tokens FILE`, and give --tokens FILE",
        )
    known = None if tokens is None else read_tokens(tokens)
    listening = _listen(host, port)
    if prometheus is not None and not prometheus.startswith(("http://", "https://")):
        raise typer.BadParameter("give a URL, such as http://prometheus:9090", param_hint="--prometheus")
    serving = server(call.reached(), known, every=every, prometheus=prometheus)
    shown = in_url(host)
    call.out.say(f"The page is at http://{shown}:{listening.getsockname()[1]}/; Ctrl-C ends it.")
    signal.signal(signal.SIGTERM, end_early)  # which the server sends itself again when it has ended
    serving.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises `IllegalState`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise IllegalState(
            "The service cannot listen.",
            state=str(error),
            owner=f"{host}:{port}",
            remedy="name a free port with --port, or another address with --host",
        ) from error


@local_command
def token(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the person or program that uses it.")],
    *,
    role: Annotated[
        str,
        typer.Option(
            "--role",
            metavar="|".join((*ROLES, PROXY)),
            help="What it may do; proxy: a proxy that authenticates people, and names them in headers.",
        ),
    ],
    tokens: FileOption,
) -> None:
    """Make a token for the service, add its digest to a file, and print it, once."""
    if role not in {*ROLES, PROXY}:
        raise typer.BadParameter(f"{role!r}: use {', '.join((*ROLES, PROXY))}", param_hint="--role")
    made = add_token(tokens, name, None if role == PROXY else Role[role.upper()])
    call.out.say(f"Added {name} as {role} to {tokens}. The token is shown only now; restart the service.")
    if call.options.json:
        call.out.json({"name": name, "role": role, "token": made})
    else:
        call.out.line(made)
