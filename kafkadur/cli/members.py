"""`kafkadur member ls | evict`: the members of a subscription, and ending the session of one."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkadur.admin.documents import member_of
from kafkadur.admin.subscription_info import is_attached
from kafkadur.cli.call import Call, YesOption, command
from kafkadur.cli.naming import NameArgument
from kafkadur.cli.output import Column, ago, count, duration, plural


@command
def ls(call: Call, name: NameArgument) -> None:
    """List the members of a subscription."""
    with call.looking() as admin:
        found = admin.info(admin.key(name))
    if call.options.json:
        call.out.json([member_of(found, member) for member in found.members])
        return
    if not found.members:
        call.out.say(f"No member is attached to subscription {found.key}.")
        return
    call.out.table(
        found.members,
        Column("member", lambda member: member.name or "-"),
        Column("id", lambda member: member.id),
        Column("attached", lambda member: ago(member.since, found.now), number=True),
        Column("leases", lambda member: count(member.leases), number=True),
        Column("credit", lambda member: count(member.credit), number=True, wide=True),
        Column("session", lambda member: f"{duration(max(member.expires - found.now, 0))} left", number=True),
        Column("state", lambda member: "attached" if is_attached(member, found.now) else "gone"),
    )


@command
def evict(
    call: Call,
    name: NameArgument,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Id of the member, or its name.")],
    *,
    yes: YesOption = False,
) -> None:
    """End the session of a member: its messages come again, elsewhere. Only looks, unless --yes is given.

    They count as attempts, as if the member had died. If its process lives, it attaches again.
    """
    with call.admin() as admin:
        key = admin.key(name)
        found = admin.evict(key, member) if yes else admin.member(key, member)
    leases = plural(found.leases, "lease")
    what = f"member {found.name or found.id} of subscription {key}, which held {leases}"
    call.out.say(f"Evicted {what}." if yes else f"Would evict {what}. To do it, add --yes.")
    if call.options.json:
        call.out.json({"subscription": str(key), "member": found.id, "evicted": yes, "leases": found.leases})
