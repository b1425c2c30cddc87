"""Says in the log why messages that exist are not delivered: a caller would see only that nothing comes."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from kafkadur.consumer.state import Part, State

_log = logging.getLogger("kafkadur")

#: Seconds that an open transaction may hold messages back before the log says so.
_LONG = 3.0


@dataclass
class _HeldBack:
    """A partition of which messages are behind the begin of an open transaction."""

    position: int
    #: monotonic seconds
    since: float
    told: bool = False


class Hindrances(Part):
    """What keeps messages from one member."""

    def __init__(self, state: State) -> None:
        """Nothing is held back."""
        super().__init__(state)
        self._held_back: dict[int, _HeldBack] = {}

    def attached(self, grace_ms: int) -> None:
        """The member was attached, and nothing is granted to it for at most so long. Needs no lock."""
        if grace_ms > 0:
            _log.warning(
                "Subscription %s delivers nothing until its former members are attached again, at most for "
                "%.1f s: its state in Redis was rebuilt or a transacted member has gone, and members that do "
                "not know it yet may still work on messages.",
                self._terms.display,
                grace_ms / 1000,
            )

    def look(self, now: float, *, paused: bool) -> None:
        """Look whether open transactions hold messages back; `now` is monotonic seconds.

        `paused`: nothing is read, because enough was. Then it is not known.
        """
        before, self._held_back = self._held_back, dict[int, _HeldBack]()
        if paused:
            return
        for partition, buffer in self._fetch.buffers.items():
            if not buffer.position <= buffer.stop < buffer.end:
                continue
            held = before.get(partition)
            if held is None or held.position != buffer.position:
                held = _HeldBack(buffer.position, now)
            self._held_back[partition] = held
            if not held.told and now - held.since >= _LONG:
                held.told = True
                _log.warning(
                    "Subscription %s: %d offsets of %s[%d] wait behind an open transaction. Its producer "
                    "commits or aborts it; if it is gone, Kafka aborts it after its transaction.timeout.ms.",
                    self._terms.display,
                    buffer.end - buffer.position,
                    self._terms.definition.topic,
                    partition // self._terms.definition.lanes,
                )
