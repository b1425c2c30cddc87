"""`kafkadur acl redis` and `kafkadur acl kafka`: the least rights that a user needs.

The rules come from `kafkadur_coordinators.redis.access` and `kafkadur.admin.kafka_access`.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from kafkadur.admin.kafka_access import Role, apply_rules, kafka_commands, kafka_rules
from kafkadur.cli.call import Call, command
from kafkadur.cli.output import plural
from kafkadur_coordinators.redis.access import redis_rules, redis_user

#: Variable with the password of the new user: a password must not be on a command line.
PASSWORD = "KAFKADUR_ACL_PASSWORD"  # noqa: S105 - the name of a variable

UserOption = Annotated[str, typer.Option("--user", help="Name of the user.")]
PrefixOption = Annotated[str | None, typer.Option("--prefix", help="Prefix of all Redis keys.")]


def _namespace(call: Call) -> str:
    return call.setting("namespace") or "default"


@command
def redis(
    call: Call,
    *,
    user: UserOption = "kafkadur",
    prefix: PrefixOption = None,
    every: Annotated[
        bool, typer.Option("--all-namespaces", help="All namespaces of the prefix, instead of one.")
    ] = False,
) -> None:
    """Print the Redis user that kafkadur needs, as a line of an ACL file. Connects to no server.

    The line has the SHA-256 of the password in KAFKADUR_ACL_PASSWORD; without a password the user is off.
    To use the line: append it to the server's aclfile and send ACL LOAD, or send it as ACL SETUSER.
    """
    prefix = prefix or os.environ.get("KAFKADUR_PREFIX") or "kafkadur"
    namespace = None if every else _namespace(call)
    line = redis_user(user, password=os.environ.get(PASSWORD), prefix=prefix, namespace=namespace)
    if call.options.json:
        call.out.json({"user": user, "rules": redis_rules(prefix=prefix, namespace=namespace)})
    else:
        call.out.line(line)


@command
def kafka(
    call: Call,
    *,
    principal: Annotated[str, typer.Option("--principal", metavar="User:NAME", help="The principal.")],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="A topic that it uses; may be repeated.")
    ] = None,
    roles: Annotated[
        list[Role] | None,
        typer.Option("--role", metavar="|".join(Role), help="A role; may be repeated. Default: consumer."),
    ] = None,
    letters: Annotated[
        list[str] | None,
        typer.Option("--dead-letter-topic", help="A topic of dead letters. Default: TOPIC.dead."),
    ] = None,
    transactional: Annotated[
        list[str] | None, typer.Option("--transactional-id", help="Id of a producer; may be repeated.")
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", help="A consumer group that an administrator seeks or exports to."),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create/--no-create", help="Whether it creates missing topics.")
    ] = True,
    transacted: Annotated[
        bool, typer.Option("--transacted", help="Some consumers of the namespace are in transacted sessions.")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Subscriptions of the namespace have delivery histories.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Add the rules instead.")] = False,
) -> None:  # fmt: skip
    """Print the commands that give a Kafka principal the rights it needs, or add the rights with --apply."""
    rules = kafka_rules(
        roles or [Role.CONSUMER],
        namespace=_namespace(call),
        topics=topics or (),
        dead_letter_topics=letters,
        transactional_ids=transactional or (),
        groups=groups or (),
        create=create,
        transacted=transacted,
        history=history,
    )
    bootstrap = call.setting("kafka") or "localhost:9092"
    commands = kafka_commands(rules, principal=principal, bootstrap=bootstrap)
    if apply:
        settings = call.settings()
        timeout = settings.kafka_timeout.total_seconds()
        apply_rules(settings.kafka, rules, principal=principal, timeout=timeout)
        call.out.say(f"{principal} has {plural(len(rules), 'rule')}.")
    if call.options.json:
        call.out.json([asdict(rule) for rule in rules])
    elif not apply:
        for line in commands:
            call.out.line(line)
