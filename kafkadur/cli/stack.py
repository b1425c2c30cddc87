"""`kafkadur up`, `status` and `down`: Kafka and Valkey on this machine, run by `kafkadur.stack`."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kafkadur import stack
from kafkadur.cli.call import FAILED, Call, local_command
from kafkadur.cli.output import duration
from kafkadur.stack.progress_bar import progress_bar
from kafkadur_sharing.errors import InvalidDestination
from kafkadur_sharing.names import validate_topic

#: The most partitions of one topic; a single broker becomes slow with many more.
_MOST_PARTITIONS = 1_000

FolderOption = Annotated[Path, typer.Option("--folder", help="Folder of the stack's state, data and logs.")]


@local_command
def up(
    call: Call,
    folder: FolderOption = stack.FOLDER,
    *,
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=9, help="Number of Kafka brokers.")] = 1,
    kafka_port: Annotated[
        int | None, typer.Option("--kafka-port", min=1, max=65535, help="Port of Kafka; default: a free one.")
    ] = None,
    redis_port: Annotated[
        int | None,
        typer.Option("--redis-port", min=1, max=65535, help="Port of Valkey; default: a free one."),
    ] = None,
    topics: Annotated[
        list[str],
        typer.Option("--topic", metavar="NAME[:PARTITIONS]", help="A topic to create if it is missing."),
    ] = [],  # noqa: B006 - typer copies it
) -> None:
    """Start Kafka and Valkey on this machine; they run until `kafkadur down`.

    Standard output has settings that a shell can evaluate: eval "$(kafkadur up)".
    """
    wanted = dict(map(_topic, topics))
    with progress_bar(call.out.talk) as progress:
        running = stack.up(
            folder, brokers=brokers, kafka_port=kafka_port, valkey_port=redis_port, progress=progress
        )
    stack.create_topics(running.kafka, wanted)
    call.out.say(f"Kafka runs at {running.kafka}, Valkey at {running.redis}; logs are in {running.logs}.")
    if call.options.json:
        call.out.json(asdict(running))
        return
    call.out.line(f"export KAFKADUR_KAFKA={shlex.quote(running.kafka)}")
    call.out.line(f"export KAFKADUR_REDIS={shlex.quote(running.redis)}")


def _topic(text: str) -> tuple[str, int]:
    """Read an option `--topic`: the topic, and its number of partitions."""
    name, colon, number = text.partition(":")
    if colon and not (number.isascii() and number.isdigit() and 0 < int(number) <= _MOST_PARTITIONS):
        raise typer.BadParameter(f"{text!r}: write NAME or NAME:PARTITIONS, 1 to {_MOST_PARTITIONS}")
    try:
        return validate_topic(name), int(number or 1)
    except InvalidDestination as error:
        raise typer.BadParameter(f"{name!r} is not a topic name") from error


@local_command
def status(call: Call, folder: FolderOption = stack.FOLDER) -> None:
    """Show the stack that `kafkadur up` started; exit status 1 unless all its servers answer."""
    found = stack.status(folder)
    running = found.stack
    if call.options.json:
        call.out.json(asdict(found))
    elif running is not None:
        word = {True: "answers", False: "does not answer"}
        call.out.facts(
            [
                ("kafka", f"{running.kafka}  {word[found.kafka_answers]}, brokers: {running.brokers}"),
                ("valkey", f"{running.redis}  {word[found.redis_answers]}"),
                ("runs for", duration(round((time.time() - running.started) * 1_000))),
                ("process", str(running.pid)),
                ("data", running.data),
                ("logs", running.logs),
            ]
        )
    if running is None:
        call.out.say(f"No stack runs from {folder}. Start one with: kafkadur up")
    if running is None or not (found.kafka_answers and found.redis_answers):
        raise typer.Exit(FAILED)


@local_command
def down(call: Call, folder: FolderOption = stack.FOLDER) -> None:
    """Stop the stack that `kafkadur up` started and remove its data."""
    stopped = stack.down(folder)
    call.out.say(f"Stopped the stack of {folder}." if stopped else f"No stack ran from {folder}.")
    if call.options.json:
        call.out.json({"stopped": stopped})
