"""The conditions that keep a member from dispatching: it closes, is paused, rests, failed, is not heard."""

from __future__ import annotations

from collections.abc import Callable

from kafkadur.consumer.marks import Marks
from kafkadur.consumer.terms import Terms
from kafkadur_sharing.errors import KafkadurError


class Gate(Marks):
    """The conditions of one member. Reading one takes no lock."""

    def __init__(self, terms: Terms, heard_since: Callable[[], float]) -> None:
        """`heard_since` as in `Callbacks` (`member.py`)."""
        super().__init__()
        self._terms = terms
        self._heard_since = heard_since
        #: whether waiting callers were told that nothing more is dispatched
        self.closing_told = False
        #: whether nothing more is confirmed
        self.left = False
        #: the subscription is paused
        self.paused = False
        #: this member takes no messages: its circuit breaker is open
        self.resting = False
        self.failed: KafkadurError | None = None
        #: a record is dispatched alone after an attempt that failed
        self.failed_alone = False
        #: a transacted session does not know whether Kafka committed its transaction
        self.outcome_unknown = False
        #: closed while an outcome is unknown: it makes no more exchanges, and its leases end with its session
        self.silent = False
        self.clear()

    def clear(self) -> None:
        """The leases were lost; the coordinator has not answered since."""
        #: the coordinator asks for reservations to be given back
        self.asked_back = False
        #: dispatching waits until this process is heard again
        self.blocked = False
        #: when the last exchange that was answered was sent (monotonic seconds)
        self.last_ok = float("-inf")

    @property
    def is_shut(self) -> bool:
        """Whether nothing is ever dispatched again."""
        return self.closing or self.failed is not None

    def is_heard(self) -> bool:
        """Whether other processes hear this one now."""
        return self._heard_since() < float("inf")

    def heard_throughout(self, since: float) -> bool:
        """Whether other processes have heard this one since then (monotonic seconds) without a pause."""
        return since >= self._heard_since()

    def may_dispatch(self) -> bool:
        """Whether this process is still sure to hold its leases.

        It was heard without a pause since the last exchange, which is not older than the session allows.
        """
        if self._terms.monotonic() - self.last_ok >= self._terms.session * 0.9:
            return False
        return self.heard_throughout(self.last_ok)
