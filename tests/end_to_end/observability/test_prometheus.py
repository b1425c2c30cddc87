"""A real Prometheus scrapes the service: charts of more than an hour, and the queries of the dashboard."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import kafkadur.sync
from kafkadur.settings import Settings
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.serve.test_reading import prepared
from tests.integration.subscriptions.helpers import wait_until
from tests.serving import Api, connection, place, served

__all__ = ["connection", "place"]

FILES = Path(__file__).resolve().parents[3] / "helm" / "kafkadur" / "files"
PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="Prometheus is not installed (Debian: apt-get install prometheus)"
)


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def watched(
    place: Settings,
    connection: kafkadur.sync.Connection,
    kafkadur_topic: TopicFactory,
    free_port: int,
    tmp_path: Path,
) -> Iterator[tuple[Api, httpx.Client]]:
    """Provide a service and the Prometheus that scrapes it."""
    prepared(connection, kafkadur_topic(), "invoices")
    url = f"http://127.0.0.1:{free_port}"
    with served(place, None, prometheus=url) as address:
        target = {"targets": [address.removeprefix("http://")]}
        plan = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "kafkadur", "static_configs": [target]}],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(plan))
        command = [
            str(PROMETHEUS),
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{free_port}",
        ]
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as process,
            httpx.Client(base_url=url, trust_env=False) as client,
        ):
            try:
                yield Api(address), client
            finally:
                process.terminate()


def answered(client: httpx.Client, query: str) -> list[Any]:
    """Return what Prometheus answers now; nothing before it listens."""
    try:
        answer = client.get("/api/v1/query", params={"query": query})
    except httpx.TransportError:
        return []
    return list(answer.json()["data"]["result"]) if answer.status_code == 200 else []


@needs_prometheus
def test_charts_of_more_than_an_hour(watched: tuple[Api, httpx.Client]) -> None:
    api, prometheus = watched
    assert api.get("me")["longer_charts"]
    wait_until(
        lambda: answered(prometheus, "kafkadur_subscription_backlog_messages") != [], "the first scrape"
    )
    for hours in (24, 720):
        last = api.get("subscriptions/invoices/samples", hours=hours)[-1]
        assert (last["backlog"], last["in_flight"], last["arrived_per_s"]) == (3, 0, None)
    assert api.get("subscriptions/nobody/samples", hours=24) == []
    api.client.close()


@needs_prometheus
def test_the_queries_of_the_dashboard(watched: tuple[Api, httpx.Client]) -> None:
    api, prometheus = watched
    api.client.close()
    wait_until(lambda: answered(prometheus, "kafkadur_up") != [], "the first scrape")
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 20
    found: dict[str, int] = {}
    for query in queries:
        for name, value in {
            "$namespace": ".*",
            "$subscription": "invoices",
            "$__rate_interval": "1m",
        }.items():
            query = query.replace(name, value)  # noqa: PLW2901 - the query with values
        answer = prometheus.get("/api/v1/query", params={"query": query})
        assert answer.status_code == 200, (query, answer.text)
        found[query] = len(answer.json()["data"]["result"])
    shown = {query for query, count in found.items() if count}
    assert {query for query in found if "subscription_backlog" in query} <= shown
    assert len(shown) >= 10, "those of subscriptions: there is no worker and no query here"


def test_without_prometheus_there_is_one_hour(place: Settings) -> None:
    with served(place, None) as address, Api(address).client as client:
        refused = client.get("/api/v1/subscriptions/invoices/samples", params={"hours": 24})
        assert (refused.status_code, refused.json()["remedy"]) == (409, "start it with --prometheus URL")
        assert not client.get("/api/v1/me").json()["longer_charts"]


def test_a_prometheus_that_is_away_is_said(place: Settings, free_port: int) -> None:
    with (
        served(place, None, prometheus=f"http://127.0.0.1:{free_port}") as address,
        Api(address).client as client,
    ):
        refused = client.get("/api/v1/subscriptions/invoices/samples", params={"hours": 24})
        assert (refused.status_code, refused.json()["error"]) == (503, "PrometheusUnavailable")
        assert client.get("/api/v1/subscriptions/invoices/samples").status_code == 200
