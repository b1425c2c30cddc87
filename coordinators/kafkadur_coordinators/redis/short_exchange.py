"""Exchanges of a member that is alone, made by the short script `confirm` where they say nothing unusual.

Nearly every exchange of such a member settles the next offsets of a partition and says nothing else.
`confirm` makes it in a third of the time that `exchange` takes in the server. Where the state is not as
usual, it changes nothing and answers SLOW; then the same exchange is made by `exchange`.
"""

from __future__ import annotations

from kafkadur_coordinators.interface import (
    Exchange,
    ExchangeReply,
    Grant,
    PartitionReport,
    PartitionState,
    Standing,
)
from kafkadur_coordinators.redis.wire import ConfirmReply, ConfirmRequest

#: Most exchanges after SLOW for which a short script is not tried.
_MOST_PASSED = 64


class Restraint:
    """Leaves a short script out after it has answered SLOW, for 1, 2, 4, ... exchanges."""

    def __init__(self) -> None:
        """Nothing is left out."""
        self._passed = self._to_pass = 0

    def slow(self) -> None:
        """The script has answered SLOW: leave it out for a while, longer each time."""
        self._passed = min(max(2 * self._passed, 1), _MOST_PASSED)
        self._to_pass = self._passed

    def worked(self) -> None:
        """The script has done its work: the next time begins with one exchange."""
        self._passed = 0

    @property
    def holds(self) -> bool:
        """Whether the script is left out now."""
        return self._to_pass > 0

    def count(self) -> None:
        """An exchange was made without it."""
        self._to_pass = max(self._to_pass - 1, 0)


class ShortExchange:
    """The short exchanges of one attachment."""

    def __init__(self) -> None:
        """No exchange was made: the first one is not short."""
        self._last: ExchangeReply | None = None
        self._restraint = Restraint()

    def made(self, reply: ExchangeReply) -> None:
        """An exchange was made that was not short."""
        self._last = reply

    def slow(self) -> None:
        """`confirm` answered SLOW: leave it out for a while."""
        self._restraint.slow()

    def request(self, exchange: Exchange, attachment: int) -> ConfirmRequest | None:
        """Return the exchange as `confirm` takes it; None if it is not to be short."""
        if self._last is None or self._last.role.members != 1 or len(exchange.parts) != 1:
            return None
        part = exchange.parts[0]
        if exchange.ask_presence or exchange.handover or not _is_plain(part):
            return None
        if self._restraint.holds:
            self._restraint.count()
            return None
        settled = part.settled[0]
        start, stop = settled.ranges
        return ConfirmRequest(
            number=exchange.number,
            attachment=attachment,
            credit=exchange.credit,
            have=exchange.have,
            span=exchange.span,
            partition=part.partition,
            readable_end=part.readable_end,
            position=part.position,
            epoch=part.epoch,
            token=settled.token,
            start=start,
            stop=stop,
            ends=len(part.done),
            reserve=part.reserve,
        )

    def answer(self, request: ConfirmRequest, found: ConfirmReply) -> ExchangeReply:
        """Return what `exchange` would have answered."""
        self._restraint.worked()
        last = self._last
        assert last is not None  # noqa: S101 - there was a request
        granted: list[Grant] = []
        if found.granted:
            granted = [
                Grant(
                    token=found.token,
                    partition=request.partition,
                    start=found.next - found.granted,
                    horizon=found.next,
                    attempts=0,
                    redelivered=False,
                    kind="range",
                    seen=found.seen,
                )
            ]
        state = PartitionState(
            partition=request.partition,
            base=found.base,
            next=found.next,
            readable_end=found.readable_end,
            floor=found.base,
            due_ms=-1,
            free_from=found.next,
            epoch=found.epoch,
        )
        return ExchangeReply(
            token=found.token,
            silent_ms=None,
            role=last.role._replace(partitions=found.partitions),
            grants=granted,
            horizons={request.token: found.horizon} if found.horizon else {},
            refused=(),
            partitions=(state,),
            watches=last.watches,
            orphaned=(),
            grace_ms=0,
            standing=Standing.ACTIVE if found.horizon else Standing.STANDBY,
            held=None,
            paused=False,
        )


def _is_plain(part: PartitionReport) -> bool:
    """Whether a report settles one range of one lease, and says nothing else that is unusual."""
    if len(part.settled) != 1 or part.returned or part.drained or part.expired or part.expired_read:
        return False
    settled = part.settled[0]
    return (
        len(settled.ranges) == 2  # noqa: PLR2004 - start and end
        and not settled.blob
        and part.log_end < 0
        and (not part.done or list(part.done) == [settled.token])
    )
