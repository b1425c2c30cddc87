"""The whole demo, short, as a user starts it: exit status, last line, and nothing left but the report."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.demo.bad_records import BAD
from examples.demo.flights import SHORT, rows
from examples.demo.report import CHART, PARQUET, read
from examples.demo.totals import totals

#: Seconds a short run may take on a busy machine, and one in which everything is broken.
ROOT = Path(__file__).resolve().parents[3]

TIMEOUT = 400
CHAOS_TIMEOUT = 500

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    temporary = tmp_path / "t"
    temporary.mkdir()
    return {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}


def rest_of(demo: "subprocess.Popen[str]") -> tuple[str, str]:
    """What it writes until its end. `communicate` leaves out what was read ahead with an earlier line."""
    assert demo.stdout is not None
    assert demo.stderr is not None
    with ThreadPoolExecutor(2) as pool:
        out, err = pool.submit(demo.stdout.read), pool.submit(demo.stderr.read)
        demo.wait(TIMEOUT)
        return out.result(TIMEOUT), err.result(TIMEOUT)


def start(folder: Path, environment: dict[str, str], *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--short", *options],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def command_of(pid: int) -> str:
    """Return the command line of a process; empty: it has ended by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children_of(pid: int) -> set[int]:
    """Return the pids of all processes that stem from `pid` now."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(after_name[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Return those that still run; a zombie does not."""
    running: set[int] = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.add(pid)
    return running


def assert_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + 10
    while alive(pids):
        assert time.monotonic() < deadline, f"still there: {alive(pids)}"
        time.sleep(0.05)


def assert_only_the_report(folder: Path) -> None:
    """Assert that a run in this folder has left its report there, and nothing else."""
    assert sorted(path.name for path in folder.iterdir()) == ["demo-output", "t"]
    assert list((folder / "t").iterdir()) == []
    output = folder / "demo-output"
    assert sorted(path.name for path in output.iterdir()) == [CHART, PARQUET]
    assert read(output / PARQUET) == totals(rows(SHORT))
    assert (output / CHART).read_bytes().startswith(b"\x89PNG")


def test_a_short_run_ends_well_and_leaves_the_report(tmp_path: Path, environment: dict[str, str]) -> None:
    demo = start(tmp_path, environment)
    out, err = demo.communicate(timeout=TIMEOUT)
    last = out.strip().splitlines()[-1]
    assert demo.returncode == 0, out + err
    assert last.startswith("demo: ok, 20000 messages, 2 subscriptions, 0 lost, "), out + err
    assert last.endswith(" redelivered")
    # 200 rows are rolled back at their first attempt, but for those that come at a later one because a killed
    # worker had leased them. The messages that it had in flight are redelivered as well.
    billing = re.search(r"billing: .*; redelivered: (\d+) rolled back, (\d+) after a kill", out)
    assert billing is not None, out
    rolled_back, after_kill = map(int, billing.groups())
    assert 100 < rolled_back <= 200
    assert int(last.split()[-2]) >= rolled_back + after_kill
    assert "a second process is refused" in out
    assert "Owner: audit-1" in out
    assert "report-1 was killed (SIGKILL) in batch " in out
    assert "written over, 0 of them settled now" in out
    verdict = "totals equal to those of the file; 6 dead letters of 6 bad records; 0 not settled"
    assert f"   report: 20,000 flights, {verdict}" in out
    assert_only_the_report(tmp_path)


@pytest.mark.long
def test_json_is_all_that_standard_output_holds(tmp_path: Path, environment: dict[str, str]) -> None:
    demo = start(tmp_path, environment, "--json")
    out, err = demo.communicate(timeout=TIMEOUT)
    document = json.loads(out)
    assert demo.returncode == document["status"] == 0, err
    assert document["messages"] == 20_000
    assert document["defects"] == []
    assert 0 < document["takeover_seconds"] < 10
    assert {proof["subscription"]: proof["lost"] for proof in document["subscriptions"]} == {
        "audit": [],
        "billing": [],
    }
    report = document["report"]
    assert (report["flights"], report["dead_letters"], report["backlog"]) == (20_000, len(BAD), 0)
    assert (report["left_out"], report["defects"]) == (None, [])
    assert report["parquet"] == str(tmp_path / "demo-output" / PARQUET)
    assert report["rows"] == len(totals(rows(SHORT)))
    replay = report["replays"][0]
    assert (replay["killed"], replay["settled"], replay["settled_again"]) == ("report-1", True, 0)
    assert replay["messages"] > 1_000
    assert document["seconds"]["report"] > 0


