"""Reports of recoveries: records of the journal with the exact offsets that may be delivered again.

A report is written after the state of a subscription was rebuilt; the last one of each subscription is kept.
Pure; `rebuilding.py` recovers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kafkadur_coordinators.journal.records import MOST, sealed, unsealed
from kafkadur_coordinators.settlement_states import SettlementState
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import SubscriptionKey

KEY_PREFIX = b"recovery/"
#: Ranges that one report lists at most; the offsets of the others are counted.
MOST_RANGES = 5_000
#: An offset or a count.
Count = Annotated[int, Field(ge=0, le=MOST)]
#: Latest time, ms since 1970: some thousand years from now, and still a date.
_LATEST = 2**47


class Cause(StrEnum):
    """Why a subscription was recovered."""

    #: Redis had no state of it: wiped, another database, an empty server
    LOST = "lost"
    #: the server restarted, or another one took over, and had kept its state
    KEPT = "kept"
    #: the server had kept an older copy: newer facts were added from the journal
    OLDER = "older"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionRecovery:
    """Offsets of one partition or lane of keys that may be delivered again."""

    partition: Count
    #: of a key-ordered subscription: which lane of the partition
    lane: Count = 0
    #: lowest unsettled offset
    floor: Count
    #: start, end (exclusive): offsets that were possibly delivered, even settled, and are delivered (again)
    ranges: tuple[tuple[Count, Count], ...] = ()
    #: how many offsets may be delivered again, unlisted ones included
    offsets: Count = 0


class Recovery(BaseModel):
    """One recovery of one subscription."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal[1] = 1
    kind: Literal["recovery"] = "recovery"
    #: the subscription's key, its parts by name
    key: dict[str, Any]
    tag: str
    id: str
    incarnation: Count
    #: ms since 1970
    at: Annotated[int, Field(ge=0, le=_LATEST)]
    cause: Cause
    partitions: tuple[PartitionRecovery, ...]

    @field_validator("key")
    @classmethod
    def _readable(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            return SubscriptionKey.from_record(value).to_record()
        except KafkadurError as error:
            raise ValueError("it names no subscription") from error

    @property
    def subscription(self) -> SubscriptionKey:
        """The subscription's key."""
        return SubscriptionKey.from_record(self.key)

    @property
    def offsets(self) -> int:
        """How many offsets may be delivered again, gaps and messages of other keys included."""
        return sum(item.offsets for item in self.partitions)


def key_of(tag: str) -> bytes:
    """Key of the record: the last one stays."""
    return KEY_PREFIX + tag.encode()


def encode(recovery: Recovery) -> bytes:
    """One report as the value of a record."""
    return sealed(recovery.model_dump(mode="json"))


def decode(value: bytes) -> Recovery | None:
    """Read one; None if it is damaged or of a format that this version does not know."""
    try:
        return Recovery.model_validate(unsealed(value))
    except (ValueError, KeyError, TypeError, ValidationError, RecursionError):
        return None


def may_come_again(settlements: Mapping[int, SettlementState], lanes: int) -> tuple[PartitionRecovery, ...]:
    """Unsettled offsets below `seen` or marked as redelivered, by lane; `lanes`: lanes per partition."""
    found: list[PartitionRecovery] = []
    left = MOST_RANGES
    for number, settlement in sorted(settlements.items()):
        ranges = _again(settlement)
        if not ranges:
            continue
        partition, lane = divmod(number, lanes)
        listed = tuple(ranges[:left])
        left -= len(listed)
        found.append(
            PartitionRecovery(
                partition=partition,
                lane=lane,
                floor=settlement.floor,
                ranges=listed,
                offsets=sum(end - start for start, end in ranges),
            )
        )
    return tuple(found)


def _again(settlement: SettlementState) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    waiting = [(w.start, w.end if w.redelivered else min(w.end, settlement.seen)) for w in settlement.waiting]
    for start, end in [*waiting, (settlement.next, settlement.seen)]:
        if start < end:
            first = joined.pop()[0] if joined and joined[-1][1] == start else start
            joined.append((first, end))
    return joined
