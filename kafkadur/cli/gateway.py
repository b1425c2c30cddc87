"""`kafkadur gateway` and `kafkadur gateway-user`: the AMQP 1.0 gateway, and who may connect to it."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafkadur.cli.call import Call, command, local_command, missing_extra
from kafkadur.service.access import is_loopback
from kafkadur.worker.ending import end_early
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.redelivery_policy import Redelivery

if TYPE_CHECKING:
    from kafkadur.gateway.options import GatewaySettings
    from kafkadur.settings import Settings

_USERS = typer.Option("--users", metavar="FILE", help="Users and passwords, of `kafkadur gateway-user`.")
_PERMISSIONS = typer.Option(
    "--permissions", metavar="FILE", help="What users may do: lines of USER ACTIONS PATTERN."
)
_PLAIN_TEXT = typer.Option("--plain-text", help="Take passwords without TLS, also from other machines.")
_IDLE = typer.Option(
    "--idle-timeout", min=1, max=3600, metavar="SECONDS", help="A client that is silent so long is gone."
)
_LARGEST = typer.Option("--max-message-bytes", min=1_024, metavar="BYTES", help="The largest message.")
_ATTEMPTS = typer.Option(
    "--max-attempts",
    min=1,
    metavar="N",
    help="A message becomes a dead letter after N attempts, on subscriptions that clients create.",
)
_BACKOFF = typer.Option(
    "--backoff", min=0, metavar="SECONDS", help="Wait before the second attempt; it doubles."
)
_RELEASED = typer.Option("--count-released", help="A message that a client releases counts as an attempt.")
_CERTIFICATE = typer.Option(
    "--tls-cert", metavar="FILE", help="Certificate chain, PEM: the gateway speaks TLS."
)
_KEY = typer.Option("--tls-key", metavar="FILE", help="Private key of the certificate, PEM.")
_CLIENT_CA = typer.Option(
    "--tls-client-ca",
    metavar="FILE",
    help="Authorities, PEM: clients authenticate by a certificate of theirs.",
)


@command
def gateway(
    call: Call,
    *,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port.")] = 5672,
    users: Annotated[Path | None, _USERS] = None,
    permissions: Annotated[Path | None, _PERMISSIONS] = None,
    tls_cert: Annotated[Path | None, _CERTIFICATE] = None,
    tls_key: Annotated[Path | None, _KEY] = None,
    tls_client_ca: Annotated[Path | None, _CLIENT_CA] = None,
    plain_text: Annotated[bool, _PLAIN_TEXT] = False,
    idle_timeout: Annotated[float, _IDLE] = 60.0,
    max_message_bytes: Annotated[int, _LARGEST] = 1_048_576,
    max_attempts: Annotated[int | None, _ATTEMPTS] = None,
    backoff: Annotated[float, _BACKOFF] = 0.0,
    count_released: Annotated[bool, _RELEASED] = False,
) -> None:
    """Let clients of AMQP 1.0, such as Apache Qpid JMS, use topics and subscriptions, until Ctrl-C."""
    try:
        from kafkadur.gateway.options import GatewaySettings  # noqa: PLC0415 - it needs the extra
        from kafkadur.gateway.permissions import EVERYTHING, read_permissions  # noqa: PLC0415 - as above
        from kafkadur.gateway.users import read_users  # noqa: PLC0415 - as above
    except ImportError as error:
        raise missing_extra("The gateway needs packages of its own.", error, "gateway") from error
    authenticated = users is not None or tls_client_ca is not None
    local = is_loopback(f"[{host}]" if ":" in host else host)
    if not authenticated and not local:
        raise IllegalState(
            "A gateway that does not ask its clients who they are listens on the loopback address only.",
            state=f"--host {host}",
            remedy="give --users FILE, of `kafkadur gateway-user`, or --tls-client-ca FILE",
        )
    if users is not None and tls_cert is None and not (local or plain_text):
        raise IllegalState(
            "Passwords would be sent in clear text.",
            state=f"--host {host}, and no TLS",
            remedy="give --tls-cert FILE, or --plain-text if a proxy with TLS is in front of the gateway",
        )
    options = GatewaySettings(
        host=host,
        port=port,
        tls=_tls(tls_cert, tls_key, tls_client_ca),
        anonymous=not authenticated,
        check_password=None if users is None else read_users(users).has_password,
        permissions=EVERYTHING if permissions is None else read_permissions(permissions),
        idle_timeout=idle_timeout,
        most_message_bytes=max_message_bytes,
        counts_released=count_released,
        redelivery=Redelivery(max_attempts=max_attempts, backoff=backoff)
        if max_attempts or backoff
        else None,
    )
    signal.signal(signal.SIGTERM, end_early)  # until the loop handles it
    asyncio.run(_serve(call, call.reached(), options))


async def _serve(call: Call, settings: Settings, options: GatewaySettings) -> None:
    from kafkadur.gateway.gateway import Gateway  # noqa: PLC0415 - it needs the extra

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with Gateway(settings, options) as serving:
        scheme = "amqps" if options.tls is not None else "amqp"
        shown = f"[{options.host}]" if ":" in options.host else options.host
        call.out.say(f"The gateway is at {scheme}://{shown}:{serving.port}; Ctrl-C ends it.")
        await stopped.wait()


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ssl.SSLContext | None:
    """Return the settings of TLS; None without a certificate. Raises `IllegalState`."""
    if certificate is None:
        if key is not None or client_ca is not None:
            raise typer.BadParameter("give --tls-cert, too", param_hint="--tls-cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise IllegalState(
            "The certificate of the gateway cannot be used.",
            state=str(error),
            owner=f"file {certificate}",
            remedy="give PEM files: --tls-cert, --tls-key, and --tls-client-ca for certificates of clients",
        ) from error
    return context


@local_command
def gateway_user(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the user.")],
    *,
    users: Annotated[Path, typer.Option("--users", metavar="FILE", help="File of users.")],
) -> None:
    """Add a user of the gateway to a file; the password is asked for, or read from standard input."""
    try:
        from kafkadur.gateway.users import add_user  # noqa: PLC0415 - it needs the extra
    except ImportError as error:
        raise missing_extra("The gateway needs packages of its own.", error, "gateway") from error
    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    add_user(users, name, password)
    call.out.say(f"Added {name} to {users}; restart the gateway.")
    if call.options.json:
        call.out.json({"name": name, "users": str(users)})
