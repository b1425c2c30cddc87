"""Read the delivery history of a subscription (`kafkadur/history`)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter

from confluent_kafka import Message

from kafkadur.admin.browse import bounds, bounds_if_any, records_of
from kafkadur.admin.changes import Admin
from kafkadur.history.entries import topic_of
from kafkadur.history.reading import Delivered, Offsets, Reader
from kafkadur.message.times import now_ms
from kafkadur.runtime.clients import topics_of
from kafkadur.settings import Settings
from kafkadur_sharing.errors import InvalidDestination
from kafkadur_sharing.keys import SubscriptionKey


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The last deliveries of a subscription."""

    #: The oldest first, by when their outcome was so.
    deliveries: tuple[Delivered, ...]
    #: Deliveries that are left out, because only the last ones were asked for.
    earlier: int
    #: Messages whose entries are missing: Kafka did not take them.
    missing: int
    #: Whether older entries were not read (`newest`).
    cut: bool
    #: Bytes that were read.
    size: int


class HistoryAdmin:
    """The delivery histories of the subscriptions of one namespace."""

    def __init__(self, settings: Settings, admin: Admin) -> None:
        """`admin` reads the subscriptions."""
        self._settings = settings
        self._admin = admin
        self._topics = topics_of(settings)

    def last(
        self,
        key: SubscriptionKey,
        number: int,
        *,
        offset: tuple[int, int] | None = None,
        message_key: bytes | None = None,
        member: str | None = None,
        since: timedelta | None = None,
        newest: int | None = None,
        told: Callable[[int], None] = lambda _: None,
    ) -> History:
        """Return the last deliveries of a subscription, at most `number`.

        `offset`: only those of the message at this partition and offset. `message_key`: only those of
        messages with this key that Kafka still has; their topic is read for it. `member`: only those to the
        member with this id or name. `since`: only what was written in this time. `newest`: only so many
        messages of the history topic are read, the newest ones. `told` is called with the number of messages
        that were read so far.

        Raises `InvalidDestination` if the subscription has no history, and what `Admin` raises.
        """
        offsets: Offsets | None = None if offset is None else {offset[0]: (offset[1],)}
        if message_key is not None:
            of_key = self._of_key(key, message_key, told)
            if offset is not None:
                of_key = {p: [o for o in found if (p, o) == offset] for p, found in of_key.items()}
            offsets = of_key
        reader = Reader(offsets=offsets, member=member)
        messages, cut = self._messages(key, since, newest)
        found = list[Delivered]()
        total = 0
        for delivered in reader.read(messages, told):
            total += 1
            found.append(delivered)
            if len(found) >= 2 * number + 1_000:  # those that have no verdict come last, and may be old
                found = heapq.nlargest(number, found, key=_AT)[::-1]
        kept = sorted(found, key=_AT)[-number:]
        return History(
            deliveries=tuple(kept),
            earlier=total - len(kept),
            missing=reader.missing,
            cut=cut,
            size=reader.size,
        )

    def _messages(
        self, key: SubscriptionKey, since: timedelta | None, newest: int | None
    ) -> tuple[Iterator[Message], bool]:
        """Return the messages of the history topic to be read, and whether older ones are left out."""
        topic = topic_of(key)
        kept = bounds_if_any(self._topics, topic)
        if not kept:
            self._refuse(key)
        starts = {partition: start for partition, (start, _) in kept.items()}
        if since is not None:
            at = now_ms() - round(since.total_seconds() * 1000)
            starts = self._topics.offsets_at(topic, len(kept), max(at, 0))
        least = {p: 0 if newest is None else max(end - newest, 0) for p, (_, end) in kept.items()}
        stretches = [(p, max(starts[p], least[p]), end) for p, (_, end) in kept.items()]
        cut = any(least[p] > starts[p] for p in kept)
        return self._records(topic, stretches, key), cut

    def _refuse(self, key: SubscriptionKey) -> None:
        definition = self._admin.info(key).definition  # raises if there is no such subscription
        if definition.history is None:
            state = "none is kept"
            remedy = "have one kept from now on: `kafkadur sub alter NAME --history 7d`"
        else:
            state = "nothing was delivered since it has one"
            remedy = "attach a consumer"
        raise InvalidDestination(
            f"Subscription {key} has no delivery history.",
            state=state,
            owner=f"subscription {key}",
            remedy=remedy,
        )

    def _of_key(
        self, key: SubscriptionKey, message_key: bytes, told: Callable[[int], None]
    ) -> dict[int, list[int]]:
        """Return the offsets of the messages with this key in the topic of a subscription, by partition."""
        topic = self._topics.describe(self._admin.info(key).definition.topic)
        stretches = [(p, start, end) for p, (start, end) in bounds(self._topics, topic).items()]
        found: dict[int, list[int]] = {}
        for number, message in enumerate(self._records(topic.name, stretches, key), 1):
            told(number)
            if message.key() == message_key:
                found.setdefault(message.partition() or 0, []).append(message.offset() or 0)
        return found

    def _records(
        self, topic: str, stretches: list[tuple[int, int, int]], key: SubscriptionKey
    ) -> Iterator[Message]:
        timeout = self._settings.kafka_timeout.total_seconds()
        return records_of(self._settings.kafka, topic, stretches, namespace=key.namespace, timeout=timeout)


_AT = attrgetter("at")
