"""How commands print: data as tables or JSON on standard output, messages to people on standard error."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kafkadur_sharing.errors import InvalidSelector, KafkadurError
from kafkadur_sharing.readable_text import plain

if TYPE_CHECKING:
    from rich.progress import Progress

#: Columns of a table in a file or a pipe: wide enough that nothing is cut.
_PIPE_WIDTH = 500

#: Control characters that are printed as they are: in texts of several lines, and in one line.
_KEPT, _TAB = "\n\t", "\t"

#: Lines of a screen around the rows of a live table: its titles, the text below, which may wrap, the cursor.
_AROUND = 6

#: Terminals of fewer columns are narrow.
_WIDE = 100

#: Parts of errors that speak of the library, and what they are on the command line.
_WORDS = {
    "pass kafka='host:port'": "give --kafka HOST:PORT",
    "connect with client_id=...": "give --client-id ID",
    "or keep what is settled, and of what waits all that the new selector takes: on_change='alter', "
    "or lose what waits: on_change='replace'": (
        "or change it with `kafkadur sub alter`, which keeps what is settled, and of what waits all that the "
        "new selector takes"
    ),
    "or lose what waits: on_change='replace'": "or delete it with `kafkadur sub unsubscribe`",
    "on_change='alter', or `kafkadur sub alter`": "`kafkadur sub alter`",
    "on_change='alter'": "`kafkadur sub alter`",
    " Owner: the caller of subscribe.": "",
    "a timedelta, or seconds,": "seconds",
}
#: The owner of an error that is the caller's own.
_CALLER = "the caller"
#: A parameter with its value, and the names of some without.
_PARAMETER = re.compile(
    r"(?<![-\w])(type|selector|start|client_id|client_id_policy|key_lanes|scope|ack_level|max_consumers|max_attempts"
    r"|backoff|max_backoff|max_hold|history)=('[^']*'|\"[^\"]*\"|[\w.-]+)"
)

_NAME = re.compile(
    r"(?<![-\w])(strict_order|no_local|key_lanes|ack_level|max_consumers|max_attempts|max_backoff|max_hold"
    r"|dead_letter_topic|header_types)\b"
)

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table: its title, and what it shows of a row."""

    title: str
    cell: Callable[[Row], str]
    number: bool = field(default=False, kw_only=True)
    #: Left out where the terminal is narrow.
    wide: bool = field(default=False, kw_only=True)
    #: Its cell in a last row of totals.
    total: str = field(default="", kw_only=True)


