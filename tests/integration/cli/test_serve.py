"""`kafkadur serve` and `kafkadur token` as commands."""

import signal
import socket
import stat
import urllib.request
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Run, Spawn


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_serves_until_a_signal(spawn: Spawn, number: signal.Signals, status: int) -> None:
    process = spawn("serve", "--port", 0)
    assert process.stderr is not None
    line = process.stderr.readline()
    address = line.partition("at ")[2].partition(";")[0]
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert b"<title>kafkadur</title>" in answer.read()
    with urllib.request.urlopen(f"{address}api/v1/events", timeout=60) as answer:
        assert answer.readline() == b"event: looked\n"  # and it goes on: the end does not wait for it
        process.send_signal(number)
        assert process.wait(60) == status
    assert "Traceback" not in process.stderr.read()


def test_beyond_this_machine_it_needs_tokens(run: Run) -> None:
    refused = run("serve", "--host", "0.0.0.0")
    assert refused.code == 1
    assert "--tokens FILE" in refused.err


def test_a_port_that_is_taken_is_named(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run("serve", "--port", port)
    assert refused.code == 1
    assert f"127.0.0.1:{port}" in refused.err


def test_a_token_is_printed_once_and_kept_as_a_digest(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    made = run("token", "ada", "--role", "admin", "--tokens", file)
    assert made.code == 0
    assert made.out.strip() not in file.read_text()
    assert file.read_text().startswith("ada admin sha256:")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("token", "bob", "--role", "viewer", "--tokens", file, "--json").data["role"] == "viewer"
    assert run("token", "eve", "--role", "root", "--tokens", file).code == 2
    file.write_text("nonsense\n")
    refused = run("serve", "--tokens", file)
    assert refused.code == 1
    assert "Line 1 of the tokens is wrong" in refused.err
