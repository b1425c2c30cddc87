"""`sub peek` and `sub watch`: what waits, and how it changes, without touching it."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.cli.conftest import Ended, Run
from tests.integration.cli.test_subscriptions import held


def lines(ended: Ended) -> list[dict[str, object]]:
    """The JSON values that a command printed, one in each line."""
    assert ended.code == 0
    return [json.loads(line) for line in ended.out.splitlines()]


def test_peek_shows_what_waits_and_what_each_waits_for(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run(
        "publish",
        topic,
        "-",
        "--key",
        "k",
        "--property",
        "n:int=7",
        stdin="".join(f"m{n}\n" for n in range(20)),
    )
    with held(topic, window=3) as subscription:
        first, second, third = (subscription.receive(10) for _ in range(3))
        assert first is not None
        assert second is not None
        assert third is not None
        first.ack()
        second.rollback(delay=60)
        found = lines(run("sub", "peek", "d", "--limit", "4", "--json"))
        assert [(each["offset"], each["value"]) for each in found] == [(n, f"m{n}") for n in (1, 2, 3, 4)]
        assert (found[0]["state"], found[0]["attempts"], found[0]["holder"]) == ("ready", 1, None)
        assert found[0]["due"] is not None
        assert (found[1]["state"], found[1]["attempts"], found[1]["holder"]) == ("leased", 0, "worker")
        assert (found[0]["key"], found[0]["properties"]) == ("k", {"n": 7})
        text = run("sub", "peek", "d", "--limit", "2")
        assert re.fullmatch(
            r"0@1  due in [\d.]+ s, attempts=1  key=k  n=7  m1\n"
            r"0@2  in flight at worker, attempt=1  key=k  n=7  m2\n",
            text.out,
        )
        assert text.err == "2 shown.\n"
        again = lines(run("sub", "peek", "d", "--limit", "100", "--json"))
        assert [each["offset"] for each in again] == list(range(1, 20)), "10 by default"
    assert len(lines(run("sub", "peek", "d", "--json"))) == 10
    counted = {each["offset"]: each["attempts"] for each in lines(run("sub", "peek", "d", "--json"))}
    assert counted == {1: 1} | dict.fromkeys(range(2, 11), 0), "looking counts no attempt"


@pytest.mark.parametrize("kind", ["shared", "serial", "key-ordered"])
def test_peek_shows_exactly_what_is_unsettled(run: Run, kafkadur_topic: TopicFactory, kind: str) -> None:
    topic = kafkadur_topic(2)
    run("sub", "create", "d", topic, "--type", kind, "--selector", "n > 2", "--start", "earliest")
    for n in range(12):
        run("publish", topic, f"m{n}", "--key", f"k{n}", "--property", f"n:int={n}")
    settled: set[object] = set()
    with held(topic, type=kind, selector="n > 2") as subscription:
        for _ in range(4):
            delivery = subscription.receive(10)
            assert delivery is not None
            settled.add(delivery.value.decode() if delivery.value else None)
            delivery.ack()
    waiting = lines(run("sub", "peek", "d", "--limit", "50", "--json"))
    assert {each["value"] for each in waiting} == {f"m{n}" for n in range(3, 12)} - settled
    places = [(each["partition"], each["offset"]) for each in waiting]
    assert places == sorted(places), "by partition and offset"
    one = lines(run("sub", "peek", "d", "--partition", "1", "--json"))
    assert [each["value"] for each in one] == [each["value"] for each in waiting if each["partition"] == 1]
    refused = run("sub", "peek", "d", "--partition", "2")
    assert refused.code == 1
    assert "no partition 2" in refused.err


def test_peek_says_that_nothing_waits(run: Run, kafkadur_topic: TopicFactory) -> None:
    run("sub", "create", "d", kafkadur_topic())
    ended = run("sub", "peek", "d")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "No message waits in subscription d.\n"


def test_watch_prints_a_line_each_time(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("sub", "create", "d", topic, "--start", "earliest")
    run("publish", topic, "-", stdin="m\n" * 5)
    with held(topic, window=2) as subscription:
        assert subscription.receive(10) is not None
        samples = lines(run("sub", "watch", "d", "--every", "0.1", "--count", "2", "--json"))
        told = run("sub", "watch", "d", "--every", "0.1", "--count", "2")
    assert [(each["state"], each["attached"], each["backlog"]) for each in samples] == [("active", 1, 5)] * 2
    assert [each["arrived_per_s"] for each in samples] == [None, 0]
    assert [each["settled_per_s"] for each in samples] == [None, 0]
    head, *rows = told.out.splitlines()
    assert head.split() == ["time", "state", "members", "in", "flight", "backlog", "arrived/s", "settled/s"]
    assert [row.split()[1:4] for row in rows] == [["active", "1", "2"]] * 2
    assert [row.split()[4:] for row in rows] == [["5", "-", "-"], ["5", "0", "0"]]
    assert all(len(line) <= 80 for line in told.out.splitlines())


def test_watch_without_a_name_shows_all(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    for name in ("first", "second"):
        run("sub", "create", name, topic, "--start", "earliest")
    head, *rows = run("sub", "watch", "--every", "0.1", "--count", "2").out.splitlines()
    assert head.split()[-2:] == ["settled/s", "name"]
    assert sorted(row.split()[-1] for row in rows) == ["first", "first", "second", "second"]
    told = lines(run("sub", "watch", "--every", "0.1", "--count", "1", "--json"))
    assert sorted(str(each["subscription"]) for each in told) == ["first", "second"]


def test_watch_is_a_live_table_on_a_terminal(run: Run, here: Path, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("sub", "create", "waiting", topic, "--start", "earliest")
    run("publish", topic, "-", stdin="m\n" * 3)
    run("sub", "create", "behind", topic)
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment["TERM"] = "xterm-256color"
    with subprocess.Popen(
        [sys.executable, "-m", "kafkadur.cli", "sub", "watch", "--every", "0.1", "--count", "3"],
        stdin=terminal, stdout=terminal, stderr=terminal, cwd=here, env=environment,
    ) as process:  # fmt: skip
        os.close(terminal)
        shown = read_to_the_end(screen)
    assert process.returncode == 0, shown
    assert shown.count("settled/s") >= 3, "a look each, and the last one again"
    last = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).split("\r\n")[-5:]]
    assert [line.split()[:2] for line in last if "inactive" in line] == [
        ["waiting", "inactive"],
        ["behind", "inactive"],
    ]
    assert "Ctrl-C ends it" in last[-2]
    assert all(len(line) <= 80 for line in last)


def read_to_the_end(screen: int) -> str:
    """Return all that is written to a terminal until it is closed."""
    parts: list[bytes] = []
    with contextlib.suppress(OSError):  # which is how a terminal ends
        while part := os.read(screen, 65_536):
            parts.append(part)
    os.close(screen)
    return b"".join(parts).decode()


def test_watch_needs_a_subscription(run: Run) -> None:
    refused = run("sub", "watch", "d")
    assert refused.code == 1
    assert "no durable subscription d" in refused.err
