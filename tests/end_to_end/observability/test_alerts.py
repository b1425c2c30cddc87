"""The alert rules are right, their names are exported and documented, and none fires where all is well.

`test_alerts_by_events.py` has what makes each of them fire.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.alerting import ALERTS, promtool

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "helm" / "kafkadur" / "files"
QUIET: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "alerts_test.yaml").read_text())


def play(folder: Path, tests: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    shutil.copy(FILES / "alerts.yaml", folder)
    file = folder / "played.yaml"
    file.write_text(yaml.safe_dump(tests))
    return subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False, timeout=60
    )


def series(name: str) -> str:
    metric, _, labels = name.removesuffix("}").partition("{")
    own = ['namespace="n"', 'subscription="d"', 'topic="t"', *filter(None, [labels])]
    return f"kafkadur_{metric}{{{', '.join(own)}}}"


@promtool
def test_prometheus_accepts_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(FILES / "alerts.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


@promtool
def test_none_fires_where_all_is_well(tmp_path: Path) -> None:
    done = play(tmp_path, QUIET)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {each["alertname"] for each in QUIET["tests"][0]["alert_rule_test"]} == ALERTS.keys()


@promtool
def test_a_long_call_after_an_idle_hour_is_not_stuck(tmp_path: Path) -> None:
    idle = {
        "subscription_backlog_messages": "0x60 1x10",
        "subscription_members": "1x70",
        "subscription_paused": "0x70",
        "subscription_last_verdict_timestamp_seconds": "0x70",
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": series(name), "values": values} for name, values in idle.items()],
        "alert_rule_test": [{"eval_time": "70m", "alertname": "KafkadurStuck", "exp_alerts": []}],
    }
    done = play(tmp_path, {"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": [test]})
    assert done.returncode == 0, done.stdout + done.stderr


def exported() -> set[str]:
    """All names that docs/reference/metrics.md lists, which other tests compare with what is served."""
    return set(
        re.findall(
            r"^\| `(kafkadur_\w+)` \|", (ROOT / "docs" / "reference" / "metrics.md").read_text(), re.MULTILINE
        )
    )


def test_the_rules_ask_for_what_is_exported() -> None:
    asked = {name for rule in ALERTS.values() for name in re.findall(r"kafkadur_\w+", rule["expr"])}
    assert asked
    assert asked <= exported()


def test_the_dashboard_asks_for_what_is_exported() -> None:
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    text = json.dumps([panel["targets"] for panel in dashboard["panels"] if "targets" in panel])
    asked = set(re.findall(r"kafkadur_\w+", text))
    asked = {name.removesuffix("_bucket") for name in asked}
    assert asked <= exported()
    assert len(asked) >= 15, "it shows most of them"


def test_the_alerts_are_documented() -> None:
    text = (ROOT / "docs" / "operations" / "alerts.md").read_text()
    assert re.findall(r"^\| `(Kafkadur\w+)` \|", text, re.MULTILINE) == list(ALERTS)
