"""When a message is redelivered, and when it becomes a dead letter: values only.

The coordinator's `lua/include/redelivery.lua` counts attempts and computes each back-off of a policy;
`kafkadur/handlers/retries.py` computes the delay of a failed handler where the policy has no back-off;
`kafkadur/runtime/dead_letters.py` writes the dead-letter topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.names import validate_topic
from kafkadur_sharing.numbers import check_bool, check_delay, check_integer

#: Most attempts that can be counted.
MOST_ATTEMPTS: Final = 10_000
_SHORTEST_HOLD_S: Final = 0.1


@dataclass(frozen=True, init=False)
class Redelivery:
    """How messages that were not acknowledged are redelivered; part of a subscription's definition."""

    #: Attempts after which a message becomes a dead letter; None: the policy sets no limit. Handlers (`run`,
    #: `App`) have a limit of their own then: 10 attempts by default.
    max_attempts: int | None
    #: Wait before the second attempt, in whole ms; it doubles with each further one. The actual wait is
    #: between half of that time and all of it, and depends on the offset. The back-off applies to a rollback
    #: without a delay of its own. On shared, key-ordered and strictly ordered subscriptions it also applies
    #: when the holder dies; on other lanes the messages of a dead holder come again at once.
    backoff: timedelta
    #: Longest wait, in whole ms.
    max_backoff: timedelta
    #: Longest time an application may hold a message without a verdict, in whole ms; then it is rolled back.
    #: None: no limit, as long as its process lives. `Delivery.extend` restarts the time.
    max_hold: timedelta | None
    #: Topic of the dead letters; None: the name of the subscription's topic with the suffix `.dead`.
    dead_letter_topic: str | None
    #: Whether unsettled messages that retention is about to remove are written to the dead-letter topic.
    rescue: bool

    def __init__(
        self,
        *,
        max_attempts: int | None = None,
        backoff: timedelta | float = 0,
        max_backoff: timedelta | float = timedelta(minutes=5),
        max_hold: timedelta | float | None = None,
        dead_letter_topic: str | None = None,
        rescue: bool = False,
    ) -> None:
        """Validate, and round times to whole ms; a time is a timedelta or a number of seconds.

        Raises `IllegalState` for a value out of its range, and `InvalidDestination` for a topic's name that
        cannot be.
        """
        if max_attempts is not None:
            max_attempts = check_integer("max_attempts", max_attempts, 1, MOST_ATTEMPTS, instead=", or None")
        values = {
            "max_attempts": max_attempts,
            "backoff": whole_ms(check_delay("backoff", backoff)),
            "max_backoff": whole_ms(check_delay("max_backoff", max_backoff)),
            "max_hold": None if max_hold is None else whole_ms(_check_hold(max_hold)),
            "dead_letter_topic": None if dead_letter_topic is None else validate_topic(dead_letter_topic),
            "rescue": check_bool("rescue", rescue),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def to_record(self) -> dict[str, object]:
        """Part of the definition: return plain values; times in ms."""
        return {
            "max_attempts": self.max_attempts,
            "backoff": in_ms(self.backoff),
            "max_backoff": in_ms(self.max_backoff),
            "max_hold": None if self.max_hold is None else in_ms(self.max_hold),
            "dead_letter_topic": self.dead_letter_topic,
            "rescue": self.rescue,
        }

    @classmethod
    def from_record(cls, record: object) -> Redelivery:
        """Part of the definition: read what `to_record` wrote. Raises `ValueError` for damage.

        A missing field has its default.
        """
        if record is None:
            return cls()
        if not isinstance(record, Mapping):
            msg = "field 'redelivery' is no mapping"
            raise ValueError(msg)  # noqa: TRY004 - a damaged record is a wrong value, caught by the caller as such
        topic = record.get("dead_letter_topic")
        times = {name: duration(record, name) for name in ("backoff", "max_backoff", "max_hold")}
        return cls(
            max_attempts=number(record, "max_attempts"),
            dead_letter_topic=None if topic is None else str(topic),
            rescue=record.get("rescue") is True,
            **{name: found for name, found in times.items() if found is not None},
        )


def _check_hold(max_hold: timedelta | float) -> float:
    hold = check_delay("max_hold", max_hold)
    if hold < _SHORTEST_HOLD_S:
        raise IllegalState(
            f"max_hold cannot be {max_hold}.",
            owner="the caller",
            remedy="use a timedelta, or seconds, from 0.1 s to 7 days, or None",
        )
    return hold


def whole_ms(seconds: float) -> timedelta:
    """Return a time in seconds, rounded to whole ms."""
    return timedelta(milliseconds=round(seconds * 1000))


def in_ms(time: timedelta) -> int:
    """Return a time in whole ms."""
    return round(time.total_seconds() * 1000)


def number(record: Mapping[Any, object], name: str) -> int | None:
    """Return an integer field of a record; None if it is missing. Raises `ValueError` for another value."""
    value = record.get(name)
    if value is None or isinstance(value, int):
        return value
    msg = f"field {name!r} is no integer"
    raise ValueError(msg)


def duration(record: Mapping[Any, object], name: str) -> timedelta | None:
    """Return a time of a record, which is in ms; None if it is missing. Raises `ValueError` for damage."""
    value = number(record, name)
    return None if value is None else timedelta(milliseconds=value)
