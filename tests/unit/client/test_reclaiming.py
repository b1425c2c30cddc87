"""What a member keeps over a loss of the shared state, and what it makes of the answer to its claim."""

from typing import cast

import pytest
from confluent_kafka import Message

from kafkadur.consumer.chunk import (
    ACKED,
    HANDED,
    LOST,
    RELEASE_SENT,
    RELEASED,
    RETURNED,
    ROLLED_BACK,
    SENT,
    Chunk,
    Lease,
)
from kafkadur.consumer.losses import claim, keep, take_over
from kafkadur.consumer.member import Member
from kafkadur.consumer.turn import LaneGroup
from kafkadur_coordinators.interface import (
    PRESENCE_GRACE,
    Claimed,
    Exchange,
    How,
    PartitionReport,
    Returned,
    Settled,
)
from kafkadur_sharing.errors import KafkadurError, LeaseLost
from tests.unit.client import test_member


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
    one = chunk(SENT, SENT, RETURNED, RELEASE_SENT, RETURNED, HANDED)
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


@pytest.mark.parametrize("own", [True, False])
def test_an_acknowledgement_arrived_only_if_no_other_member_had_the_lease(*, own: bool) -> None:
    """Otherwise the acknowledgement of that member may have arrived instead."""
    one = chunk(SENT, ACKED)
    keep([one], exchange(PartitionReport(partition=0, settled=[Settled(7, (10, 11))])))
    answer = Claimed(token=9, held=(11, 12), settled=(10, 11), attached=0)
    hands, acks = take_over(one, lease(9), answer, own=own)
    assert list(one.verdicts) == [SENT if own else LOST, ACKED]
    assert (hands, acks) == (0, 0 if own else 1)


class Caller:
    """Waits for the outcome of an acknowledgement."""

    def __init__(self) -> None:
        self.outcomes: list[KafkadurError | None] = []

    def resolve(self, error: KafkadurError | None) -> None:
        self.outcomes.append(error)


def waiting() -> tuple[test_member.Driver, Caller]:
    """A member that was heard at 1.0, and a caller whose acknowledgement is not answered."""
    driver, caller = test_member.Driver(partitions=1), Caller()
    driver.attach(0, 1)
    driver.exchange(0, 1, [test_member.state(0, next_=1, readable_end=1)], [test_member.lease(1, 0, 0, 1)])
    driver.records(0, range(1))
    member, (chunk, first, _) = driver.member, driver.block()
    assert chunk.acknowledge(first)
    member.verdicts.confirm(chunk, caller, acks=1)
    member.request_exchange()
    assert member.build(driver.now) is not None, "an exchange that is not answered"
    return driver, caller


@pytest.mark.parametrize(
    ("since", "pause", "away", "attached", "arrived"),
    [
        pytest.param(PRESENCE_GRACE - 0.1, True, 5.0, 0, True, id="told at once"),
        pytest.param(PRESENCE_GRACE, True, 5.0, 0, False, id="not heard for a while"),
        pytest.param(3.0, False, 5.0, 0, True, id="heard all the time"),
        pytest.param(PRESENCE_GRACE, True, 5.0, 1, True, id="not heard for a while, but attached"),
        pytest.param(PRESENCE_GRACE, True, 10.0, 1, False, id="away for a session"),
        pytest.param(0.0, True, 10.0, 0, False, id="told at once, and away for a session"),
    ],
)
def test_an_acknowledgement_without_an_answer(
    *, since: float, pause: bool, away: float, attached: int, arrived: bool
) -> None:
    """It had arrived if the offset is settled and no other member can have been granted it.

    The member learns of the loss `since` seconds after its last exchange; with `pause` other processes did
    not hear it all the time. Its claim is answered `away` seconds after that exchange.
    """
    driver, caller = waiting()
    member = driver.member
    driver.now = 1.0 + since
    driver.heard_since = driver.now if pause else 0.0
    member.lose("the state was lost", keep=True)
    assert member.was_heard == (since < PRESENCE_GRACE or not pause)
    ((claimed, _),) = member.claims()[0]
    driver.now = 1.0 + away
    member.reclaimed([(claimed, Claimed(token=0, held=(), settled=(0, 1), attached=attached))])
    (outcome,) = caller.outcomes
    assert outcome is None if arrived else isinstance(outcome, LeaseLost)


def test_a_member_that_was_away_for_a_session_claims_nothing() -> None:
    """Its session may have ended before the loss, and another member may have settled its messages."""
    driver, caller = waiting()
    driver.now = 11.0
    driver.member.lose("the state was lost", keep=True)
    assert driver.member.claims() == {}
    (outcome,) = caller.outcomes
    assert isinstance(outcome, LeaseLost)


def test_a_second_loss_ends_the_claims_of_the_first_after_a_session() -> None:
    driver, caller = waiting()
    driver.now = 2.0
    driver.member.lose("the state was lost", keep=True)
    assert driver.member.claims()
    driver.now = 11.0
    driver.member.lose("the state was lost again", keep=True)
    assert driver.member.claims() == {}
    (outcome,) = caller.outcomes
    assert isinstance(outcome, LeaseLost)