@pytest.mark.long
def test_nothing_is_lost_in_chaos(tmp_path: Path, environment: dict[str, str]) -> None:
    demo = start(tmp_path, environment, "--chaos", "--seed", "3", "--json")
    out, err = demo.communicate(timeout=CHAOS_TIMEOUT)
    document = json.loads(out)
    assert demo.returncode == document["status"] == 0, err
    assert document["seed"] == 3
    assert set(document["broken"]) == {
        *("FLUSHALL", "Redis cut off", "Redis emptied", "Redis restarted"),
        *("SIGKILL", "SIGSTOP", "Kafka cut off"),
    }
    billing = next(proof for proof in document["subscriptions"] if proof["subscription"] == "billing")
    assert billing["lost"] == []
    assert billing["repeats"]["broken"] > 0
    # what happens is said when it happens: in the middle of the work
    lines = err.splitlines()
    said = [number for number, line in enumerate(lines) if line.startswith("   chaos ")]
    assert sum("chaos 7/7" in lines[number] for number in said) >= 1
    assert any("members, in flight" in line for line in lines[said[0] : said[-1]])
    assert lines[-1].startswith("demo: ok, 20000 messages, 2 subscriptions, 0 lost, ")
    assert_only_the_report(tmp_path)


def test_options_that_do_not_go_together(tmp_path: Path, environment: dict[str, str]) -> None:
    for options in (["--chaos", "--keep"], ["--seed", "1"]):
        demo = start(tmp_path, environment, *options)
        _, err = demo.communicate(timeout=TIMEOUT)
        assert demo.returncode == 2
        assert "--chaos" in err


@pytest.mark.parametrize(
    "moment",
    [
        "loading",
        *(
            pytest.param(moment, marks=pytest.mark.long)
            for moment in ("starting Kafka", "audit-1 holds", "4 members", "report-1 reads")
        ),
    ],
)
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, environment: dict[str, str], moment: str) -> None:
    demo = start(tmp_path, environment)
    assert demo.stdout is not None
    assert demo.stderr is not None
    with demo.stdout, demo.stderr:
        assert any(moment in line for line in demo.stdout)
        children = children_of(demo.pid)
        asked = time.monotonic()
        demo.send_signal(signal.SIGINT)
        out, _ = rest_of(demo)
    assert demo.returncode == 130
    assert out.strip().splitlines()[-1] == "demo: interrupted"
    assert time.monotonic() - asked < 15
    assert_gone(children)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert list((tmp_path / "t").iterdir()) == []


@pytest.mark.parametrize(
    ("moment", "server", "name"),
    [
        pytest.param("loading", "java", "broker-1", marks=pytest.mark.long),
        pytest.param("4 members", "java", "broker-1", marks=pytest.mark.long),
        ("4 members", "valkey-server", "valkey"),
    ],
)
def test_a_server_that_ends_is_named(
    tmp_path: Path, environment: dict[str, str], moment: str, server: str, name: str
) -> None:
    demo = start(tmp_path, environment)
    assert demo.stdout is not None
    assert demo.stderr is not None
    with demo.stdout, demo.stderr:
        assert any(moment in line for line in demo.stdout)
        children = children_of(demo.pid)
        killed = [pid for pid in children if server in command_of(pid)]
        os.kill(min(killed), signal.SIGKILL)
        out, err = rest_of(demo)
    assert demo.returncode == 1
    assert out.strip(), err
    assert out.strip().splitlines()[-1].startswith(f"demo: FAILED {name} was ended by signal 9")
    assert "Traceback" not in err
    assert_gone(children)


FINALIZED = """
import os, signal, sys, time
from examples.demo import __main__ as demo

class Ends:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

sys.unraisablehook = demo._interrupt_again
signal.signal(signal.SIGTERM, demo._interrupt)
try:
    Ends()
    print("lost", flush=True)
    time.sleep(60)
except demo.Interrupted as interrupted:
    print(interrupted.number)
"""


def test_a_signal_that_python_swallows_comes_again() -> None:
    """A finalizer raises nothing: where a signal came into one, the demo would have gone on."""
    done = subprocess.run(
        [sys.executable, "-c", FINALIZED], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["lost", "15"]
    assert done.stderr == ""


def test_workers_die_with_the_demo(tmp_path: Path, environment: dict[str, str]) -> None:
    demo = start(tmp_path, environment)
    assert demo.stdout is not None
    assert demo.stderr is not None
    with demo.stdout, demo.stderr:
        assert any("4 members" in line for line in demo.stdout)
        children = children_of(demo.pid)
        demo.kill()
        demo.wait()
    assert len(children) > 4
    assert_gone(children)


def test_java_missing_is_one_sentence(tmp_path: Path, environment: dict[str, str]) -> None:
    environment = {**environment, "PATH": str(tmp_path), "JAVA_HOME": ""}
    demo = start(tmp_path, environment)
    out, _ = demo.communicate(timeout=TIMEOUT)
    last = out.strip().splitlines()[-1]
    assert demo.returncode == 1
    assert last.startswith("demo: FAILED ")
    assert "Java" in last
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
