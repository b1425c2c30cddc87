"""Renewals of a member's session while the member has nothing to say: they take the place of its exchanges.

The coordinator thread makes those of many members with one round trip. A renewal succeeds only if nothing has
changed in the subscription since the member's last exchange. So a wake that was lost is noticed.
"""

from __future__ import annotations

from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import Part, State
from kafkadur_coordinators.redis.short_exchange import Restraint

#: Renewals after which an exchange is made all the same.
_MOST = 60


class Renewal(Part):
    """The renewals of one member. Its methods take the member's lock."""

    def __init__(self, state: State, policy: Policy) -> None:
        """No exchange was made."""
        super().__init__(state)
        self._policy = policy
        #: since the last exchange
        self._made = 0
        self._restraint = Restraint()

    def suffices(self, by: float) -> bool:
        """Whether the session is to be renewed by then (monotonic seconds), and there is nothing to say.

        No time at which an exchange is due comes before.
        """
        schedule, gate, fetch = self._schedule, self._gate, self._fetch
        if schedule.renew_at > by:  # so it is for most members; reading it needs no lock
            return False
        with self._lock:
            if (
                self._made >= _MOST
                or self._restraint.holds
                or gate.blocked
                or gate.is_shut
                or not gate.may_dispatch()
            ):
                return False
            says = self._in_flight.chunks or self._confirmations.waiting or not self._pending.is_answered
            if says or fetch.log_ends or any(lease.gaps for lease in self._leases):
                return False
            if any(buffer.position > buffer.reported for buffer in fetch.buffers.values()):
                return False
            next_due = self._policy.next_due
            if (next_due is not None and next_due <= by) or any(self._policy.news()):
                return False
            return schedule.only_renews(by)

    def made(self, sent_at: float) -> None:
        """The session was renewed by a call that was sent then (monotonic seconds)."""
        with self._lock:
            self._made += 1
            self._restraint.worked()
            self._gate.last_ok = sent_at
            self._schedule.renewed(sent_at, self._terms.session)

    def failed(self) -> None:
        """A renewal did not suffice, because others are active: exchanges are made for a while."""
        with self._lock:
            self._restraint.slow()
            self._schedule.request_exchange()

    def exchanged(self) -> None:
        """An exchange was answered. Called with the member's lock held."""
        self._made = 0
        self._restraint.count()
