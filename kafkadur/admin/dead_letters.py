"""What is done with dead letters: look at them, send them again, remove them.

Which of the letters are done with is kept by a shared durable subscription on the topic of the dead letters,
one for each subscription that has some: to send a letter again, or to remove it, is to acknowledge it there.
How letters are written is `dead_letters.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

import kafkadur.sync
from kafkadur.admin.browse import records
from kafkadur.admin.changes import Admin
from kafkadur.message.headers import Property, decode_properties
from kafkadur.runtime.clients import topics_of
from kafkadur.runtime.dead_letters import ATTEMPTS, CAUSE, HEADERS, ORIGIN, REASON, SUBSCRIPTION, TIMESTAMP
from kafkadur.settings import Settings
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.interface import PartitionView
from kafkadur_sharing.errors import DeliveryFailed, InvalidDestination
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.names import MAX_NAME_LENGTH
from kafkadur_sharing.selector import Selector

#: Records and bytes that one pass may hold in its hands.
_WINDOW, _WINDOW_BYTES = 100_000, 256 * 1024 * 1024
#: Letters that are sent again before they are acknowledged.
_TOGETHER = 500
#: Longest number in a header, digits.
_DIGITS = 15
#: Seconds of silence after which all letters were seen.
_SILENCE = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """A message that was given up."""

    #: Where the dead letter lies.
    topic: str
    partition: int
    offset: int
    #: Where the message lay: `topic[partition]@offset`.
    origin: str
    cause: str
    reason: str
    attempts: int
    #: Time of the message, ms since the epoch.
    timestamp: int
    key: bytes | None
    value: bytes | None
    #: Headers of the message as they were, without those of the dead letter.
    headers: tuple[tuple[str, bytes | None], ...]
    properties: Mapping[str, Property]

    @property
    def source(self) -> str:
        """The topic the message lay in."""
        return self.origin.rpartition("[")[0]

    def facts(self) -> dict[str, Property]:
        """What a filter can ask for: the properties, and five names that begin with `_`."""
        return {
            **self.properties,
            "_cause": self.cause,
            "_reason": self.reason,
            "_attempts": self.attempts,
            "_origin": self.origin,
            "_timestamp": self.timestamp,
        }

    def passes(self, where: Selector | None) -> bool:
        """Say whether a filter takes it."""
        return where is None or where.matches(self.facts()) is True


class DeadLetterAdmin:
    """Dead letters of the subscriptions of one namespace."""

    def __init__(self, settings: Settings, admin: Admin) -> None:
        """`admin` knows the subscriptions."""
        self._settings = settings
        self._admin = admin
        self._topics = topics_of(settings)

    def letters(self, key: SubscriptionKey, where: Selector | None = None) -> Iterator[DeadLetter]:
        """Return the dead letters of a subscription that were neither replayed nor discarded.

        Raises `InvalidDestination` if there is no such subscription, and what `Admin` raises.
        """
        topic = self._admin.info(key).definition.dead_letter_topic
        ends = self._ends(topic)
        if ends is None:
            return
        views = self._views(self._key(key))
        ranges = {
            p: (max(start, views[p].floor if p in views else 0), end) for p, (start, end) in ends.items()
        }
        timeout = self._settings.kafka_timeout.total_seconds()
        for message in records(self._settings.kafka, topic, ranges, namespace=key.namespace, timeout=timeout):
            letter = _letter(message, key)
            view = views.get(message.partition() or 0)
            if letter is not None and not _is_done(view, letter.offset) and letter.passes(where):
                yield letter

    def redrive(
        self,
        key: SubscriptionKey,
        where: Selector | None = None,
        *,
        rate: float | None = None,
        done: Callable[[DeadLetter], None] = lambda _: None,
    ) -> int:
        """Publish letters to the topics they came from, as new messages; returns how many.

        Each is acknowledged when Kafka has its message: after a crash some may be sent twice, none is lost.
        `rate` is the most a second. Every subscription of the topic gets the messages. Raises as `letters`,
        and `DeliveryFailed`.
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
            time.sleep(max(next_at - time.monotonic(), 0.0))  # paces what is asked to be paced
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
            producer.produce(
                letter.source, value=letter.value, key=letter.key, headers=headers, on_delivery=report
            )
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
        """Be done with letters; returns how many. They stay in Kafka as long as their topic keeps them.

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
        """Acknowledge letters, so many together, after `first` was called with them; returns how many."""
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

        with self._connect(key) as connection:
            for found in self._pass(connection, key, where):
                if found is not None:
                    group.append(found)
                if group and (found is None or len(group) == together):
                    settle()
        return count

    def _connect(self, key: SubscriptionKey) -> kafkadur.sync.Connection:
        settings = self._settings.model_copy(
            update={"client_id": key.client_id, "client_id_policy": key.policy}
        )
        return kafkadur.sync.Connection(settings, guest=True)

    def _key(self, key: SubscriptionKey) -> SubscriptionKey:
        name = f"{key.name}.dead"
        if len(name) > MAX_NAME_LENGTH:
            name = f"{key.tag}.dead"
        return SubscriptionKey(namespace=key.namespace, client_id=key.client_id, policy=key.policy, name=name)

    def _ends(self, topic: str) -> dict[int, tuple[int, int]] | None:
        """First and end offset of each partition; None if there is no topic, and so no letter."""
        try:
            found = self._topics.describe(topic)
        except InvalidDestination:
            return None
        starts = self._topics.offsets(topic, found.partitions, "earliest")
        ends = self._topics.offsets(topic, found.partitions, "latest")
        return {p: (starts[p], ends[p]) for p in starts}

    def _views(self, key: SubscriptionKey) -> Mapping[int, PartitionView]:
        return self._admin.views(key)

    def _pass(
        self, connection: kafkadur.sync.Connection, key: SubscriptionKey, where: Selector | None
    ) -> Iterator[tuple[kafkadur.sync.Delivery, DeadLetter] | None]:
        """Letters that a filter takes, then None; what it does not take is given back at the end."""
        topic = self._admin.info(key).definition.dead_letter_topic
        ends = self._ends(topic)
        if ends is None:
            return
        with connection.subscribe(
            topic,
            durable=self._key(key).name,
            type="shared",
            start="earliest",
            window=_WINDOW,
            window_bytes=_WINDOW_BYTES,
        ) as subscription:
            while (delivery := subscription.receive(timeout=_SILENCE)) is not None:
                if delivery.offset >= ends.get(delivery.partition, (0, 0))[1]:
                    continue  # written since
                letter = _letter(delivery.message, key)
                if letter is None:
                    delivery.ack_nowait()  # of another subscription with the same topic of dead letters
                elif letter.passes(where):
                    yield delivery, letter
            yield None


def _is_done(view: PartitionView | None, offset: int) -> bool:
    return view is not None and view.is_decided(offset) and view.run_of(offset) is None


def _number(text: str) -> int:
    """Return the number in a header; 0 if it is none: any producer may write to the topic."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= _DIGITS else 0


def _letter(message: Message, key: SubscriptionKey) -> DeadLetter | None:
    """Read a dead letter; None if it is another subscription's, or none."""
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
