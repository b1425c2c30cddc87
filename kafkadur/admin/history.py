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
from kafkadur.admin.subscription_info import SubscriptionInfo
from kafkadur.history.entries import topic_of
from kafkadur.history.reading import Delivered, Offsets, Reader
from kafkadur.message.times import now_ms
from kafkadur.runtime.clients import topics_of
from kafkadur.settings import Settings
from kafkadur_sharing.errors import InvalidDestination
from kafkadur_sharing.keys import SubscriptionKey

#: The newest messages of the topic that are read first, each with what one member did in a second. While they
#: do not have what is asked for, so many times as many are read.
_FIRST, _TIMES = 50, 10
_AT = attrgetter("at")


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The last deliveries of a subscription."""

    #: In the order of their outcomes.
    deliveries: tuple[Delivered, ...]
    #: Whether there may be earlier ones.
    more: bool
    #: Messages without a record of their delivery: Kafka did not take the entries.
    missing: int
    #: Records that are damaged, or that a newer version wrote.
    unread: int


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
        most: tuple[int, int] | None = None,
        told: Callable[[int], None] = lambda _: None,
    ) -> History:
        """Return the last deliveries of a subscription, at most `number`.

        `offset`: only those of the message at this partition and offset. `message_key`: only those of
        messages with this key that Kafka still has; their topic is read for it. `member`: only those to the
        member with this id or name. `since`: only what was written in this time. `most`: about so many
        messages of the history topic, and so many bytes, are read at most, the newest ones. `told` is called
        with the number of messages that were read so far.

        Raises `InvalidDestination` if there is no such subscription, or it has no history, and what `Admin`
        raises.
        """
        info = self._admin.info(key)
        offsets: Offsets | None = None if offset is None else {offset[0]: (offset[1],)}
        if message_key is not None:
            offsets = self._of_key(info, message_key, offset, told)
        stretches = self._stretches(info, since)
        size = max((end - start for _, start, end in stretches), default=0)
        newest = _FIRST
        while True:
            reader = Reader(info.id, offsets=offsets, member=member)
            cut = [(p, max(start, end - newest), end) for p, start, end in stretches]
            kept, total = _last(reader.read(self._records(topic_of(key), cut, key), told), number)
            is_whole = newest >= size
            is_enough = most is not None and (newest >= most[0] or reader.size * _TIMES > most[1])
            if is_whole or is_enough or total >= number:
                return History(
                    deliveries=kept, more=not is_whole or total > number, missing=reader.missing,
                    unread=reader.unread,
                )  # fmt: skip
            newest *= _TIMES

    def _stretches(self, info: SubscriptionInfo, since: timedelta | None) -> list[tuple[int, int, int]]:
        """Return what there is of the history topic: partition, first offset, end."""
        topic = topic_of(info.key)
        kept = bounds_if_any(self._topics, topic)
        if not kept:
            raise _no_history(info)
        starts = {partition: start for partition, (start, _) in kept.items()}
        if since is not None:
            at = now_ms() - round(since.total_seconds() * 1000)
            starts = self._topics.offsets_at(topic, len(kept), max(at, 0))
        return [(p, starts[p], end) for p, (_, end) in kept.items()]

    def _of_key(
        self,
        info: SubscriptionInfo,
        message_key: bytes,
        offset: tuple[int, int] | None,
        told: Callable[[int], None],
    ) -> dict[int, list[int]]:
        """Return the offsets of the messages with this key in the topic of a subscription, by partition.

        `offset`: only the one at this partition and offset.
        """
        topic = self._topics.describe(info.definition.topic)
        stretches = [(p, start, end) for p, (start, end) in bounds(self._topics, topic).items()]
        found: dict[int, list[int]] = {}
        for number, message in enumerate(self._records(topic.name, stretches, info.key), 1):
            told(number)
            place = (message.partition() or 0, message.offset() or 0)
            if message.key() == message_key and offset in (None, place):
                found.setdefault(place[0], []).append(place[1])
        return found

    def _records(
        self, topic: str, stretches: list[tuple[int, int, int]], key: SubscriptionKey
    ) -> Iterator[Message]:
        timeout = self._settings.kafka_timeout.total_seconds()
        return records_of(self._settings.kafka, topic, stretches, namespace=key.namespace, timeout=timeout)


def _last(deliveries: Iterator[Delivered], number: int) -> tuple[tuple[Delivered, ...], int]:
    """Return the last ones, at most `number`, in the order of their outcomes, and how many there are."""
    found = list[Delivered]()
    total = 0
    for delivered in deliveries:
        total += 1
        found.append(delivered)
        if len(found) >= 2 * number + 1_000:  # those that have no verdict come last, and may be old
            found = heapq.nlargest(number, found, key=_AT)[::-1]
    return tuple(sorted(found, key=_AT)[-number:]), total


def _no_history(info: SubscriptionInfo) -> InvalidDestination:
    if info.definition.history is None:
        state = "none is kept"
        remedy = "have one kept from now on: `kafkadur sub alter NAME --history 7d`"
    else:
        state = "nothing was delivered since it has one"
        remedy = "attach a consumer"
    return InvalidDestination(
        f"Subscription {info.key} has no delivery history.",
        state=state,
        owner=f"subscription {info.key}",
        remedy=remedy,
    )
