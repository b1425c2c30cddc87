"""`kafkadur sub ls | info | explain | parked | unsubscribe`: tables and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.progress import Progress

from kafkadur.admin.changes import Admin, Explained, SubscriptionInfo
from kafkadur.admin.explain import OffsetState
from kafkadur.admin.sizes import Sizes
from kafkadur.cli.call import Call, command
from kafkadur.cli.output import Column, clock, count, duration, iso, readable
from kafkadur_coordinators.holder_progress import HolderProgress
from kafkadur_coordinators.interface import MemberInfo
from kafkadur_sharing.definition import Definition
from kafkadur_sharing.errors import SubscriptionActive
from kafkadur_sharing.keys import ClientIdPolicy, SubscriptionKey

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the subscription, or CLIENT_ID/NAME.")
]


def _admin(call: Call) -> Admin:
    return Admin(call.settings(), on_warning=call.out.say)


# --- ls -------------------------------------------------------------------------------------------------


@command
def ls(call: Call) -> None:
    """List the durable subscriptions of the namespace."""
    settings = call.settings()
    with Admin(settings, on_warning=call.out.say) as admin:
        found = admin.list()
    if call.options.json:
        call.out.json([_summary(info) for info in found])
        return
    for info in found:
        if info.problem is not None:
            call.out.complain(f"{info.key}: {info.problem}")
    if not found:
        call.out.say(f"There are no durable subscriptions in namespace {settings.namespace}.")
        return
    columns = [
        Column(title="name"),
        Column(title="client id"),
        Column(title="type"),
        Column(title="topic"),
        Column(title="members", number=True),
        Column(title="in flight", number=True),
        Column(title="lag", number=True),
        Column(title="backlog", number=True),
        Column(title="version", number=True, wide=True),
    ]
    rows = [
        [
            info.key.name,
            _client(info.key),
            info.definition.type.value,
            info.definition.topic if info.key.topic_member is None else _on_member(info),
            count(len(info.members)),
            count(info.in_flight),
            count(info.lag),
            count(info.backlog),
            str(info.version),
        ]
        for info in found
    ]
    call.out.table(columns, rows)


# --- info -----------------------------------------------------------------------------------------------


@command
def info(
    call: Call,
    name: NameArgument,
    *,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Read all that waits, and count messages and bytes.")
    ] = False,
) -> None:
    """Show a subscription: definition, members, partitions."""
    with _admin(call) as admin, Progress(console=call.out.talk, transient=True) as progress:
        key = admin.key(name)
        found = admin.info(key)
        task = progress.add_task("reading what waits", total=found.backlog, visible=sizes)
        measured = admin.sizes(key, lambda read: progress.update(task, completed=read)) if sizes else None
    if call.options.json:
        call.out.json(
            _summary(found)
            | {
                "id": found.id,
                "runtime_name": found.runtime_name,
                "selector": found.definition.selector,
                "no_local": found.definition.no_local,
                "sizes": None if measured is None else asdict(measured),
                "definition": found.definition.to_record(),
                "topic_id": found.topic_id,
                "incarnation": found.incarnation,
                "grace_ms": found.grace_ms,
                "members": [_member(member, found.progress.get(member.id)) for member in found.members],
                "partitions": [asdict(partition) for partition in found.partitions],
            }
        )
        return
    if found.problem is not None:
        call.out.complain(found.problem)
    _show_definition(call, found, measured)
    _show_members(call, found)
    _show_queries(call, found)
    _show_partitions(call, found)


def _chosen(definition: Definition) -> list[tuple[str, str]]:
    """What was chosen when it was created, or altered."""
    facts: list[tuple[str, str]] = [("ack level", definition.ack_level)]
    if definition.max_consumers is not None:
        facts.append(("most consumers", count(definition.max_consumers)))
    if definition.scope == "partition":
        facts.append(("turns", "on each partition by itself"))
    if definition.selector is not None:
        facts.append(("selector", definition.selector))
    if definition.header_types:
        types = ", ".join(f"{header}: {kind}" for header, kind in definition.header_types.items())
        facts.append(("header types", types))
    return facts


def _use(found: SubscriptionInfo, measured: Sizes | None) -> list[tuple[str, str]]:
    """Who uses it and when, and how much waits."""
    ago = "none yet" if found.last_verdict is None else f"{duration(found.now - found.last_verdict)} ago"
    facts = [("last verdict", ago)]
    if found.unattended_since is not None:
        facts.append(("unattended", f"for {duration(found.now - found.unattended_since)}"))
    if measured is not None:
        facts += [
            (
                "current",
                f"{count(measured.messages_current)} messages, {count(measured.bytes_current)} bytes",
            ),
            (
                "pending",
                f"{count(measured.messages_pending)} messages, {count(measured.bytes_pending)} bytes",
            ),
        ]
    return facts


def _show_definition(call: Call, found: SubscriptionInfo, measured: Sizes | None) -> None:
    definition = found.definition
    call.out.title(f"Subscription {found.key}")
    facts = [
        ("namespace", found.key.namespace),
        ("type", f"{definition.type.value} ({definition.sharing.value})"),
        ("topic", definition.topic),
        ("started at", definition.start),
    ]
    facts += [
        *_chosen(definition),
        *_use(found, measured),
        ("id", f"{found.id}, version {found.version}, incarnation {found.incarnation}"),
        ("Kafka group", found.key.group),
    ]
    if found.behind is not None:
        live = f"no, {count(found.behind)} offsets are granted to nobody yet" if found.behind else "yes"
        facts.append(("live", live))
    if found.paused:
        facts.append(("paused", "nothing is handed out; `kafkadur sub resume` lets it go on"))
    if found.expired:
        facts.append(("expired", f"{count(found.expired)}: Kafka removed them before they were settled"))
    if found.truncated:
        facts.append(("truncated", f"{count(found.truncated)}: Kafka lost them with the end of its log"))
    if found.expiring:
        facts.append(("expire soon", f"{count(found.expiring)} unsettled, by the topic's retention"))
    if found.grace_ms > 0:
        facts.append(("grace", f"leases are granted again in {duration(found.grace_ms)}"))
    call.out.facts(facts)


def _show_members(call: Call, found: SubscriptionInfo) -> None:
    if not found.members:
        call.out.title("\nNo member is attached.")
        return
    call.out.title("\nMembers")
    columns = [
        Column(title="member"),
        Column(title="id", wide=True),
        Column(title="attached", number=True),
        Column(title="leases", number=True),
        Column(title="credit", number=True),
        Column(title="session", number=True),
        Column(title="heard"),
    ]
    rows = [
        [
            member.name or "-",
            member.id,
            f"{duration(max(found.now - member.since, 0))} ago",
            count(member.leases),
            count(member.credit),
            f"{duration(max(member.expires - found.now, 0))} left",
            "yes" if member.heard else "no",
        ]
        for member in found.members
    ]
    call.out.table(columns, rows)


def _show_queries(call: Call, found: SubscriptionInfo) -> None:
    """What the queries of members that hold the whole did last."""
    if not found.progress:
        return
    call.out.title("\nQueries")
    columns = [
        Column(title="member"),
        Column(title="generation", number=True),
        Column(title="batch", number=True),
        Column(title="ended", number=True),
        Column(title="rows", number=True),
        Column(title="in/s", number=True),
        Column(title="worked on/s", number=True),
        Column(title="lag", number=True),
    ]
    names = {member.id: member.name or "-" for member in found.members}
    rows = [
        [
            names[member],
            str(told.generation),
            str(told.batch),
            f"{duration(max(found.now - told.at, 0))} ago",
            count(told.rows),
            count(None if told.input_rate is None else round(told.input_rate)),
            count(None if told.processed_rate is None else round(told.processed_rate)),
            count(told.lag),
        ]
        for member, told in found.progress.items()
    ]
    call.out.table(columns, rows)


def _show_partitions(call: Call, found: SubscriptionInfo) -> None:
    call.out.title("\nPartitions")
    columns = [
        Column(title="partition", number=True),
        Column(title="floor", number=True),
        Column(title="base", number=True, wide=True),
        Column(title="next", number=True),
        Column(title="avail", number=True, wide=True),
        Column(title="end", number=True),
        Column(title="in flight", number=True),
        Column(title="exceptions", number=True),
        Column(title="lag", number=True),
        Column(title="backlog", number=True),
    ]
    rows = [
        [
            str(partition.partition),
            *(
                "-" if offset is None else str(offset)
                for offset in (
                    partition.floor,
                    partition.base,
                    partition.next,
                    partition.avail,
                    partition.log_end,
                )
            ),
            count(partition.in_flight),
            count(partition.exceptions),
            count(partition.lag),
            count(partition.backlog),
        ]
        for partition in found.partitions
    ]
    totals = found.in_flight, found.exceptions, found.lag, found.backlog
    call.out.table(columns, rows, total=["total", "", "", "", "", "", *map(count, totals)])


def _client(key: SubscriptionKey) -> str:
    """Client id with its policy: with the other policy it is another subscription (rule C3)."""
    if key.client_id is None:
        return "-"
    restricted = key.policy is ClientIdPolicy.RESTRICTED
    return key.client_id if restricted else f"{key.client_id} ({key.policy.value})"


def _on_member(info: SubscriptionInfo) -> str:
    """The topic, and which member of a distributed topic it is (rule M2)."""
    return f"{info.definition.topic} (member {info.key.topic_member})"


def _summary(info: SubscriptionInfo) -> dict[str, Any]:
    return {
        "name": info.key.name,
        "client_id": info.key.client_id,
        "policy": info.key.policy.value,
        "topic_member": info.key.topic_member,
        "namespace": info.key.namespace,
        "type": info.definition.type.value,
        "topic": info.definition.topic,
        "version": info.version,
        "attached": len(info.members),
        "active": info.active,
        "unattended_since": None if info.unattended_since is None else iso(info.unattended_since),
        "last_verdict": None if info.last_verdict is None else iso(info.last_verdict),
        "in_flight": info.in_flight,
        "exceptions": info.exceptions,
        "lag": info.lag,
        "backlog": info.backlog,
        "behind": info.behind,
        "paused": info.paused,
        "problem": info.problem,
    }


def _member(member: MemberInfo, progress: HolderProgress | None) -> dict[str, Any]:
    return {
        "id": member.id,
        "name": member.name,
        "since": iso(member.since),
        "expires": iso(member.expires),
        "leases": member.leases,
        "credit": member.credit,
        "heard": member.heard,
        "progress": None if progress is None else asdict(progress) | {"at": iso(progress.at)},
    }


# --- explain --------------------------------------------------------------------------------------------


@command
def explain(
    call: Call,
    name: NameArgument,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Partition of the topic.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Offset in the partition.")],
) -> None:
    """Say what has become of one message: which member holds it, when it is due, or that it is settled."""
    with _admin(call) as admin:
        found = admin.explain(admin.key(name), partition, offset)
    if call.options.json:
        call.out.json(_explained(found))
        return
    call.out.title(f"{found.key}: {found.topic}[{partition}]@{offset} is {_verdict(found)}")
    call.out.facts(_facts(found))


def _verdict(found: Explained) -> str:
    explanation = found.explanation
    if explanation.state is OffsetState.LEASED:
        return "reserved" if explanation.reserved else f"leased, attempt {explanation.attempt}"
    if explanation.state is OffsetState.READY and explanation.due is not None:
        return "ready, but delayed"
    if explanation.verdict is not None:
        return f"settled: {explanation.verdict}"
    return explanation.state.value


def _facts(found: Explained) -> list[tuple[str, str]]:
    explanation, view = found.explanation, found.view
    facts: list[tuple[str, str]] = []
    if explanation.state is OffsetState.LEASED and explanation.lease is not None:
        holder, lease = explanation.holder, explanation.lease
        facts.append(("held by", lease.member if holder is None else f"{holder.name} (member {holder.id})"))
        if holder is not None:
            left = duration(max(holder.expires - found.now, 0))
            facts.append(("until", f"{clock(holder.expires)}, in {left}; renewed while its process lives"))
        facts.append(("lease", f"{lease.kind} [{lease.start}, {lease.horizon}), token {lease.token}"))
    if explanation.state is OffsetState.READY:
        facts.append(("attempts", f"{explanation.attempts} so far"))
        if explanation.due is not None:
            facts.append(("due", f"{clock(explanation.due)}, in {duration(explanation.due - found.now)}"))
    if explanation.redelivered:
        facts.append(("delivered", "perhaps before"))
    if view is not None:
        facts.append(
            (
                "partition",
                f"floor {view.floor}, base {view.base}, next {view.next}, avail {view.readable_end}",
            )
        )
    facts.append(("log", f"[{found.log.start}, {found.log.end}), subscribed from {found.log.subscribed}"))
    facts += [("note", note) for note in explanation.notes]
    return facts


def _explained(found: Explained) -> dict[str, Any]:
    explanation, view = found.explanation, found.view
    holder, lease = explanation.holder, explanation.lease
    return {
        "subscription": str(found.key),
        "topic": found.topic,
        "partition": explanation.partition,
        "offset": explanation.offset,
        "state": explanation.state.name.lower(),
        "attempt": explanation.attempt,
        "redelivered": explanation.redelivered,
        "due": None if explanation.due is None else iso(explanation.due),
        "reserved": explanation.reserved,
        "verdict": explanation.verdict,
        "lease": None
        if lease is None
        else {
            "token": lease.token,
            "kind": lease.kind,
            "start": lease.start,
            "horizon": lease.horizon,
            "member": lease.member,
            "name": None if holder is None else holder.name,
            "until": None if holder is None else iso(holder.expires),
        },
        "floor": None if view is None else view.floor,
        "base": None if view is None else view.base,
        "next": None if view is None else view.next,
        "avail": None if view is None else view.readable_end,
        "log_start": found.log.start,
        "log_end": found.log.end,
        "subscribed": found.log.subscribed,
        "notes": list(explanation.notes),
    }


# --- parked ---------------------------------------------------------------------------------------------


@command
def parked(call: Call, name: NameArgument) -> None:
    """List the keys that are stuck: at which message, when it comes again, and how many wait behind it."""
    with _admin(call) as admin:
        key = admin.key(name)
        now = admin.info(key).now
        found = admin.parked(key)
    if call.options.json:
        call.out.json(
            [
                {
                    **asdict(item),
                    "key": readable(item.key),
                    "due": None if item.due is None else iso(item.due),
                }
                for item in found
            ]
        )
        return
    if not found:
        call.out.say(f"No key of subscription {key} is stuck.")
        return
    columns = [
        Column(title="partition", number=True),
        Column(title="key"),
        Column(title="stuck at", number=True),
        Column(title="attempts", number=True),
        Column(title="comes again"),
        Column(title="behind it", number=True),
    ]
    rows = [
        [
            str(item.partition),
            readable(item.key) or "",
            str(item.offset),
            str(item.attempts),
            "now, or it is in hands" if item.due is None else f"in {duration(max(item.due - now, 0))}",
            count(item.behind),
        ]
        for item in found
    ]
    call.out.table(columns, rows)


# --- unsubscribe ----------------------------------------------------------------------------------------


@command
def unsubscribe(
    call: Call,
    name: NameArgument,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; else it is only said what would be done.")
    ] = False,
) -> None:
    """Delete a subscription with all that waits in it. Only looks, unless --yes is given."""
    with _admin(call) as admin:
        key = admin.key(name)
        found = admin.info(key)
        # Who is not heard is about to be taken for gone.
        holders = tuple(member.name for member in found.members if member.heard)
        if not yes and holders:
            raise SubscriptionActive(
                f"Subscription {key} could not be unsubscribed now.",
                holders=holders,
                remedy="close its consumers first",
            )
        if yes:
            admin.unsubscribe(key)
    waiting = "unknown" if found.backlog is None else count(found.backlog)
    what = f"subscription {key} on topic {found.definition.topic} (messages waiting: {waiting})"
    call.out.say(f"Deleted {what}." if yes else f"Would delete {what}. To do it, add --yes.")
    if call.options.json:
        call.out.json({"subscription": str(key), "deleted": yes, "backlog": found.backlog})
