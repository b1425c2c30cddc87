"""The parts of a member that have rules, each made with the parts that it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from confluent_kafka import Message

from kafkadur.consumer.answers import Answers
from kafkadur.consumer.chunk import Chunk, Lease, Owner
from kafkadur.consumer.composer import Composer
from kafkadur.consumer.following import Follower
from kafkadur.consumer.gaps import Gaps
from kafkadur.consumer.intake import Intake
from kafkadur.consumer.lag import Lag
from kafkadur.consumer.losses import Losses
from kafkadur.consumer.policy.choose import dispatcher_of
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.rejections import Rejections
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import State
from kafkadur.runtime.dead_letters import Letter
from kafkadur_sharing.errors import KafkadurError


class Host(Owner, Protocol):
    """The member, as its parts call it."""

    def fail(self, error: KafkadurError) -> None:
        """The member cannot go on."""


class Parts:
    """The parts of one member; they share its state and are called with its lock held."""

    def __init__(
        self,
        state: State,
        kind: type[Policy],
        member: Host,
        *,
        on_ready: Callable[[], None],
        write_dead_letter: Callable[[Letter], None],
    ) -> None:
        """Connect the parts of `member`, whose policy is of class `kind`; callbacks are those of `Member`."""
        self._state = state
        self._member = member
        gaps = Gaps(state)
        self.policy = policy = kind(state, gaps)
        self.rejections = Rejections(state, write=write_dead_letter)
        self.lag = Lag(state, policy=policy)
        self.dispatcher = dispatcher_of(state, policy, self.lag, self._chunk)
        self.composer = Composer(state, policy=policy, rejections=self.rejections)
        self.losses = Losses(state, policy=policy, lag=self.lag, clear=self._clear)
        router = Router(state, policy=policy, gaps=gaps, rejections=self.rejections, chunk=self._chunk)
        self.answers = Answers(
            state,
            policy=policy,
            router=router,
            follower=Follower(state, policy=policy, router=router),
            lag=self.lag,
            composer=self.composer,
        )
        #: what the readers call
        self.intake = Intake(state, router=router, policy=policy, ready=on_ready, fail=member.fail)

    def _chunk(
        self, lease: Lease, messages: list[Message], first: int, offsets: list[int] | None, size: int
    ) -> Chunk:
        return Chunk(self._member, lease, messages, first, offsets, size=size)

    def _clear(self) -> None:
        """Forget leases, records and verdicts: the leases were lost."""
        self._state.clear()
        for part in (self.policy, self.composer, self.answers):
            part.clear()
