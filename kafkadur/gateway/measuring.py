"""Metrics of a gateway, for Prometheus. No label names a user or a client: their number has no bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafkadur.gateway.conditions import ALL_CONDITIONS
from kafkadur.gateway.counting import ACCEPTED, COMMITTED, REJECTED, ROLLED_BACK, TRANSACTED
from kafkadur.gateway.gateway import Gateway
from kafkadur.gateway.outcomes import WORDS

_LABELS = ("namespace",)


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
        yield self._gauge("connections", "Connections of clients.", standing.connections)
        links = GaugeMetricFamily(
            "kafkadur_gateway_links", "Links of clients.", labels=(*_LABELS, "direction")
        )
        links.add_metric((self._namespace, "from_client"), standing.from_clients)
        links.add_metric((self._namespace, "to_client"), standing.to_clients)
        yield links
        yield self._gauge("transacted_sessions", "Transacted sessions of clients.", standing.transacted)
        yield self._counter(
            "refused_connections", "Connections that were refused.", counts.refused_connections
        )
        yield self._counter("delivered_messages", "Messages sent to consumers.", counts.delivered)
        yield self._by(
            "refused_links", "Links refused or ended.", "condition", ALL_CONDITIONS, counts.refused_links
        )
        outcomes = ACCEPTED, REJECTED, TRANSACTED
        yield self._by("published_messages", "Messages of clients.", "outcome", outcomes, counts.published)
        yield self._by(
            "settled_messages", "Messages that clients settled.", "outcome", WORDS.values(), counts.settled
        )
        yield self._by(
            "transactions",
            "Transactions that ended.",
            "outcome",
            (COMMITTED, ROLLED_BACK),
            counts.transactions,
        )

    def _gauge(self, name: str, about: str, value: int) -> Metric:
        found = GaugeMetricFamily(f"kafkadur_gateway_{name}", about, labels=_LABELS)
        found.add_metric((self._namespace,), value)
        return found

    def _counter(self, name: str, about: str, value: int) -> Metric:
        found = CounterMetricFamily(f"kafkadur_gateway_{name}", about, labels=_LABELS)
        found.add_metric((self._namespace,), value)
        return found

    def _by(
        self, name: str, about: str, label: str, values: Iterable[str], counts: Mapping[str, int]
    ) -> Metric:
        """Return a counter with a series for each value of a label, also for those that are 0."""
        found = CounterMetricFamily(f"kafkadur_gateway_{name}", about, labels=(*_LABELS, label))
        for value in values:
            found.add_metric((self._namespace, value), counts.get(value, 0))
        return found
