"""`kafkadur sub abandoned`: subscriptions that have had no member for a long time, and their deletion."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from kafkadur.admin.changes import Admin, SubscriptionInfo
from kafkadur.admin.documents import iso
from kafkadur.cli.ages import age
from kafkadur.cli.call import FAILED, Call, command
from kafkadur.cli.output import Column, ago, count, duration
from kafkadur_sharing.errors import KafkadurError


@command
def abandoned(
    call: Call,
    *,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="AGE", help="Without a member for at least this time: 90m, 12h, 7d, 2w."
        ),
    ] = "7d",
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete them; without --yes only say which.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --delete: do it.")] = False,
) -> None:
    """List durable subscriptions without a member: since when, and how many messages wait.

    After Redis has lost its memory, the time is counted anew.
    """
    oldest = age(older_than)
    with call.admin() as admin:
        found = admin.abandoned(oldest)
        _show(call, found, older_than, deleting=delete and yes)
        if not delete or not found:
            return
        if not yes:
            call.out.say(f"Would delete {len(found)} of them. To do it, add --yes.")
            return
        failed = [info for info in found if not _deleted(call, admin, info, oldest)]
    call.out.say(f"Deleted {len(found) - len(failed)}.")
    if failed:
        raise typer.Exit(FAILED)


def _deleted(call: Call, admin: Admin, info: SubscriptionInfo, age: timedelta) -> bool:
    """Delete a subscription, unless it was used since it was listed; return whether it was deleted."""
    try:
        now = admin.info(info.key)
        if now.id != info.id or not now.is_abandoned(age):
            call.out.complain(f"{info.key} is in use again; it is left alone.")
            return False
        admin.unsubscribe(info.key)
    except KafkadurError as error:
        call.out.complain(str(error))
        return False
    return True


def _show(call: Call, found: tuple[SubscriptionInfo, ...], older_than: str, *, deleting: bool) -> None:
    if call.options.json:
        call.out.json(
            [
                {
                    "name": info.key.name,
                    "client_id": info.key.client_id,
                    "policy": info.key.policy.value,
                    "topic": info.definition.topic,
                    "unattended_since": iso(info.unattended_since or 0),
                    "last_verdict": iso(info.last_verdict),
                    "backlog": info.backlog,
                    "problem": info.problem,
                    "deleting": deleting,
                }
                for info in found
            ]
        )
        return
    if not found:
        call.out.say(f"No durable subscription is unattended for {older_than}.")
        return
    call.out.table(
        found,
        Column("subscription", lambda info: str(info.key)),
        Column("topic", lambda info: info.definition.topic),
        Column(
            "unattended", lambda info: duration(info.now - (info.unattended_since or info.now)), number=True
        ),
        Column("last verdict", lambda info: ago(info.last_verdict, info.now), number=True),
        Column("backlog", lambda info: count(info.backlog), number=True),
    )
