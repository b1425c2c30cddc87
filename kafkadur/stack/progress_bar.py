"""A progress bar on standard error for the stack's long steps: the download and the start of servers.

If standard error is no terminal, each step gets a line when it begins and another one every 10 s. The callers
name the steps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kafkadur.stack.jars import Progress as Report

#: Seconds between two lines about the same step without a terminal.
_PLAIN_S = 10.0


@contextlib.contextmanager
def progress_bar(console: Console | None = None) -> Generator[Report]:
    """Provide a value for `progress`; a bar appears with its first call and disappears with the block."""
    shown = console or Console(stderr=True)
    if not shown.is_terminal:
        yield _Plain(shown)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=shown, transient=True) as bars:
        yield _Bars(bars)


class _Bars:
    """One line of a terminal, for the current step."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None
        self._text = ""

    def __call__(self, done: int, steps: int, text: str) -> None:
        if self._task is None or text != self._text:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task(text, total=steps)
            self._text = text
        self._bars.update(self._task, completed=done, total=steps)


class _Plain:
    """A line when a step begins, and another one every `_PLAIN_S` seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""
        self._said = float("-inf")

    def __call__(self, done: int, steps: int, text: str) -> None:
        now = time.monotonic()
        if text != self._text or now - self._said >= _PLAIN_S:
            self._text, self._said = text, now
            self._console.print(f"{text}: {done} of {steps}", markup=False, highlight=False, soft_wrap=True)
