"""How commands print: data on standard output as tables or JSON, talk on standard error.

Which data, is the commands'.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kafkadur_sharing.plain import plain

#: Columns of a table in a file or a pipe: wide enough that nothing is cut.
_PIPE_WIDTH = 500

#: What does something and may: in texts of several lines, and in a line.
_KEPT, _TAB = "\n\t", "\t"

#: Terminals of fewer columns are narrow.
_WIDE = 100

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    number: bool = False
    #: Left out where the terminal is narrow.
    wide: bool = False


class Output:
    """Where one command prints."""

    def __init__(self, *, as_json: bool = False) -> None:
        """`as_json`: data is printed as JSON."""
        self.as_json = as_json
        # A console takes COLUMNS, where it is set, for the width of whatever it prints to.
        piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        self._data = Console(highlight=False, width=_PIPE_WIDTH if piped else None)
        self._talk = Console(stderr=True, highlight=False)

    @property
    def talk(self) -> Console:
        """The console for talk, for progress bars."""
        return self._talk

    # -- talk --------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Tell people something; never part of the data."""
        self._talk.print(Text(plain(text, keep=_KEPT)), soft_wrap=True)

    def complain(self, text: str) -> None:
        """Tell people what went wrong."""
        self._talk.print(Text(plain(text, keep=_KEPT), style="red"), soft_wrap=True)

    # -- data --------------------------------------------------------------------------------------------

    def json(self, value: object) -> None:
        """Print one value as JSON: indented on a terminal, else in one line."""
        indent = 2 if self._data.is_terminal else None
        self.line(json.dumps(value, indent=indent, ensure_ascii=False))

    def line(self, text: str) -> None:
        """Print one line, control characters as escapes, and have it written before this returns."""
        sys.stdout.write(f"{plain(text, keep=_TAB)}\n")
        sys.stdout.flush()

    def table(
        self, columns: Sequence[Column], rows: Iterable[Sequence[str]], total: Sequence[str] = ()
    ) -> None:
        """Print a table; `total` is a last row of its own."""
        table = Table(
            box=box.SIMPLE_HEAD,
            show_footer=bool(total),
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        shown = [n for n, column in enumerate(columns) if not column.wide or self._data.width >= _WIDE]
        for number, column in ((n, columns[n]) for n in shown):
            table.add_column(
                column.title,
                footer=total[number] if total else "",
                justify="right" if column.number else "left",
                # Numbers must stay whole; names may go on in the next line.
                no_wrap=column.number,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(plain(row[n], keep=_KEPT)) for n in shown))
        self._data.print(table)

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Print pairs of a word and what there is to say."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for word, text in facts:
            table.add_row(word, Text(plain(text, keep=_KEPT)))
        self._data.print(table)

    def title(self, text: str) -> None:
        """Print the headline of what follows."""
        self._data.print(Text(plain(text, keep=_KEPT), style="bold"), soft_wrap=True)


# --- words for values -----------------------------------------------------------------------------------


def count(number: int | None) -> str:
    """Return a number for people; a dash for an unknown one."""
    return "-" if number is None else f"{number:,}"


def duration(ms: int) -> str:
    """Return a length of time given in ms, in the one unit that suits it."""
    seconds = ms / 1_000
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    if seconds < _DAY_S:
        return f"{seconds / _HOUR_S:.1f} h"
    return f"{seconds / _DAY_S:.1f} days"


def clock(ms: int) -> str:
    """Return a point in time given in ms since 1970, in local time."""
    return datetime.fromtimestamp(ms / 1_000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def iso(ms: int) -> str:
    """Return a point in time given in ms since 1970, for machines."""
    return datetime.fromtimestamp(ms / 1_000, tz=UTC).isoformat(timespec="milliseconds")


def readable(raw: bytes | None) -> str | None:
    """Bytes as text; as `base64:...` where they are none."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(raw).decode()}"
