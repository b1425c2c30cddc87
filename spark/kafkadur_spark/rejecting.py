"""Dead letters of a Spark job: what is rejected is read again by the driver, and written before it settles.

How a dead letter looks is `kafkadur/runtime/dead_letters.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Message

from kafkadur.admin.browse import records_of
from kafkadur.runtime.dead_letters import Cause, DeadLetters, Letter
from kafkadur.settings import Settings
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.places import Place
from kafkadur_sharing.errors import StateLost
from kafkadur_spark.ranges import joined

_log = logging.getLogger("kafkadur.spark")

#: Reasons, by partition and offset.
Reasons = Mapping[int, Mapping[int, str]]
#: Seconds in which the letters of a batch have to be written, and in which Kafka has to answer.
_WRITTEN_S, READ_S = 60.0, 30.0
#: Messages between two rejected ones that are read, too, rather than looked for anew.
_NEAR = 500


def bury(settings: Settings, held: Subscription, rejected: Reasons, places: Mapping[int, Place]) -> None:
    """Write the dead letters of what is rejected, and return when all of them are written.

    What is settled already has its letter, and what Kafka does not keep any more gets none. `places` say
    where the subscription stands. Raises `StateLost` when they are not written within a minute, and what
    reading raises; then nothing may be settled, and a letter may be written twice.
    """
    open_now = {
        p: {offset: why for offset, why in some.items() if _attempts(places[p], offset) is not None}
        for p, some in rejected.items()
    }
    letters = DeadLetters(settings.kafka)
    found = 0
    try:
        for message in _read(settings, held.topic.name, open_now):
            partition, offset = message.partition() or 0, message.offset() or 0
            reason = open_now[partition].get(offset)
            if reason is None:
                continue
            found += 1
            letters.write(
                Letter(
                    topic=held.definition.dead_letter_topic,
                    message=message,
                    subscription=str(held.key),
                    cause=Cause.REJECTED,
                    reason=reason,
                    attempts=_attempts(places[partition], offset) or 1,
                    written=lambda: None,
                )
            )
        if not letters.flush(_WRITTEN_S):
            raise StateLost(
                "The dead letters of a batch are not written.",
                state=f"not within {_WRITTEN_S:g} s",
                owner=f"topic {held.definition.dead_letter_topic}",
                remedy="check that the topic can be written, and start the query again",
            )
    finally:
        letters.close()
    missing = sum(map(len, open_now.values())) - found
    if missing:
        _log.warning("%s: Kafka does not keep %d rejected messages any more", held.key, missing)


def _read(settings: Settings, topic: str, rejected: Reasons) -> Iterator[Message]:
    """The rejected messages, and what lies between two that are near each other."""
    stretches = [(p, start, end) for p, some in sorted(rejected.items()) for start, end in _near(some)]
    yield from records_of(settings.kafka, topic, stretches, namespace=settings.namespace, timeout=READ_S)


def _near(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    for start, end in joined((offset, offset + _NEAR) for offset in offsets):
        yield start, end - _NEAR + 1


def _attempts(place: Place, offset: int) -> int | None:
    """Which attempt at a message this was; None: it is settled.

    Also where it waits for its time: that may have come when it is settled.
    """
    if offset >= place.next:
        return 1
    for item in place.waiting:
        if item.start <= offset < item.end:
            return item.attempts + 1
    return None
