"""`kafkadur gateway` and `kafkadur gateway-user`: the AMQP 1.0 gateway, and who may connect to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import ssl
import sys
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafkadur.cli.call import Call, command, local_command, missing_extra
from kafkadur.monitoring.logs import LogFormat, LogLevel, announce, log_to_stderr
from kafkadur.service.access import in_url, is_loopback
from kafkadur.worker.ending import end_early
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.redelivery_policy import Redelivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkadur.gateway.gateway import Gateway
    from kafkadur.gateway.options import GatewaySettings
    from kafkadur.monitoring.probes import ProbePort
    from kafkadur.settings import Settings

_log = logging.getLogger("kafkadur.gateway")

_USERS = typer.Option(
    "--users", metavar="FILE", help="File of users and passwords, written by `kafkadur gateway-user`."
)
_PERMISSIONS = typer.Option(
    "--permissions", metavar="FILE", help="File of permissions, a rule USER ACTIONS PATTERN on each line."
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
_PROBE_PORT = typer.Option(
    "--probe-port",
    min=0,
    max=65535,
    help="Port of /livez, /readyz and /metrics; 0: any free port. Without it there are none.",
)
_PROBE_HOST = typer.Option("--probe-host", help="Address of the port of probes and metrics.")
_LOG_FORMAT = typer.Option("--log-format", metavar="|".join(LogFormat), help="Format of the log.")
_LOG_LEVEL = typer.Option("--log-level", metavar="|".join(LogLevel), help="Lowest level that is logged.")
#: Seconds without a sign of the event loop after which /livez fails.
_SILENCE_S = 30
#: Open files that the process asks for.
_MOST_FILES = 65_536
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
    probe_port: Annotated[int | None, _PROBE_PORT] = None,
    probe_host: Annotated[str, _PROBE_HOST] = "127.0.0.1",
    log_format: Annotated[LogFormat, _LOG_FORMAT] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, _LOG_LEVEL] = LogLevel.INFO,
) -> None:
    """Let clients of AMQP 1.0, such as Apache Qpid JMS, use topics and subscriptions, until Ctrl-C."""
    try:
        from kafkadur.gateway.options import GatewaySettings  # noqa: PLC0415 - it needs the extra
        from kafkadur.gateway.permissions import EVERYTHING, read_permissions  # noqa: PLC0415 - as above
        from kafkadur.gateway.users import read_users  # noqa: PLC0415 - as above

        if probe_port is not None:
            import_module("prometheus_client")  # raises an error here where it is missing
        log_to_stderr(log_format, log_level)
    except ImportError as error:
        raise missing_extra("The gateway needs packages of its own.", error, "gateway") from error
    authenticated = users is not None or tls_client_ca is not None
    _check_safe(
        host,
        authenticated=authenticated,
        clear_text=users is not None and tls_cert is None and not plain_text,
    )
    _check_of_use(permissions, authenticated=authenticated, plain_text=plain_text, tls=tls_cert is not None)
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
    _raise_limit_of_files()
    signal.signal(signal.SIGTERM, end_early)  # until the loop handles it
    probes = None if probe_port is None else (probe_host, probe_port)
    in_json = log_format is LogFormat.JSON
    say = partial(announce, _log) if in_json else call.out.say
    asyncio.run(_serve(call.reached(), options, probes, say))


def _check_safe(host: str, *, authenticated: bool, clear_text: bool) -> None:
    """Raise `IllegalState` if strangers could connect, or passwords be read.

    `clear_text`: passwords are sent without TLS.
    """
    if is_loopback(in_url(host)):
        return
    if not authenticated:
        raise IllegalState(
            "A gateway that does not ask its clients who they are listens on the loopback address only.",
            state=f"--host {host}",
            remedy="give --users FILE, of `kafkadur gateway-user`, or --tls-client-ca FILE",
        )
    if clear_text:
        raise IllegalState(
            "Passwords would be sent in clear text.",
            state=f"--host {host}, and no TLS",
            remedy="give --tls-cert FILE, or --plain-text if a proxy with TLS is in front of the gateway",
        )


def _check_of_use(permissions: Path | None, *, authenticated: bool, plain_text: bool, tls: bool) -> None:
    """Raise errors for options that would do nothing: permissions without users, clear text with TLS."""
    if permissions is not None and not authenticated:
        raise IllegalState(
            "Rules name users, and no client says who it is.",
            owner=f"file {permissions}",
            remedy="give --users FILE, of `kafkadur gateway-user`, or --tls-client-ca FILE",
        )
    if plain_text and tls:
        raise typer.BadParameter("leave it out: --tls-cert is given", param_hint="--plain-text")


async def _serve(
    settings: Settings, options: GatewaySettings, probes: tuple[str, int] | None, say: Callable[[str], None]
) -> None:
    """Run the gateway until a signal. `probes`: address of the port of probes and metrics."""
    from kafkadur.gateway.gateway import Gateway  # noqa: PLC0415 - it needs the extra

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    gateway = Gateway(settings, options)
    with contextlib.ExitStack() as stack:
        if probes is not None:
            port = stack.enter_context(_probed(gateway, settings.namespace, *probes)).port
            say(f"Probes and metrics: http://{in_url(probes[0])}:{port}/readyz")
        async with gateway:
            scheme = "amqps" if options.tls is not None else "amqp"
            say(f"The gateway is at {scheme}://{in_url(options.host)}:{gateway.port}; Ctrl-C ends it.")
            await stopped.wait()


def _raise_limit_of_files() -> None:
    """Allow this process as many open files as it may have, within reason: each client takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if resource.RLIM_INFINITY != soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _probed(gateway: Gateway, namespace: str, host: str, port: int) -> ProbePort:
    """Return the port of probes and metrics; raises `IllegalState` if it cannot be opened."""
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - it needs the extra

    from kafkadur.gateway.measuring import GatewayMetrics  # noqa: PLC0415 - as above
    from kafkadur.monitoring.probes import Pages, ProbePort  # noqa: PLC0415 - as above

    registry = CollectorRegistry()
    registry.register(GatewayMetrics(namespace, gateway))
    pages = Pages(gateway, registry, silence=timedelta(seconds=_SILENCE_S))
    return ProbePort(pages, host, port, option="--probe-port")


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
