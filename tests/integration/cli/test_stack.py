"""`up`, `status` and `down`, and the fetching of the jars, as commands."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kafkadur.stack import FOLDER, down
from kafkadur_coordinators.topics import Topics
from tests.integration.cli.conftest import Run


def test_up_status_use_and_down(run: Run, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    for name in ("KAFKADUR_KAFKA", "KAFKADUR_REDIS"):
        monkeypatch.delenv(name)
    missing = run("status", "--json")
    assert (missing.code, missing.data["stack"]) == (1, None)
    try:
        started = run("up", "--topic", "orders", "--topic", "flights:3")
        assert started.code == 0
        kafka, redis = started.out.splitlines()
        assert kafka.startswith("export KAFKADUR_KAFKA=127.0.0.1:")
        assert redis.startswith("export KAFKADUR_REDIS=redis://127.0.0.1:")
        status = run("status", "--json")
        assert status.code == 0
        assert kafka.endswith("=" + status.data["stack"]["kafka"])
        assert "answers" in run("status").out
        run("context", "add", "elsewhere", "--kafka", "127.0.0.1:1", "--redis", "redis://127.0.0.1:1")
        assert run("context", "use", "elsewhere").code == 0
        listed = run("sub", "ls", "--json")  # the stack of the folder wins
        assert listed.data == []
        assert listed.err == ""
        assert run("up", "--topic", "orders:2").code == 0  # it is there already
        with closing(Topics({"bootstrap.servers": status.data["stack"]["kafka"]})) as topics:
            assert [topics.describe(name).partitions for name in ("orders", "flights")] == [1, 3]
        other = run("up", "--brokers", 2)
        assert other.code == 1
        assert "kafkadur down" in other.err
        assert run("down", "--json").data == {"stopped": True}
    finally:
        down(FOLDER)
    assert list(here.iterdir()) == []
    assert run("down").code == 0


@pytest.mark.parametrize("wrong", ["", "a b", "orders:", "orders:0", "orders:x", "orders:9999"])
def test_a_topic_that_cannot_be_is_refused_before_anything_starts(run: Run, here: Path, wrong: str) -> None:
    refused = run("up", "--topic", wrong)
    assert refused.code == 2
    assert repr(wrong)[:5] in refused.err
    assert list(here.iterdir()) == []


def test_up_without_java_is_one_message(run: Run, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(here / "none"))
    refused = run("up")
    assert (refused.code, refused.out) == (1, "")
    assert "Install a Java runtime" in refused.err


def test_fetch_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "kafkadur.stack.fetch"], check=False, capture_output=True, text=True,
        env={"JAVA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert "Install a Java runtime" in ended.stderr


def test_fetch_is_done_when_the_cache_has_all(kafkadur_stack: object) -> None:
    del kafkadur_stack  # whose start has filled the cache
    ended = subprocess.run(
        [sys.executable, "-m", "kafkadur.stack.fetch"], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0
    assert "The Kafka jars are in" in ended.stderr
