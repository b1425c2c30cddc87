"""Read dead letters, publish their messages again, discard them.

A shared durable subscription on the topic of the dead letters, one for each subscription that has some,
records which letters were handled: a letter that is published again or discarded is acknowledged there.
`runtime/dead_letters.py` writes dead letters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

import kafkadur.sync
from kafkadur.admin.browse import bounds_if_any, everything, records_of
from kafkadur.admin.changes import Admin
from kafkadur.admin.explain import is_settled
from kafkadur.admin.subscription_info import handled_key
from kafkadur.message.headers import Property, decode_properties
from kafkadur.runtime.clients import topics_of
from kafkadur.runtime.dead_letters import ATTEMPTS, CAUSE, HEADERS, ORIGIN, REASON, SUBSCRIPTION, TIMESTAMP
from kafkadur.settings import Settings
from kafkadur_coordinators.client_log import client_log
from kafkadur_sharing.errors import DeliveryFailed
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.selector import Selector

#: Records and bytes that may be in flight in one pass.
_WINDOW, _WINDOW_BYTES = 100_000, 256 * 1024 * 1024
#: Letters that are published again, or discarded, before they are acknowledged together.
_TOGETHER = 500
#: Most digits of a number in a header.
_DIGITS = 15
#: Seconds without a letter after which a pass ends, and after which it settles the letters that it has.
_SILENCE, _PAUSE = 2.0, 0.2


#: Names that a filter can use besides properties (`DeadLetter.facts`).
OWN_FACTS = frozenset({"_cause", "_reason", "_attempts", "_origin", "_timestamp"})


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """A message that was sent to dead letters."""

    #: The place of the dead letter.
    topic: str
    partition: int
    offset: int
    #: The place of the message: `topic[partition]@offset`.
    origin: str
    cause: str
    reason: str
    attempts: int
    #: Time of the message, ms since the epoch.
    timestamp: int
    key: bytes | None
    value: bytes | None
    #: Headers of the message, without those of the dead letter.
    headers: tuple[tuple[str, bytes | None], ...]
    properties: Mapping[str, Property]

    @property
    def source(self) -> str:
        """The topic of the message."""
        return self.origin.rpartition("[")[0]

    @property
    def source_partition(self) -> int:
        """The partition of the message; -1 if the dead letter does not say it."""
        text = self.origin.rpartition("]")[0].rpartition("[")[2]
        return _number(text) if text == str(_number(text)) else -1

    def facts(self) -> dict[str, Property]:
        """Return the values that a filter can use: the properties, and five names that begin with `_`."""
        return {
            **self.properties,
            "_cause": self.cause,
            "_reason": self.reason,
            "_attempts": self.attempts,
            "_origin": self.origin,
            "_timestamp": self.timestamp,
        }

    def passes(self, where: Selector | None) -> bool:
        """Tell whether a filter takes it; None takes all."""
        return where is None or where.matches(self.facts()) is True


class DeadLetterAdmin:
    """The dead letters of the subscriptions of one namespace."""

    def __init__(self, settings: Settings, admin: Admin) -> None:
        """`admin` reads the subscriptions."""
        self._settings = settings
        self._admin = admin
        self._topics = topics_of(settings)

    def letters(
        self,
        key: SubscriptionKey,
        where: Selector | None = None,
        *,
        at: tuple[int, int] | None = None,
        reading: Callable[[Iterable[Message]], Iterable[Message]] = everything,
    ) -> Iterator[DeadLetter]:
        """Yield the dead letters of a subscription that were neither published again nor discarded.

        `at`: only the one at this partition and offset. `reading` can end the reading (`browse.Some`). Raises
        `InvalidDestination` if there is no such subscription, and what `Admin` raises.
        """
        topic = self._admin.info(key).definition.dead_letter_topic
        kept = bounds_if_any(self._topics, topic)
        if not kept:
            return
        views = self._admin.views(handled_key(key))
        stretches = [
            (p, max(start, views[p].floor if p in views else 0), end) for p, (start, end) in kept.items()
        ]
        if at is not None:
            stretches = [
                (p, at[1], at[1] + 1) for p, start, end in stretches if p == at[0] and start <= at[1] < end
            ]
        kafka, timeout = self._settings.kafka, self._settings.kafka_timeout.total_seconds()
        for message in reading(records_of(kafka, topic, stretches, namespace=key.namespace, timeout=timeout)):
            letter = _letter(message, key)
            if letter is None or is_settled(views.get(letter.partition), letter.offset):
                continue
            if letter.passes(where):
                yield letter

    def redrive(
        self,
        key: SubscriptionKey,
        where: Selector | None = None,
        *,
        rate: float | None = None,
        done: Callable[[DeadLetter], None] = lambda _: None,
    ) -> int:
        """Publish the messages of letters to their partitions again, as new messages; returns how many.

        In another partition than the other messages of its key, a message would not be in order with them. A
        letter is acknowledged when Kafka has its message: after a crash some may be published twice, none is
        lost. `rate` is the most a second. Every subscription of the topic gets the messages. Raises as
        `letters`, and `DeliveryFailed`.
        """
        interval = 0.0 if rate is None else 1 / rate
        together = _TOGETHER if rate is None else 1
        one = {"max.in.flight.requests.per.connection": 1}  # docs/decisions/0032
        producer = Producer(
            {**self._settings.kafka, "acks": "all", "enable.idempotence": True, **one}, logger=client_log
        )
        next_at = time.monotonic()

        def send(letters: list[DeadLetter]) -> None:
            nonlocal next_at
            time.sleep(max(next_at - time.monotonic(), 0.0))  # keeps to `rate`
            next_at = max(next_at + interval, time.monotonic())
            self._publish(producer, letters)

        return self._settle(key, where, send, together, done)

    def _publish(self, producer: Producer, letters: Iterable[DeadLetter]) -> None:
        """Publish the messages of letters and wait until Kafka has them."""
        failed: list[KafkaError] = []

        def report(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        for letter in letters:
            headers: Any = list(letter.headers)
            try:
                producer.produce(
                    letter.source,
                    value=letter.value,
                    key=letter.key,
                    headers=headers,
                    partition=letter.source_partition,
                    on_delivery=report,
                )
            except KafkaException as error:  # its topic has fewer partitions than it had
                failed.append(error.args[0])
                break
        if producer.flush(self._settings.kafka_timeout.total_seconds()) or failed:
            raise DeliveryFailed(
                "Dead letters could not be sent again.",
                state=failed[0].str() if failed else "no answer in time",
                owner="Kafka",
                remedy="correct that and do it again; what was not confirmed is still a dead letter",
            )

    def purge(
        self,
        key: SubscriptionKey,
        where: Selector | None = None,
        *,
        done: Callable[[DeadLetter], None] = lambda _: None,
    ) -> int:
        """Discard letters; returns how many. Their records stay in Kafka as long as their topic keeps them.

        Raises as `letters`.
        """
        return self._settle(key, where, lambda _: None, _TOGETHER, done)

    def _settle(
        self,
        key: SubscriptionKey,
        where: Selector | None,
        first: Callable[[list[DeadLetter]], None],
        together: int,
        done: Callable[[DeadLetter], None],
    ) -> int:
        """Call `first` with groups of `together` letters and then acknowledge them; returns how many."""
        count = 0
        group: list[tuple[kafkadur.sync.Delivery, DeadLetter]] = []

        def settle() -> None:
            nonlocal count
            first([letter for _, letter in group])
            for delivery, letter in group:
                delivery.ack()
                done(letter)
                count += 1
            group.clear()

        changes = {"client_id": key.client_id, "client_id_policy": key.policy}
        with kafkadur.sync.Connection(self._settings.model_copy(update=changes), guest=True) as connection:
            for found in self._pass(connection, key, where):
                if found is not None:
                    group.append(found)
                if group and (found is None or len(group) == together):
                    settle()
        return count

    def _pass(
        self, connection: kafkadur.sync.Connection, key: SubscriptionKey, where: Selector | None
    ) -> Iterator[tuple[kafkadur.sync.Delivery, DeadLetter] | None]:
        """Yield the letters that a filter takes, and None where all yielded before are to be settled.

        All other letters are given back at the end.
        """
        topic = self._admin.info(key).definition.dead_letter_topic
        kept = bounds_if_any(self._topics, topic)
        if not kept:
            return
        with connection.subscribe(
            topic,
            durable=handled_key(key).name,
            type="shared",
            start="earliest",
            window=_WINDOW,
            window_bytes=_WINDOW_BYTES,
        ) as subscription:
            waiting = False  # whether letters were yielded since the last None
            while True:
                delivery = subscription.receive(timeout=_PAUSE if waiting else _SILENCE)
                if delivery is None:
                    if not waiting:
                        return
                    waiting = False
                    yield None  # after an unclean end letters come few at a time: more when these are settled
                    continue
                if delivery.offset >= kept.get(delivery.partition, (0, 0))[1]:
                    continue  # written since
                letter = _letter(delivery.message, key)
                if letter is None:
                    delivery.ack_nowait()  # of another subscription with the same topic of dead letters
                elif letter.passes(where):
                    waiting = True
                    yield delivery, letter


def _number(text: str) -> int:
    """Return the number in a header, 0 for anything else: any producer may write to the topic."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= _DIGITS else 0


def _letter(message: Message, key: SubscriptionKey) -> DeadLetter | None:
    """Read a dead letter; None if the record is no dead letter of this subscription."""
    raw: Any = message.headers() or ()
    found = {name: value for name, value in raw if name in HEADERS}
    told = {name: (value or b"").decode(errors="replace") for name, value in found.items()}
    if told.get(SUBSCRIPTION) != str(key):
        return None
    headers = tuple((name, value) for name, value in raw if name not in HEADERS)
    return DeadLetter(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        origin=told.get(ORIGIN, ""),
        cause=told.get(CAUSE, ""),
        reason=told.get(REASON, ""),
        attempts=_number(told.get(ATTEMPTS, "")),
        timestamp=_number(told.get(TIMESTAMP, "")),
        key=message.key(),
        value=message.value(),
        headers=headers,
        properties=decode_properties(headers),
    )
