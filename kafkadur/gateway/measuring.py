"""Metrics of a gateway, for Prometheus. No label names a user or a client: their number has no bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafkadur.gateway.conditions import ALL_CONDITIONS
from kafkadur.gateway.counting import ACCEPTED, COMMITTED, REJECTED, ROLLED_BACK, TRANSACTED
from kafkadur.gateway.gateway import Gateway
from kafkadur.gateway.outcomes import WORDS

_Kind: TypeAlias = type[GaugeMetricFamily] | type[CounterMetricFamily]
_PUBLISHED, _SETTLED, _ENDED = (
    (ACCEPTED, REJECTED, TRANSACTED),
    tuple(WORDS.values()),
    (COMMITTED, ROLLED_BACK),
)


class GatewayMetrics(Collector):
    """The metrics of one gateway, read at each scrape by any thread."""

    def __init__(self, namespace: str, gateway: Gateway) -> None:
        """`namespace` is the label of all metrics."""
        self._namespace = namespace
        self._gateway = gateway

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metrics are made when they are collected."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        standing, counts = self._gateway.standing(), self._gateway.counts
        links = {"from_client": standing.from_clients, "to_client": standing.to_clients}
        yield self._one(GaugeMetricFamily, "connections", "Connections of clients.", standing.connections)
        yield self._by(GaugeMetricFamily, "links", "Links of clients.", "direction", links)
        yield self._one(
            GaugeMetricFamily, "transacted_sessions", "Transacted sessions of clients.", standing.transacted
        )
        refused, delivered = counts.refused_connections, counts.delivered
        yield self._one(CounterMetricFamily, "refused_connections", "Connections that were refused.", refused)
        yield self._one(CounterMetricFamily, "delivered_messages", "Messages sent to consumers.", delivered)
        for name, about, label, values, numbers in (
            ("refused_links", "Links refused or ended.", "condition", ALL_CONDITIONS, counts.refused_links),
            ("published_messages", "Messages of clients.", "outcome", _PUBLISHED, counts.published),
            ("settled_messages", "Messages that clients settled.", "outcome", _SETTLED, counts.settled),
            ("transactions", "Transactions that ended.", "outcome", _ENDED, counts.transactions),
        ):
            # also a series that is 0 so far, so that its rate begins at 0
            every = {value: numbers[value] for value in values}
            yield self._by(CounterMetricFamily, name, about, label, every)

    def _one(self, kind: _Kind, name: str, about: str, value: int) -> Metric:
        """Return a metric with one value."""
        found = kind(f"kafkadur_gateway_{name}", about, labels=("namespace",))
        found.add_metric((self._namespace,), value)
        return found

    def _by(self, kind: _Kind, name: str, about: str, label: str, values: Mapping[str, int]) -> Metric:
        """Return a metric with a value for each value of a label."""
        found = kind(f"kafkadur_gateway_{name}", about, labels=("namespace", label))
        for each, value in values.items():
            found.add_metric((self._namespace, each), value)
        return found
