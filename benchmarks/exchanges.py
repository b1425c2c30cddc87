"""Subscriptions that are laid straight into Redis, and members whose exchanges are timed.

`holes.py` and `growth.py` measure with them. No Kafka is needed: the members say what they have read.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from kafkadur_coordinators.changes import CHANGE_MS
from kafkadur_coordinators.interface import Exchange, How, PartitionReport, Returned, Settled
from kafkadur_coordinators.redis.coordinator import RedisCoordinator, SubscriptionAddress
from kafkadur_coordinators.redis.member_session import MemberSession
from kafkadur_coordinators.redis.wire import ChangeRequest, InstallRequest, Laid, PartitionsRequest, Policy
from kafkadur_coordinators.settlement_states import SettlementState, Waiting, earliest, packed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkadur_coordinators.interface import ExchangeReply, Grant

_ID, _STATE, _TOKEN = "0.laid", "topic-1", "token"
#: Messages wait for so long, ms.
FAR_MS = 86_400_000


def new_address() -> SubscriptionAddress:
    """Return the address of a subscription that does not exist yet."""
    return SubscriptionAddress(prefix="kafkadur", namespace="laid", tag=uuid.uuid4().hex[:16])


def lay(
    coordinator: RedisCoordinator, address: SubscriptionAddress, *, partitions: int = 1, holes: int = 0
) -> None:
    """Create a shared subscription; in each of its partitions every second message waits, `holes` in all."""
    due = round(time.time() * 1000) + FAR_MS
    waiting = tuple(Waiting(2 * n, 2 * n + 1, 1, redelivered=True, due=due + n) for n in range(holes))
    state = SettlementState(next=2 * holes, waiting=waiting)
    laid = [Laid(p, state.next, 0, packed(state), earliest(state)) for p in range(partitions)]
    install = InstallRequest(
        id=_ID,
        version=1,
        definition='{"topic_id": "topic-1"}',
        type="shared",
        partitions=partitions,
        incarnation=1,
        token=_TOKEN,
        quiet=0,
        policy=Policy(0, 0, 0, 0, 1, 0),
        anew=0,
        unclaimed=0,
    )
    common, keys = coordinator.common(), address.fixed()
    coordinator.call("change", keys, [*common, *ChangeRequest(0, _TOKEN, CHANGE_MS)])
    places = [key for p in range(partitions) for key in address.partition(_ID, _STATE, p)]
    coordinator.call(
        "partitions", [*keys, *places], [*common, *PartitionsRequest(laid, _TOKEN, partitions, 1)]
    )
    coordinator.call("install", keys, [*common, *install])


class Taker:
    """A member that takes messages of partition 0 and settles them."""

    def __init__(
        self,
        coordinator: RedisCoordinator,
        address: SubscriptionAddress,
        *,
        end: int = 0,
        name: str = "m",
        besides: int = 0,
    ) -> None:
        """Attach; the messages before offset `end` were read by others.

        `besides`: further partitions that each exchange names.
        """
        self._besides = [PartitionReport(partition=1 + p) for p in range(besides)]
        self._session = MemberSession(coordinator, address, subscription_id=_ID, state=_STATE, member=name)
        self._session.attach(name=name, session_ms=600_000, version=1, most=0)
        self._coordinator, self._address = coordinator, address
        self._number = self._have = 0
        self._end = end
        #: how long the last exchange took, ms
        self.took_ms = 0.0

    def _say(self, report: PartitionReport, credit: int) -> ExchangeReply:
        self._number += 1
        exchange = Exchange(
            number=self._number,
            credit=credit,
            have=self._have,
            ask_presence=False,
            span=credit,
            parts=[report, *self._besides],
        )
        began = time.perf_counter()
        reply = self._session.exchange(exchange)
        self.took_ms = (time.perf_counter() - began) * 1000
        return reply

    def take(self, count: int) -> Grant:
        """Read so many new messages, and have them granted."""
        self._end += count
        reply = self._say(PartitionReport(partition=0, readable_end=self._end), count)
        (grant,) = reply.grants
        self._have = grant.token
        return grant

    def settle(self, grant: Grant, *, rolled_back: range = range(0)) -> None:
        """Settle what was granted; some messages of it, by their number, are rolled back for long instead."""
        start, stop = grant.start + rolled_back.start, grant.start + rolled_back.stop
        ranges = (grant.start, start, stop, grant.horizon) if rolled_back else (grant.start, grant.horizon)
        returned = [
            Returned(self._have, offset, offset + 1, int(How.ROLLED_BACK), FAR_MS + offset)
            for offset in range(start, stop)
        ]
        settled = [Settled(grant.token, ranges)]
        report = PartitionReport(partition=0, settled=settled, returned=returned, done=[grant.token])
        self._say(report, 0)

    def inspect(self, partitions: int) -> None:
        """Read the state of so many partitions, as a checkpoint does."""
        self._coordinator.inspect(self._address, _ID, _STATE, range(partitions))

    def renew(self) -> None:
        """Renew the session, as a member does that has nothing to say."""
        call = self._session.renewing()
        if call is None or self._coordinator.run_many([call])[0].code != "OK":
            message = "the session could not be renewed"
            raise RuntimeError(message)

    def exchanges(self, rounds: int, window: int, rolled_back: range = range(0)) -> Iterator[float]:
        """Take and settle windows; yield how long each exchange took, ms."""
        for _ in range(rounds):
            grant = self.take(window)
            yield self.took_ms
            self.settle(grant, rolled_back=rolled_back)
            yield self.took_ms


def server_cpu_s(admin: Any) -> float:  # noqa: ANN401 - the stubs of redis say too little
    """Return the CPU time of the server since its start, s."""
    told = admin.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


def server_ms(admin: Any) -> float:  # noqa: ANN401 - the stubs of redis say too little
    """Return the mean time of a script in the server since its statistics were reset, ms."""
    return float(admin.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]) / 1000
