"""Numbers of more than the last hour, from the Prometheus that scrapes the metrics of subscriptions."""

from __future__ import annotations

import json
import math
from typing import Any, Final

import httpx

from kafkadur.service.series import Sample
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import SubscriptionKey

#: Seconds that Prometheus has for an answer.
_PATIENCE_S: Final = 10.0
#: Points of a chart, and the shortest time between two of them: scrapes are rarer.
_POINTS, _SHORTEST_STEP_S = 240, 15
#: The metrics of a sample: `backlog`, `in_flight`, `came_back`.
_METRICS: Final = (
    "kafkadur_subscription_backlog_messages",
    "kafkadur_subscription_in_flight_messages",
    "kafkadur_subscription_exceptions_messages",
)


class PrometheusUnavailable(KafkadurError):
    """Prometheus does not answer, so that there is no chart of more than an hour."""


class Prometheus:
    """Asks one Prometheus. Used by several threads."""

    def __init__(self, url: str) -> None:
        """`url` is its address, such as `http://prometheus:9090`; it can have a user and password."""
        self._client = httpx.Client(base_url=url.rstrip("/"), timeout=_PATIENCE_S)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def samples(self, key: SubscriptionKey, *, hours: int, now: float) -> list[Sample]:
        """Return samples of the last `hours` before `now` (seconds since 1970), oldest first.

        Rates are not among them: no metric has them. Raises `PrometheusUnavailable`.
        """
        step = max(hours * 3600 // _POINTS, _SHORTEST_STEP_S)
        found: dict[int, dict[str, int]] = {}
        for metric in _METRICS:
            query = {
                "query": f"max({metric}{_labels(key)})",
                "start": now - hours * 3600,
                "end": now,
                "step": step,
            }
            for at, value in self._range(query):
                if not math.isfinite(float(value)):
                    continue
                found.setdefault(round(float(at) * 1000), {})[metric] = round(float(value))
        backlog, in_flight, came_back = _METRICS
        return [
            Sample(
                at=at,
                backlog=numbers.get(backlog),
                in_flight=numbers.get(in_flight, 0),
                came_back=numbers.get(came_back, 0),
                arrived=None,
                settled=None,
            )
            for at, numbers in sorted(found.items())
        ]

    def _range(self, query: dict[str, Any]) -> list[tuple[float, str]]:
        """Return the points of a query that has one series at most."""
        try:
            answer = self._client.get("/api/v1/query_range", params=query)
            answer.raise_for_status()
            series: list[Any] = answer.json()["data"]["result"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
            raise PrometheusUnavailable(
                state=type(error).__name__ if status is None else f"it answers with status {status}",
                owner="the Prometheus of --prometheus",
                remedy="see that it runs and that the service reaches it",
            ) from error
        return series[0]["values"] if series else []


def _labels(key: SubscriptionKey) -> str:
    """Return the labels of a subscription as `kafkadur.metrics` writes them, for a query."""
    name = key.name if key.topic_member is None else f"{key.name}@{key.topic_member}"
    labels = {
        "namespace": key.namespace,
        "client_id": key.client_id or "",
        "client_id_policy": key.policy.value,
        "subscription": name,
    }
    return "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items()) + "}"
