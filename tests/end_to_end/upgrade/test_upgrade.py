"""A rolling upgrade: processes of the version before and of this one share subscriptions and journal."""

import io
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

import kafkadur.sync
from kafkadur import CoordinatorRefused
from kafkadur.stack import Stack, embedded
from kafkadur_coordinators.topics import Topics
from tests.integration.subscriptions.helpers import Place, place_on, wait_until
from tests.integration.subscriptions.workers import ROOT, Worker

#: Versions before: what users run when they upgrade to this one. The first writes no checkpoints.
BEFORE = ("02cec79", "c823d67")
COUNT = 60
KINDS = ("shared", "serial", "key-ordered")

Start = Callable[..., Worker]


@pytest.fixture(scope="module", params=[pytest.param(BEFORE[0], marks=pytest.mark.long), *BEFORE[1:]])
def before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the source of a version before, from the repository's history."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout: the version before is in the repository's history")
    archive = subprocess.run(
        ["git", "archive", request.param], cwd=ROOT, capture_output=True, check=True
    ).stdout
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """Provide a stack that may be wiped."""
    with embedded(users=True) as stack:
        yield stack


@pytest.fixture
def place(own_stack: Stack) -> Iterator[Place]:
    """Provide a place on it."""
    with place_on(own_stack) as place:
        yield place


@pytest.fixture
def start(place: Place, before: Path) -> Iterator[Start]:
    """Provide a starter of workers: `start(topic, old=True, type=...)`."""
    started: list[Worker] = []

    def make(topic: str, *, old: bool, **options: Any) -> Worker:
        options = {"durable": "d", "start": "earliest", "session_timeout": 1.0} | options
        # subscriptions that a new process creates or rebuilds are to be understood by old ones
        settings = place.settings() if old else place.settings(state_version=1)
        worker = Worker(settings, topic, options, tree=before if old else ROOT)
        started.append(worker)
        return worker

    yield make
    for worker in started:
        worker.end()


def wipe(place: Place) -> None:
    with redis.Redis.from_url(place.stack.admin_redis) as server:
        server.flushall()


@pytest.mark.parametrize("kind", KINDS)
def test_old_and_new_processes_work_side_by_side(place: Place, start: Start, kind: str) -> None:
    topic = place.topic(range(COUNT), partitions=2)
    workers = [start(topic, old=old, type=kind) for old in (True, False, True, False)]
    for worker in workers:
        worker.work()
    found = [number for worker in workers for number in worker.answer()]
    assert sorted(found) == list(range(COUNT))


@pytest.mark.parametrize("old_first", [True, False])
def test_one_goes_on_where_the_other_ended(place: Place, start: Start, *, old_first: bool) -> None:
    topic = place.topic(range(COUNT))
    first = start(topic, old=old_first, type="shared", window=10)
    done = {number for number, _ in first.receive(10)}
    assert first.ack() == "acked"
    first.receive(5)
    first.kill()
    second = start(topic, old=not old_first, type="shared")
    second.work()
    assert set(second.answer()) == set(range(COUNT)) - done
    assert second.close() == "closed"


@pytest.mark.parametrize("old_first", [True, False])
def test_each_reads_the_journal_of_the_other(place: Place, start: Start, *, old_first: bool) -> None:
    """Checkpoints, reports and incarnations of the new one are there; the old one knows nothing of them."""
    topic = place.topic(range(COUNT))
    level = {} if old_first else {"ack_level": "journal"}
    first = start(topic, old=old_first, type="shared", window=10, **level)
    done = {number for number, _ in first.receive(10)}
    assert first.ack() == "acked"
    assert first.close() == "closed"
    topics = Topics({"bootstrap.servers": place.stack.kafka})
    with place.connect_sync() as connection:
        group = connection.key("d").group
    wait_until(lambda: topics.committed(group, topic, 1) == {0: 10}, "the floor is mirrored")
    first.end()
    wipe(place)
    second = start(topic, old=not old_first, type="shared")
    second.work()
    assert set(second.answer()) == set(range(COUNT)) - done, "the mirrored floor is known to both"


def test_an_old_process_goes_on_after_a_loss_that_a_new_one_has_repaired(place: Place, start: Start) -> None:
    topic = place.topic(range(COUNT))
    old, new = [start(topic, old=is_old, type="shared", window=10) for is_old in (True, False)]
    done: set[int] = set()
    for worker in (old, new):
        done |= {number for number, _ in worker.receive(5)}
        assert worker.ack() == "acked"
    wipe(place)
    answers: list[str] = []
    while "acked" not in answers and len(answers) < 5:  # what it had read before the loss is refused
        some = {number for number, _ in old.receive(3)}
        answers.append(old.ack())
        done |= some if answers[-1] == "acked" else set()
    assert "acked" in answers, answers
    assert old.close() == "closed"
    new.work()
    assert done | set(new.answer()) == set(range(COUNT))


def test_state_of_a_later_version_is_refused_in_words(place: Place) -> None:
    topic = place.topic(range(3))
    with place.connect_sync() as connection:
        connection.subscribe(topic, durable="d", type="shared").close()
        address = connection.key("d")
    with redis.Redis.from_url(place.stack.admin_redis) as server:
        (definition,) = server.scan_iter(match=f"kafkadur:{place.namespace}:*{address.tag}*:def", count=1000)
        server.hset(definition, "state_version", 4)
    with (
        kafkadur.sync.connect(**place.settings(session_timeout=timedelta(seconds=2))) as connection,
        pytest.raises(CoordinatorRefused, match="version"),
    ):
        connection.subscribe(topic, durable="d", type="shared")
