"""`kafkadur sub ls | info | explain | parked | unsubscribe`: tables and JSON."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from kafkadur.admin.changes import Explained, SubscriptionInfo
from kafkadur.admin.documents import details, explained, iso, readable, summary
from kafkadur.admin.explain import OffsetState
from kafkadur.admin.parked import ParkedKey
from kafkadur.admin.sizes import Sizes
from kafkadur.admin.subscription_info import is_attached, refuse_attached, without_records
from kafkadur.cli.call import Call, YesOption, command
from kafkadur.cli.naming import NameArgument
from kafkadur.cli.output import Column, ago, clock, count, duration, plural
from kafkadur_sharing.definition import Definition, Sharing
from kafkadur_sharing.keys import ClientIdPolicy, SubscriptionKey
from kafkadur_sharing.redelivery_policy import Redelivery

# --- ls -------------------------------------------------------------------------------------------------


@command
def ls(
    call: Call,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that record which dead letters were handled.")
    ] = False,
) -> None:
    """List the durable subscriptions of the namespace."""
    settings = call.settings(quick=True)
    with call.admin(settings) as admin:
        found = admin.list() if everything else without_records(admin.list())
    if call.options.json:
        call.out.json([summary(info) for info in found])
        return
    for info in found:
        if info.problem is not None:
            call.out.complain(f"{info.key}: {info.problem}")
    if not found:
        call.out.say(f"There are no durable subscriptions in namespace {settings.namespace}.")
        return
    call.out.table(
        found,
        Column("name", lambda info: info.key.name),
        Column("client id", lambda info: _client(info.key)),
        Column("type", lambda info: info.definition.type.value),
        Column("topic", _topic),
        Column("state", lambda info: info.state),
        Column("members", lambda info: count(len(info.attached)), number=True),
        Column("in flight", lambda info: count(info.in_flight), number=True),
        Column("lag", lambda info: count(info.lag), number=True, wide=True),
        Column("backlog", lambda info: count(info.backlog), number=True),
        Column("version", lambda info: str(info.version), number=True, wide=True),
    )


# --- info -----------------------------------------------------------------------------------------------


@command
def info(
    call: Call,
    name: NameArgument,
    *,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Read all unsettled messages, and count them and their bytes.")
    ] = False,
) -> None:
    """Show a subscription: definition, members, partitions."""
    opened = call.admin() if sizes else call.looking()
    with opened as admin, call.out.progress() as progress:
        key = admin.key(name)
        found = admin.info(key)
        task = progress.add_task("reading unsettled messages", total=found.backlog, visible=sizes)
        measured = admin.sizes(key, lambda read: progress.update(task, completed=read)) if sizes else None
    if call.options.json:
        call.out.json(details(found, measured))
        return
    if found.problem is not None:
        call.out.complain(found.problem)
    _show_definition(call, found, measured)
    _show_members(call, found)
    _show_queries(call, found)
    _show_partitions(call, found)


def _show_definition(call: Call, found: SubscriptionInfo, measured: Sizes | None) -> None:
    """Show how the subscription is defined, when it was last used, and how much is unsettled."""
    definition, now = found.definition, found.now
    call.out.title(f"Subscription {found.key}")
    facts: list[tuple[str, str | None]] = [
        ("namespace", found.key.namespace),
        *definition_facts(definition),
        ("last verdict", ago(found.last_verdict, now, never="none yet")),
    ]
    if found.unattended_since is not None:
        facts.append(("unattended", f"for {duration(now - found.unattended_since)}"))
    if measured is not None:
        facts += [
            ("current", _amount(measured.messages_current, measured.bytes_current)),
            ("pending", _amount(measured.messages_pending, measured.bytes_pending)),
        ]
    facts += [
        ("id", f"{found.id}, version {found.version}, incarnation {found.incarnation}"),
        ("Kafka group", found.key.group),
    ]
    if found.behind is not None:
        live = f"no, {plural(found.behind, 'offset')} not granted to a member yet" if found.behind else "yes"
        facts.append(("live", live))
    if found.is_stored_as_before:
        upgrade = "as by the version before; `kafkadur sub alter --upgrade` stores it anew"
        facts.append(("stored", upgrade))
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


def definition_facts(definition: Definition) -> list[tuple[str, str | None]]:
    """Return all parts of a definition, as words and texts."""
    policy = definition.redelivery
    consumers = "one consumer" if definition.sharing is Sharing.UNSHARED else "several consumers"
    types = ", ".join(f"{header}: {kind}" for header, kind in (definition.header_types or {}).items())
    by_partition = definition.scope == "partition"
    strict = "strict: later messages wait for one that was rolled back" if definition.strict_order else None
    return [
        ("type", f"{definition.type.value}, {consumers}"),
        ("topic", definition.topic),
        ("started at", definition.start),
        ("selector", definition.selector),
        ("no local", "messages of the same client id are left out" if definition.no_local else None),
        ("header types", types or None),
        ("order", strict),
        ("key lanes", None if definition.key_lanes is None else f"{definition.key_lanes} a partition"),
        ("turns", "on each partition by itself" if by_partition else None),
        ("ack level", definition.ack_level),
        ("most consumers", None if definition.max_consumers is None else count(definition.max_consumers)),
        ("attempts", _attempts(policy)),
        ("back-off", _back_off(policy)),
        ("longest hold", None if policy.max_hold is None else _time(policy.max_hold)),
        ("dead letters", f"topic {definition.dead_letter_topic}"),
        ("history", None if definition.history is None else f"kept for {_time(definition.history)}"),
        ("rescue", "expiring messages become dead letters" if policy.rescue else None),
    ]


def _attempts(policy: Redelivery) -> str:
    most = policy.max_attempts
    return "no limit of its own; handlers have one" if most is None else f"at most {most:,}"


def _back_off(policy: Redelivery) -> str:
    if not policy.backoff:
        return "none"
    return f"{_time(policy.backoff)}, doubled up to {_time(policy.max_backoff)}"


def _time(time: timedelta) -> str:
    return duration(round(time.total_seconds() * 1000))


def _amount(messages: int, size: int) -> str:
    return f"{plural(messages, 'message')}, {plural(size, 'byte')}"


def _show_members(call: Call, found: SubscriptionInfo) -> None:
    if not found.members:
        call.out.title("\nNo member is attached.")
        return
    call.out.title("\nMembers")
    call.out.table(
        found.members,
        Column("member", lambda member: member.name or "-"),
        Column("id", lambda member: member.id, wide=True),
        Column("attached", lambda member: ago(member.since, found.now), number=True),
        Column("leases", lambda member: count(member.leases), number=True),
        Column("credit", lambda member: count(member.credit), number=True),
        Column("session", lambda member: f"{duration(max(member.expires - found.now, 0))} left", number=True),
        Column("state", lambda member: "attached" if is_attached(member, found.now) else "gone"),
    )


def _show_queries(call: Call, found: SubscriptionInfo) -> None:
    """Show the last batches of the queries whose members hold the whole subscription."""
    if not found.progress:
        return
    names = {member.id: member.name or "-" for member in found.members}
    call.out.title("\nQueries")
    call.out.table(
        [(names[member], progress) for member, running in found.progress.items() for progress in running],
        Column("member", lambda query: query[0]),
        Column("query", lambda query: query[1].query or "-"),
        Column("generation", lambda query: str(query[1].generation), number=True),
        Column("batch", lambda query: str(query[1].batch), number=True),
        Column("ended", lambda query: ago(query[1].at, found.now), number=True),
        Column("rows", lambda query: count(query[1].rows), number=True),
        Column("in/s", lambda query: _rate(query[1].input_rate), number=True),
        Column("worked on/s", lambda query: _rate(query[1].processed_rate), number=True),
        Column("lag", lambda query: count(query[1].lag), number=True),
    )


def _rate(rate: float | None) -> str:
    return count(None if rate is None else round(rate))


def _show_partitions(call: Call, found: SubscriptionInfo) -> None:
    call.out.title("\nPartitions")
    call.out.table(
        found.partitions,
        Column("partition", lambda each: str(each.partition), number=True, total="total"),
        Column("settled to", lambda each: str(each.floor), number=True),
        Column("granted to", lambda each: str(each.next), number=True),
        Column("readable to", lambda each: str(each.avail), number=True, wide=True),
        Column("end", lambda each: "-" if each.log_end is None else str(each.log_end), number=True),
        Column("in flight", lambda each: count(each.in_flight), number=True, total=count(found.in_flight)),
        Column("came back", lambda each: count(each.exceptions), number=True, total=count(found.exceptions)),
        Column("lag", lambda each: count(each.lag), number=True, total=count(found.lag)),
        Column("backlog", lambda each: count(each.backlog), number=True, total=count(found.backlog)),
    )
    if found.definition.selector is not None or found.definition.no_local:
        call.out.note(
            "The backlog counts messages that the subscription leaves out, too, until a consumer has read "
            "them; `kafkadur sub peek` shows those that it takes."
        )
    if any(each.log_end is not None and each.next > each.log_end for each in found.partitions):
        call.out.note("Members are granted offsets beyond the end, for messages that are still to come.")


def _client(key: SubscriptionKey) -> str:
    """Client id with its policy: with the other policy it is another subscription (rule C3)."""
    if key.client_id is None:
        return "-"
    restricted = key.policy is ClientIdPolicy.RESTRICTED
    return key.client_id if restricted else f"{key.client_id} ({key.policy.value})"


def _topic(info: SubscriptionInfo) -> str:
    """The topic, and the member if it is a distributed topic (rule M2)."""
    member = info.key.topic_member
    return info.definition.topic if member is None else f"{info.definition.topic} (member {member})"


# --- explain --------------------------------------------------------------------------------------------


@command
def explain(
    call: Call,
    name: NameArgument,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Partition of the topic.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Offset in the partition.")],
) -> None:
    """Show the state of one message: which member holds it, when it is due, or that it is settled."""
    with call.looking() as admin:
        found = admin.explain(admin.key(name), partition, offset)
    if call.options.json:
        call.out.json(explained(found))
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
            if explanation.holder_gone:
                left = "over: delivered again when a consumer is attached"
            else:
                left = f"in {duration(holder.expires - found.now)}; renewed while its process lives"
            facts.append(("until", f"{clock(holder.expires)}, {left}"))
        facts.append(("lease", f"{lease.kind} [{lease.start}, {lease.horizon}), token {lease.token}"))
    if explanation.state is OffsetState.READY:
        facts.append(("attempts", f"{explanation.attempts} so far"))
        if explanation.due is not None:
            facts.append(("due", f"{clock(explanation.due)}, in {duration(explanation.due - found.now)}"))
    if explanation.redelivered:
        facts.append(("delivered", "perhaps before"))
    if view is not None:
        place = f"settled to {view.floor}, granted to {view.next}, readable to {view.readable_end}"
        facts.append(("partition", place))
    facts.append(("log", f"[{found.log.start}, {found.log.end}), subscribed from {found.log.subscribed}"))
    facts += [("note", note) for note in explanation.notes]
    return facts


# --- parked ---------------------------------------------------------------------------------------------


@command
def parked(call: Call, name: NameArgument) -> None:
    """List the keys that are stuck: at which message, when it comes again, and how many wait behind it."""
    with call.looking() as admin:
        key = admin.key(name)
        now = admin.info(key).now
        found = admin.parked(key)
    if call.options.json:
        call.out.json([{**asdict(item), "key": readable(item.key), "due": iso(item.due)} for item in found])
        return
    if not found:
        call.out.say(f"No key of subscription {key} is stuck.")
        return
    call.out.table(
        found,
        Column("partition", lambda item: str(item.partition), number=True),
        Column("key", lambda item: readable(item.key) or ""),
        Column("stuck at", lambda item: str(item.offset), number=True),
        Column("attempts", lambda item: str(item.attempts), number=True),
        Column("comes again", lambda item: _due(item, now)),
        Column("behind it", lambda item: count(item.behind), number=True),
    )


def _due(item: ParkedKey, now: int) -> str:
    return "now, or it is in flight" if item.due is None else f"in {duration(max(item.due - now, 0))}"


# --- unsubscribe ----------------------------------------------------------------------------------------


@command
def unsubscribe(
    call: Call,
    name: NameArgument,
    *,
    yes: YesOption = False,
) -> None:
    """Delete a subscription with all that waits in it. Only looks, unless --yes is given."""
    with call.admin() as admin:
        key = admin.key(name)
        found = admin.info(key)
        admin.refuse_record(found)
        if not yes:
            refuse_attached(found)
        if yes:
            admin.unsubscribe(key)
    waiting = "unknown" if found.backlog is None else count(found.backlog)
    what = f"subscription {key} on topic {found.definition.topic} (messages waiting: {waiting})"
    call.out.say(f"Deleted {what}." if yes else f"Would delete {what}. To do it, add --yes.")
    if call.options.json:
        call.out.json({"subscription": str(key), "deleted": yes, "backlog": found.backlog})
