"""What a member's process does wrong on order: it forks, or it runs out of file descriptors."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import kafkadur.sync
from kafkadur.consumer.delivery import Delivery as PlainDelivery
from tests.end_to_end.histories.faults import FEW_FILES, FORK
from tests.end_to_end.histories.recording import Recorder
from tests.integration.subscriptions.forking import in_child

#: File descriptors that can be opened while there are few.
_LEFT = 2


class Mistakes:
    """The mistakes of one process, and what it records of them."""

    def __init__(self, recorder: Recorder) -> None:
        """Nothing is wrong yet."""
        self._recorder = recorder
        self._forks = threading.Event()

    def ask_for_fork(self) -> None:
        """Have the main thread fork at the next opportunity. Any thread."""
        self._forks.set()

    def fork_if_asked(
        self,
        subscription: kafkadur.sync.Subscription,
        held: Sequence[kafkadur.sync.Delivery | PlainDelivery],
    ) -> None:
        """Fork if that was ordered; raises AssertionError for a verb that is not refused in the child."""
        if not self._forks.is_set():
            return
        self._forks.clear()
        since = time.monotonic_ns()
        calls: dict[str, Callable[[], Any]] = {
            "receive": lambda: subscription.receive(timeout=0),
            "receive_batch": lambda: subscription.receive_batch(timeout=0),
            "statistics": subscription.statistics,
        }
        for number, delivery in enumerate(held):
            for verb in ("ack", "rollback", "release", "reject", "extend"):
                for name in (verb, f"{verb}_nowait"):
                    if hasattr(delivery, name):
                        calls[f"{name} {number}"] = getattr(delivery, name)
        told = in_child(calls)
        assert not told, f"in a forked child: {told}"
        self._recorder.note(FORK, since=since)

    def have_few_files(self, seconds: str) -> None:
        """Let the process open hardly any file for a while; returns after it. One thread at a time."""
        since = time.monotonic_ns()
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + _LEFT, most))
        time.sleep(float(seconds))  # how long it lasts
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        self._recorder.note(FEW_FILES, since=since)
