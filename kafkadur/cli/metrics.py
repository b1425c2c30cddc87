"""`kafkadur metrics`: metrics for Prometheus, served on a port, or printed once on standard output."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from kafkadur.cli.call import Call, command, missing_extra
from kafkadur.worker.ending import end_early
from kafkadur_sharing.errors import IllegalState


@command
def metrics(
    call: Call,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once, and end.")] = False,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port.")] = 9464,
) -> None:
    """Serve metrics of all durable subscriptions of the namespace at /metrics, until Ctrl-C."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest, start_http_server  # noqa: PLC0415

        from kafkadur.metrics import SCRAPE_S, SubscriptionMetrics  # noqa: PLC0415 - it needs the extra, too
    except ImportError as error:
        raise missing_extra("Metrics need the Prometheus client.", error, "cli,metrics") from error
    with call.admin(call.settings()) as admin:
        registry = CollectorRegistry()
        registry.register(SubscriptionMetrics(admin, limit=None if once else SCRAPE_S))
        if once:
            typer.echo(generate_latest(registry).decode(), nl=False)
            return
        try:
            server, thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise IllegalState(
                "Metrics cannot be served.",
                state=str(error),
                owner=f"{host}:{port}",
                remedy="name a free port with --port, or another address with --host",
            ) from error
        # Otherwise the first process of a container would ignore the signal.
        signal.signal(signal.SIGTERM, end_early)
        call.out.say(f"Metrics at http://{host}:{server.server_port}/metrics; Ctrl-C ends it.")
        try:
            thread.join()
        finally:
            server.shutdown()
            server.server_close()
