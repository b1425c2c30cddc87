"""A snapshot: the whole settled state of a subscription at one moment, as a value and as a file.

It lists by partition what was settled, what waited, and the counted attempts. `changes.py` takes and restores
snapshots.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from kafkadur_coordinators.settlement_states import SettlementState, Waiting
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.readable_text import without_prefix

#: Size of the largest file that is read, bytes.
_LARGEST = 256 * 1024 * 1024
#: Most counted attempts that the shared state can hold.
_MOST_ATTEMPTS = 16_383

Offset = Annotated[int, Field(ge=0, lt=2**48)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WaitingRange(_Value):
    """Offsets [start, end) below `next` that were not settled."""

    start: Offset
    end: Offset
    #: Counted attempts.
    attempts: Annotated[int, Field(ge=0, le=_MOST_ATTEMPTS)] = 0
    #: Whether they may have been delivered before.
    redelivered: bool = False
    #: Ms since 1970 until which they are delayed; 0: they are not.
    due: Offset = 0
    #: Whether their last holder ended uncleanly.
    suspect: bool = False


class PartitionSnapshot(_Value):
    """One partition: every offset below `next` was settled except those that waited; none at or above it."""

    partition: NonNegativeInt
    next: Offset
    #: Offsets below this one may have been delivered before.
    seen: Offset = 0
    waiting: tuple[WaitingRange, ...] = ()

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        last = 0
        for item in self.waiting:
            if not last <= item.start < item.end <= self.next:
                msg = f"[{item.start}, {item.end}) of partition {self.partition} is out of order or too far"
                raise ValueError(msg)
            last = item.end
        return self


class Snapshot(_Value):
    """The settled state of a subscription at one moment."""

    format: Literal["kafkadur-snapshot-1"] = "kafkadur-snapshot-1"
    subscription: str
    topic: str
    #: Kafka's id of the topic: offsets mean nothing in another one of its name.
    topic_id: str
    #: Ms since 1970, by the server's clock.
    taken: NonNegativeInt
    #: The definition at that time, for information; restoring does not change the definition.
    definition: dict[str, Any]
    partitions: tuple[PartitionSnapshot, ...]

    @model_validator(mode="after")
    def _check_partitions(self) -> Self:
        if len({item.partition for item in self.partitions}) < len(self.partitions):
            msg = "a partition is named twice"
            raise ValueError(msg)
        return self

    @property
    def settlements(self) -> dict[int, SettlementState]:
        """The state by partition, as the shared state takes it."""
        return {
            item.partition: SettlementState(
                next=item.next,
                seen=item.seen,
                waiting=tuple(Waiting(**dict(waiting)) for waiting in item.waiting),
            )
            for item in self.partitions
        }

    def save(self, path: Path) -> None:
        """Write it as JSON; an existing file is replaced only by a complete one."""
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(self.model_dump_json(indent=1, exclude_defaults=False) + "\n", encoding="utf-8")
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> Snapshot:
        """Read one from a file. Raises `IllegalState` if the file is no snapshot."""
        try:
            if path.stat().st_size > _LARGEST:
                raise IllegalState(f"{path} is too large for a snapshot.", remedy="name another file")
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise IllegalState(
                f"{path} cannot be read: {error.strerror}.", remedy="name another file"
            ) from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            text = without_prefix(first["msg"])
            raise IllegalState(
                f"{path} is no snapshot of a subscription.",
                state=f"{where}: {text}" if where else text,
                remedy="name a file that `kafkadur sub snapshot` wrote",
            ) from error


def partition_snapshot(partition: int, settlement: SettlementState) -> PartitionSnapshot:
    """Return the settlement state of one partition as part of a snapshot."""
    waiting = tuple(WaitingRange(**item._asdict()) for item in settlement.waiting)
    return PartitionSnapshot(partition=partition, next=settlement.next, seen=settlement.seen, waiting=waiting)
