"""Exceptions of signal handlers, as of Ctrl-C, at any moment of the main thread: nothing is skipped."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from types import FrameType

import pytest

import kafkadur.sync
from kafkadur import LeaseLost
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import Place

COUNT = 1_500
#: When nothing has come for so long, another consumer gets what this one lost in its hands.
QUIET_S = 1.0


class Interruptions:
    """Raises KeyboardInterrupt in the main thread again and again while it is armed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.armed = self.over = False
        self.count = 0

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        if not self.over:
            self.plan()
        if self.armed:
            self.count += 1
            raise KeyboardInterrupt

    def plan(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(0.0005, 0.01))


@pytest.fixture
def interruptions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Interruptions]:
    """Provide interruptions of this test.

    The interpreter reports exceptions that come in a finalizer, and sockets that were being opened when one
    came: both are expected. pytest's report of them could be interrupted as well.
    """
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    made = Interruptions(7)
    before = signal.signal(signal.SIGALRM, made)
    made.plan()
    yield made
    made.over = True
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.collect()  # else a later test would be told of the sockets


@contextlib.contextmanager
def ending(thread: threading.Thread, stop: threading.Event) -> Generator[None]:
    """End a thread behind the block."""
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("kind", ["shared", "exclusive", "key-ordered"])
def test_nothing_is_skipped_however_often_it_is_interrupted(
    place: Place, interruptions: Interruptions, kind: TypeName
) -> None:
    topic = place.topic([], partitions=1)
    stop = threading.Event()

    def publish() -> None:
        for first in range(0, COUNT, 5):
            if stop.wait(0.004):
                return
            place.publish(topic, range(first, first + 5))

    publisher = threading.Thread(target=publish)
    seen: set[int] = set()

    def work(subscription: kafkadur.sync.Subscription) -> None:
        """Receive until nothing comes for a while: what was lost on its way to here comes to the next one."""
        latest = time.monotonic()
        while time.monotonic() < latest + QUIET_S:
            try:
                interruptions.armed = True
                delivery = subscription.receive(timeout=QUIET_S)
                interruptions.armed = False
            except KeyboardInterrupt:
                continue
            finally:
                interruptions.armed = False
            if delivery is not None:
                latest = time.monotonic()
                seen.add(int(delivery.value or b"-1"))
                delivery.ack_nowait()

    with place.connect_sync() as connection, ending(publisher, stop):
        connection.subscribe(topic, durable="d", type=kind, start="earliest").close()
        publisher.start()
        rounds = 0
        while len(seen) < COUNT:
            rounds += 1
            assert rounds < 60, f"{COUNT - len(seen)} messages are missing"
            subscription = connection.subscribe(topic, durable="d", type=kind)
            # it was interrupted in the middle of a change: then closing says which acknowledgements are lost
            with contextlib.suppress(LeaseLost):
                work(subscription)
            with contextlib.suppress(LeaseLost):
                subscription.close()
    assert seen == set(range(COUNT))
    assert interruptions.count > 10
