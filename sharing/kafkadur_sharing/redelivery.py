"""When a message that was given back comes again, and when it is a dead letter. Values only.

How attempts are counted and how long each back-off is stands in the coordinator's
`lua/include/redelivery.lua`; what is written to the dead-letter topic in `kafkadur/runtime/dead_letters.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from kafkadur_sharing.errors import IllegalState

#: Most attempts that can be counted.
MOST_ATTEMPTS: Final = 10_000
#: Longest back-off.
LONGEST: Final = timedelta(days=7)


@dataclass(frozen=True, kw_only=True)
class Redelivery:
    """What happens to a message that was not acknowledged; part of a subscription's definition.

    Raises `IllegalState` for a value out of its range.
    """

    #: Attempts after which a message is a dead letter; None: it comes again for ever.
    max_attempts: int | None = None
    #: Wait before the second attempt, in whole ms; it doubles with each further one and is spread over its
    #: upper half. Counts for a roll back without a delay of its own and for a holder that died.
    backoff: timedelta = timedelta(0)
    #: Longest wait, in whole ms.
    max_backoff: timedelta = timedelta(minutes=5)
    #: Longest time an application may hold a message without a verdict, in whole ms; then it is rolled back.
    #: None: no limit, as long as its process lives. `Delivery.extend` begins it anew.
    max_hold: timedelta | None = None
    #: Topic of the dead letters; None: the subscription's topic with `.dead` behind its name.
    dead_letter_topic: str | None = None
    #: Write what retention is about to remove while it is not settled into the dead-letter topic.
    rescue: bool = False

    def __post_init__(self) -> None:
        """Validate."""
        if self.max_attempts is not None and not 1 <= self.max_attempts <= MOST_ATTEMPTS:
            raise IllegalState(
                f"max_attempts cannot be {self.max_attempts}.", remedy=f"use 1 to {MOST_ATTEMPTS}, or None"
            )
        for name in ("backoff", "max_backoff"):
            if not timedelta(0) <= getattr(self, name) <= LONGEST:
                raise IllegalState(f"{name} cannot be {getattr(self, name)}.", remedy="use 0 to 7 days")
        if self.max_hold is not None and not timedelta(milliseconds=100) <= self.max_hold <= LONGEST:
            raise IllegalState(
                f"max_hold cannot be {self.max_hold}.", remedy="use 0.1 seconds to 7 days, or None"
            )

    def to_record(self) -> dict[str, object]:
        """Return plain values; times in ms."""
        return {
            "max_attempts": self.max_attempts,
            "backoff": _ms(self.backoff),
            "max_backoff": _ms(self.max_backoff),
            "max_hold": None if self.max_hold is None else _ms(self.max_hold),
            "dead_letter_topic": self.dead_letter_topic,
            "rescue": self.rescue,
        }

    @classmethod
    def from_record(cls, record: object) -> Redelivery:
        """Read what `to_record` wrote; what is missing has its default. Raises ValueError for damage."""
        if record is None:
            return cls()
        if not isinstance(record, Mapping):
            msg = "field 'redelivery' is no mapping"
            raise ValueError(msg)  # noqa: TRY004 - a damaged record is a wrong value, caught by the caller as such
        known = cls()
        return cls(
            max_attempts=_number(record, "max_attempts"),
            backoff=_time(record, "backoff", known.backoff) or timedelta(0),
            max_backoff=_time(record, "max_backoff", known.max_backoff) or timedelta(0),
            max_hold=_time(record, "max_hold", None),
            dead_letter_topic=None
            if record.get("dead_letter_topic") is None
            else str(record["dead_letter_topic"]),
            rescue=record.get("rescue") is True,
        )


def _ms(time: timedelta) -> int:
    return round(time.total_seconds() * 1000)


def _number(record: Mapping[object, object], name: str) -> int | None:
    value = record.get(name)
    if value is None or isinstance(value, int):
        return value
    msg = f"field {name!r} is no integer"
    raise ValueError(msg)


def _time(record: Mapping[object, object], name: str, default: timedelta | None) -> timedelta | None:
    value = _number(record, name)
    return default if value is None else timedelta(milliseconds=value)
