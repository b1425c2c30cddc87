"""The README's first program and the examples run as they stand, on servers started by `kafkadur up`."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafkadur.stack import down, up

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which `kafkadur up` was called."""
    place = tmp_path_factory.mktemp("examples")
    up(place / ".kafkadur")
    yield place
    down(place / ".kafkadur")


def run(program: Path, folder: Path, timeout: float = 60) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_first_program_of_the_readme(folder: Path) -> None:
    found = re.search(r"```python\n(import asyncio.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    program = folder / "pasted.py"
    program.write_text(found[1])
    lines = run(program, folder).splitlines()
    assert lines.count("b'order 2': not now") == 1
    assert lines[-1] == "b'order 2': done, attempt 2"
    assert sorted(lines[:-1]) == sorted(
        ["b'order 2': not now", *(f"b'order {n}': done, attempt 1" for n in (0, 1, 3, 4))]
    )
    assert found[1] in (ROOT / "examples" / "first.py").read_text()


def test_the_tests_of_an_application(folder: Path) -> None:
    """With the pytest plugin, in a process of its own."""
    program = str(ROOT / "examples" / "test_billing.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", program],
        cwd=folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_exclusive(folder: Path) -> None:
    lines = run(ROOT / "examples" / "exclusive.py", folder).splitlines()
    assert lines[0] == "refused: the first holds it"
    assert [line.partition(",")[0] for line in lines[1:]] == [f"b'entry {n}'" for n in range(3)]


def test_reminders(folder: Path) -> None:
    lines = run(ROOT / "examples" / "reminders.py", folder).splitlines()
    assert lines == ["b'order', attempt 1", "b'remind me', attempt 1", "expired: 1"]


def test_serial(folder: Path) -> None:
    lines = run(ROOT / "examples" / "serial.py", folder).splitlines()
    assert [line.partition(": ")[2] for line in lines] == [f"b'step {n}'" for n in range(6)]
    names = [line.partition(": ")[0] for line in lines]
    assert names[1:] != names[:-1], "both had turns"
    assert set(names) == {"Ada", "Bob"}


def test_priority(folder: Path) -> None:
    lines = run(ROOT / "examples" / "priority.py", folder).splitlines()
    told = "spare site: became-active"  # from another thread: the first message may be printed before it
    assert lines.count(told) == 1
    assert told in lines[2:4]
    assert [line for line in lines if line != told] == [
        "main site: b'order 0'",
        "main site: b'order 1'",
        "spare site: b'order 2'",
        "spare site: b'order 3'",
    ]


def test_keys(folder: Path) -> None:
    lines = run(ROOT / "examples" / "keys.py", folder).splitlines()
    assert lines == [*(f"account-{n}: [1, 2, 3, 4, 5]" for n in range(8)), "worked: Ada, Bob"]


def test_dead_letters(folder: Path) -> None:
    lines = run(ROOT / "examples" / "dead_letters.py", folder).splitlines()
    assert sorted(lines[:2]) == ["sent to Ada", "sent to Bob"]
    assert lines[2:] == ["away: attempts, attempts: 3", "nobody: rejected, attempts: 1"]


def test_selector(folder: Path) -> None:
    lines = run(ROOT / "examples" / "selector.py", folder).splitlines()
    assert lines[0] == "the listener heard 10"
    takes = [f"the buyer takes b'offer {n}': {{'region': 'EU', 'amount': {n * 10}}}" for n in (5, 7, 9)]
    assert lines[1:] == takes


def test_live(folder: Path) -> None:
    lines = run(ROOT / "examples" / "live.py", folder).splitlines()
    assert lines == ["caught up: 30 prices, article 7 costs 277"]


def test_typed(folder: Path) -> None:
    lines = run(ROOT / "examples" / "typed.py", folder).splitlines()
    assert lines == ["Ada pays 9.5", "Bob pays 0.5", "b'undecodable': b'this is no order'"]


def test_handlers(folder: Path) -> None:
    lines = run(ROOT / "examples" / "handlers.py", folder).splitlines()
    assert lines[0] == "breaker-opened, breaker-half-opened, breaker-closed"
    assert lines[1:] == [f"account-{n}: [1, 2, 3, 4, 5]" for n in range(4)]


def test_one_copy(folder: Path) -> None:
    lines = run(ROOT / "examples" / "one_copy.py", folder).splitlines()
    assert lines == [
        "prices: [['tea 3', 'milk 1'], ['tea 3', 'milk 1']]",
        "orders, together: ['o1', 'o2', 'o3', 'o4']",
    ]


def test_jms(folder: Path) -> None:
    lines = run(ROOT / "examples" / "jms.py", folder).splitlines()
    assert lines == [
        "InvalidClientId",
        "acknowledged: order of 20 and order of 30",
        "again: order of 40, delivery 2",
    ]


def test_weblogic(folder: Path) -> None:
    lines = run(ROOT / "examples" / "weblogic.py", folder).splitlines()
    assert lines == ["InvalidSubscriptionSharing", "exclusive now, and kept: EUR 1.08"]


def test_distributed(folder: Path) -> None:
    lines = run(ROOT / "examples" / "distributed.py", folder).splitlines()
    assert lines == [
        "north: order 0",
        "north: order 2",
        "south: order 1",
        "south: order 3",
        "name one of north, south",
    ]


def test_several_topics(folder: Path) -> None:
    lines = run(ROOT / "examples" / "several_topics.py", folder).splitlines()
    assert lines == ["A subscription has one topic.", "parcels-north", "parcels-south"]


def test_transacted(folder: Path) -> None:
    lines = run(ROOT / "examples" / "transacted.py", folder).splitlines()
    assert lines == ["rolled back", *(f"booked payment {n}" for n in range(4))]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is not installed")
def test_java(folder: Path, tmp_path: Path) -> None:
    """Its program without Maven is tried in tests/end_to_end/gateway."""
    pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")
    project = tmp_path / "java"
    shutil.copytree(ROOT / "examples" / "java", project, ignore=shutil.ignore_patterns("target"))
    lines = [line for line in run(project / "run.py", folder, 300).splitlines() if "invoice" in line]
    assert sorted(lines) == [f"invoice for the order of {amount}" for amount in (250, 300)]


@pytest.mark.long
def test_spark_totals(folder: Path) -> None:
    program = ROOT / "examples" / "spark_totals.py"
    assert run(program, folder, 300).splitlines() == ["settled 10 offsets of batch 0", "10 sales, 45 in all"]
    lines = run(program, folder, 300).splitlines()
    assert lines == ["settled 10 offsets of batch 1", "20 sales, 90 in all"]


@pytest.mark.long
def test_spark_claims(folder: Path) -> None:
    lines = run(ROOT / "examples" / "spark_claims.py", folder, 300).splitlines()
    assert lines == [
        "8 done, 1 later, 1 rejected: payment 10 to payment 19",
        "1 done, 0 later, 0 rejected: payment 11 to payment 11",
    ]


@pytest.mark.long
def test_spark_totals_as_a_notebook(tmp_path: Path) -> None:
    """Its code cells, in order, in one process; it is the program's example, so it has servers of its own."""
    notebook = json.loads((ROOT / "examples" / "spark_totals.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all((cell["outputs"], cell["execution_count"]) == ([], None) for cell in cells)
    program = tmp_path / "cells.py"
    program.write_text("\n\n".join("".join(cell["source"]) for cell in cells))
    up(tmp_path / ".kafkadur")
    try:
        lines = run(program, tmp_path, 300).splitlines()
        assert lines == ["settled 10 offsets of batch 0", "10 sales, 45 in all"]
        lines = run(program, tmp_path, 300).splitlines()
        assert lines == ["settled 10 offsets of batch 1", "20 sales, 90 in all"]
    finally:
        down(tmp_path / ".kafkadur")


def test_worker(folder: Path) -> None:
    """The app of the example works through what `kafkadur publish` sends it, and ends in order."""
    stack = up(folder / ".kafkadur")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic("flights", 2, 1)])["flights"].result(60)
    command = [sys.executable, "-W", "error", "-m", "kafkadur.cli"]
    flights = ['{"carrier": "AA", "dep_delay": 20}', '{"carrier": "AA", "dep_delay": null}', "no flight"]
    subprocess.run(
        [*command, "publish", "flights", "-"], input="\n".join(flights), text=True, check=True, cwd=folder
    )
    examples = str(ROOT / "examples")
    with subprocess.Popen(
        [*command, "run", "--app-dir", examples, "--port", "0", "worker:app"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "AA: 1 late\n"
        dead = [*command, "--json", "sub", "dead", "ls", "late"]
        until = time.monotonic() + 60
        while not (
            letters := subprocess.run(dead, cwd=folder, capture_output=True, text=True, check=False)
        ).stdout:
            assert time.monotonic() < until, letters.stderr
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    assert "no flight: JSONDecodeError" in letters.stdout
