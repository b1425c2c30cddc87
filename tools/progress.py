"""A progress bar on stderr for steps of known length; plain lines where stderr is no terminal."""

import shutil
import sys
import time
from typing import Self

WIDTH = 28

#: A log gets a line when another quarter of the step is done.
PLAIN_LINES = 4


class Bar:
    """One long step. Use it as a context manager, so that its line ends whatever happens."""

    def __init__(self, title: str, total: int) -> None:
        """`title` says what is being done, `total` is the count of things to do."""
        self._title = title
        self._total = max(total, 1)
        self._terminal = sys.stderr.isatty()
        self._started = time.monotonic()
        self._quarter = -1

    def __enter__(self) -> Self:
        """Show the empty bar."""
        self.update(0)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """End the line."""
        if self._terminal:
            sys.stderr.write("\n")

    def update(self, done: int) -> None:
        """Show that `done` of the total is done."""
        done = min(done, self._total)
        seconds = time.monotonic() - self._started
        if self._terminal:
            filled = WIDTH * done // self._total
            bar = "#" * filled + "-" * (WIDTH - filled)
            line = f"{self._title} [{bar}] {100 * done // self._total:3d} % {seconds:4.0f} s"
            # A line that wraps could not be overwritten by the next one.
            sys.stderr.write("\r" + line[: shutil.get_terminal_size().columns - 1])
        else:
            quarter = PLAIN_LINES * done // self._total
            if quarter > self._quarter:
                self._quarter = quarter
                sys.stderr.write(f"{self._title}: {100 * done // self._total} %, {seconds:.0f} s\n")
        sys.stderr.flush()
