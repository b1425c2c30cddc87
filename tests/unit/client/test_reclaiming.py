"""What a member keeps over a loss of the shared state, and what it makes of the answer to its claim."""

from typing import cast

import pytest
from confluent_kafka import Message

from kafkadur.consumer.chunk import ACKED, HANDED, LOST, RELEASED, RETURNED, ROLLED_BACK, SENT, Chunk, Lease
from kafkadur.consumer.losses import claim, keep, take_over
from kafkadur.consumer.member import Member
from kafkadur.consumer.turn import LaneGroup
from kafkadur_coordinators.interface import Claimed, Exchange, How, PartitionReport, Returned, Settled


def lease(token: int = 7) -> Lease:
    """A lease on [10, 16) of partition 0, at its second attempt."""
    return Lease(
        token=token,
        incarnation=1,
        partition=0,
        start=10,
        end=16,
        attempts=1,
        redelivered=True,
        lane=False,
        group=LaneGroup(),
        seen=0,
    )


def chunk(*verdicts: int) -> Chunk:
    """Records from offset 10 on with these verdicts, all handed out."""
    made = Chunk(
        cast("Member", None), lease(), [cast("Message", None)] * len(verdicts), 10, None, size=len(verdicts)
    )
    made.verdicts[:] = bytes(verdicts)
    made.handed = len(verdicts)
    return made


def exchange(part: PartitionReport) -> Exchange:
    """An exchange that says this of one partition."""
    return Exchange(number=3, credit=0, have=0, ask_presence=False, span=0, parts=[part], handover=False)


def test_what_an_unanswered_exchange_said_is_said_again() -> None:
    one = chunk(SENT, SENT, RETURNED, RETURNED, RETURNED, HANDED)
    said = PartitionReport(
        partition=0,
        settled=[Settled(7, (11, 12))],
        returned=[Returned(7, 12, 13, How.ROLLED_BACK, 250), Returned(7, 13, 14, How.RELEASED)],
    )
    kept, unsent = keep([one], exchange(said))
    assert (kept, unsent) == ([one], 1)
    assert list(one.verdicts) == [SENT, ACKED, ROLLED_BACK, RELEASED, RETURNED, HANDED]
    assert one.delays == {2: 250}
    assert claim(one).held == [11, 14, 15, 16]
    assert claim(one).marks == 3


def test_nothing_is_claimed_of_what_was_answered() -> None:
    assert keep([chunk(SENT, RETURNED, SENT)], None) == ([], 0)


@pytest.mark.parametrize("in_time", [True, False])
def test_who_was_away_too_long_does_not_know_who_settled(*, in_time: bool) -> None:
    """Its lease may have been over, and somebody else's acknowledgement arrived."""
    one = chunk(SENT, ACKED)
    keep([one], exchange(PartitionReport(partition=0, settled=[Settled(7, (10, 11))])))
    answer = Claimed(token=9, held=(11, 12), settled=(10, 11))
    hands, acks = take_over(one, lease(9), answer, in_time=in_time)
    assert list(one.verdicts) == [SENT if in_time else LOST, ACKED]
    assert (hands, acks) == (0, 0 if in_time else 1)
