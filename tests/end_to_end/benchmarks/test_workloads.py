"""Workloads about hand-overs and reading run to their end on real servers, and are not void."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.failover import Notes
from benchmarks.systems.traffic import Traffic

if TYPE_CHECKING:
    from kafkadur.stack import Stack


def _run(stack: Stack, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks", *arguments, "--json", "--runs", "1"]
    servers = ["--systems", "kafkadur", "--kafka", stack.kafka, "--redis", stack.redis]
    done = subprocess.run([*command, *servers], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "figure", "rows"),
    [
        (["turns", "--messages", "1000"], "rate", 6),
        (["first", "--rounds", "2"], "p50_ms", 4),
        (["failover", "--rounds", "1"], "max_ms", 9),
        (["amplification", "--messages", "2000"], "amplification", 8),
    ],
)
def test_a_workload_runs_to_its_end(
    kafkadur_stack: Stack, arguments: list[str], figure: str, rows: int
) -> None:
    found = _run(kafkadur_stack, *arguments)
    assert len(found) == rows
    for row in found:
        assert row["void"] == 0
        assert row["lost"] == 0
        assert row[figure] > 0
        # a message in a dead holder's hands comes again, once
        dead = row["workload"] == "failover" and row["case"] in {"killed", "stopped"}
        assert row["repeated"] == int(dead)


def test_rounds_are_no_messages() -> None:
    command = [sys.executable, "-m", "benchmarks", "failover", "--messages", "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "--rounds" in done.stderr


def test_notes_are_found_by_time() -> None:
    notes = Notes.new()
    assert notes.first_after(0) is None
    notes.add(7)
    first = notes.cells[2]
    notes.add(8)
    assert (notes.count, notes.sequences()) == (2, [7, 8])
    assert notes.first_after(0) == first
    assert notes.first_after(first) == notes.cells[4]
    assert notes.first_after(notes.cells[4]) is None


def test_traffic_adds_up_the_clients_of_a_topic() -> None:
    traffic = Traffic("mine")
    hear = traffic.settings["stats_cb"]

    def tell(name: str, topic: str, received: int) -> None:
        brokers = {"a": {"rxbytes": received}, "b": {"rxbytes": 1}}
        hear(json.dumps({"name": name, "topics": {topic: {}}, "brokers": brokers}))

    tell("one", "mine", 10)
    tell("one", "mine", 20)
    tell("two", "mine", 5)
    tell("three", "others", 1_000)
    assert traffic.received == 20 + 1 + 5 + 1
