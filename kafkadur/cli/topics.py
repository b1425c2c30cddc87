"""`kafkadur topic create | ls`: the topics of Kafka."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from kafkadur.admin.topics import TopicAdmin
from kafkadur.cli.call import Call, command
from kafkadur.cli.output import Column, count, plural
from kafkadur.settings import Settings
from kafkadur_coordinators.topics import asking_group


@contextmanager
def _admin(settings: Settings) -> Generator[TopicAdmin]:
    timeout = settings.kafka_timeout.total_seconds()
    admin = TopicAdmin(settings.kafka, timeout=timeout, group=asking_group(settings.namespace))
    try:
        yield admin
    finally:
        admin.close()


@command
def create(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    *,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, metavar="N", help="Number of its partitions.")
    ] = 1,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", min=1, metavar="N", help="Replicas of each; default: the broker's."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic; repeatable."),
    ] = None,
) -> None:
    """Create a topic, and wait until it takes messages."""
    settings = dict(map(_setting, config or ()))
    with _admin(call.reached()) as admin:
        admin.create(name, partitions=partitions, replicas=replicas or -1, config=settings)
    if call.options.json:
        call.out.json({"topic": name, "partitions": partitions})
    else:
        call.out.say(f"Created topic {name} with {plural(partitions, 'partition')}.")


@command
def ls(call: Call) -> None:
    """List the topics, except those of Kafka itself."""
    with _admin(call.settings(quick=True)) as admin:
        found = admin.all()
    if call.options.json:
        call.out.json([asdict(topic) for topic in found])
        return
    if not found:
        call.out.say("There are no topics.")
        return
    call.out.table(
        found,
        Column("topic", lambda topic: topic.name),
        Column("partitions", lambda topic: count(topic.partitions), number=True),
        Column("replicas", lambda topic: count(topic.replicas), number=True),
        Column("messages", lambda topic: count(topic.messages), number=True),
    )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--config")
    return name, value
