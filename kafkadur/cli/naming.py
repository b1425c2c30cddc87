"""The arguments that name a subscription or a topic, and their completion by the shell."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kafkadur.admin.changes import Admin
from kafkadur.admin.topics import TopicAdmin
from kafkadur.cli.call import Call
from kafkadur.cli.options import OPTIONS, Options
from kafkadur.cli.output import Output
from kafkadur.settings import Settings
from kafkadur_sharing.errors import KafkadurError

#: Seconds that the servers have for an answer: somebody has pressed a key and waits.
_PATIENCE_S = 1.0


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of subscriptions that begin with `incomplete`; none if the servers do not answer.

    A subscription of the client id that is set, by option or environment, is called by its name alone, any
    other one `client/name`. With a client id that is set, there is no way to call one that has none.
    """
    try:
        settings = _settings(ctx)
        with Admin(settings) as admin:
            keys = admin.keys()
    except KafkadurError:
        return []
    mine = settings.client_id
    names = [str(key).removeprefix(f"{mine}/") for key in keys if mine is None or key.client_id is not None]
    return sorted(name for name in names if name.startswith(incomplete))


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of topics that begin with `incomplete`; none if Kafka does not answer."""
    try:
        settings = _settings(ctx)
        admin = TopicAdmin(settings.kafka, timeout=settings.kafka_timeout.total_seconds())
        try:
            names = admin.names()
        finally:
            admin.close()
    except KafkadurError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _settings(ctx: typer.Context) -> Settings:
    """Return the settings of a command line that is being written; raises `IllegalState` for a wrong one."""
    before = ctx.find_root().params
    given: dict[str, Any] = {
        option.name: ctx.params.get(option.name) or before.get(option.name) for option in OPTIONS
    }
    call = Call(options=Options(**given), out=Output(as_json=True))
    return call.settings(patience=_PATIENCE_S)


NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the subscription, or CLIENT_ID/NAME.", autocompletion=complete
    ),
]
