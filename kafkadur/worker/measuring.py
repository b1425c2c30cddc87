"""Metrics of a worker, for Prometheus: its handlers and its members. Labels only name the subscription.

`kafkadur metrics` has those of whole subscriptions (`kafkadur/metrics.py`): one process for all workers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafkadur.handlers.results import Reject
from kafkadur.worker.app import Declared
from kafkadur.worker.worker import Serving, State

_LABELS = ("namespace", "subscription", "topic")
#: Seconds: from a quick look-up to work close to a time-out.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_OUTCOMES = ("returned", "rejected", "raised", "cancelled")


class _Told(NamedTuple):
    """A number of `Subscription.statistics`; its metric is `kafkadur_worker_<name>`."""

    statistic: str
    name: str
    help: str
    counts: bool = False


_STATISTICS = (
    _Told("in_hands", "in_hands_messages", "Received and not settled."),
    _Told("buffered", "buffered_messages", "Read ahead, waiting for handlers."),
    _Told("lag", "lag_messages", "Messages that wait for this worker, read or not."),
    _Told("live", "live", "1 after it has caught up, until it falls behind."),
    _Told("leases", "leases", "Leases held."),
    _Told("parked", "parked_messages", "Messages behind stuck keys."),
    _Told("dead_letters", "dead_letters", "Dead letters written, since attached.", counts=True),
    _Told(
        "outdated", "outdated_messages", "Expired before they were delivered, since attached.", counts=True
    ),
    _Told("exchanges", "exchanges", "Exchanges with the coordinator, since attached.", counts=True),
    _Told("records_read", "records_read", "Records read from Kafka, since attached.", counts=True),
    _Told("records_used", "records_used", "Those of them that were this worker's.", counts=True),
)


class HandlerMeasures:
    """Measures each call of a handler."""

    def __init__(self, registry: CollectorRegistry, namespace: str, declared: Iterable[Declared]) -> None:
        """Register; every series of `declared` exists from the start, so that its rate begins at 0."""
        self._namespace = namespace
        self._calls = Counter(
            "kafkadur_worker_handled_messages",
            "Calls of handlers that ended, by how.",
            (*_LABELS, "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "kafkadur_worker_handler_seconds",
            "How long handlers took.",
            _LABELS,
            buckets=_BUCKETS,
            registry=registry,
        )
        self._running = Gauge(
            "kafkadur_worker_handlers_running", "Handlers at work.", _LABELS, registry=registry
        )
        for each in declared:
            labels = labels_of(namespace, each)
            self._seconds.labels(*labels)
            self._running.labels(*labels)
            for outcome in _OUTCOMES:
                self._calls.labels(*labels, outcome)

    @contextlib.contextmanager
    def handling(self, declared: Declared) -> Generator[None]:
        """Measure one call of a handler; its exceptions pass through."""
        labels = labels_of(self._namespace, declared)
        running, begun, outcome = self._running.labels(*labels), time.monotonic(), "returned"
        running.inc()
        try:
            yield
        except Reject:
            outcome = "rejected"
            raise
        except Exception:
            outcome = "raised"
            raise
        except BaseException:
            outcome = "cancelled"
            raise
        finally:
            running.dec()
            self._seconds.labels(*labels).observe(time.monotonic() - begun)
            self._calls.labels(*labels, outcome).inc()


class MemberMetrics(Collector):
    """Statistics of a worker's members, read at each scrape by any thread."""

    def __init__(self, namespace: str, serving: Sequence[Serving]) -> None:
        """`serving`: the worker's subscriptions."""
        self._namespace = namespace
        self._serving = serving

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metrics depend on the attached subscriptions."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; for a subscription that is not attached only `kafkadur_worker_attached`."""
        attached = GaugeMetricFamily(
            "kafkadur_worker_attached", "1 while the worker is attached to the subscription.", labels=_LABELS
        )
        found: list[tuple[tuple[str, ...], dict[str, int]]] = []
        for serving in self._serving:
            labels, subscription = labels_of(self._namespace, serving.declared), serving.subscription
            attached.add_metric(labels, float(serving.state is State.ATTACHED))
            if subscription is not None:
                found.append((labels, subscription.statistics()))
        yield attached
        for told in _STATISTICS:
            kind = CounterMetricFamily if told.counts else GaugeMetricFamily
            family = kind(f"kafkadur_worker_{told.name}", told.help, labels=_LABELS)
            for labels, statistics in found:
                family.add_metric(labels, float(statistics[told.statistic]))
            yield family


def labels_of(namespace: str, declared: Declared) -> tuple[str, ...]:
    """Return the labels of a subscription."""
    return namespace, declared.name, declared.topic
