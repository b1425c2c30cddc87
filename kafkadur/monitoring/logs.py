"""Logs of a worker or gateway, in lines of text or JSON. They have ids, never contents of messages."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum

from kafkadur_sharing.readable_text import plain


class LogFormat(StrEnum):
    """Format of log records."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: The ids that a record may have.
_IDS = ("subscription", "topic", "member", "peer", "user", "client_id")


class _Text(logging.Formatter):
    """A line with the record's ids at its end."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line, to which `format` adds the exception."""
        ids = [f"{name} {value}" for name in _IDS if (value := getattr(record, name, None)) is not None]
        line = plain(super().formatMessage(record))
        return f"{line} ({', '.join(ids)})" if ids else line


def announce(logger: logging.Logger, text: str) -> None:
    """Log where the process can be reached, whatever the lowest level is."""
    logger.handle(logger.makeRecord(logger.name, logging.INFO, "", 0, text, (), None))


def log_to_stderr(format: LogFormat, level: LogLevel) -> None:  # noqa: A002 - the option's word
    """Make the root logger write to standard error, in a format and from a level on.

    JSON needs the extra `worker` or `gateway`; its fields are `time`, `level`, `logger`, `message`,
    `exc_info`, and the ids of a record: `subscription`, `topic`, `member`; `peer`, `user`, `client_id`.
    """
    handler = logging.StreamHandler(sys.stderr)
    if format is LogFormat.JSON:
        from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415 - of the extra

        formatter: logging.Formatter = JsonFormatter(
            "{asctime}{levelname}{name}{message}",
            style="{",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            datefmt="%Y-%m-%dT%H:%M:%S%z",
        )
    else:
        formatter = _Text(_TEXT)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
