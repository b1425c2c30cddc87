"""Dead letters of a Spark job: the driver reads and writes rejected messages before it settles them.

`kafkadur/runtime/dead_letters.py` defines the form of a dead letter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafkadur.admin.browse import records_of
from kafkadur.message.tracing import Tracing
from kafkadur.runtime.dead_letters import Cause, DeadLetters, Letter
from kafkadur.settings import Settings
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.settlement_states import SettlementState
from kafkadur_sharing.errors import StateLost
from kafkadur_sharing.ranges import joined

_log = logging.getLogger("kafkadur.spark")

#: Reasons, by partition and offset.
Reasons = Mapping[int, Mapping[int, str]]
#: Seconds within which the dead letters of a batch must be written, and within which Kafka must answer.
_WRITTEN_S, READ_S = 60.0, 30.0
#: Two rejected messages at most so many offsets apart are read together with the messages between them.
_NEAR = 500


def send_to_dead_letters(
    settings: Settings,
    held: Subscription,
    rejected: Reasons,
    settlements: Mapping[int, SettlementState],
    *,
    tracing: Tracing | None = None,
) -> None:
    """Write the dead letters of rejected messages, and return when all of them are written.

    A message that is settled already has its dead letter, and one that Kafka has removed gets none.
    `settlements` are the present settlement states of the subscription; `tracing` makes a span of each
    dead letter. Raises `StateLost` if the dead letters are not written within a minute, and the errors of
    reading; then nothing may be settled, and a dead letter may be written twice.
    """
    open_now = {
        p: {offset: why for offset, why in some.items() if _attempts(settlements[p], offset) is not None}
        for p, some in rejected.items()
    }
    stretches = [
        (p, start, end - _NEAR + 1)
        for p, some in sorted(open_now.items())
        for start, end in joined((offset, offset + _NEAR) for offset in some)
    ]
    letters = DeadLetters(settings.kafka, tracing=tracing)
    found = 0
    try:
        for message in records_of(
            settings.kafka, held.topic.name, stretches, namespace=settings.namespace, timeout=READ_S
        ):
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
                    attempts=_attempts(settlements[partition], offset) or 1,
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


def _attempts(settlement: SettlementState, offset: int) -> int | None:
    """Return the number of this attempt at a message; None if it is settled.

    A delayed message has a number too: its delay may be over when it is settled.
    """
    if offset >= settlement.next:
        return 1
    for item in settlement.waiting:
        if item.start <= offset < item.end:
            return item.attempts + 1
    return None
