"""Settings of Kafka for clients that the application does not know of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_STATISTICS: Final = frozenset({"stats_cb", "statistics.interval.ms"})
#: Called by librdkafka for a token to log in with.
_TOKENS: Final = "oauth_cb"


def without_statistics(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a client that is not polled while it has nothing to do.

    Every ``statistics.interval.ms`` librdkafka puts statistics of ten kilobytes and more into a queue, with
    or without ``stats_cb``. Only polling takes them out: in a client that is not polled memory would grow.
    """
    return {name: value for name, value in kafka.items() if name not in _STATISTICS}


def for_own_messages(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a client that writes messages of which the application has no callbacks.

    Only the function that fetches tokens is kept: without it the client could not log in.
    """
    return {
        name: value
        for name, value in without_statistics(kafka).items()
        if name == _TOKENS or not callable(value)
    }
