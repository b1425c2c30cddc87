"""The folder of generations and of the checkpoints of their queries, on any file system that Spark can use.

`<root>/<subscription>/g<number>.<revision>.json` is the record of a generation, and
`<root>/<subscription>/g<number>/` is Spark's own checkpoint, of which only the logs of offsets and commits
are read and nothing is written. `<root>/<subscription>/g<number>.besides/` records the messages that were
added to batches (`redelivering.py`). One of several queries has the folder
`<root>/<subscription>/query.<name>/` instead, and in it `settled/<number>.json`, the record of what it has
settled (`several_queries.py`).
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from kafkadur_sharing.errors import IllegalState

#: The folder of one of several queries begins with it.
_QUERY = "query."
_GENERATION = re.compile(r"g(\d+)\.(\d+)\.json")


class Checkpoints:
    """The folder of one subscription. Only the driver that holds the subscription writes there."""

    def __init__(self, spark: SparkSession, root: str, subscription: str, query: str | None = None) -> None:
        """`root` is a path or URL for Spark; `query` names one of several.

        Raises `IllegalState` if Spark runs in another process.
        """
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise IllegalState(
                "A subscription is held by a driver that has Spark in its own process.",
                state="this session is one of Spark Connect",
                owner="the Spark session",
                remedy="use kafkadur_spark.session(), or spark-submit",
            )
        self._jvm = jvm
        context: Any = spark._jsparkSession  # noqa: SLF001 - the only way to the file systems of Hadoop
        self._hadoop: Any = jvm.org.apache.hadoop.fs
        known = hashlib.sha256(subscription.encode()).hexdigest()[:8]
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", subscription)[:100]
        self._all = self._folder = f"{root.rstrip('/')}/{name}-{known}"
        if query is not None:
            self._folder += f"/{_QUERY}{query}"
        path = self._hadoop.Path(self._folder)
        self._system: Any = path.getFileSystem(context.sessionState().newHadoopConf())

    def queries(self) -> set[str]:
        """Return the names of the queries that have a checkpoint in the folder of the subscription."""
        path = self._hadoop.Path(self._all)
        if not self._system.exists(path):
            return set()
        names = [str(status.getPath().getName()) for status in self._system.listStatus(path)]
        return {name.removeprefix(_QUERY) for name in names if name.startswith(_QUERY)}

    def of(self, generation: int) -> str:
        """Return the folder of Spark's checkpoint of a generation."""
        return f"{self._folder}/g{generation}"

    def last(self) -> str | None:
        """Return the record of the last generation; None if there is none."""
        found = [each for name in self._names("") if (each := _GENERATION.fullmatch(name))]
        newest = max(found, key=lambda each: (int(each[1]), int(each[2])), default=None)
        return None if newest is None else self._read(newest[0])

    def write(self, generation: int, revision: int, text: str) -> None:
        """Write the record of a revision of a generation atomically."""
        self._write(f"g{generation}.{revision}.json", text)

    def besides(self, generation: int, batch: int) -> str | None:
        """Return the record of the messages that were added to a batch; None if there is none."""
        return self._read(f"g{generation}.besides/{batch}.json")

    def write_besides(self, generation: int, batch: int, text: str) -> None:
        """Write the record of the messages added to a batch; remove the records before the last one."""
        folder = f"g{generation}.besides"
        for number in list(self._numbers(folder)):
            if number < batch - 1:
                self._system.delete(self._path(f"{folder}/{number}.json"), False)
        self._write(f"{folder}/{batch}.json", text)

    def settled(self) -> str | None:
        """Return the record of what a query has settled before others; None if there is none."""
        number = max(self._numbers("settled"), default=None)
        return None if number is None else self._read(f"settled/{number}.json")

    def write_settled(self, text: str) -> None:
        """Write the record of what a query has settled; remove the records before it."""
        before = list(self._numbers("settled"))
        self._write(f"settled/{max(before, default=0) + 1}.json", text)
        for number in before:
            self._system.delete(self._path(f"settled/{number}.json"), False)

    def _numbers(self, folder: str) -> Iterator[int]:
        """Yield the numbers of the records in a folder."""
        for name in self._names(folder):
            if name.removesuffix(".json").isdigit():
                yield int(name.removesuffix(".json"))

    def _write(self, name: str, text: str) -> None:
        """Write a file atomically."""
        unique = f"{name}-{uuid.uuid4().hex}"
        stream = self._system.create(self._path(unique), False)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if not self._system.rename(self._path(unique), self._path(name)):
            raise IllegalState(
                "The record with which a query continues cannot be written.",
                state=f"no file can be renamed to {self._folder}/{name}",
                owner="the file system",
                remedy="give this user the right to write there, or another checkpoint_root",
            )

    def entry(self, generation: int, log: str, batch: int) -> str | None:
        """Return the entry of a batch in a log ("offsets" or "commits"); None if there is none."""
        return self._read(f"g{generation}/{log}/{batch}")

    def latest(self, generation: int, log: str) -> int | None:
        """Return the last batch in a log."""
        return max(
            (int(name) for name in self._names(f"g{generation}/{log}") if name.isdigit()), default=None
        )

    def is_stateful(self, generation: int) -> bool:
        """Return whether operators of the query keep state."""
        return any(self._names(f"g{generation}/state"))

    def _path(self, name: str) -> Any:  # noqa: ANN401 - an object of the JVM
        return self._hadoop.Path(f"{self._folder}/{name}" if name else self._folder)

    def _names(self, folder: str) -> Iterator[str]:
        path = self._path(folder)
        if self._system.exists(path):
            for status in self._system.listStatus(path):
                yield str(status.getPath().getName())

    def _read(self, name: str) -> str | None:
        path = self._path(name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
