"""Find the messages that an old selector skipped and a new one takes, by reading the topic once more.

Records that the old selector took are left out: they were delivered, or will be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafkadur.admin.browse import records_of, selected_by
from kafkadur_sharing.definition import Definition
from kafkadur_sharing.errors import IllegalState

#: Most messages that one change of a selector makes unsettled again.
MOST = 1_000_000


class Skipped:
    """The offsets that the old selector skipped and the new one takes, as far as the topic was read."""

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
        """`namespace` and `timeout` are as in `records_of`.

        `on_progress` is called with the number of records read.
        """
        self._kafka = kafka
        self._namespace = namespace
        self._topic = before.topic
        self._old, self._new = selected_by(before), selected_by(after)
        self._timeout = timeout
        self._on_progress = on_progress
        self._read: dict[int, int] = {}
        self._found: dict[int, list[int]] = {}
        self._found_count = self._read_count = 0

    def look(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Read [start, end) of each partition, except what was read before.

        Raises `IllegalState` when more than `MOST` messages are found, and `KafkaUnavailable`.
        """
        if self._old is None:  # everything was taken
            return
        rest = [(p, max(start, self._read.get(p, start)), end) for p, (start, end) in sorted(ranges.items())]
        for message in records_of(
            self._kafka, self._topic, rest, namespace=self._namespace, timeout=self._timeout
        ):
            self._read_count += 1
            if self._read_count % 10_000 == 0:
                self._on_progress(self._read_count)
            if self._old(message) or not (self._new is None or self._new(message)):
                continue
            self._found.setdefault(message.partition() or 0, []).append(message.offset() or 0)
            self._found_count += 1
            if self._found_count > MOST:
                raise IllegalState(
                    f"The new selector takes more than {MOST:,} messages that the old one skipped.",
                    owner=f"topic {self._topic}",
                    remedy="change the selector without bringing them back, and seek to where they begin",
                )
        for partition, _, end in rest:
            self._read[partition] = max(end, self._read.get(partition, 0))
        self._on_progress(self._read_count)

    def found(self, partition: int, end: int) -> list[int]:
        """Return the offsets below `end`, in order."""
        return [offset for offset in self._found.get(partition, []) if offset < end]
