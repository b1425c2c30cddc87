"""`kafkadur publish` and `kafkadur consume`. `properties.py` reads properties from the command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, cast, get_args

import typer
from confluent_kafka import KafkaError, Message

import kafkadur.sync
from kafkadur.admin.documents import plain_value
from kafkadur.cli.call import Call, command
from kafkadur.cli.naming import complete, complete_topic
from kafkadur.cli.properties import parse_properties
from kafkadur.message.headers import Property
from kafkadur.producer.producer import Producer
from kafkadur.runtime.clients import topics_of
from kafkadur.settings import Settings
from kafkadur_sharing.definition import Definition, Start, SubscriptionType
from kafkadur_sharing.keys import SubscriptionKey

#: The most records in flight; with --count no more than that number.
_WINDOW = 1_000

#: Added to the number of a signal: the exit status of a process that it ended.
_SIGNALLED = 128
_DurableOption = Annotated[
    str,
    typer.Option(
        "--durable",
        metavar="NAME",
        help="Name of the subscription, or CLIENT_ID/NAME.",
        autocompletion=complete,
    ),
]
_StartOption = Annotated[
    str | None,
    typer.Option("--start", metavar="latest|earliest", help="Where a new one starts; default: latest."),
]
_SelectorOption = Annotated[
    str | None, typer.Option("--selector", help="Messages that it takes; default: all.")
]

# --- publish --------------------------------------------------------------------------------------------


class _Positions:
    """First and last offset of the published messages in each partition."""

    def __init__(self) -> None:
        self.published = 0
        self.partitions: dict[int, tuple[int, int]] = {}

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.published += 1
            first, last = self.partitions.get(partition, (offset, offset))
            self.partitions[partition] = min(first, offset), max(last, offset)


@command
def publish(  # noqa: PLR0917 - each is an option
    call: Call,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic to publish to.", autocompletion=complete_topic)
    ],
    value: Annotated[str, typer.Argument(metavar="VALUE|-", help="The message; -: each line of stdin.")],
    key: Annotated[str | None, typer.Option("--key", help="Key of the message.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME[:TYPE]=VALUE", help=(
            "A property; may be repeated. TYPE: str, int, float, bool or bytes; default: guessed."
        )),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option("--delay", min=0, metavar="SECONDS", help="It is not delivered before."),
    ] = None,
    time_to_live: Annotated[
        float | None,
        typer.Option("--ttl", min=0, metavar="SECONDS", help="It is not delivered after; from now on."),
    ] = None,
) -> None:  # fmt: skip
    """Publish a message, or each line of standard input as a message."""
    typed = parse_properties(properties or ())
    settings = call.reached()
    # Kafka's client would search for a missing topic for half a minute.
    topics_of(settings).describe(topic)
    where = _Positions()
    config = {**settings.kafka, "on_delivery": where}
    with Producer(config, client_id=settings.client_id, connection_id=uuid.uuid4().hex) as producer:
        # bytes, because input and arguments need not be UTF-8
        stdin = (line.removesuffix(b"\n") for line in sys.stdin.buffer)
        for line in stdin if value == "-" else (os.fsencode(value),):
            producer.publish(topic, line, key=key, properties=typed, delay=delay, time_to_live=time_to_live)
    ranges = [(partition, first, last) for partition, (first, last) in sorted(where.partitions.items())]
    if call.options.json:
        positions = [
            {"partition": partition, "first": first, "last": last} for partition, first, last in ranges
        ]
        call.out.json({"topic": topic, "published": where.published, "partitions": positions})
        return
    places = ", ".join(
        f"{topic}[{partition}]@{first}" if first == last else f"{topic}[{partition}]@{first}..{last}"
        for partition, first, last in ranges
    )
    call.out.say(f"Published {where.published} to {places or topic}.")


# --- consume --------------------------------------------------------------------------------------------


@command
def consume(
    call: Call,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic of the subscription.", autocompletion=complete_topic)
    ],
    *,
    durable: _DurableOption,
    type_: Annotated[
        SubscriptionType | None, typer.Option("--type", help="Type of the subscription; default: shared.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many messages.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="End when so long none comes.")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack/--rollback", help="Acknowledge printed messages, or roll them back.")
    ] = True,
    delay: Annotated[
        float, typer.Option("--delay", min=0, metavar="SECONDS", help="--rollback: delay of the redelivery.")
    ] = 0.0,
    start: _StartOption = None,
    selector: _SelectorOption = None,
) -> None:  # fmt: skip
    """Attach to a durable subscription, creating it if there is none, and print each message on a line.

    A subscription that exists is read as it is; another type or selector is refused.

    A message is acknowledged after it was printed. Ctrl-C ends in order: unprinted messages are given back.
    """
    if start not in (None, *get_args(Start)):
        raise typer.BadParameter(f"{start!r} is neither latest nor earliest", param_hint="--start")
    wanted = _wanted(call, topic, durable, type_, selector)
    show = _as_json if call.options.json else _as_text
    printed = 0
    with (
        call.out.saying_log(),
        kafkadur.sync.connect(**dict(wanted.settings)) as connection,
        connection.subscribe(
            topic,
            durable=wanted.key.name,
            topic_member=wanted.key.topic_member,
            type=wanted.type,
            start=cast("Start | None", start),
            selector=wanted.selector,
            no_local=wanted.no_local,
            window=min(count or _WINDOW, _WINDOW),
        ) as subscription,
        _stopped_by_signals(subscription.stop) as stopped,
    ):
        while not stopped and printed != count:
            delivery = subscription.receive(timeout)
            if delivery is None:
                break
            call.out.line(show(delivery))
            printed += 1
            if ack:
                delivery.ack_nowait()
            else:
                delivery.rollback_nowait(delay)
    call.out.say(f"{printed} {'acknowledged' if ack else 'rolled back'}.")
    if stopped:
        raise typer.Exit(_SIGNALLED + stopped[0])


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """Which subscription is consumed, and how."""

    #: With the client id of the subscription.
    settings: Settings
    key: SubscriptionKey
    type: SubscriptionType
    selector: str | None
    no_local: bool


def _wanted(
    call: Call, topic: str, name: str, kind: SubscriptionType | None, selector: str | None
) -> _Wanted:
    """Complete the options from the definition of the subscription, if it exists, else with the defaults."""
    with call.looking() as admin:
        key = admin.key(name)
        existing = admin.definition(key) or Definition(type=kind or SubscriptionType.SHARED, topic=topic)
    client = {"client_id": key.client_id, "client_id_policy": key.policy}
    return _Wanted(
        settings=call.settings().model_copy(update=client),
        key=key,
        type=kind or existing.type,
        selector=existing.selector if selector is None else selector,
        no_local=existing.no_local and kind in (None, existing.type),
    )


@contextlib.contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Generator[list[int]]:
    """Make SIGINT and SIGTERM call `stop`; provide the list of the signals that came."""
    came: list[int] = []

    def take(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        stop()

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _as_text(delivery: kafkadur.sync.Delivery) -> str:
    place = f"{delivery.partition}@{delivery.offset}  attempt={delivery.attempt}"
    return line_of(place, delivery.key, delivery.properties, delivery.value)


def line_of(place: str, key: bytes | None, properties: Mapping[str, Property], value: bytes | None) -> str:
    """Return a message as one line; `place` says where it is."""
    parts = [place]
    if key is not None:
        parts.append(f"key={_text(key)}")
    for name, content in properties.items():
        shown = repr(content) if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False)
        parts.append(f"{_text(name.encode(errors='replace'))}={shown}")
    parts.append("null" if value is None else _text(value))
    return "  ".join(parts)


def _text(raw: bytes) -> str:
    """Return UTF-8 as text, escaped if it would break the line; other bytes as a Python literal."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return repr(raw)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _as_json(delivery: kafkadur.sync.Delivery) -> str:
    record = {
        "topic": delivery.topic,
        "partition": delivery.partition,
        "offset": delivery.offset,
        "timestamp": delivery.timestamp,
        "attempt": delivery.attempt,
        "redelivered": delivery.redelivered,
        "key": plain_value(delivery.key),
        "properties": {name: plain_value(value) for name, value in delivery.properties.items()},
        "message_id": delivery.fields.message_id,
        "value": plain_value(delivery.value),
    }
    return json.dumps(record, ensure_ascii=False)
