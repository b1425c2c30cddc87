"""The checks are checked: every planted defect is found and named, and what is right is not complained of.

No server runs here. Real histories are in `test_histories.py`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from kafkadur_coordinators.interface import LeaseView, Run
from tests.end_to_end.histories.checking import check
from tests.end_to_end.histories.checks.fairness import waited
from tests.end_to_end.histories.history import Lost, Place
from tests.end_to_end.histories.loading import unmarked
from tests.end_to_end.histories.plan import Plan
from tests.end_to_end.histories.recording import FAIL, OK, UNKNOWN, Recorder, read
from tests.end_to_end.histories.story import STEP, Story

SECOND = 1_000_000_000
STEPS_A_SECOND = SECOND // STEP


def found(story: Story) -> set[tuple[str, str]]:
    return {(finding.invariant, finding.kind) for finding in check(story.history())}


# -- what is right


def test_clean_history_of_a_shared_subscription() -> None:
    story = Story("shared")
    one, two = story.attach("p1", "shared"), story.attach("p2", "shared")
    places = [story.publish("shared") for _ in range(6)]
    first, second = story.deliver(one, places[0]), story.deliver(two, places[1])
    story.settle(second)
    story.settle(first, "rollback")
    story.settle(story.deliver(two, places[0], attempt=2))
    story.settle(story.deliver(one, places[3]), "release")
    story.settle(story.deliver(one, places[3]), "ack_nowait")
    story.floor("shared", 2)
    story.deliver(two, places[2])
    story.fault("kill", "p2")
    story.settle(story.deliver(one, places[2], attempt=2), "reject")
    story.bury(places[2], "rejected", 2)
    late = story.deliver(one, places[4])
    story.fault("flush")
    story.settle(late, outcome=FAIL, error="Fenced")
    story.settle(story.deliver(one, places[1]))  # what was confirmed by Redis may come again after that
    story.settle(story.deliver(one, places[4]))
    story.settle(story.deliver(one, places[5]))
    story.close(one)
    story.floor("shared", 6)
    assert found(story) == set()


@pytest.mark.parametrize("kind", ["exclusive", "priority", "serial", "own-turns", "strict"])
def test_clean_history_of_a_lane(kind: str) -> None:
    story = Story(kind)
    one = story.attach("p1", kind)
    places = [story.publish(kind) for _ in range(5)]
    story.settle(story.deliver(one, places[0]))
    first, second = story.deliver(one, places[1]), story.deliver(one, places[2])
    story.settle(second)
    story.settle(first, "rollback")
    story.settle(story.deliver(one, places[1], attempt=2))
    held = story.deliver(one, places[3])
    story.fault("stop", "p1")
    two = story.attach("p2", kind)
    story.settle(story.deliver(two, places[3], attempt=2))
    story.settle(held, outcome=FAIL, error="Fenced")
    story.settle(story.deliver(two, places[4]))
    assert found(story) == set()


def test_clean_history_of_keys() -> None:
    story = Story("key-ordered")
    one, two = story.attach("p1", "key-ordered"), story.attach("p2", "key-ordered")
    a, b = (story.publish("key-ordered", key="a") for _ in range(2))
    other = story.publish("key-ordered", key="b")
    stuck = story.deliver(one, a)
    story.settle(story.deliver(two, other))
    story.settle(stuck, "rollback")
    story.settle(story.deliver(one, a, attempt=2))
    story.settle(story.deliver(one, b))
    assert found(story) == set()


def test_clean_history_of_a_poison_message() -> None:
    story = Story("exclusive")
    one = story.attach("p1", "exclusive")
    place = story.publish("exclusive")
    for attempt in range(1, 6):
        story.settle(story.deliver(one, place, attempt=attempt), "rollback")
    story.bury(place, "attempts", 5)
    story.floor("exclusive", 1)
    assert found(story) == set()


@pytest.mark.parametrize("kind", ["shared", "exclusive", "serial"])
def test_clean_history_with_times(kind: str) -> None:
    story = Story(kind)
    one = story.attach("p1", kind)
    delayed = story.publish(kind, due=story.now + SECOND)
    expires = story.publish(kind, over=story.now + SECOND)
    story.settle(story.deliver(one, expires), "rollback")  # passes the delayed one, and does not come again
    story.settle(story.deliver(one, story.publish(kind)))
    story.publish(kind, over=story.now + SECOND)  # is never delivered
    story.step(2 * STEPS_A_SECOND)
    story.settle(story.deliver(one, delayed))
    story.inspect(kind, next=4, base=4, readable_end=4)
    story.floor(kind, 4)
    assert found(story) == set()


def lease(token: int, start: int, horizon: int, kind: str = "range") -> LeaseView:
    return LeaseView(token, 0, start, horizon, "m", 0, kind)


def run(start: int, end: int, token: int = 0) -> Run:
    return Run(start=start, end=end, attempts=1, redelivered=True, due=0, token=token)


def test_clean_inspections() -> None:
    story = Story("shared")
    one = story.attach("p1", "shared")
    places = [story.publish("shared") for _ in range(7)]
    story.inspect("shared", readable_end=7)
    first, second, third = (story.deliver(one, place) for place in places[:3])
    story.settle(first)
    story.settle(third)
    story.settle(second, "rollback")
    story.settle(story.deliver(one, places[5]))
    # 1 is ready, 3 leased as new, 4 leased once more, 6 is ready and new
    story.inspect(
        "shared",
        base=3,
        next=6,
        readable_end=7,
        settled=[5],
        runs=[run(1, 2), run(4, 5, token=9)],
        leases=[lease(8, 3, 6), lease(9, 4, 5, "runs")],
    )
    story.fault("flush")
    story.inspect("shared", next=0, readable_end=7)
    for offset in (1, 3, 4, 6):
        story.settle(story.deliver(one, places[offset], attempt=1 + (offset == 1)))
    assert found(story) == set()


def test_what_was_seen_of_an_ended_lease_lies_below_the_bound() -> None:
    story = Story("exclusive")
    one = story.attach("p1", "exclusive")
    held = [story.deliver(one, story.publish("exclusive")) for _ in range(2)]
    story.inspect("exclusive", next=0, readable_end=0, seen=2)
    for delivery in held:
        story.settle(delivery)
    assert found(story) == set()


def crowd() -> tuple[Story, str, str]:
    """Two members of one partition, of which both have called."""
    story = Story("crowd")
    one, two = story.attach("p1", "crowd"), story.attach("p2", "crowd")
    for _ in range(2):  # who is attached is known from the second on
        story.call(one, rank=0)
        story.call(two, rank=1)
    return story, one, two


def test_clean_grants() -> None:
    story, one, two = crowd()
    for _ in range(3):
        story.call(one, rank=0, told=[(0, 1)])
        story.call(two, rank=1, told=[(0, 1)])
    assert found(story) == set()
    assert waited(story.history()) == 6


@pytest.mark.parametrize("why", ["no room", "a fault", "a script that nobody recorded", "others came"])
def test_who_may_be_passed_over(why: str) -> None:
    story, one, two = crowd()
    if why == "no room":
        story.call(two, rank=1, credit=0)
    story.call(one, rank=0, told=[(0, 1)])
    if why == "a fault":
        story.fault("hole", "p2")
    sequence = len(story.calls) + (2 if why == "a script that nobody recorded" else 1)
    members = 3 if why == "others came" else 2
    story.call(one, rank=0, told=[(0, 1)], members=members, sequence=sequence)
    assert found(story) == set()


def test_who_was_passed_over() -> None:
    story, one, _ = crowd()
    story.call(one, rank=0, told=[(0, 1)])
    assert found(story) == set()
    story.call(one, rank=0, told=[(0, 1)])
    assert found(story) == {("I11", "passed over")}


def test_two_grants_in_one_script_pass_over_who_waits() -> None:
    story, one, _ = crowd()
    story.call(one, rank=0, told=[(0, 1), (0, 1)])
    assert found(story) == {("I11", "passed over")}


def test_who_is_not_at_home_comes_after_who_is() -> None:
    story = Story("shared")
    one, two = story.attach("p1", "shared"), story.attach("p2", "shared")
    for _ in range(2):
        story.call(one, rank=0)
        story.call(two, rank=1)
    story.call(two, rank=1, told=[(1, 1)])  # of its own partition
    assert found(story) == set()
    story.call(two, rank=1, told=[(0, 1)])
    assert found(story) == {("I11", "passed over")}


def test_who_reads_on_is_granted_nothing_until_its_next_exchange() -> None:
    story = Story("shared")
    one, two = story.attach("p1", "shared"), story.attach("p2", "shared")
    for _ in range(2):
        story.call(one, rank=0, reads_on=True)
        story.call(two, rank=1)
    story.call(two, rank=1, told=[(0, 1)])
    assert found(story) == set()


def test_a_fault_that_never_happened() -> None:
    story = Story("exclusive")
    story.plan = Plan(seed=0, types=("exclusive",), faults=("kill", "pause"), minutes=1)
    story.fault("kill", "p1")
    assert found(story) == {("run", "fault never injected")}
    story.fault("pause")
    assert found(story) == set()


# -- what is wrong


def lost_message(story: Story, one: str, _two: str) -> None:
    story.publish("exclusive")
    story.settle(story.deliver(one, story.publish("exclusive")))


def left_unsettled(story: Story, one: str, _two: str) -> None:
    story.deliver(one, story.publish("exclusive"))
    story.close(one)


def given_back_for_good(story: Story, one: str, _two: str) -> None:
    story.settle(story.deliver(one, story.publish("exclusive")), "rollback")


def refused_for_good(story: Story, one: str, _two: str) -> None:
    delivery = story.deliver(one, story.publish("exclusive"))
    story.fault("stop", "p1")
    story.settle(delivery, outcome=FAIL, error="Fenced")


def dead_letter_missing(story: Story, one: str, _two: str) -> None:
    story.settle(story.deliver(one, story.publish("exclusive")), "reject")


def poison_without_dead_letter(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    for attempt in range(1, 6):
        story.settle(story.deliver(one, place, attempt=attempt), "rollback")


def invented_message(story: Story, one: str, _two: str) -> None:
    story.settle(story.deliver(one, Place("exclusive", 0, 7)))


def changed_message(story: Story, one: str, _two: str) -> None:
    story.settle(story.deliver(one, story.publish("exclusive"), digest="another"))


def invented_dead_letter(story: Story, _one: str, _two: str) -> None:
    story.bury(Place("exclusive", 0, 7), "attempts", 5)
    for _ in range(5):
        story.fault("kill", "p1")


def token_of_two(story: Story, one: str, two: str) -> None:
    first, second = (story.publish("exclusive") for _ in range(2))
    delivery = story.deliver(one, first)
    story.settle(delivery)
    story.settle(story.deliver(two, second, token=delivery.token))


def delivered_twice(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    delivery = story.deliver(one, place)
    story.settle(story.deliver(one, place, token=delivery.token))


def token_fell(story: Story, one: str, two: str) -> None:
    first, second = (story.publish("exclusive") for _ in range(2))
    story.settle(story.deliver(one, first, token=(1, 90)))
    story.settle(story.deliver(two, second, token=(1, 80)))


def stale_token_accepted(story: Story, one: str, two: str) -> None:
    place = story.publish("exclusive")
    delivery = story.deliver(one, place)
    story.fault("stop", "p1")
    again = story.deliver(two, place, attempt=2)
    story.settle(again, "rollback")
    story.settle(delivery)
    story.settle(story.deliver(two, place, attempt=3))


def settled_came_again(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place))
    story.fault("kill", "p1")  # no fault that forgets
    story.settle(story.deliver(one, place))


def rejected_came_again(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place), "reject")
    story.bury(place, "rejected", 1)
    story.settle(story.deliver(one, place))


def confirmed_by_closing_came_again(story: Story, one: str, two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place), "ack_nowait")
    story.close(one)
    story.settle(story.deliver(two, place))


def forgotten_before_the_last_moments(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place))
    story.step(1_000)
    story.fault("redis-crash")
    story.settle(story.deliver(one, place))


def forgotten_by_the_journal(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place), level="journal")
    story.fault("flush")
    story.settle(story.deliver(one, place))


def two_holders(story: Story, one: str, two: str) -> None:
    first, second = (story.publish("exclusive") for _ in range(2))
    delivery = story.deliver(one, first)
    other = story.deliver(two, second)
    story.settle(delivery)
    story.settle(other)


def two_holders_without_reason(story: Story, one: str, two: str) -> None:
    first, second = (story.publish("exclusive") for _ in range(2))
    delivery = story.deliver(one, first)
    story.settle(story.deliver(two, second))
    story.settle(delivery, "ack_nowait")
    story.settle(story.deliver(two, first, attempt=1))


def order_of_a_lane(story: Story, one: str, _two: str) -> None:
    first, second = (story.publish("exclusive") for _ in range(2))
    story.settle(story.deliver(one, second))
    story.settle(story.deliver(one, first))


def order_over_a_handover(story: Story, one: str, two: str) -> None:
    first, second = (story.publish("exclusive") for _ in range(2))
    story.settle(story.deliver(one, second))
    story.settle(story.deliver(two, first))


def before_its_time(story: Story, one: str, _two: str) -> None:
    story.settle(story.deliver(one, story.publish("exclusive", due=story.now + SECOND)))


def after_its_expiration(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive", over=story.now + SECOND)
    story.step(2 * STEPS_A_SECOND)
    story.settle(story.deliver(one, place))


def settled_before_its_expiration(story: Story, one: str, _two: str) -> None:
    first = story.publish("exclusive")
    story.publish("exclusive", over=story.now + 10 * SECOND)
    story.inspect("exclusive", next=2, readable_end=2, settled=[1], leases=[lease(1, 0, 2)])
    story.settle(story.deliver(one, first))
    story.floor("exclusive", 2)


def window_exceeded(story: Story, one: str, _two: str) -> None:
    held = [story.deliver(one, story.publish("exclusive")) for _ in range(6)]
    for delivery in held:
        story.settle(delivery)


def beyond_the_limit(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    for attempt in range(1, 6):
        story.settle(story.deliver(one, place, attempt=attempt), "rollback")
    story.settle(story.deliver(one, place, attempt=6))


def attempt_invented(story: Story, one: str, _two: str) -> None:
    story.settle(story.deliver(one, story.publish("exclusive"), attempt=2))


def attempt_forgotten(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place), "rollback")
    story.settle(story.deliver(one, place))


def not_marked(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place), "release")
    story.settle(story.deliver(one, place, redelivered=False))


def dead_letter_too_early(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place), "rollback")
    story.bury(place, "attempts", 2)


def dead_letter_without_attempts(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place), "rollback")
    story.bury(place, "attempts", 5)


def dead_letter_of_nobody(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place))
    story.bury(place, "rejected", 1)


def settled_before_delivered(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.floor("exclusive", 1)
    story.settle(story.deliver(one, place))


def granted_and_forgotten(story: Story, _one: str, _two: str) -> None:
    story.inspect("exclusive", next=3, readable_end=3, leases=[lease(1, 0, 2)])


def held_under_a_token_that_is_no_more(story: Story, _one: str, _two: str) -> None:
    story.inspect("exclusive", base=1, next=1, readable_end=1, runs=[run(0, 1, token=9)])


def held_outside_its_lease(story: Story, _one: str, _two: str) -> None:
    story.inspect(
        "exclusive",
        base=2,
        next=2,
        readable_end=2,
        runs=[run(0, 2, token=9)],
        leases=[lease(9, 1, 2, "runs")],
    )


def held_twice(story: Story, _one: str, _two: str) -> None:
    story.inspect("exclusive", next=2, readable_end=2, leases=[lease(1, 0, 2), lease(2, 1, 2)])


def listed_twice(story: Story, _one: str, _two: str) -> None:
    story.inspect("exclusive", base=2, next=2, readable_end=2, runs=[run(0, 2), run(1, 2)])


def decided_before_it_was_granted(story: Story, _one: str, _two: str) -> None:
    story.inspect("exclusive", next=1, readable_end=9, settled=[5], leases=[lease(1, 0, 1)])


def settled_by_nobody(story: Story, one: str, _two: str) -> None:
    places = [story.publish("exclusive") for _ in range(2)]
    story.inspect("exclusive", next=2, readable_end=2, settled=[1], leases=[lease(1, 0, 2)])
    for place in places:
        story.settle(story.deliver(one, place))


def confirmed_and_not_settled(story: Story, one: str, _two: str) -> None:
    story.settle(story.deliver(one, story.publish("exclusive")))
    story.inspect("exclusive", next=1, readable_end=1, leases=[lease(1, 0, 1)])


def confirmed_and_to_be_granted_again(story: Story, one: str, _two: str) -> None:
    place = story.publish("exclusive")
    story.settle(story.deliver(one, place), "reject")
    story.bury(place, "rejected", 1)
    story.inspect("exclusive", next=0, readable_end=1, seen=1)


def lease_beyond_the_bound(story: Story, _one: str, _two: str) -> None:
    story.inspect("exclusive", next=1, readable_end=3, leases=[lease(1, 0, 3, "lane")])


def handed_out_beyond_the_bound(story: Story, one: str, _two: str) -> None:
    held = [story.deliver(one, story.publish("exclusive")) for _ in range(2)]
    story.inspect("exclusive", next=1, readable_end=1, leases=[lease(1, 0, 1, "lane")])
    for delivery in held:
        story.settle(delivery)


def never_drained(story: Story, _one: str, _two: str) -> None:
    story.never_drains("exclusive")


def truth_incomplete(story: Story, _one: str, _two: str) -> None:
    place = story.publish("exclusive")
    del story.truth[place]


def never_inspected(story: Story, _one: str, _two: str) -> None:
    story.look_away()


def process_ended(story: Story, _one: str, _two: str) -> None:
    story.crashed["p1"] = "Traceback ..."


PLANTED: tuple[tuple[Callable[[Story, str, str], None], set[tuple[str, str]]], ...] = (
    (lost_message, {("I1", "never delivered")}),
    (left_unsettled, {("I1", "left unsettled")}),
    (given_back_for_good, {("I1", "given back")}),
    (refused_for_good, {("I1", "refused")}),
    (dead_letter_missing, {("I1", "dead letter missing")}),
    (poison_without_dead_letter, {("I1", "dead letter missing")}),
    (invented_message, {("I2", "invented")}),
    (changed_message, {("I2", "invented")}),
    (invented_dead_letter, {("I2", "invented dead letter")}),
    (token_of_two, {("I3", "token twice")}),
    (delivered_twice, {("I3", "delivered twice")}),
    (token_fell, {("I3", "token fell")}),
    (
        stale_token_accepted,
        {
            ("I3", "stale token accepted"),
            ("I4", "settled came again"),
            ("I5", "message held twice"),
            ("I5", "two holders"),
        },
    ),
    (settled_came_again, {("I4", "settled came again")}),
    (rejected_came_again, {("I4", "settled came again")}),
    (confirmed_by_closing_came_again, {("I4", "confirmed by closing")}),
    (forgotten_before_the_last_moments, {("I4", "settled came again")}),
    (forgotten_by_the_journal, {("I4", "settled came again")}),
    (two_holders, {("I5", "two holders")}),
    (two_holders_without_reason, {("I5", "two holders")}),
    (order_of_a_lane, {("I6", "order of a lane")}),
    (order_over_a_handover, {("I6", "order of a lane")}),
    (before_its_time, {("I14", "too early")}),
    (after_its_expiration, {("I14", "too late")}),
    (settled_before_its_expiration, {("I9", "settled by nobody"), ("I10", "settled too early")}),
    (window_exceeded, {("I7", "window exceeded")}),
    (beyond_the_limit, {("I8", "beyond the limit"), ("I4", "settled came again")}),
    (attempt_invented, {("I8", "attempt invented")}),
    (attempt_forgotten, {("I8", "attempt forgotten")}),
    (not_marked, {("I8", "not marked")}),
    (dead_letter_too_early, {("I8", "dead letter too early")}),
    (dead_letter_without_attempts, {("I8", "dead letter too early")}),
    (dead_letter_of_nobody, {("I8", "dead letter too early")}),
    (settled_before_delivered, {("I10", "settled too early")}),
    (granted_and_forgotten, {("I9", "held by nobody")}),
    (held_under_a_token_that_is_no_more, {("I9", "held by nobody")}),
    (held_outside_its_lease, {("I9", "held by nobody")}),
    (held_twice, {("I9", "held twice")}),
    (listed_twice, {("I9", "malformed")}),
    (decided_before_it_was_granted, {("I9", "malformed")}),
    (settled_by_nobody, {("I9", "settled by nobody")}),
    (confirmed_and_not_settled, {("I9", "not settled")}),
    (confirmed_and_to_be_granted_again, {("I9", "not settled")}),
    (lease_beyond_the_bound, {("I9", "beyond the bound")}),
    (handed_out_beyond_the_bound, {("I9", "beyond the bound")}),
    (never_drained, {("I12", "never drained")}),
    (truth_incomplete, {("run", "truth incomplete")}),
    (never_inspected, {("run", "never inspected")}),
    (process_ended, {("run", "process ended")}),
)


@pytest.mark.parametrize(("plant", "named"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_planted_defect_is_found_and_named(
    plant: Callable[[Story, str, str], None], named: set[tuple[str, str]]
) -> None:
    story = Story("exclusive")
    plant(story, story.attach("p1", "exclusive"), story.attach("p2", "exclusive"))
    assert found(story) == named


def test_transaction_that_kafka_committed_and_did_not_mark(tmp_path: Path) -> None:
    """Its messages may be missing; those of a transaction on other partitions, or outside of one, may not."""
    log = tmp_path / "broker-1.log"
    log.write_text(
        "INFO [Transaction Marker Channel Manager 1]: Couldn't find leader endpoint for partitions "
        "HashSet(exclusive-1, exclusive-0) while trying to send transaction markers for histories-1, these "
        "partitions are likely deleted already and hence can be skipped\n"
    )
    story = Story("exclusive")
    story.unmarked += unmarked(log)
    missing = [story.publish("exclusive", partition=partition, transaction=1) for partition in (0, 1)]
    for place in missing:
        del story.truth[place]
    assert found(story) == set()
    del story.truth[story.publish("exclusive", partition=1, transaction=2)]
    assert found(story) == {("run", "truth incomplete")}


def test_order_within_a_key() -> None:
    story = Story("key-ordered")
    one = story.attach("p1", "key-ordered")
    first, second = (story.publish("key-ordered", key="a") for _ in range(2))
    story.settle(story.deliver(one, first), "rollback")
    story.settle(story.deliver(one, second))
    story.settle(story.deliver(one, first, attempt=2))
    assert found(story) == {("I6", "order of a key")}


@pytest.mark.parametrize(
    ("kind", "violation"), [("strict", "order of a lane"), ("key-ordered", "order of a key")]
)
def test_nothing_passes_a_delayed_message_where_order_is_promised(kind: str, violation: str) -> None:
    story = Story(kind)
    one = story.attach("p1", kind)
    delayed = story.publish(kind, due=story.now + SECOND)
    story.settle(story.deliver(one, story.publish(kind)))
    story.step(2 * STEPS_A_SECOND)
    story.settle(story.deliver(one, delayed))
    assert found(story) == {("I6", violation)}


def test_two_holders_of_a_key() -> None:
    story = Story("key-ordered")
    one, two = story.attach("p1", "key-ordered"), story.attach("p2", "key-ordered")
    first, second = (story.publish("key-ordered", key="a") for _ in range(2))
    held, other = story.deliver(one, first), story.deliver(two, second)
    story.settle(held)
    story.settle(other)
    assert found(story) == {("I5", "two holders"), ("I6", "order of a key")}


def test_message_of_a_shared_subscription_with_two_members_at_once() -> None:
    story = Story("shared")
    one, two = story.attach("p1", "shared"), story.attach("p2", "shared")
    place = story.publish("shared")
    held = story.deliver(one, place)
    other = story.deliver(two, place)
    story.settle(held, outcome=UNKNOWN, at=None)
    story.settle(other)
    assert found(story) == {("I5", "message held twice")}


def test_strict_order() -> None:
    story = Story("strict")
    one = story.attach("p1", "strict")
    first, second = (story.publish("strict") for _ in range(2))
    story.settle(story.deliver(one, first), "rollback")
    story.settle(story.deliver(one, second))
    story.settle(story.deliver(one, first, attempt=2))
    assert found(story) == {("I6", "strict order")}


def test_a_dead_letter_of_strict_order_that_comes_again_after_a_loss() -> None:
    """It did not wait when the next message was handed out; that it is settled was forgotten."""
    story = Story("strict")
    one = story.attach("p1", "strict")
    first, second = (story.publish("strict") for _ in range(2))
    for attempt in range(1, 6):
        story.settle(story.deliver(one, first, attempt=attempt, redelivered=attempt > 1), "rollback")
    story.bury(first, "attempts", 5)
    story.settle(story.deliver(one, second))
    story.fault("flush")
    story.settle(story.deliver(one, first, attempt=5, redelivered=True), "rollback")
    story.bury(first, "attempts", 5)
    assert found(story) == set()


def test_what_was_lost_does_not_take_up_the_window() -> None:
    story = Story("exclusive")
    one = story.attach("p1", "exclusive")
    places = [story.publish("exclusive") for _ in range(5)]
    held = [story.deliver(one, place) for place in places]
    story.fault("flush")
    story.lost += [
        Lost(member=each.member, place=each.place, token=each.token, at=story.step()) for each in held
    ]
    for place in places:
        story.settle(story.deliver(one, place))
    assert found(story) == set()


def test_lines_show_what_happened() -> None:
    story = Story("exclusive")
    settled_came_again(story, story.attach("p1", "exclusive"), "")
    (finding,) = check(story.history())
    text = "\n".join(finding.lines)
    assert "was handed exclusive[0]@0" in text
    assert "ack exclusive[0]@0" in text


def test_operations_of_a_killed_process_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with Recorder(path) as recorder:
        recorder.done(recorder.call("ack", offset=1), OK)
        recorder.call("ack", offset=2)
    with path.open("ab") as file:
        file.write(b'{"n":3,"op":"ack"')
    assert [(line["offset"], line["outcome"]) for line in read(path)] == [(1, OK), (2, UNKNOWN)]


def test_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = Plan(seed=7, types=("shared", "serial"), faults=("kill",), minutes=1)
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
