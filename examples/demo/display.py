"""What the demo shows: sentences, progress bars, the live table; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

#: Seconds between two plain lines.
_PLAIN_EVERY: Final = 1.0


class Bar:
    """One long step."""

    def __init__(self, progress: Progress, title: str) -> None:
        """The step has not begun."""
        self._progress = progress
        self._task = progress.add_task(title, total=None)

    def update(self, done: int, total: int, title: str | None = None) -> None:
        """Show that `done` of `total` is done."""
        if title is None:
            self._progress.update(self._task, completed=done, total=total)
        else:
            self._progress.update(self._task, completed=done, total=total, description=title)


class Board:
    """The live table of `billing`."""

    def __init__(self, display: Display, live: Live | None) -> None:
        """Show nothing yet."""
        self._display = display
        self._live = live
        self._shown_at = float("-inf")

    def show(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], summary: str) -> None:
        """Show the table as it is now; without a terminal, its summary, not more often than once a second."""
        if self._live is None:
            now = time.monotonic()
            if now - self._shown_at >= _PLAIN_EVERY:
                self._shown_at = now
                self._display.say(f"   {summary}")
            return
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, justify="right" if column != columns[0] else "left")
        for row in rows:
            table.add_row(*row)
        self._live.update(Group(table, summary), refresh=True)


class Display:
    """Where the demo talks."""

    def __init__(self, console: Console) -> None:
        """Talk on `console`."""
        self._console = console

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def head(self, text: str) -> None:
        """The head line of a part."""
        self._console.print()
        self._console.print(text, style="bold", markup=False, highlight=False, soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table that stays; its first column is text, the others are numbers."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print(Padding(table, (0, 0, 0, 3), expand=False), highlight=False)

    @contextmanager
    def bar(self, title: str) -> Generator[Bar, None, None]:
        """Show a progress bar while the block runs; without a terminal the title alone."""
        progress = Progress(
            TextColumn("   {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        if not self._console.is_terminal:
            self.say(f"   {title}")
        with progress:
            yield Bar(progress, title)

    @contextmanager
    def board(self) -> Generator[Board, None, None]:
        """A live table while the block runs; its last state stays."""
        if not self._console.is_terminal:
            yield Board(self, None)
            return
        with Live(console=self._console, auto_refresh=False) as live:
            yield Board(self, live)
