"""Metrics of the subscriptions of a namespace, for Prometheus; read at each scrape.

A scrape reads the shared state, as `kafkadur sub ls` does: no member has to be attached for it, and every
subscription appears once, whichever process works on it. There is no label of members, keys or partitions:
their number has no bound.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafkadur.admin.subscription_info import SubscriptionInfo
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur.metrics")

#: Seconds after which a scrape is answered with `kafkadur_up` 0: Prometheus waits 10 by default.
SCRAPE_S: Final = 7.0

_LABELS = ("namespace", "client_id", "client_id_policy", "subscription", "topic", "type")


class _Number(NamedTuple):
    """A gauge or counter `kafkadur_<name>`, and its value; None: not known."""

    name: str
    help: str
    value: Callable[[SubscriptionInfo], float | None]
    counts: bool = False


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _query(info: SubscriptionInfo, name: str) -> float | None:
    """Return a number of the query that is the farthest behind."""
    running = [progress for member in info.progress.values() for progress in member]
    last = max(running, key=lambda progress: progress.lag or 0, default=None)
    found: float | None = None if last is None else getattr(last, name)
    return found


_NUMBERS = (
    _Number("subscription_backlog_messages", "Unsettled messages that Kafka holds.", lambda s: s.backlog),
    _Number("subscription_lag_messages", "Offsets from the floor to the end.", lambda s: s.lag),
    _Number("subscription_in_flight_messages", "Unsettled, leased by members.", lambda s: s.in_flight),
    _Number(
        "subscription_exceptions_messages", "Set aside: rolled back, delayed or left.", lambda s: s.exceptions
    ),
    _Number(
        "subscription_expiring_messages", "Unsettled, and about to be removed by Kafka.", lambda s: s.expiring
    ),
    _Number("subscription_members", "Attached members.", lambda s: len(s.attached)),
    _Number("subscription_leases", "Leases that members hold.", lambda s: sum(m.leases for m in s.members)),
    _Number("subscription_paused", "1 while nothing is handed out until it is resumed.", lambda s: s.paused),
    _Number(
        "subscription_last_verdict_timestamp_seconds",
        "When the last message was settled or given back.",
        lambda s: _seconds(s.last_verdict),
    ),
    _Number(
        "subscription_unattended_timestamp_seconds",
        "Since when no member is attached; absent while one is.",
        lambda s: _seconds(s.unattended_since),
    ),
    # Of the query of the driver that holds the subscription; absent while none runs.
    _Number("query_generation", "Which checkpoint of the subscription.", lambda s: _query(s, "generation")),
    _Number("query_batch", "Number of its last batch.", lambda s: _query(s, "batch")),
    _Number("query_batch_rows", "Rows read for its last batch.", lambda s: _query(s, "rows")),
    _Number("query_input_rows_per_second", "Rows that came in.", lambda s: _query(s, "input_rate")),
    _Number("query_processed_rows_per_second", "Rows worked on.", lambda s: _query(s, "processed_rate")),
    _Number("query_lag_messages", "Offsets behind its last batch.", lambda s: _query(s, "lag")),
    _Number(
        "query_batch_timestamp_seconds", "When its last batch ended.", lambda s: _seconds(_query(s, "at"))
    ),
    _Number(
        "subscription_expired_messages",
        "Removed by Kafka before they were settled.",
        lambda s: s.expired,
        counts=True,
    ),
    _Number(
        "subscription_truncated_messages",
        "Lost by Kafka with the end of a log.",
        lambda s: s.truncated,
        counts=True,
    ),
)


class Lister(Protocol):
    """Lists subscriptions: an `Inspector`, or what has read them already."""

    def list(self) -> tuple[SubscriptionInfo, ...]:
        """Return all durable subscriptions of a namespace. Raises KafkadurError."""
        ...


class SubscriptionMetrics(Collector):
    """The metrics of all durable subscriptions of a namespace.

    Register it with a `prometheus_client.CollectorRegistry`. A scrape costs as much as `kafkadur sub ls`: a
    few calls of Redis and Kafka for each subscription. It never raises: if Redis or Kafka do not answer,
    `kafkadur_up` is 0 and no other metric has a value.
    """

    def __init__(self, inspector: Lister, *, limit: float | None = None) -> None:
        """`inspector` reads the subscriptions; scrapes at the same time share its answer.

        `limit`: seconds after which a scrape gives up and `kafkadur_up` is 0; None: it waits for the answer.
        """
        self._inspector = inspector
        self._limit = limit
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "kafkadur-metrics")
        self._asked: Future[tuple[SubscriptionInfo, ...]] | None = None

    def _ask(self) -> tuple[SubscriptionInfo, ...]:
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = self._thread.submit(self._inspector.list)
            asked = self._asked
        return asked.result(self._limit)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering then asks no server."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read all subscriptions, and yield their metrics."""
        found: tuple[SubscriptionInfo, ...] = ()
        up = 1.0
        try:
            found = self._ask()
        except KafkadurError as error:
            _log.warning("metrics: %s", error)
            up = 0.0
        except TimeoutError:
            _log.warning("metrics: Redis and Kafka have not answered for %g s", self._limit)
            up = 0.0
        yield GaugeMetricFamily("kafkadur_up", "1 if Redis and Kafka answered this scrape.", value=up)
        for number in _NUMBERS:
            kind = CounterMetricFamily if number.counts else GaugeMetricFamily
            family = kind(f"kafkadur_{number.name}", number.help, labels=_LABELS)
            for info in found:
                if (value := number.value(info)) is not None:
                    family.add_metric(_labels(info), float(value))
            yield family


def _labels(info: SubscriptionInfo) -> list[str]:
    key = info.key
    name = key.name if key.topic_member is None else f"{key.name}@{key.topic_member}"
    return [
        key.namespace,
        key.client_id or "",
        key.policy.value,
        name,
        info.definition.topic,
        info.definition.type.value,
    ]
