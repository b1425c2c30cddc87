"""A worker ends when it is told to, whatever its handlers, its lifespan and its servers do meanwhile."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kafkadur.worker.ending import BEGAN, STOPPED, latest
from tests.end_to_end.service.helpers import Process, Shop, eventually
from tests.integration.subscriptions.helpers import LIMIT_S

SLEEPS = 600

#: What a handler may do to stay, by name.
STAYING = {
    "swallows the cancellation": """
        async def handle(message):
            note(message, "begun")
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    pass
    """,
    "waits for a thread of its own": """
        async def handle(message):
            note(message, "begun")
            await asyncio.to_thread(time.sleep, 600)
    """,
    "is in a long call of a library": """
        async def handle(message):
            import hashlib

            note(message, "begun")
            hashlib.pbkdf2_hmac("sha256", b"p", b"s", 1_000_000_000)
    """,
    "blocks the loop": """
        async def handle(message):
            note(message, "begun")
            while True:
                time.sleep(0.05)
    """,
}


def declared(handler: str) -> str:
    """A module with one handler."""
    head = """
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="d", start="earliest")"""
    return head + handler


def test_nothing_that_comes_later_prolongs_the_end() -> None:
    """Else Kubernetes would kill it: what has stopped late has no more time than what has not."""
    limit, never = 31.0, float("inf")
    assert latest(never, BEGAN, 100.0, limit) == 131.0
    assert latest(131.0, signal.SIGTERM, 120.0, limit) == 131.0
    assert latest(131.0, STOPPED, 101.0, limit) < 131.0
    assert latest(131.0, STOPPED, 130.0, limit) == 131.0
    assert latest(never, STOPPED, 100.0, limit) < never  # it failed by itself
    assert latest(never, signal.SIGCHLD, 100.0, limit) == never  # a handler's own


@pytest.mark.parametrize("kind", STAYING)
def test_it_ends_soon_after_the_deadline(shop: Shop, kind: str) -> None:
    shop.place.publish(shop.topic, [1])
    shop.write(declared(STAYING[kind]))
    worker = shop.start("--deadline", "0.5")
    shop.until(1, "begun")
    begun = time.monotonic()
    assert worker.stop() == 1
    assert time.monotonic() - begun < SLEEPS / 4
    assert shop.unsettled("d") == 1


@pytest.mark.parametrize("kind", STAYING)
def test_a_second_signal_ends_it_whatever_runs(shop: Shop, kind: str) -> None:
    shop.place.publish(shop.topic, [1])
    shop.write(declared(STAYING[kind]))
    worker = shop.start("--deadline", "600")
    shop.until(1, "begun")
    worker.tell(signal.SIGTERM)
    # two signals that come together are one; this one is told when nothing is pending any more
    eventually(lambda: not pending(worker.pid), "that the first one is taken")
    worker.tell(signal.SIGTERM)
    assert worker.ended() == 130
    assert "Interrupted." in worker.said


def pending(pid: int) -> int:
    """The signals that a process has not taken yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(found["SigPnd"], 16) | int(found["ShdPnd"], 16)


def test_a_lifespan_that_fails_at_its_end_beside_a_handler_that_stays(shop: Shop) -> None:
    shop.place.publish(shop.topic, [1])
    shop.write("""
        import contextlib

        @contextlib.asynccontextmanager
        async def lifespan(connection):
            yield
            raise OSError("the database was not closed")

        app = kafkadur.App(lifespan=lifespan)

        @app.subscription(TOPIC, durable="d", start="earliest")
        def handle(message):
            note(message, "begun")
            time.sleep(600)
    """)
    worker = shop.start("--deadline", "0.5")
    shop.until(1, "begun")
    assert worker.stop() == 1
    assert "the database was not closed" in worker.said


def test_a_lifespan_that_does_not_end_when_the_worker_fails(shop: Shop) -> None:
    shop.write("""
        import contextlib

        @contextlib.asynccontextmanager
        async def lifespan(connection):
            yield
            await asyncio.sleep(600)

        app = kafkadur.App(lifespan=lifespan)

        @app.subscription(TOPIC, durable="d", no_local=True)
        async def handle(message):
            note(message)
    """)
    worker = shop.start("--deadline", "0.5")
    assert worker.ended() == 1
    assert "cannot be served" in worker.said
    assert "has not stopped in time" in worker.said


