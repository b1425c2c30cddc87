"""How often checkpoints are written for which no caller waits."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafkadur.runtime import checkpoint_thread
from kafkadur.runtime.checkpoint_thread import EVERY, CheckpointThread


class Clock:
    """Time that is moved by hand, and the CPU time of the thread."""

    def __init__(self) -> None:
        self.now, self.used, self.each = 100.0, 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def thread_time(self) -> float:
        """Each pair of calls measures what one round takes."""
        self.used += self.each
        return self.used


def test_they_are_written_less_often_where_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, unused = Clock(), cast("Any", None)
    monkeypatch.setattr(checkpoint_thread, "time", clock)
    thread = CheckpointThread(
        coordinator=unused,
        journal=unused,
        waiters=cast("Any", lambda _: SimpleNamespace(of=lambda *_: [])),
        rebuild=unused,
    )

    def rounds(seconds: int) -> int:
        """Call the work of the thread eight times a second; returns how many rounds were due."""
        count, due_at = 0, thread._due_at  # noqa: SLF001 - the thread is not started
        for _ in range(seconds * 8):
            thread._work(everything=False)  # noqa: SLF001 - as above
            count += thread._due_at != due_at  # noqa: SLF001 - as above
            due_at = thread._due_at  # noqa: SLF001 - as above
            clock.now += 0.125
        return count

    assert rounds(20) == pytest.approx(20 / EVERY, abs=1)
    clock.each = 0.5
    assert rounds(45) == pytest.approx(45 / 4.5, abs=2), "at most a tenth of a core"
    clock.each = 0.0
    rounds(10)
    assert rounds(20) == pytest.approx(20 / EVERY, abs=1)
