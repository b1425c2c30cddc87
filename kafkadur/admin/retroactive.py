"""What an old selector skipped and a new one takes: found by reading the topic once more.

A user who changes a selector may want it. What was delivered before is not touched: a record that the old
selector took has been delivered, or will be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kafkadur.admin.browse import records
from kafkadur.fetch.filtering import Takes, taking
from kafkadur_sharing.definition import Definition
from kafkadur_sharing.errors import IllegalState

#: Most records that one change of a selector brings back.
MOST = 1_000_000


class Skipped:
    """Offsets that the old selector skipped and the new one takes; read as far as was asked."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        before: Definition,
        after: Definition,
        *,
        namespace: str,
        timeout: float,
        on_progress: Callable[[int], None],
    ) -> None:
        """`namespace`: the reader's; `timeout`: longest silence of Kafka, seconds.

        `on_progress` is told how many records were read.
        """
        self._kafka = kafka
        self._namespace = namespace
        self._topic = before.topic
        self._old, self._new = _selecting(before), _selecting(after)
        self._timeout = timeout
        self._on_progress = on_progress
        self._read: dict[int, int] = {}
        self._found: dict[int, list[int]] = {}
        self._records = 0

    def look(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Read [start, end) of each partition, but what was read before.

        Raises `IllegalState` when there is more than a change can bring back, and `StateLost`.
        """
        if self._old is None:  # everything was taken
            return
        rest = {p: (max(start, self._read.get(p, start)), end) for p, (start, end) in ranges.items()}
        for message in records(
            self._kafka, self._topic, rest, namespace=self._namespace, timeout=self._timeout
        ):
            self._records += 1
            if self._records % 10_000 == 0:
                self._on_progress(self._records)
            if not self._old(message) and (self._new is None or self._new(message)):
                self._found.setdefault(message.partition() or 0, []).append(message.offset() or 0)
                self._check()
        for partition, (_, end) in rest.items():
            self._read[partition] = max(end, self._read.get(partition, 0))
        self._on_progress(self._records)

    def found(self, partition: int, end: int) -> list[int]:
        """Offsets below `end`, in order."""
        return [offset for offset in self._found.get(partition, []) if offset < end]

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(map(len, self._found.values()))

    def _check(self) -> None:
        if self.count > MOST:
            raise IllegalState(
                f"The new selector takes more than {MOST:,} messages that the old one skipped.",
                owner=f"topic {self._topic}",
                remedy="change the selector without bringing them back, and seek to where they begin",
            )


def _selecting(definition: Definition) -> Takes | None:
    """What the selector alone takes; None: everything."""
    return taking(replace(definition, no_local=False), client_id=None, connection_id="")
