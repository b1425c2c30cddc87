"""One shard of the journal: its records in order, decoded on demand.

Single records are decoded by `records.py`, `checkpoints.py` and `recovery_reports.py`; the topic is read
and written in `topic.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kafkadur_coordinators.journal import checkpoints, records, recovery_reports
from kafkadur_coordinators.journal.checkpoints import Checkpoint
from kafkadur_coordinators.journal.records import Entry
from kafkadur_coordinators.journal.recovery_reports import Recovery

#: Keys of records.
SHARDS, CHANGE, INCARNATION = b"shards", b"change/", b"incarnation/"
#: Sessions that settle by transactions: `session/<tag>/<session>/<incarnation>`.
SESSION = b"session/"

#: A record as it was read: offset, key, value, ms since 1970. A plain tuple: there are many, and the garbage
#: collector forgets those that hold nothing but numbers and bytes.
Found = tuple[int, bytes, bytes | None, int]


#: The records of some shards, by number of the shard.
Scan = dict[int, "Shard"]


class Shard:
    """The intact records of one shard; they are decoded on demand."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self.records: list[Found] = []
        self._entries: list[Entry] = []
        self._understood = 0
        self._last: defaultdict[str, dict[bytes, tuple[bytes | None, int]]] = defaultdict(dict)
        self._grouped = 0
        self._sessions: defaultdict[str, dict[bytes, bool]] = defaultdict(dict)
        self._sought = 0

    @property
    def following(self) -> int:
        """Offset to read on from."""
        return self.records[-1][0] + 1 if self.records else 0

    @property
    def entries(self) -> Sequence[Entry]:
        """Changes and incarnations, in order."""
        decoded = (
            records.decode(offset, value)
            for offset, key, value, _ in self.records[self._understood :]
            if value is not None and key.startswith((CHANGE, INCARNATION))
        )
        self._entries += (entry for entry in decoded if entry is not None)
        self._understood = len(self.records)
        return self._entries

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """All checkpoints."""
        return [checkpoint for id_ in self._by_id() for checkpoint in self.checkpoints_of(id_)]

    def checkpoints_of(self, subscription_id: str) -> Sequence[Checkpoint]:
        """The checkpoints of one subscription."""
        last = self._by_id().get(subscription_id, {}).items()
        decoded = (checkpoints.decode(key, value, at) for key, (value, at) in last if value is not None)
        return [checkpoint for checkpoint in decoded if checkpoint is not None]

    def written_of(self, subscription_id: str) -> Mapping[bytes, bytes]:
        """The checkpoints of one subscription as they were written: keys and values."""
        last = self._by_id().get(subscription_id, {}).items()
        return {key: value for key, (value, _) in last if value is not None}

    def last(self, key: bytes) -> bytes | None:
        """The last value under a key."""
        return next((value for _, other, value, _ in reversed(self.records) if other == key), None)

    @property
    def recoveries(self) -> Sequence[Recovery]:
        """The last report of each recovery."""
        last = {
            key: value for _, key, value, _ in self.records if key.startswith(recovery_reports.KEY_PREFIX)
        }
        found = (recovery_reports.decode(value) for value in last.values() if value is not None)
        return [recovery for recovery in found if recovery is not None]

    def sessions_of(self, tag: str) -> Sequence[bytes]:
        """Keys of the records of sessions that settle, or settled, something by transactions."""
        for _, key, value, _ in self.records[self._sought :]:
            if key.startswith(SESSION):
                self._sessions[key[len(SESSION) :].partition(b"/")[0].decode()][key] = value is not None
        self._sought = len(self.records)
        return [key for key, there in self._sessions.get(tag, {}).items() if there]

    def _by_id(self) -> Mapping[str, Mapping[bytes, tuple[bytes | None, int]]]:
        """The last value, and its time, of each key of a checkpoint, by the subscription that it is of."""
        for _, key, value, written in self.records[self._grouped :]:
            if key.startswith(checkpoints.KEY_PREFIX):
                self._last[checkpoints.subscription_of(key)][key] = (value, written)
        self._grouped = len(self.records)
        return self._last


def session_key(tag: str, session: str, incarnation: int) -> bytes:
    """Key of the record of a session that settles something of a subscription by transactions.

    Each incarnation it is attached under has its own, so that removing one removes no later one.
    """
    return SESSION + f"{tag}/{session}/{incarnation}".encode()


def session_of(key: bytes) -> tuple[str, int]:
    """The session that a key is of, and the incarnation it was attached under."""
    _, _, session, incarnation = key.decode().split("/")
    return session, int(incarnation)
