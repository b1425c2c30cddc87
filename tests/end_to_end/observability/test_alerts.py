"""Every alert rule, played by Prometheus' own promtool, fires where it is to; its names are exported."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "helm" / "kafkadur" / "files"
RULES: dict[str, Any] = yaml.safe_load((FILES / "alerts.yaml").read_text())
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]
}
QUIET: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "alerts_test.yaml").read_text())

#: Series that make an alert fire: name (without its prefix, labels may follow) and values.
FIRING: dict[str, dict[str, str]] = {
    "KafkadurUnreachable": {"up": "0x30"},
    "KafkadurMetricsAbsent": {"nothing": "0x30"},
    "KafkadurMessagesExpired": {"subscription_expired_messages_total": "0x20 5x10"},
    "KafkadurMessagesTruncated": {"subscription_truncated_messages_total": "0x20 5x10"},
    "KafkadurMessagesExpiring": {"subscription_expiring_messages": "3x30"},
    "KafkadurNobodyAttached": {"subscription_members": "0x30", "subscription_backlog_messages": "1x30"},
    "KafkadurStuck": {
        "subscription_backlog_messages": "1x30",
        "subscription_members": "1x30",
        "subscription_paused": "0x30",
        "subscription_last_verdict_timestamp_seconds": "0x30",
    },
    "KafkadurStuck, never a verdict": {
        "subscription_backlog_messages": "1x30",
        "subscription_members": "1x30",
        "subscription_paused": "0x30",
    },
    "KafkadurMetricsAbsent, of one": {'up{job="a"}': "1x5 _x25", 'up{job="b"}': "1x30"},
    "KafkadurBacklogGrows": {"subscription_backlog_messages": "10001+1x30"},
    "KafkadurManyExceptions": {"subscription_exceptions_messages": "1501x30"},
    "KafkadurQueryStalled": {"query_lag_messages": "1x30", "query_batch_timestamp_seconds": "0x30"},
    "KafkadurNotServed": {"worker_attached": "0x30"},
    "KafkadurHandlersFail": {
        'worker_handled_messages_total{outcome="returned"}': "0+80x30",
        'worker_handled_messages_total{outcome="raised"}': "0+20x30",
    },
    "KafkadurDeadLetters": {'worker_handled_messages_total{outcome="rejected"}': "0x20 5x10"},
}

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)"
)


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
    assert {case.partition(",")[0] for case in FIRING} == ALERTS.keys()


@promtool
@pytest.mark.parametrize("case", sorted(FIRING))
def test_every_alert_fires(tmp_path: Path, case: str) -> None:
    """promtool says what fires where nothing is expected, so its words are what is looked at."""
    alert = case.partition(",")[0]
    test = {
        "interval": "1m",
        "input_series": [{"series": series(name), "values": values} for name, values in FIRING[case].items()],
        "alert_rule_test": [{"eval_time": "25m", "alertname": alert, "exp_alerts": []}],
    }
    done = play(tmp_path, {"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": [test]})
    assert done.returncode != 0, f"{alert} did not fire"
    assert f'alertname="{alert}"' in done.stdout + done.stderr
    rule = ALERTS[alert]
    assert f'severity="{rule["labels"]["severity"]}"' in done.stdout + done.stderr


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
