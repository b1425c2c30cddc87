"""Gathers the rows of a sink as stretches of offsets: Arrow batches in, a few `Said` out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.ranges import joined
from kafkadur_spark.dispositions import Disposition, Said

#: Longest reason, in characters, as in a dead letter (`kafkadur/runtime/dead_letters.py`).
_LONGEST_REASON = 1_000
#: Number of stretches of one disposition at which they are joined.
_MANY = 10_000


class Gathering:
    """The verdicts in the rows of one task."""

    def __init__(self, topic: str) -> None:
        """It is empty; `topic` is the topic of the subscription."""
        self._topic = topic
        self._found: dict[tuple[int, str, str], list[tuple[int, int]]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises `IllegalState` for a null, another topic or an unknown disposition."""
        if batch.num_rows == 0:
            return
        table = pa.Table.from_batches([batch])
        keys = [name for name in ("partition", "disposition", "reason") if name in table.column_names]
        self._check(table)
        for rows, partition, disposition, reason in _groups(table, keys):
            found = self._found.setdefault((partition, disposition, reason), [])
            for start, end in _pairs(rows):
                if found and found[-1][1] == start:
                    found[-1] = (found[-1][0], end)
                else:
                    found.append((start, end))
            if len(found) > _MANY:
                found[:] = joined(found)

    def said(self) -> list[Said]:
        """Return the gathered verdicts."""
        return [
            Said(partition, start, end, Disposition(disposition), reason)
            for (partition, disposition, reason), pairs in self._found.items()
            for start, end in joined(pairs)
        ]

    def _check(self, table: pa.Table) -> None:
        for name in table.column_names:
            if name != "reason" and table[name].null_count:
                raise IllegalState(
                    f"The column {name} of the sink has a null.",
                    state=f"{table[name].null_count} of {table.num_rows} rows",
                    owner="the query",
                    remedy="leave out rows without a verdict",
                )
        if "start" in table.column_names:
            _check_stretches(table)
        _allow(table, "topic", [self._topic], f"the subscription's topic is {self._topic}")
        allowed = [str(each) for each in Disposition]
        _allow(table, "disposition", allowed, f"use {', '.join(allowed)}")


def _check_stretches(table: pa.Table) -> None:
    starts, ends = table["start"].to_numpy(), table["end"].to_numpy()
    wrong = np.flatnonzero(starts >= ends)
    if wrong.size:
        raise IllegalState(
            "A stretch of the sink has no offset.",
            state=f"start {starts[wrong[0]]}, end {ends[wrong[0]]}",
            owner="the query",
            remedy="set end to the offset after the last one",
        )


def _allow(table: pa.Table, name: str, allowed: list[str], remedy: str) -> None:
    if name not in table.column_names:
        return
    wrong = [value for value in table[name].unique().to_pylist() if value not in allowed]
    if wrong:
        raise IllegalState(
            f"The column {name} of the sink has a value that it cannot have.",
            state=f"{str(wrong[0])[:100]!r}",
            owner="the query",
            remedy=remedy,
        )


def _groups(table: pa.Table, keys: list[str]) -> Iterator[tuple[pa.Table, int, str, str]]:
    """Yield the rows of each partition, disposition and reason."""
    distinct = table.select(keys).group_by(keys).aggregate([]).to_pylist()
    for one in distinct:
        rows = table
        for name in keys if len(distinct) > 1 else ():
            value = one[name]
            column = pc.field(name)
            rows = rows.filter(column.is_null() if value is None else column == pc.scalar(value))
        yield (
            rows,
            one["partition"],
            one.get("disposition", str(Disposition.ACK)),
            (one.get("reason") or "")[:_LONGEST_REASON],
        )


def _pairs(rows: pa.Table) -> Iterable[tuple[int, int]]:
    """Return the stretches of rows, in order."""
    if "offset" not in rows.column_names:
        return joined(zip(rows["start"].to_pylist(), rows["end"].to_pylist(), strict=True))
    offsets = rows["offset"].to_numpy()
    if (np.diff(offsets) == 1).all():  # the usual order, that of Kafka
        return [(int(offsets[0]), int(offsets[-1]) + 1)]
    offsets = np.unique(offsets)
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    firsts = offsets[np.concatenate(([0], breaks + 1))].tolist()
    lasts = offsets[np.concatenate((breaks, [-1]))].tolist()
    return [(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]