def test_a_reader_of_its_output_that_has_gone() -> None:
    code = "from kafkadur.worker.ending import leave; print('x' * 100); leave(7)"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=writing,
            check=False,
            timeout=LIMIT_S,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # else it is print that fails
        )
    finally:
        os.close(writing)
    assert done.returncode == 7


def test_a_lifespan_that_does_not_begin(shop: Shop) -> None:
    shop.write("""
        import contextlib

        @contextlib.asynccontextmanager
        async def lifespan(connection):
            print("entered", flush=True)
            await asyncio.sleep(600)
            yield

        app = kafkadur.App(lifespan=lifespan)

        @app.subscription(TOPIC, durable="d")
        def handle(message):
            note(message)
    """)
    worker = shop.start("--deadline", "0.5")
    eventually(lambda: "entered" in worker.said, "its beginning")
    assert worker.stop() == 1
    assert "the lifespan had not begun at the deadline" in worker.said
    assert "Traceback" not in worker.said


def test_a_signal_while_the_module_is_imported(shop: Shop) -> None:
    shop.write("""
        print("importing", flush=True)
        while True:
            time.sleep(0.05)
    """)
    worker = shop.start()
    eventually(lambda: "importing" in worker.said, "its beginning")
    assert worker.stop() == 0


def test_a_kafka_that_never_answers(shop: Shop) -> None:
    """Nothing was begun, so nothing is given back."""
    shop.write(
        declared("""
        def handle(message):
            note(message)
    """)
    )
    with socket.create_server(("127.0.0.1", 0)) as mute:
        worker = shop.start("--deadline", "1", KAFKADUR_KAFKA=f"127.0.0.1:{mute.getsockname()[1]}")
        eventually(lambda: worker.get("/livez")[0] == 200, "its port")
        begun = time.monotonic()
        worker.stop()
        assert time.monotonic() - begun < LIMIT_S
    assert "handlers at work" not in worker.said


def test_nothing_begins_after_the_signal(shop: Shop) -> None:
    shop.place.publish(shop.topic, range(5))
    shop.write(
        declared("""
        def handle(message):
            note(message, "begun")
            while not os.path.exists("go-on"):
                time.sleep(0.01)
            note(message)
    """)
    )
    worker = shop.start("--deadline", "60")
    shop.until(1, "begun")
    worker.tell()
    eventually(lambda: "stopping" in worker.said, "the beginning of its end")
    (shop.folder / "go-on").touch()
    assert worker.ended() == 0
    assert len(shop.notes("begun")) == len(shop.notes()) == 1
    assert shop.unsettled("d") == 4


def test_what_waits_for_its_key_comes_again_at_once(shop: Shop) -> None:
    """Nothing of it was begun: the policy's back-off is for what failed."""
    for value, key in ((b"1", b"k"), (b"2", b"k"), (b"3", b"k"), (b"4", b"other")):
        shop.place.raw.produce(shop.topic, value, key=key, partition=0)
    assert shop.place.raw.flush(LIMIT_S) == 0
    shop.write("""
        from datetime import timedelta

        app = kafkadur.App()

        @app.subscription(
            TOPIC, durable="d", type="exclusive", start="earliest", ordered_by_key=True,
            redelivery=kafkadur.Redelivery(backoff=timedelta(minutes=5), max_backoff=timedelta(minutes=5)),
        )
        def handle(message):
            note(message, "begun")
            while not os.path.exists("go-on"):
                time.sleep(0.01)
            note(message)
    """)
    first = shop.start("--deadline", "60", KAFKADUR_CLIENT_ID="c")
    shop.until(1, "begun")
    eventually(lambda: in_hands(first) == 4, "all of them")
    first.tell()
    eventually(lambda: "stopping" in first.said, "the beginning of its end")
    (shop.folder / "go-on").touch()
    assert first.ended() == 0
    assert len(shop.notes()) == 1
    second = shop.start(KAFKADUR_CLIENT_ID="c")
    assert [(note.value, note.attempt) for note in shop.until(4)] == [(str(n), 1) for n in (1, 2, 3, 4)]
    assert second.stop() == 0


def in_hands(worker: Process) -> int:
    """How many messages handlers have, or wait for one."""
    found = re.search(
        r"^kafkadur_worker_in_hands_messages{.*} (\S+)$", worker.get("/metrics")[1], re.MULTILINE
    )
    return 0 if found is None else int(float(found[1]))
