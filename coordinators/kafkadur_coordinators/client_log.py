"""The logger of Kafka's client library, `kafkadur.kafka`, without repeated lines.

librdkafka logs every attempt to connect, several times a second and once for each of its clients. Of lines
that differ in numbers alone, only the first in half a minute is passed on. Failures that librdkafka retries
by itself are logged at level INFO.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Final

from kafkadur_sharing.readable_text import plain

#: Seconds for which the same line is not logged again.
QUIET_S: Final = 30.0
#: How many different lines are remembered.
_REMEMBERED: Final = 256
_NUMBER: Final = re.compile(r"\d+")


class Repeats(logging.Filter):
    """Lets the first of equal lines through; safe to be called by many threads."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Take the clock, seconds."""
        super().__init__()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is passed on, made one line; lower the level of retried failures."""
        if not isinstance(record.args, tuple) or len(record.args) != 3:  # noqa: PLR2004 - what librdkafka's are
            return True
        kind, client, text = (plain(str(argument)) for argument in record.args)
        record.args = (kind, client, text)
        if text.endswith(": retrying"):
            record.levelno, record.levelname = logging.INFO, "INFO"
        # the client's number does not make it another line, its broker's does
        line = f"{kind} {client.partition('#')[2].partition('-')[0]} {_NUMBER.sub('0', text)}"
        now = self._monotonic()
        with self._lock:
            if now - self._told.get(line, -QUIET_S) < QUIET_S:
                return False
            self._told.pop(line, None)
            self._told[line] = now
            if len(self._told) > _REMEMBERED:
                del self._told[next(iter(self._told))]
        return record.levelno >= logging.WARNING or logging.getLogger(record.name).isEnabledFor(
            record.levelno
        )


client_log: Final = logging.getLogger("kafkadur.kafka")
client_log.addFilter(Repeats())
