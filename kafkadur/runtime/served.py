"""A member that the coordinator thread serves, and how it fails by a defect."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kafkadur.consumer.member import Member
from kafkadur_coordinators.interface import Rank
from kafkadur_coordinators.lifecycle import Membership
from kafkadur_coordinators.redis.member_session import MemberSession
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.errors import InternalError

_log = logging.getLogger("kafkadur.coordinator")


@dataclass(kw_only=True)
class Served:
    """An attached member, and the parameters with which it attaches."""

    member: Member
    request: Request
    membership: Membership
    name: str
    rank: Rank
    #: the transacted session that it belongs to; empty: none
    session_name: str
    #: asks Kafka where the partitions of the topic end for readers of committed messages; blocks
    ends: Callable[[], Mapping[int, int]] = dict
    #: called when it is attached again: others may have ended the session's transaction in Kafka
    taken_over: Callable[[], None] = lambda: None
    #: earliest time of the next exchange (monotonic seconds), after the server did not answer
    retry_at: float = 0.0
    #: when it is to be served next, and looked at next (monotonic seconds)
    due: float = 0.0
    look_at: float = 0.0
    #: earliest time at which it is looked for news of this member that nobody asked for (monotonic seconds)
    around_at: float = 0.0
    #: the kind of error that was logged last, and when (monotonic seconds)
    trouble: str = ""
    told_at: float = 0.0
    #: its leases were lost, and it is not attached again yet: it makes no exchange before that
    detached: bool = False

    def lose(self, reason: str, *, keep: bool = False) -> None:
        """As `Member.lose`; it has to be attached again."""
        self.detached = True
        self.member.lose(reason, keep=keep)

    @property
    def session(self) -> MemberSession:
        """The member's calls."""
        return self.membership.session


def fail_by_defect(member: Member, defect: Exception) -> None:
    """Fail a member with a defect that occurred in it. Never raises."""
    _log.error("%s met a defect", member.display, exc_info=defect)
    try:
        member.fail(InternalError.by(defect, f"subscription {member.display}"))
    except Exception:  # noqa: BLE001 - the other members are to be served
        _log.exception("telling %s of it", member.display)
