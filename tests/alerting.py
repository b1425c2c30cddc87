"""Which alerts of kafkadur fire on what was scraped, as Prometheus' own promtool says.

A test makes something happen on real servers and scrapes before and after it. Time is promtool's: each scrape
counts for some minutes.
"""

import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kafkadur.admin.changes import Admin
from kafkadur.metrics import SubscriptionMetrics
from kafkadur.settings import settings
from tests.integration.subscriptions.helpers import Place

FILE = Path(__file__).resolve().parents[1] / "helm" / "kafkadur" / "files" / "alerts.yaml"
RULES: dict[str, Any] = yaml.safe_load(FILE.read_text())
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]
}
#: The metrics that the rules ask for.
ASKED = {name for rule in ALERTS.values() for name in re.findall(r"kafkadur_\w+", rule["expr"])}

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)"
)


@dataclass(frozen=True)
class Scrape:
    """What an address answered at one moment; an empty text: nobody answered."""

    text: str
    #: seconds since 1970
    at: float = field(default_factory=time.time)

    def samples(self) -> dict[str, float]:
        """Return the samples that rules ask for: series and value."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                if sample.name in ASKED:
                    labels = ", ".join(f'{name}="{value}"' for name, value in sample.labels.items())
                    found[f"{sample.name}{{{labels}}}"] = sample.value
        return found


def scrape(place: Place) -> Scrape:
    """Scrape the metrics of all subscriptions of a place, as `kafkadur metrics` serves them."""
    registry = CollectorRegistry()
    with Admin(settings(place.settings())) as admin:
        registry.register(SubscriptionMetrics(admin))
        return Scrape(generate_latest(registry).decode())


def fired(folder: Path, *scraped: tuple[int, Scrape]) -> set[str]:
    """Return the alerts that fire at the end of some minutes with each of these scrapes, in this order.

    promtool reports the alerts that fire where none is expected, so its report is read.
    """
    series: dict[str, list[str]] = {}
    minutes = 0
    for lasting, each in scraped:
        samples = each.samples()
        for name in series.keys() | samples.keys():
            values = series.setdefault(name, [f"_x{minutes}"] if minutes else [])
            if name not in samples:
                values.append(f"stale _x{lasting - 1}")
            else:  # promtool's first minute is the year 1970
                later = 60 * minutes - each.at if "_timestamp_seconds{" in name else 0
                values.append(f"{samples[name] + later:.3f}x{lasting - 1}")
        minutes += lasting
    played = {
        "rule_files": [FILE.name],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": " ".join(values)} for name, values in series.items()
                ],
                "alert_rule_test": [
                    {"eval_time": f"{minutes - 1}m", "alertname": alert, "exp_alerts": []} for alert in ALERTS
                ],
            }
        ],
    }
    shutil.copy(FILE, folder)
    (folder / "played.yaml").write_text(yaml.safe_dump(played))
    done = subprocess.run(
        ["promtool", "test", "rules", str(folder / "played.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    found = set(re.findall(r'alertname="(\w+)"', done.stdout + done.stderr))
    assert (done.returncode != 0) == bool(found), done.stdout + done.stderr
    return found
