"""When a message may be delivered: not before its delivery time, not from its expiration on. Both are of JMS.

They are headers, in ms since 1970 by the clock of the sender. A member compares them with its own clock when
it dispatches the message (`consumer/dispatcher.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from confluent_kafka import Message

from kafkadur.message.headers import DELIVERY_TIME_HEADER, EXPIRATION_HEADER, read_time
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.numbers import LONGEST_AHEAD, check_delay


class Times(NamedTuple):
    """The times of one message, ms since 1970."""

    #: it is not delivered before; None: it may be delivered at once
    delivery_time: int | None
    #: it is not delivered from then on; None: it never expires
    expiration: int | None

    def is_over(self, now: int) -> bool:
        """Whether it has expired at `now`, ms since 1970."""
        return self.expiration is not None and self.expiration <= now

    def wait(self, now: int) -> int:
        """Return the ms from `now` (ms since 1970) until it may be delivered."""
        return 0 if self.delivery_time is None else max(self.delivery_time - now, 0)

    def allow(self, now: int) -> bool:
        """Whether it may be delivered at `now`, ms since 1970."""
        return not self.is_over(now) and not self.wait(now)


#: The times of those of some messages that have any, by index.
TimesByIndex = Mapping[int, Times]

_NAMES = {DELIVERY_TIME_HEADER, EXPIRATION_HEADER}
#: None of them has any.
NONE: TimesByIndex = {}


def now_ms() -> int:
    """Return the time of this machine's clock, ms since 1970."""
    return round(time.time() * 1000)


def of_raw(delivery_time: bytes | None, expiration: bytes | None) -> Times | None:
    """Return the times in two headers; None if they are none."""
    times = Times(read_time(delivery_time), read_time(expiration))
    return None if times == (None, None) else times


def of_headers(headers: Any) -> Times | None:  # noqa: ANN401 - the stub allows what the wire does not
    """Return the times in the headers of a message; None if it has none. The last header of a name counts."""
    if not headers:
        return None
    last = dict(headers)
    return of_raw(last.get(DELIVERY_TIME_HEADER), last.get(EXPIRATION_HEADER))


def of_messages(messages: Iterable[Message]) -> TimesByIndex:
    """Return the times of confluent-kafka's messages."""
    found: dict[int, Times] = {}
    for index, headers in enumerate(map(Message.headers, messages)):
        if headers and not _NAMES.isdisjoint(dict(headers)):  # a set is looked up faster than two names
            times = of_headers(headers)
            if times is not None:
                found[index] = times
    return found or NONE


def when_sent(
    now: Callable[[], float],
    *,
    delay: timedelta | float | None,
    not_before: datetime | None,
    time_to_live: timedelta | float | None,
) -> Times:
    """Return the times of a message that is sent now; `now` gives seconds since 1970.

    Raises `IllegalState` for a delay or time to live out of range, two delivery times, a time without a zone,
    and a message that would expire before it may be delivered.
    """
    sent = round(now() * 1000)
    due: int | None = None
    if delay is not None:
        if not_before is not None:
            raise _refused("delay and not_before both say when it may be delivered", "give one of them")
        due = sent + round(check_delay("delay", delay, LONGEST_AHEAD) * 1000)
    elif not_before is not None:
        if not_before.tzinfo is None:
            raise _refused(f"not_before={not_before} has no time zone", "use a datetime with a tzinfo")
        due = round(not_before.timestamp() * 1000)
    if due is not None and due <= sent:
        due = None
    if time_to_live is None:
        return Times(due, None)
    expiration = sent + round(check_delay("time_to_live", time_to_live, LONGEST_AHEAD) * 1000)
    if expiration <= (due or sent):
        raise _refused(
            f"time_to_live={time_to_live} ends before it may be delivered",
            "use a longer time to live: it begins when the message is sent",
        )
    return Times(due, expiration)


def _refused(state: str, remedy: str) -> IllegalState:
    return IllegalState(
        "A message cannot be sent with these times.", state=state, owner="the caller", remedy=remedy
    )
