"""`kafkadur metrics`: what Prometheus scrapes, on a port, or once on standard output."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from kafkadur.admin.changes import Admin
from kafkadur.cli.call import Call, command
from kafkadur.worker.ending import end_early
from kafkadur_sharing.errors import IllegalState


@command
def metrics(
    call: Call,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print them once, and end.")] = False,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 9464,
) -> None:
    """Serve metrics of all durable subscriptions of the namespace at /metrics, until Ctrl-C."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest, start_http_server  # noqa: PLC0415

        from kafkadur.metrics import SCRAPE_S, SubscriptionMetrics  # noqa: PLC0415 - it needs the extra, too
    except ImportError as error:
        raise IllegalState(
            "Metrics need the Prometheus client.",
            state=str(error),
            owner="this Python",
            remedy="pip install 'kafkadur[cli,metrics]'",
        ) from error
    with Admin(call.settings(), on_warning=call.out.say) as admin:
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
                remedy="name a port that is free with --port, or another address with --host",
            ) from error
        # as the first process of a container it would ignore the signal otherwise
        signal.signal(signal.SIGTERM, end_early)
        call.out.say(f"Metrics at http://{host}:{server.server_port}/metrics; Ctrl-C ends it.")
        try:
            thread.join()
        finally:
            server.shutdown()
            server.server_close()
