"""Replies of scripts (`wire.py`) as values (`interface.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafkadur_coordinators.interface import (
    Grant,
    Inspection,
    LeaseView,
    PartitionState,
    PartitionView,
    Role,
    Run,
    Standing,
)
from kafkadur_coordinators.places import RUN_BYTES, SUSPECT
from kafkadur_coordinators.redis.wire import (
    GrantRow,
    InspectReply,
    LeaseRow,
    Reply,
    RoleRow,
    StateRow,
    ViewRow,
)


def text_of(value: object) -> str:
    """Return text as it came from Redis."""
    return value.decode() if isinstance(value, bytes) else str(value)


def attempts_of(marks: int) -> int:
    """Attempts that were counted."""
    return marks % SUSPECT // 2


def parse_runs(text: bytes) -> tuple[Run, ...]:
    """Read the exceptions of a partition (24 bytes each, see lua/include/runs.lua)."""
    runs = []
    for at in range(0, len(text), RUN_BYTES):
        start = int.from_bytes(text[at : at + 6], "big")
        length = int.from_bytes(text[at + 6 : at + 10], "big")
        marks = int.from_bytes(text[at + 10 : at + 12], "big")
        due = int.from_bytes(text[at + 12 : at + 18], "big")
        token = int.from_bytes(text[at + 18 : at + 24], "big")
        runs.append(
            Run(
                start=start,
                end=start + length,
                attempts=attempts_of(marks),
                redelivered=marks % 2 > 0,
                suspect=marks >= SUSPECT,
                due=due,
                token=token,
            )
        )
    return tuple(runs)


def inspection(reply: Reply) -> Inspection:
    """Read the reply to `RedisCoordinator.inspecting`."""
    found = InspectReply._make(reply.body)
    return Inspection(
        now=reply.now,
        sequence=reply.sequence,
        incarnation=reply.incarnation,
        epoch=found.epoch,
        # a partition without state has a base of -1, and nothing after it
        partitions=tuple(_view(ViewRow._make(row)) for row in found.partitions if row[1] >= 0),
        leases=tuple(_lease(row) for row in map(LeaseRow._make, found.leases)),
    )


def _view(row: ViewRow) -> PartitionView:
    return PartitionView(
        partition=row.partition,
        base=row.base,
        next=row.next,
        readable_end=row.readable_end,
        origin=row.origin,
        decided=row.decided,
        runs=parse_runs(row.runs),
        seen=row.seen,
        bits=row.bits,
        expired=row.expired,
        epoch=row.epoch,
        truncated=row.truncated,
    )


def _lease(row: LeaseRow) -> LeaseView:
    return LeaseView(
        token=row.token,
        partition=row.partition,
        start=row.start,
        horizon=row.horizon,
        member=text_of(row.member),
        marks=row.marks,
        kind=text_of(row.kind),
    )


def grant_of(row: GrantRow) -> Grant:
    """Return a lease as its holder learns of it."""
    return Grant(
        token=row.token,
        partition=row.partition,
        start=row.start,
        horizon=row.horizon,
        attempts=attempts_of(row.marks),
        redelivered=row.marks > 0,
        kind=text_of(row.kind),
        seen=row.seen,
        stretch=row.stretch,
        isolated=bool(row.isolated),
        due_ms=row.due,
    )


def state_of(row: StateRow) -> PartitionState:
    """Return where a partition stands."""
    return PartitionState(
        partition=row.partition,
        base=row.base,
        next=row.next,
        readable_end=row.readable_end,
        floor=row.floor,
        due_ms=row.due,
        standing=Standing(row.standing),
        free_from=row.free_from,
        epoch=row.epoch,
        log_end_unknown=bool(row.log_end_unknown),
    )


def role_of(row: Sequence[Any]) -> Role:
    """Return a member's place among the members."""
    found = RoleRow._make(row)
    return Role(rank=found.rank, members=found.members, neighbour=text_of(found.neighbour))
