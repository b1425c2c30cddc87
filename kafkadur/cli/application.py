"""The tree of commands. What each does stands in the file named for its group."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkadur.cli import acl
from kafkadur.cli import dead as letters
from kafkadur.cli import recovery as recoveries
from kafkadur.cli.abandoned import abandoned
from kafkadur.cli.call import (
    ClientIdOption,
    JsonOption,
    KafkaConfigOption,
    KafkaOption,
    NamespaceOption,
    Options,
    PolicyOption,
    RedisOption,
)
from kafkadur.cli.doctor import doctor
from kafkadur.cli.messages import consume, publish
from kafkadur.cli.metrics import metrics
from kafkadur.cli.moving import alter, drain, export, fork, pause, restore, resume, seek, snapshot
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

LOCAL, DATA = "Kafka and Valkey on this machine", "Messages and subscriptions"


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer passes the value of the option
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - needed by nothing else

        typer.echo(f"kafkadur {version('kafkadur')}")
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    *,
    kafka: KafkaOption = None,
    kafka_config: KafkaConfigOption = None,
    redis: RedisOption = None,
    namespace: NamespaceOption = None,
    client_id: ClientIdOption = None,
    client_id_policy: PolicyOption = None,
    json: JsonOption = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Durable subscriptions for Apache Kafka: every message of a subscription is settled by itself."""
    del version
    ctx.obj = Options(
        kafka=kafka,
        kafka_config=kafka_config,
        redis=redis,
        namespace=namespace,
        client_id=client_id,
        client_id_policy=client_id_policy,
        json=json,
    )


app.command(rich_help_panel=LOCAL)(up)
app.command(rich_help_panel=LOCAL)(status)
app.command(rich_help_panel=LOCAL)(down)
app.command(rich_help_panel=DATA)(publish)
app.command(rich_help_panel=DATA)(consume)
app.command(rich_help_panel=DATA)(run)
app.command(rich_help_panel=DATA)(metrics)
app.command(rich_help_panel=DATA)(doctor)
app.add_typer(sub, name="sub", rich_help_panel=DATA)
sub.command()(ls)
sub.command()(info)
sub.command()(explain)
sub.command()(parked)
sub.command()(pause)
sub.command()(resume)
sub.command()(drain)
sub.command()(alter)
sub.command()(seek)
sub.command()(snapshot)
sub.command()(restore)
sub.command()(fork)
sub.command()(export)
sub.command()(unsubscribe)
sub.command()(abandoned)
recovery = typer.Typer(help="What a loss of Redis brings again.", no_args_is_help=True)
app.add_typer(recovery, name="recovery", rich_help_panel=DATA)
recovery.command()(recoveries.report)
recovery.command()(recoveries.run)
dead = typer.Typer(help="Look at dead letters, send them again, remove them.", no_args_is_help=True)
sub.add_typer(dead, name="dead")
dead.command()(letters.ls)
dead.command()(letters.show)
dead.command()(letters.redrive)
dead.command()(letters.purge)
rights = typer.Typer(help="Print what users of Redis and Kafka must be allowed.", no_args_is_help=True)
app.add_typer(rights, name="acl", rich_help_panel=DATA)
rights.command()(acl.redis)
rights.command()(acl.kafka)
