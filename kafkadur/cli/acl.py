"""`kafkadur acl redis` and `kafkadur acl kafka`: what a user must be allowed, and no more.

Which rules those are is the coordinators' `redis/access.py` and `kafka_access.py`.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from kafkadur.admin.kafka_access import Role, apply_rules, kafka_commands, kafka_rules
from kafkadur.cli.call import Call, command
from kafkadur_coordinators.redis.access import redis_rules, redis_user

#: From where the password of the new user is read: it must not stand on a command line.
PASSWORD = "KAFKADUR_ACL_PASSWORD"  # noqa: S105 - the name of a variable

UserOption = Annotated[str, typer.Option("--user", help="Name of the user.")]
PrefixOption = Annotated[str | None, typer.Option("--prefix", help="Prefix of all Redis keys.")]


def _namespace(call: Call) -> str:
    return call.options.namespace or os.environ.get("KAFKADUR_NAMESPACE") or "default"


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
    """Print the Redis user that kafkadur needs, as a line of an ACL file. Nothing is connected.

    Its password is taken from KAFKADUR_ACL_PASSWORD and stands there as a SHA-256; without one the user is
    off. To use the line: append it to the server's aclfile and send ACL LOAD, or send it as ACL SETUSER.
    """
    prefix = prefix or os.environ.get("KAFKADUR_PREFIX") or "kafkadur"
    namespace = None if every else _namespace(call)
    line = redis_user(user, password=os.environ.get(PASSWORD), prefix=prefix, namespace=namespace)
    if call.options.json:
        call.out.json({"user": user, "rules": redis_rules(prefix=prefix, namespace=namespace)})
        return
    call.out.line(line)


@command
def kafka(
    call: Call,
    *,
    principal: Annotated[str, typer.Option("--principal", metavar="User:NAME", help="Who gets the rules.")],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="A topic it uses; may be repeated.")
    ] = None,
    roles: Annotated[
        list[Role] | None, typer.Option("--role", help="What it does; may be repeated. Else: consumer.")
    ] = None,
    letters: Annotated[
        list[str] | None,
        typer.Option("--dead-letter-topic", help="Topics of dead letters. Else: each topic's name.dead."),
    ] = None,
    transactional: Annotated[
        list[str] | None, typer.Option("--transactional-id", help="Of a producer; may be repeated.")
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", help="A group of others an administrator seeks or exports to."),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create/--no-create", help="Whether it makes the topics that are missing.")
    ] = True,
    transacted: Annotated[
        bool, typer.Option("--transacted", help="Some consumers of the namespace are in transacted sessions.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Add the rules now; else print them.")] = False,
) -> None:  # fmt: skip
    """Print the commands that give a Kafka principal what it needs, or do it with --apply."""
    rules = kafka_rules(
        roles or [Role.CONSUMER],
        namespace=_namespace(call),
        topics=topics or (),
        dead_letter_topics=letters,
        transactional_ids=transactional or (),
        groups=groups or (),
        create=create,
        transacted=transacted,
    )
    bootstrap = call.options.kafka or os.environ.get("KAFKADUR_KAFKA") or "localhost:9092"
    commands = kafka_commands(rules, principal=principal, bootstrap=bootstrap)
    if apply:
        settings = call.settings()
        apply_rules(
            settings.kafka,
            rules,
            principal=principal,
            timeout=settings.kafka_timeout.total_seconds(),
        )
        call.out.say(f"{principal} has {len(rules)} rules.")
    if call.options.json:
        call.out.json([asdict(rule) for rule in rules])
    elif not apply:
        for line in commands:
            call.out.line(line)
