"""Metrics of the subscriptions of a namespace, for Prometheus: asked for when they are scraped.

A scrape looks from outside, as `kafkadur sub ls` does: no member has to be attached for it, and every
subscription is there once, whichever process works on it. There is no label of members, keys or partitions:
their number has no bound.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafkadur.admin.inspector import Inspector
from kafkadur.admin.subscription_info import SubscriptionInfo
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur.metrics")

#: Seconds after which a scrape is answered without what was asked for: Prometheus waits 10 by default.
SCRAPE_S: Final = 7.0

_LABELS = ("namespace", "client_id", "client_id_policy", "subscription", "topic", "type")


class _Number(NamedTuple):
    """A gauge or counter: its name behind `kafkadur_`, what it tells, and its value; None: not known."""

    name: str
    help: str
    value: Callable[[SubscriptionInfo], float | None]


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _query(info: SubscriptionInfo, name: str) -> float | None:
    told = next(iter(info.progress.values()), None)  # a holder of the whole subscription is the only member
    found: float | None = None if told is None else getattr(told, name)
    return found


_GAUGES = (
    _Number("subscription_backlog_messages", "Unsettled messages that Kafka holds.", lambda s: s.backlog),
    _Number("subscription_lag_messages", "Offsets from the floor to the end.", lambda s: s.lag),
    _Number("subscription_in_flight_messages", "Unsettled, leased by members.", lambda s: s.in_flight),
    _Number(
        "subscription_exceptions_messages", "Set aside: rolled back, delayed or left.", lambda s: s.exceptions
    ),
    _Number(
        "subscription_expiring_messages", "Unsettled, and about to be removed by Kafka.", lambda s: s.expiring
    ),
    _Number("subscription_members", "Attached members.", lambda s: len(s.members)),
    _Number("subscription_leases", "Leases that members hold.", lambda s: sum(m.leases for m in s.members)),
    _Number("subscription_paused", "1 while nothing is handed out until it is resumed.", lambda s: s.paused),
    _Number(
        "subscription_last_verdict_timestamp_seconds",
        "When the last message was settled or given back.",
        lambda s: _seconds(s.last_verdict),
    ),
    _Number(
        "subscription_unattended_timestamp_seconds",
        "Since when nobody is attached; absent while somebody is.",
        lambda s: _seconds(s.unattended_since),
    ),
)
_COUNTERS = (
    _Number(
        "subscription_expired_messages", "Removed by Kafka before they were settled.", lambda s: s.expired
    ),
    _Number("subscription_truncated_messages", "Lost by Kafka with the end of a log.", lambda s: s.truncated),
)
#: Of the query of a driver that holds the subscription; absent while none runs.
_QUERIES = (
    _Number("query_generation", "Which checkpoint of the subscription.", lambda s: _query(s, "generation")),
    _Number("query_batch", "Number of its last batch.", lambda s: _query(s, "batch")),
    _Number("query_batch_rows", "Rows read for its last batch.", lambda s: _query(s, "rows")),
    _Number("query_input_rows_per_second", "Rows that came in.", lambda s: _query(s, "input_rate")),
    _Number("query_processed_rows_per_second", "Rows worked on.", lambda s: _query(s, "processed_rate")),
    _Number("query_lag_messages", "Offsets behind its last batch.", lambda s: _query(s, "lag")),
    _Number(
        "query_batch_timestamp_seconds", "When its last batch ended.", lambda s: _seconds(_query(s, "at"))
    ),
)


class SubscriptionMetrics(Collector):
    """The metrics of all durable subscriptions of a namespace.

    Register it with a `prometheus_client.CollectorRegistry`. A scrape costs what `kafkadur sub ls` costs: a
    few calls of Redis and Kafka for each subscription. It never raises: `kafkadur_up` is 0 when Redis or
    Kafka do not answer, and then there is nothing else.
    """

    def __init__(self, looking: Inspector, *, limit: float | None = None) -> None:
        """`looking` asks; scrapes at the same time share its answer.

        `limit`: seconds after which `kafkadur_up` is 0 though they may yet answer; None: wait for them.
        """
        self._looking = looking
        self._limit = limit
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "kafkadur-metrics")
        self._asked: Future[tuple[SubscriptionInfo, ...]] | None = None

    def _ask(self) -> tuple[SubscriptionInfo, ...]:
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = self._thread.submit(self._looking.list)
            asked = self._asked
        return asked.result(self._limit)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: so no server is asked when it is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Ask, and tell of every subscription."""
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
        for gauge in (*_GAUGES, *_QUERIES):
            gauges = GaugeMetricFamily(f"kafkadur_{gauge.name}", gauge.help, labels=_LABELS)
            _fill(gauges, gauge, found)
            yield gauges
        for counter in _COUNTERS:
            counters = CounterMetricFamily(f"kafkadur_{counter.name}", counter.help, labels=_LABELS)
            _fill(counters, counter, found)
            yield counters


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily, metric: _Number, found: tuple[SubscriptionInfo, ...]
) -> None:
    for info in found:
        value = metric.value(info)
        if value is not None:
            family.add_metric(_labels(info), float(value))


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
