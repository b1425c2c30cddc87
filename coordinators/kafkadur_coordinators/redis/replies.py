"""Replies of scripts (`wire.py`) as values (`interface.py`)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, cast

import msgpack

from kafkadur_coordinators.interface import (
    Attached,
    ExchangeReply,
    Grant,
    Inspection,
    Known,
    LeaseView,
    MemberInfo,
    PartitionState,
    PartitionView,
    Pushed,
    Role,
    Run,
    Standing,
)
from kafkadur_coordinators.redis.wire import GrantRow, InspectReply, Push, Reply, read_reply
from kafkadur_coordinators.settlement_states import SUSPECT

#: A message on a member's channel that says nothing.
WAKE = b"w"
#: A run (lua/include/runs.lua); numbers of 6 bytes in two parts.
_RUN = struct.Struct(">HIIHHIHI")


def text_of(value: object) -> str:
    """Return text as it came from Redis."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def attempts_of(marks: int) -> int:
    """Attempts that were counted."""
    return marks % SUSPECT // 2


def parse_runs(text: bytes) -> tuple[Run, ...]:
    """Read the exceptions of a partition (24 bytes each, see lua/include/runs.lua)."""
    runs = []
    for start_high, start_low, length, marks, due_high, due_low, token_high, token_low in _RUN.iter_unpack(
        text
    ):
        start = (start_high << 32) + start_low
        runs.append(
            Run(  # by position: there may be 100,000
                start,
                start + length,
                attempts_of(marks),
                marks % 2 > 0,
                (due_high << 32) + due_low,
                (token_high << 32) + token_low,
                marks >= SUSPECT,
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
        # a partition without state has a base of -1, and no further fields
        partitions=tuple(_view(row) for row in found.partitions if row[1] >= 0),
        leases=tuple(_lease(row) for row in found.leases),
    )


def _view(row: Sequence[Any]) -> PartitionView:
    view: Any = PartitionView._make(row)
    return cast("PartitionView", view._replace(runs=parse_runs(view.runs)))


def _lease(row: Sequence[Any]) -> LeaseView:
    lease = LeaseView._make(row)
    return lease._replace(member=text_of(lease.member), kind=text_of(lease.kind), unarmed=bool(lease.unarmed))


def _member(row: Sequence[Any]) -> MemberInfo:
    member = MemberInfo._make(row)
    return member._replace(
        id=text_of(member.id),
        name=text_of(member.name),
        kind=text_of(member.kind),
        heard=bool(member.heard),
    )


def known(reply: Reply) -> Known:
    """Return what `peek` answers."""
    row: Any = Known._make([*reply.body, reply.incarnation, reply.now])
    found: Known = row._replace(
        definition=text_of(row.definition),
        id=text_of(row.id),
        changing=text_of(row.changing),
        changing_ms=row.changing_ms if row.changing_ms >= 0 else None,
        members=tuple(_member(member) for member in row.members),
        paused=bool(row.paused),
    )
    return found


def attached(reply: Reply) -> Attached:
    """Return what `attach` answers."""
    row = Attached._make([*reply.body, reply.incarnation])
    return row._replace(role=_role(row.role))


def _role(row: Sequence[Any]) -> Role:
    role = Role._make(row)
    return role._replace(neighbour=text_of(role.neighbour))


def exchanged(body: Sequence[Any], *, handed_over: bool) -> ExchangeReply:
    """Return what an exchange brings; `handed_over`: the member has handed_over lanes in it."""
    row: Any = ExchangeReply._make(body)
    reply: ExchangeReply = row._replace(
        silent_ms=row.silent_ms if row.silent_ms >= 0 else None,
        role=_role(row.role),
        grants=[_grant(GrantRow._make(grant)) for grant in row.grants],
        horizons=dict(row.horizons),
        partitions=[_state(state) for state in row.partitions],
        standing=Standing(row.standing),
        held=frozenset(row.held) if handed_over else None,
        paused=bool(row.paused),
        expiry_ms=row.expiry_ms if row.expiry_ms >= 0 else None,
        outcome_unknown=bool(row.outcome_unknown),
    )
    return reply


def pushed(message: bytes) -> Pushed | None:
    """Return what a message on a member's channel grants to it; None: the message only wakes the member."""
    if message == WAKE:
        return None
    try:
        push = Push._make(msgpack.unpackb(message, raw=True))
        head = read_reply(push.reply)
        reply = exchanged(head.body, handed_over=False)
    except (ValueError, TypeError, AttributeError):  # of another version
        return None
    return Pushed(head.incarnation, push.attachment, push.number, reply)


def _state(row: Sequence[Any]) -> PartitionState:
    state = PartitionState._make(row)
    return state._replace(standing=Standing(state.standing), log_end_unknown=bool(state.log_end_unknown))


def _grant(row: GrantRow) -> Grant:
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
