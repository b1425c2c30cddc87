"""What the state of a partition says about an offset: a table of cases, and counting offset by offset."""

import random
from typing import Any

import pytest

from kafkadur.admin.explain import Log, OffsetState, backlog, count_within, explain, in_flight, lag, undecided
from kafkadur_coordinators.interface import LeaseView, MemberInfo, PartitionView, Run

NOW = 1_000_000


def member(**changed: Any) -> MemberInfo:
    usual: dict[str, Any] = {
        "id": "m1", "name": "one", "kind": "", "heard": True, "leases": 1, "since": 0, "expires": NOW + 9_000,
        "credit": 5,
    }  # fmt: skip
    return MemberInfo(**usual | changed)


def lease(token: int, start: int, horizon: int, kind: str = "range", holder: str = "m1") -> LeaseView:
    return LeaseView(token, 3, start, horizon, holder, int(kind == "runs"), kind)


def bitmap(origin: int, settled: set[int], size: int = 64) -> bytes:
    bits = bytearray(size // 8)
    for offset in settled:
        bits[(offset - origin) // 8] |= 128 >> (offset - origin) % 8
    return bytes(bits)


#: Offsets 20 to 49 of log [5, 60): 22 and 25 are settled above base, and 12, 14, 15, 25, 26 are set aside.
VIEW = PartitionView(
    partition=3,
    base=20,
    next=50,
    readable_end=45,
    origin=16,
    decided=3,
    runs=(
        Run(12, 13, 1, redelivered=True, due=0, token=0),
        Run(14, 16, 2, redelivered=True, due=0, token=7),
        Run(25, 26, 1, redelivered=True, due=NOW + 500, token=0),
        Run(26, 27, 0, redelivered=True, due=NOW - 1, token=99),
    ),
    seen=24,
    bits=bitmap(16, {22, 25, 26}),
)
LEASES = (
    lease(7, 14, 16, "runs"),
    lease(8, 27, 30),
    lease(9, 40, 50, "lane"),
    lease(10, 30, 33, holder="gone"),
)
LOG = Log(start=13, end=60, subscribed=8)


def ask(offset: int, **changed: Any) -> Any:
    usual: dict[str, Any] = {
        "partition": 3, "view": VIEW, "leases": LEASES, "members": (member(),), "log": LOG, "now": NOW,
    }  # fmt: skip
    return explain(offset, **usual | changed)


@pytest.mark.parametrize(
    ("offset", "state", "attempt", "token"),
    [
        pytest.param(7, OffsetState.BEFORE_START, None, None, id="before the subscription"),
        pytest.param(8, OffsetState.SETTLED, None, None, id="settled and deleted since"),
        pytest.param(12, OffsetState.BEFORE_LOG, 2, None, id="exception that Kafka deleted"),
        pytest.param(13, OffsetState.SETTLED, None, None, id="below base"),
        pytest.param(14, OffsetState.LEASED, 3, 7, id="exception that is held"),
        pytest.param(20, OffsetState.READY, 1, None, id="no lease covers it"),
        pytest.param(22, OffsetState.SETTLED, None, None, id="bit above base"),
        pytest.param(25, OffsetState.READY, 2, None, id="delayed exception"),
        pytest.param(26, OffsetState.READY, 1, None, id="exception of a lease that is no more"),
        pytest.param(27, OffsetState.LEASED, 1, 8, id="start of a range"),
        pytest.param(30, OffsetState.LEASED, 1, 10, id="holder gone"),
        pytest.param(33, OffsetState.READY, 1, None, id="behind a range"),
        pytest.param(44, OffsetState.LEASED, 1, 9, id="lane, readable"),
        pytest.param(45, OffsetState.LEASED, 1, 9, id="lane, reserved"),
        pytest.param(50, OffsetState.READY, 1, None, id="not granted yet"),
        pytest.param(60, OffsetState.BEYOND_END, None, None, id="end"),
    ],
)
def test_state_attempt_and_lease(
    offset: int, state: OffsetState, attempt: int | None, token: int | None
) -> None:
    found = ask(offset)
    assert found.state is state
    assert found.attempt == attempt
    assert (found.lease.token if found.lease else None) == token


def test_delay_is_told_only_while_it_lasts() -> None:
    assert ask(25).due == NOW + 500
    assert ask(25, now=NOW + 500).due is None
    assert ask(12).due is None


def test_what_lies_beyond_avail_is_reserved() -> None:
    assert not ask(44).reserved
    assert ask(45).reserved
    beyond = ask(46, log=Log(start=0, end=46))
    assert (beyond.state, beyond.reserved) == (OffsetState.BEYOND_END, True)
    assert "member one" in beyond.notes[-1]


def test_holder_is_named_or_said_to_be_gone() -> None:
    assert ask(27).holder.name == "one"
    assert ask(27).notes == ()
    assert "not heard" in ask(27, members=(member(heard=False),)).notes[0]
    assert not ask(27).holder_gone
    assert ask(30).holder is None
    assert "gone" in ask(30).notes[0]
    assert ask(30).holder_gone


def test_a_holder_whose_session_has_ended_is_gone_also_while_it_is_listed() -> None:
    for heard in (True, False):
        found = ask(27, members=(member(heard=heard, expires=NOW),))
        assert found.holder.name == "one"
        assert found.holder_gone
        assert found.notes == (
            "Its holder is gone; it comes back as soon as a member looks at this partition.",
        )


def test_redelivery_below_seen_and_of_exceptions() -> None:
    assert ask(23).redelivered
    assert not ask(24).redelivered
    assert ask(14).redelivered


def test_leases_of_other_partitions_say_nothing() -> None:
    other = lease(8, 27, 30)._replace(partition=2)
    assert ask(27, leases=(other,)).state is OffsetState.READY


def test_lease_of_exceptions_covers_its_runs_alone() -> None:
    assert ask(33, leases=(lease(7, 14, 40, "runs"),)).state is OffsetState.READY


def test_partition_that_the_subscription_does_not_know() -> None:
    found = ask(13, view=None, leases=())
    assert found.state is OffsetState.READY
    assert "attaches" in found.notes[0]
    assert ask(60, view=None, leases=()).state is OffsetState.BEYOND_END


def test_counts_of_the_table() -> None:
    members = {"m1": member()}
    # 14 and 15, 27 to 29, 40 to 44; not those of the member that is gone, nor what is reserved.
    assert in_flight(VIEW, LEASES, members) == 2 + 3 + 5
    # 14, 15, 25, 26 set aside (12 is deleted), 27 undecided below next, 10 beyond it.
    assert backlog(VIEW, LOG) == 4 + 27 + 10
    assert lag(VIEW, LOG) == 60 - 13


def test_counting_agrees_with_looking_at_each_offset() -> None:
    rng = random.Random(3)
    for _ in range(300):
        origin = 8 * rng.randrange(4)
        base = origin + rng.randrange(20)
        settled = {offset for offset in range(origin, origin + 64) if rng.random() < 0.4}
        view = PartitionView(
            partition=0, base=base, next=origin + 90, readable_end=origin + 90, origin=origin, decided=0,
            runs=(), seen=0, bits=bitmap(origin, settled),
        )  # fmt: skip
        start = rng.randrange(120)
        end = start + rng.randrange(60)
        expected = sum(not view.is_decided(offset) for offset in range(start, end))
        assert undecided(view, start, end) == expected


def test_runs_are_counted_as_one_by_one() -> None:
    places = [(2, 5), (7, 9), (9, 10), (14, 20)]
    runs = [Run(start=start, end=end, attempts=0, redelivered=False, due=0, token=0) for start, end in places]
    offsets = [offset for start, end in places for offset in range(start, end)]
    for start in range(23):
        for end in range(23):
            assert count_within(runs, start, end) == sum(start <= offset < end for offset in offsets)
    assert count_within([], 0, 10) == 0
