"""``up``, ``status`` and ``down`` across processes."""

# redis-py and confluent-kafka type their methods in part only.
# pyright: reportUnknownMemberType=false

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from kafkadur.stack import StackError, down, status, up
from kafkadur.stack.ports import is_free
from tests.integration.embedded.helpers import alive, wait_until


def test_up_outlives_its_command_and_down_removes_all(tmp_path: Path) -> None:
    folder = tmp_path / "here" / ".kafkadur"
    program = f"from pathlib import Path; from kafkadur.stack import up; print(up(Path({str(folder)!r})).pid)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], check=True, capture_output=True, text=True
    )
    try:
        found = status(folder)
        assert found.stack is not None
        assert found.stack.pid == int(done.stdout)
        assert found.kafka_answers
        assert found.redis_answers
        assert up(folder) == found.stack
        with pytest.raises(StackError, match="another shape"):
            up(folder, brokers=2)
    finally:
        assert down(folder)
    assert not alive(int(done.stdout))
    assert status(folder).stack is None
    assert list(folder.parent.iterdir()) == []
    assert not down(folder)


def test_state_of_a_killed_stack_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / ".kafkadur"
    first = up(folder)
    try:
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: status(folder).stack is None, "notice of the killed supervisor")
        # the kernel ends the servers with their supervisor, each in its own time
        port = urlsplit(first.redis).port or 0
        wait_until(lambda: is_free(port), "the end of the orphaned Valkey")
        assert not down(folder)
        assert not folder.exists()
    finally:
        down(folder)


def test_stack_whose_valkey_died_is_not_given_out(tmp_path: Path) -> None:
    folder = tmp_path / ".kafkadur"
    running = up(folder)
    try:
        with redis.Redis.from_url(running.redis) as client:
            pid = int(client.info("server")["process_id"])
            os.kill(pid, signal.SIGKILL)
        # its threads end one by one, and the last one closes its port
        port = urlsplit(running.redis).port or 0
        wait_until(lambda: not alive(pid) and is_free(port), "the end of the killed Valkey")
        with pytest.raises(StackError, match=r"its Valkey at .* does not answer .*kafkadur down"):
            up(folder)
    finally:
        assert down(folder)


def test_failed_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    with pytest.raises(StackError, match="JAVA_HOME"):
        up(tmp_path / ".kafkadur")
    assert list(tmp_path.iterdir()) == []


def test_own_data_folder_stays(tmp_path: Path) -> None:
    folder, data = tmp_path / ".kafkadur", tmp_path / "data"
    up(folder, data=data)
    assert down(folder)
    assert not folder.exists()
    assert (data / "broker-1" / "log" / "meta.properties").exists()
    assert (data / "logs" / "broker-1.log").exists()