class Output:
    """Where one command prints."""

    def __init__(self, *, as_json: bool = False) -> None:
        """`as_json`: data is printed as JSON."""
        self.as_json = as_json
        # A console takes COLUMNS, where it is set, for the width of whatever it prints to.
        piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        self._data = Console(highlight=False, width=_PIPE_WIDTH if piped else None)
        #: The console on standard error: messages, progress bars.
        self.talk = Console(stderr=True, highlight=False)

    def progress(self) -> Progress:
        """Return a bar for long work, shown on standard error until it ends."""
        from rich.progress import Progress  # noqa: PLC0415 - most commands take no long and need none

        return Progress(console=self.talk, transient=True, disable=not self.talk.is_terminal)

    def status(self, text: str) -> contextlib.AbstractContextManager[object]:
        """Show a text on a terminal within the context."""
        return self.talk.status(text) if self.talk.is_terminal else contextlib.nullcontext()

    # -- messages ----------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Print a message that is not part of the data."""
        self.talk.print(_text(text), soft_wrap=True)

    @contextlib.contextmanager
    def saying_log(self) -> Generator[None]:
        """Within the context, print warnings of kafkadur's log, in the words of the command line.

        Also that a subscription was created: the name may have been mistyped.
        """
        handler = _Saying(self.say)
        log, lifecycle = logging.getLogger("kafkadur"), logging.getLogger("kafkadur.lifecycle")
        propagates, level = log.propagate, lifecycle.level
        log.propagate = False
        log.addHandler(handler)
        lifecycle.setLevel(logging.INFO)
        try:
            yield
        finally:
            lifecycle.setLevel(level)
            log.removeHandler(handler)
            log.propagate = propagates

    def complain(self, text: str) -> None:
        """Print an error message."""
        self.talk.print(_text(text, "red"), soft_wrap=True)

    def fail(self, error: KafkadurError) -> None:
        """Print an error: each part on a line of its own, or as JSON."""
        # a part from elsewhere, such as a name, must not begin a line; what the user wrote is not translated
        texts = {
            "state": None if error.state is None else plain(error.state),
            "owner": None if error.owner in (None, _CALLER) else plain(error.owner or ""),
            "remedy": None if error.remedy is None else plain(for_options(error.remedy)),
        }
        message = plain(error.message if isinstance(error, InvalidSelector) else for_options(error.message))
        if self.as_json:
            self._fail_in_json(type(error).__name__, message, texts)
            return
        self.complain(message)
        for name, text in texts.items():
            if text is not None:
                self.say(f"  {name}: {text}")

    def fail_usage(self, message: str, remedy: str) -> None:
        """Print what is wrong in the command line, as JSON."""
        self._fail_in_json("UsageError", plain(message), {"state": None, "owner": None, "remedy": remedy})

    def _fail_in_json(self, name: str, message: str, parts: Mapping[str, str | None]) -> None:
        told = {"error": name, "message": message, **parts}
        sys.stderr.write(f"{json.dumps(told, ensure_ascii=False)}\n")

    # -- data --------------------------------------------------------------------------------------------

    def json(self, value: object) -> None:
        """Print one value as JSON: indented on a terminal, else in one line."""
        indent = 2 if self._data.is_terminal else None
        self.line(json.dumps(value, indent=indent, ensure_ascii=False))

    def line(self, text: str) -> None:
        """Print one line, control characters as escapes, and flush it."""
        sys.stdout.write(f"{plain(text, keep=_TAB)}\n")
        sys.stdout.flush()

    def table(self, rows: Iterable[Row], *columns: Column[Row]) -> None:
        """Print a table, with a last row of totals if a column has one."""
        self._data.print(self._table(rows, columns))

    @contextlib.contextmanager
    def live(self) -> Generator[Callable[[Sequence[Row], Sequence[Column[Row]], str], None]]:
        """Give a function that shows a table, and a text below it, in place of the one before.

        It is for terminals. Rows that do not fit on the screen are left out.
        """
        from rich.console import Group  # noqa: PLC0415 - most commands need none of this
        from rich.live import Live  # noqa: PLC0415 - as above

        with Live(console=self._data, auto_refresh=False) as shown:

            def show(rows: Sequence[Row], columns: Sequence[Column[Row]], below: str) -> None:
                fitting = rows[: max(self._data.height - _AROUND, 1)]
                left = len(rows) - len(fitting)
                text = f"{below}; {left:,} more do not fit on the screen" if left else below
                shown.update(Group(self._table(fitting, columns, folds=False), _text(text)), refresh=True)

            yield show

    @property
    def on_terminal(self) -> bool:
        """Whether data are printed to a terminal that can show one text in place of another."""
        return sys.stdout.isatty() and not self._data.is_dumb_terminal

    def _table(self, rows: Iterable[Row], columns: Sequence[Column[Row]], *, folds: bool = True) -> Table:
        """Return a table; where a row must be one line, long names are cut."""
        shown = [column for column in columns if not (column.wide and self.narrow)]
        table = Table(
            box=box.SIMPLE_HEAD,
            show_footer=any(column.total for column in columns),
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for column in shown:
            table.add_column(
                column.title,
                footer=column.total,
                justify="right" if column.number else "left",
                # Numbers must stay whole; names may wrap.
                no_wrap=column.number or not folds,
                overflow="fold" if folds else "ellipsis",
            )
        for row in rows:
            table.add_row(*(_text(column.cell(row)) for column in shown))
        return table

    def facts(self, facts: Iterable[tuple[str, str | None]]) -> None:
        """Print pairs of a word and a text; a pair whose text is None is left out."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for word, text in facts:
            if text is not None:
                table.add_row(word, _text(text))
        self._data.print(table)

    def note(self, text: str) -> None:
        """Print a sentence about the data that stand before it."""
        self._data.print(_text(text))

    @property
    def narrow(self) -> bool:
        """Whether data are printed to a terminal of few columns."""
        return self._data.width < _WIDE

    def title(self, text: str) -> None:
        """Print the headline of what follows."""
        self._data.print(_text(text, "bold"), soft_wrap=True)


class _Saying(logging.Handler):
    """Prints records as messages."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Print one."""
        self._say(for_options(record.getMessage()))


def for_options(text: str) -> str:
    """Return the text of an error in which parameters of the library are options of the command line."""
    for parameter, option in _WORDS.items():
        text = text.replace(parameter, option)
    text = _PARAMETER.sub(_option, text)
    return _NAME.sub(lambda found: f"--{found[0].replace('_', '-')}", text)


def _option(found: re.Match[str]) -> str:
    """Return a parameter with its value as an option; a value that a shell takes as it is has no quotes."""
    option = f"--{found[1].replace('_', '-')}"
    value = re.sub(r"^(['\"])([\w./:-]+)\1$", r"\2", found[2])
    return f"no {option}" if value == "None" else f"{option} {value}"


def _text(text: str, style: str = "") -> Text:
    return Text(plain(text, keep=_KEPT), style=style)


# --- values as text -------------------------------------------------------------------------------------


def count(number: int | None) -> str:
    """Return a number with thousands separators; a dash for an unknown one."""
    return "-" if number is None else f"{number:,}"


def plural(number: int, word: str) -> str:
    """Return a number with a word, which is in the plural unless the number is 1."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def duration(ms: int) -> str:
    """Return a length of time given in ms, in a fitting unit."""
    seconds = ms / 1_000
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    if seconds < _DAY_S:
        return f"{seconds / _HOUR_S:.1f} h"
    return f"{seconds / _DAY_S:.1f} days"


def ago(then: int | None, now: int, *, never: str = "-") -> str:
    """Return how long ago a point in time was, both in ms since 1970; `never` for None."""
    return never if then is None else f"{duration(max(now - then, 0))} ago"


def clock(ms: int) -> str:
    """Return a point in time given in ms since 1970, in local time."""
    return datetime.fromtimestamp(ms / 1_000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
