"""Claims of hulls and of whole subscriptions: who gets what, what is skipped, and how a claim ends.

Offsets are numbers that the tests make up, but for the last part: there a real broker takes part, because a
subscription is made, deleted and rebuilt under a claim.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import given, settings

from kafkadur.stack import Stack, Valkey, as_administrator
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_coordinators.claims import Claims, Hull, together
from kafkadur_coordinators.lifecycle import Membership
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_coordinators.redis.replies import attempts_of
from kafkadur_sharing.decisions import Request, UnsubscribeRequest
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import CoordinatorUnavailable, SubscriptionActive, TopicChanged
from tests.integration.coordinators.deaf import Deaf
from tests.integration.coordinators.party import Party, produce, wipe
from tests.integration.coordinators.world import (
    SESSION_MS,
    Clock,
    World,
    refusal,
    released,
    report,
    rolled_back,
    settled,
    views,
)

Make = Callable[..., World]
Pair = tuple[int, int]

#: More than anything here holds.
ALL = 1_000


def whole(world: World, member: str = "spark") -> Claims:
    """Attach somebody who holds the whole subscription."""
    return Claims(world.attach(member, most=1, kind="whole").session)


def beside(world: World, member: str = "spark") -> Claims:
    """Attach somebody who claims hulls while others are attached, too."""
    return Claims(world.attach(member, kind="claims").session)


def only(found: Sequence[Hull]) -> Hull:
    """The one hull of a claim."""
    assert len(found) == 1, found
    return found[0]


def shapes(found: Sequence[Hull]) -> list[tuple[int, int, int]]:
    """Partition, start and end of hulls."""
    return [(hull.partition, hull.start, hull.end) for hull in found]


def owned(hull: Hull) -> list[int]:
    """The offsets of a hull that belong to the claim."""
    return [offset for _, start, end in hull.leases for offset in range(start, end)]


def skipped(hull: Hull) -> list[int]:
    """The offsets of a hull that do not belong to the claim."""
    return [offset for start, end in hull.skip for offset in range(start, end)]


def marks(world: World) -> list[Pair]:
    """Attempts and whether it may have been delivered before, of every lease."""
    return [(attempts_of(lease.marks), lease.marks % 2) for lease in world.leases().values()]


def offsets(world: World) -> dict[bytes, object]:
    """All that says what is settled, leased or waiting; not who is attached, nor the time."""
    known = world.address.root.encode()
    apart = {known + name for name in (b"def", b"seal", b"members", b"hungry", b"watchers")}
    kept = {key: value for key, value in world.dump().items() if key not in apart}
    fields: Any = world.dump()[known + b"def"]
    return kept | {
        name: value for name, value in fields.items() if name[:2] in {b"p:", b"b:", b"i:", b"r:", b"l:"}
    }


def code(call: Callable[[], object]) -> str:
    """The code a call is refused with; OK if it is not."""
    refused = refusal(call)
    return "OK" if refused is None else refused.code


# -- what is claimed


def test_a_claim_gets_one_hull_a_partition(make: Make) -> None:
    world = make(partitions=3, starts=(0, 1_000_003, 5))
    found = whole(world).claim(ALL, {0: 4, 1: 1_000_005, 2: 5})
    assert shapes(found) == [(0, 0, 4), (1, 1_000_003, 1_000_005)], "nothing of a partition without records"
    assert [(hull.skip, hull.records) for hull in found] == [([], 4), ([], 2)]
    held = {(lease.token, lease.partition): (lease.start, lease.horizon) for lease in world.leases().values()}
    assert {(t, hull.partition): (s, e) for hull in found for t, s, e in hull.leases} == held


def test_a_claim_gets_no_more_than_it_asked_for(make: Make) -> None:
    world = make(partitions=3)
    claims = whole(world)
    ends = dict.fromkeys(range(3), 4)
    assert shapes(claims.claim(6, ends)) == [(0, 0, 4), (1, 0, 2)]
    assert shapes(claims.claim(1, ends)) == [(1, 2, 3)]
    assert shapes(claims.claim(ALL, ends)) == [(1, 3, 4), (2, 0, 4)]
    assert claims.claim(ALL, ends) == [], "what is claimed is not claimed again"
    assert claims.claim(0, dict.fromkeys(range(3), 9)) == []


def test_nothing_is_claimed_beyond_the_ends(make: Make) -> None:
    world = make(partitions=2, starts=(3, 3))
    claims = whole(world)
    assert claims.claim(ALL, {}) == []
    assert claims.claim(ALL, {0: 3, 1: 3}) == []
    assert shapes(claims.claim(ALL, {1: 5})) == [(1, 3, 5)], "only of the partitions named"
    assert world.leases().keys() == {1}


def test_more_partitions_than_one_exchange_touches(make: Make) -> None:
    world = make(partitions=40)
    claims = whole(world)
    ends = dict.fromkeys(range(40), 2)
    first = claims.claim(70, ends)
    assert shapes(first) == [(p, 0, 2) for p in range(35)]
    rest = claims.claim(ALL, ends)
    assert shapes(rest) == [(p, 0, 2) for p in range(35, 40)]
    for hull in [*first, *rest]:
        assert claims.settle(hull) == []
    assert [view.floor for view in views(world)] == [2] * 40
    assert claims.claim(ALL, dict.fromkeys(range(40), 3)) != []


def test_a_lease_on_each_of_many_partitions_is_claimed_at_once(make: Make) -> None:
    world = make(partitions=70)
    claims = whole(world)
    first = claims.claim(ALL, dict.fromkeys(range(70), 1))
    assert shapes(first) == [(p, 0, 1) for p in range(70)]
    for hull in first:
        assert claims.settle(hull) == []


@given(fates=st.lists(st.sampled_from("saudhhh"), min_size=1, max_size=30), fresh=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_hull_says_exactly_what_to_skip(valkey: Valkey, fates: list[str], fresh: int) -> None:
    """Another member settled, gave back (at once, uncounted, with a delay) or holds each of the offsets."""
    world = World(valkey.url).create()
    other = world.attach("other")
    other.say(report(readable_end=len(fates)), credit=ALL)
    given_back = {
        "a": lambda o: rolled_back(1, o, o + 1),
        "u": lambda o: released(1, o, o + 1),
        "d": lambda o: rolled_back(1, o, o + 1, delay=5_000),
    }
    other.say(
        report(
            settled=[settled(1, o, o + 1) for o, fate in enumerate(fates) if fate == "s"],
            returned=[given_back[fate](o) for o, fate in enumerate(fates) if fate in given_back],
        )
    )
    claims = beside(world)
    got: list[int] = []
    while found := claims.claim(ALL, {0: len(fates) + fresh}):
        hull = only(found)
        assert sorted(owned(hull) + skipped(hull)) == list(range(hull.start, hull.end))
        assert [start for _, start, _ in hull.leases] == sorted(start for _, start, _ in hull.leases)
        assert {hull.start, hull.end - 1} <= set(owned(hull)), "a hull ends where its records end"
        assert hull.records == len(owned(hull))
        got += owned(hull)
    free = [o for o, fate in enumerate(fates) if fate in "au"]
    assert sorted(got) == [*free, *range(len(fates), len(fates) + fresh)]
    world.close()


def test_what_comes_later_is_claimed_when_it_is_due(make: Make) -> None:
    world = make()
    claims = whole(world)
    claims.settle(only(claims.claim(ALL, {0: 6})), rolled_back=[(2, 3), (4, 5)])
    hull = only(claims.claim(ALL, {0: 8}))
    assert (hull.start, hull.end, hull.skip) == (2, 8, [(3, 4), (5, 6)])
    assert [pair[1:] for pair in hull.leases] == [(2, 3), (4, 5), (6, 8)]


# -- claims beside other members


def test_members_and_claims_never_hold_the_same(make: Make) -> None:
    world = make()
    claims, other = beside(world), world.attach("other")
    other.say(credit=3)
    hull = only(claims.claim(3, {0: 10}))
    other.say(report(), credit=3)
    held = {o for grant in other.grants.values() for o in range(grant.start, grant.horizon)}
    assert held
    assert not held & set(owned(hull))
    claims.settle(hull)
    assert len(owned(only(claims.claim(ALL, {0: 10})))) == 10 - 3 - len(held)


def test_between_claims_nothing_is_granted(make: Make) -> None:
    """A claim that got less than it asked for leaves what comes next to whoever has room then."""
    world = make()
    claims, other = beside(world), world.attach("other")
    assert shapes(claims.claim(ALL, {0: 4})) == [(0, 0, 4)]
    other.say(report(readable_end=9), credit=3)
    assert [(grant.start, grant.horizon) for grant in other.grants.values()] == [(4, 7)]
    assert {lease.start for lease in world.leases().values() if lease.member == "spark"} == {0}


def test_between_claims_others_watch_the_partitions(make: Make) -> None:
    world = make(partitions=20)
    other = world.attach("other")
    other.say(*(report(p) for p in range(16)), credit=5)
    claims = beside(world)
    claims.claim(ALL, dict.fromkeys(range(20), 0))
    reply = other.say(credit=5)
    assert set(reply.watches) >= set(range(1, 20, 2)), "those at home with the claims"


def test_a_claim_and_a_member_each_get_what_is_at_home_with_the_other(make: Make) -> None:
    """Who claims asks now and then only: nothing waits for it, and it waits for nobody."""
    world = make(partitions=4)
    claims, other = beside(world), world.attach("other")
    found = claims.claim(7, dict.fromkeys(range(4), 2))
    assert sum(hull.records for hull in found) == 7
    other.say(report(3, readable_end=2), credit=5)
    assert [(grant.partition, grant.start) for grant in other.grants.values()] == [(3, 1)]
    for partition in range(4):
        other.say(report(partition, readable_end=4), credit=8)
    assert sum(grant.records for grant in other.grants.values()) == 1 + 8, "it works, and gets more"
    for hull in found:
        assert claims.settle(hull) == []


def test_members_share_what_is_at_home_with_each_as_long_as_nobody_claims(make: Make) -> None:
    world = make(partitions=2)
    one, other = world.attach("one"), world.attach("other")
    one.say(report(0, readable_end=2), credit=5)
    one.say(report(1, readable_end=2), credit=3)
    assert [grant.partition for grant in one.grants.values()] == [0], "it works, and 1 is the other's"
    other.say(report(1, readable_end=2), credit=5)
    assert [grant.partition for grant in other.grants.values()] == [1]


def test_what_kafka_removed_is_taken_out_of_a_claim_and_counted(make: Make) -> None:
    world = make()
    claims = beside(world)
    first, second = claims.claim(4, {0: 10}), claims.claim(6, {0: 10})
    both = only(together([*second, *first]))
    assert owned(both) == list(range(10))
    assert claims.expire(both, 0) is both
    rest = claims.expire(both, 6)
    assert rest is not None
    assert owned(rest) == [6, 7, 8, 9]
    assert (world.partition().floor, world.partition().expired) == (6, 6)
    assert claims.settle(rest) == []
    assert claims.expire(only(claims.claim(ALL, {0: 12})), 20) is None
    assert (world.partition().floor, world.partition().expired) == (12, 8)
    assert world.leases() == {}


def test_what_a_claim_got_before_it_failed_comes_with_the_next(make: Make, valkey: Valkey) -> None:
    """Memory is full after the first 16 partitions of 20."""
    world = make(partitions=20)
    client: Any = redis.Redis.from_url(as_administrator(valkey.url))
    calls: list[str] = []

    def fill(name: str, request: Sequence[object], reply: Sequence[object]) -> None:
        world.calls.append((name, request, reply))
        calls.append(name)
        if calls == ["exchange"]:
            client.config_set("maxmemory", "1mb")

    world.coordinator = RedisCoordinator(valkey.url, clock=world.clock, recorder=fill)
    with client:
        claims = whole(world)
        calls.clear()
        try:
            with pytest.raises(CoordinatorUnavailable, match="OutOfMemory"):
                claims.claim(ALL, dict.fromkeys(range(20), 2))
        finally:
            client.config_set("maxmemory", "0")
    assert len(world.leases()) == 16
    again = claims.claim(35, dict.fromkeys(range(20), 3))
    assert shapes(again) == [(p, 0, 3) for p in range(3)] + [(p, 0, 2) for p in range(3, 16)]


# -- settling


def test_settling_moves_the_floor(make: Make) -> None:
    world = make(partitions=2)
    claims = whole(world)
    first, second = claims.claim(ALL, {0: 5, 1: 3})
    assert [view.floor for view in world.inspect().partitions] == [0, 0]
    assert claims.settle(second) == []
    assert [view.floor for view in world.inspect().partitions] == [0, 3]
    assert claims.settle(first) == []
    assert [(view.floor, view.unsettled, view.backlog) for view in world.inspect().partitions] == [
        (5, 0, 0),
        (3, 0, 0),
    ]
    assert world.leases() == {}
    assert claims.claim(ALL, {0: 5, 1: 3}) == []


def test_claims_are_settled_in_any_order(make: Make) -> None:
    world = make()
    claims = whole(world)
    first, second = (only(claims.claim(5, {0: 10})) for _ in range(2))
    claims.settle(second)
    assert (world.partition().floor, world.partition().unsettled) == (0, 5)
    claims.settle(first)
    assert (world.partition().floor, world.partition().unsettled) == (10, 0)


def test_what_is_rejected_comes_again_as_the_next_attempt(make: Make) -> None:
    world = make()
    claims = whole(world)
    hull = only(claims.claim(ALL, {0: 10}))
    assert claims.settle(hull, rolled_back=[(3, 4), (7, 9)]) == []
    assert world.partition().floor == 3
    again = only(claims.claim(ALL, {0: 10}))
    assert (owned(again), again.skip) == ([3, 7, 8], [(4, 7)])
    assert marks(world) == [(1, 1)]
    assert claims.settle(again, rolled_back=[(3, 4)]) == []
    assert owned(only(claims.claim(ALL, {0: 10}))) == [3]
    assert marks(world) == [(2, 1)]


PAIRS = st.lists(
    st.tuples(st.integers(-2, 22), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1])), max_size=6
)


@given(first=PAIRS, second=PAIRS)
@settings(max_examples=80, deadline=None)
def test_exactly_what_is_rejected_comes_again(valkey: Valkey, first: list[Pair], second: list[Pair]) -> None:
    """In any order, overlapping, one within the other, empty, beyond the hull and over what is skipped."""
    world = World(valkey.url).create()
    claims = whole(world)
    expected = set(range(20))
    for rejected in (first, second):
        found = claims.claim(ALL, {0: 20})
        assert {o for hull in found for o in owned(hull)} == expected
        assert [claims.settle(hull, rolled_back=rejected) for hull in found] == [[] for _ in found]
        expected &= {o for start, end in rejected for o in range(start, end)}
        assert world.partition().unsettled == len(expected)
        assert world.partition().floor == min(expected, default=20)
    world.close()


def test_settling_twice_is_refused_and_changes_nothing(make: Make) -> None:
    world = make()
    claims = whole(world)
    hull = only(claims.claim(ALL, {0: 5}))
    claims.settle(hull, rolled_back=[(1, 2)])
    before = offsets(world)
    assert claims.settle(hull) == [token for token, _, _ in hull.leases]
    assert claims.release(hull) == [token for token, _, _ in hull.leases]
    assert offsets(world) == before
    assert owned(only(claims.claim(ALL, {0: 5}))) == [1]


# -- giving back


def test_a_released_hull_comes_again_uncounted(make: Make) -> None:
    world = make(partitions=2)
    claims = whole(world)
    first, second = claims.claim(ALL, {0: 5, 1: 5})
    assert claims.release(first) == []
    assert [lease.partition for lease in world.leases().values()] == [1]
    again = only(claims.claim(ALL, {0: 5, 1: 5}))
    assert (again.partition, owned(again)) == (0, owned(first))
    assert sorted(marks(world)) == [(0, 0), (0, 1)]
    assert [claims.settle(hull) for hull in (second, again)] == [[], []]
    assert [view.floor for view in world.inspect().partitions] == [5, 5]


def test_who_leaves_in_order_gives_back_uncounted(make: Make) -> None:
    world = make()
    member = world.attach("spark", most=1, kind="whole")
    Claims(member.session).claim(ALL, {0: 5})
    member.detach(0)
    assert owned(only(whole(world, "next").claim(ALL, {0: 5}))) == list(range(5))
    assert marks(world) == [(0, 1)]


# -- sessions that end


def killed(world: World) -> None:
    world.ears.forget(world.address.channel("spark"))
    assert code(lambda: world.attach("next", most=1)) == "ACTIVE"
    world.clock.advance(500)


def expired(world: World) -> None:
    world.clock.advance(SESSION_MS)


def attached_again(world: World) -> None:
    world.attach("spark", most=1, kind="whole").detach()


@pytest.mark.parametrize("end", [killed, expired, attached_again])
def test_after_an_unclean_end_the_same_is_claimed_again(make: Make, end: Callable[[World], None]) -> None:
    world = make(partitions=2)
    lost = whole(world)
    first = lost.claim(8, {0: 5, 1: 5})
    lost.settle(first[0], rolled_back=[(2, 4)])
    end(world)
    claims = whole(world, "next")
    again = claims.claim(ALL, {0: 5, 1: 5})
    assert [owned(hull) for hull in again] == [[2, 3], list(range(5))]
    assert again[1].leases[0][1:] == first[1].leases[0][1:]
    assert {(lease.start, lease.marks) for lease in world.leases().values()} == {(2, 3), (0, 3), (3, 0)}
    assert min(token for hull in again for token, _, _ in hull.leases) > max(
        token for hull in first for token, _, _ in hull.leases
    )
    before = world.dump()
    for hull in first:
        assert code(partial(lost.settle, hull)) == "FENCED"
    assert code(lambda: lost.claim(ALL, {0: 9, 1: 9})) == "FENCED"
    assert code(lost.renew) == "FENCED"
    assert world.dump() == before
    assert [claims.settle(hull) for hull in again] == [[], []]
    assert [view.floor for view in world.inspect().partitions] == [5, 5]


@pytest.mark.parametrize("end", [killed, expired])
def test_what_a_driver_that_died_had_claimed_is_claimed_again_at_once(
    make: Make, end: Callable[[World], None]
) -> None:
    """They are no suspects, of which few come at a time."""
    world = make()
    hull = only(beside(world).claim(ALL, {0: 50_000}))
    end(world)
    again = only(beside(world, "next").claim(ALL, {0: 50_000}))
    assert owned(again) == owned(hull)
    assert marks(world) == [(1, 1)]


def test_every_unclean_end_counts(make: Make) -> None:
    world = make()
    for attempt in range(4):
        hull = only(whole(world).claim(ALL, {0: 3}))
        assert owned(hull) == [0, 1, 2]
        assert marks(world) == [(attempt, int(attempt > 0))]
        expired(world)


def test_a_stale_token_is_refused_and_changes_nothing(make: Make) -> None:
    """The member attached again, so it is not fenced; what it held before is not its own any more."""
    world = make()
    session = world.attach("spark", most=1, kind="whole").session
    claims = Claims(session)
    stale = only(claims.claim(ALL, {0: 5}))
    session.attach(name="spark", session_ms=SESSION_MS, version=world.version, most=1, kind="whole")
    hull = only(claims.claim(ALL, {0: 5}))
    before = offsets(world)
    assert claims.settle(stale, rolled_back=[(0, 1)]) == [token for token, _, _ in stale.leases]
    assert claims.release(stale) == [token for token, _, _ in stale.leases]
    assert offsets(world) == before
    assert claims.settle(hull) == []
    assert world.partition().floor == 5


def test_renewing_keeps_a_claim(make: Make) -> None:
    world = make()
    claims = whole(world)
    hull = only(claims.claim(ALL, {0: 5}))
    for _ in range(3):
        world.clock.advance(SESSION_MS - 1)
        claims.renew()
    world.clock.advance(SESSION_MS - 1)
    assert code(lambda: world.attach("next")) == "ACTIVE"
    assert claims.settle(hull) == []
    assert world.partition().floor == 5


# -- answers that are lost


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_claim_whose_answer_was_lost_is_made_again(
    make: Make, deaf: Callable[..., Deaf], after: int
) -> None:
    """Of 20 partitions: two exchanges to claim, two to have nothing granted afterwards."""
    world = make(partitions=20)
    one = deaf(world)
    one.lose(after)
    with pytest.raises(CoordinatorUnavailable):
        one.claims.claim(ALL, dict.fromkeys(range(20), 2))
    again = one.claims.claim(ALL, dict.fromkeys(range(20), 2))
    assert shapes(again) == [(p, 0, 2) for p in range(20)]
    assert {token for hull in again for token, _, _ in hull.leases} == world.leases().keys()
    assert one.claims.claim(ALL, dict.fromkeys(range(20), 2)) == []


def test_a_claim_made_again_with_later_ends_stays_within_its_bound(
    make: Make, deaf: Callable[..., Deaf]
) -> None:
    world = make()
    one = deaf(world)
    one.lose()
    with pytest.raises(CoordinatorUnavailable):
        one.claims.claim(5, {0: 3})
    hull = only(one.claims.claim(5, {0: 10}))
    assert (owned(hull), hull.skip) == ([0, 1, 2, 3, 4], [])


def test_what_became_due_before_a_claim_was_made_again_has_its_place(
    make: Make, deaf: Callable[..., Deaf]
) -> None:
    world = make()
    other = world.attach("other")
    other.say(report(readable_end=5), credit=5)
    other.say(
        report(settled=[settled(1, 0, 2), settled(1, 3, 5)], returned=[rolled_back(1, 2, 3, delay=5_000)])
    )
    other.detach(0)
    one = deaf(world)
    one.lose()
    with pytest.raises(CoordinatorUnavailable):
        one.claims.claim(ALL, {0: 8})
    world.clock.advance(5_000)
    hull = only(one.claims.claim(ALL, {0: 8}))
    assert (hull.start, hull.end, hull.skip, owned(hull)) == (2, 8, [(3, 5)], [2, 5, 6, 7])


def test_what_is_told_again_is_not_claimed_twice(make: Make, deaf: Callable[..., Deaf]) -> None:
    """Until a claim names the partition of exceptions that were granted, all leases are told of again."""
    world = make(partitions=4)
    other = world.attach("other")
    other.say(report(3, readable_end=3), credit=3)
    one = deaf(world, kind="claims")
    one.lose()
    with pytest.raises(CoordinatorUnavailable):
        one.claims.claim(ALL, {1: 0})
    other.say(report(3, returned=[rolled_back(1, 0, 3)], done=[1]))
    assert shapes(one.claims.claim(ALL, {1: 4})) == [(1, 0, 4)]
    assert shapes(one.claims.claim(ALL, {1: 6})) == [(1, 4, 6)]
    assert shapes(one.claims.claim(ALL, {1: 6, 3: 3})) == [(3, 0, 3)]


@pytest.mark.parametrize("rejected", [[], [(1, 3)]])
def test_settling_whose_answer_was_lost_is_made_again(
    make: Make, deaf: Callable[..., Deaf], rejected: list[Pair]
) -> None:
    world = make()
    one = deaf(world)
    hull = only(one.claims.claim(ALL, {0: 5}))
    one.lose()
    with pytest.raises(CoordinatorUnavailable):
        one.claims.settle(hull, rolled_back=rejected)
    assert one.claims.settle(hull, rolled_back=rejected) == [], "it is settled, not refused"
    found = one.claims.claim(ALL, {0: 5})
    assert [owned(hull) for hull in found] == ([[1, 2]] if rejected else [])
    assert marks(world) == ([(1, 1)] if rejected else []), "counted once"


def test_settling_whose_answer_was_lost_is_answered_after_a_renewal(
    make: Make, deaf: Callable[..., Deaf]
) -> None:
    """The renewal has it repeated, and hears what became of it."""
    world = make(partitions=2)
    one = deaf(world, kind="claims")
    first, second = one.claims.claim(ALL, {0: 5, 1: 5})
    one.lose()
    with pytest.raises(CoordinatorUnavailable):
        one.claims.settle(first)
    one.claims.renew()
    assert one.claims.settle(first) == [], "it is settled, not refused"
    assert one.claims.settle(second) == []
    assert one.claims.settle(first) != [], "said once more it is refused"


def test_two_answers_that_were_lost_are_both_told(make: Make, deaf: Callable[..., Deaf]) -> None:
    world = make(partitions=2)
    one = deaf(world, kind="claims")
    first, second = one.claims.claim(ALL, {0: 5, 1: 5})
    one.lose()
    with pytest.raises(CoordinatorUnavailable):
        one.claims.settle(first)
    one.lose(1)  # the repeated one is answered, its own is not
    with pytest.raises(CoordinatorUnavailable):
        one.claims.settle(second)
    one.claims.renew()
    assert one.claims.settle(first) == []
    assert one.claims.settle(second) == []


def test_what_was_lost_is_done_before_anything_else(make: Make, deaf: Callable[..., Deaf]) -> None:
    world = make(partitions=2)
    one = deaf(world)
    first, second = one.claims.claim(ALL, {0: 5, 1: 5})
    one.lose()
    with pytest.raises(CoordinatorUnavailable):
        one.claims.settle(first)
    assert one.claims.settle(second) == []
    one.claims.renew()
    assert [view.floor for view in world.inspect().partitions] == [5, 5]


def test_a_call_that_was_refused_leaves_nothing_to_be_done(make: Make) -> None:
    world = make()
    claims = whole(world)
    hull = only(claims.claim(ALL, {0: 5}))
    wrong = Hull(partition=0, start=0, end=9, skip=[], leases=[(hull.leases[0][0], 0, 9)])
    before = world.dump()
    assert code(lambda: claims.settle(wrong)) == "INVALID"
    assert code(lambda: claims.claim(ALL, {7: 1})) == "MISSING", "a partition that the state does not know"
    assert world.dump() == before
    assert claims.settle(hull) == []
    assert world.partition().floor == 5


# -- the whole of a subscription whose messages come in order


@pytest.mark.parametrize("kind", ["exclusive", "priority", "serial"])
def test_the_whole_of_a_lane_is_claimed(make: Make, kind: str) -> None:
    world = make(kind)
    assert shapes(whole(world).claim(ALL, {0: 5})) == [(0, 0, 5)]


# -- with a real subscription


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def party(valkey: Valkey, kafkadur_stack: Stack, kafkadur_namespace: str, clock: Clock) -> Iterator[Party]:
    """Provide a process on a clock of the test's own."""
    one = Party(valkey.url, kafkadur_stack.kafka, kafkadur_namespace, clock)
    yield one
    one.close()


def hold(
    party: Party, topic: str, member: str = "spark", type_: str = "shared", **details: Any
) -> Membership:
    """Attach somebody who holds the whole subscription."""
    definition = Definition(type=SubscriptionType(type_), topic=topic, **details)
    return party.lifecycle.attach(
        Request(key=party.key(), definition=definition),
        member=member,
        name=f"job {member}",
        kind="whole",
        before=lambda address: party.ears.listen(address.channel(member)),
    )


def ends(party: Party, membership: Membership) -> dict[int, int]:
    """How far each partition is readable."""
    topic = membership.subscription.topic
    return party.topics.offsets(topic.name, topic.partitions, "latest")


def test_records_of_a_topic_are_claimed_and_settled(party: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic(partitions=3)
    produce(party.kafka, topic, [4, 4, 4])
    membership = hold(party, topic)
    produce(party.kafka, topic, [2, 0, 5])
    claims = Claims(membership.session)
    found = claims.claim(ALL, ends(party, membership))
    assert shapes(found) == [(0, 4, 6), (2, 4, 9)]
    assert [claims.settle(hull) for hull in found] == [[], []]
    assert party.floors(membership) == [6, 4, 9]


def test_a_whole_claim_keeps_others_out_and_is_named(party: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    membership = hold(party, topic)
    claims = Claims(membership.session)
    with pytest.raises(SubscriptionActive, match="job spark"):
        party.attach(topic, "other")
    with pytest.raises(SubscriptionActive, match="job spark"):
        hold(party, topic, "second")
    with pytest.raises(SubscriptionActive, match="job spark"):
        party.attach(topic, "other", selector="amount > 1")
    with pytest.raises(SubscriptionActive, match="job spark"):
        party.lifecycle.unsubscribe(UnsubscribeRequest(key=party.key()))
    known = party.known()
    assert known is not None
    assert [(member.id, member.kind) for member in known.members] == [("spark", "whole")]
    claims.renew()
    party.leave(membership)
    assert party.attach(topic, "other").attached.role.members == 1


def test_a_whole_claim_is_refused_while_others_are_attached(
    party: Party, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    others = [party.attach(topic, member) for member in ("one", "two")]
    with pytest.raises(SubscriptionActive, match=r"name of one.*name of two"):
        hold(party, topic)
    party.leave(others[0])
    with pytest.raises(SubscriptionActive, match="name of two"):
        hold(party, topic)
    party.leave(others[1])
    assert hold(party, topic).attached.role.members == 1


def test_a_killed_holder_is_waited_for_and_its_claim_comes_again(
    party: Party, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    first = hold(party, topic, start="earliest")
    produce(party.kafka, topic, [5])
    hull = only(Claims(first.session).claim(ALL, ends(party, first)))
    party.ears.forget(first.subscription.address.channel("spark"))
    second = hold(party, topic, "second")
    claims = Claims(second.session)
    assert owned(only(claims.claim(ALL, ends(party, second)))) == owned(hull)
    assert code(lambda: Claims(first.session).renew()) == "FENCED"


def test_a_claim_on_a_subscription_deleted_since_settles_nothing(
    party: Party, kafkadur_topic: TopicFactory, clock: Clock
) -> None:
    topic = kafkadur_topic()
    membership = hold(party, topic, start="earliest")
    produce(party.kafka, topic, [5])
    claims = Claims(membership.session)
    hull = only(claims.claim(ALL, ends(party, membership)))
    clock.advance(SESSION_MS)
    party.lifecycle.unsubscribe(UnsubscribeRequest(key=party.key()))
    assert code(lambda: claims.settle(hull)) == "MISSING"
    assert party.stored() == set()
    again = hold(party, topic, "next", start="earliest")
    assert again.subscription.id != membership.subscription.id
    for call in (lambda: claims.settle(hull), claims.renew, lambda: claims.claim(ALL, {0: 5})):
        assert code(call) == "GONE"
    assert party.floors(again) == [0]
    request = Request(key=party.key(), definition=membership.subscription.definition)
    with pytest.raises(TopicChanged):
        party.lifecycle.attach(
            request, member="spark", name="spark", kind="whole", only=membership.subscription.id
        )


def test_a_claim_on_a_subscription_rebuilt_since_settles_nothing(
    party: Party, kafkadur_topic: TopicFactory, clock: Clock
) -> None:
    topic = kafkadur_topic()
    first = hold(party, topic, start="earliest")
    produce(party.kafka, topic, [5])
    stale = Claims(first.session)
    hull = only(stale.claim(ALL, ends(party, first)))
    wipe(party.url)
    assert code(lambda: stale.settle(hull)) == "MISSING"
    second = hold(party, topic)
    assert second.subscription.id == first.subscription.id
    assert code(lambda: stale.settle(hull)) == "INCARNATION"
    assert code(stale.renew) == "INCARNATION"
    claims = Claims(second.session)
    assert claims.claim(ALL, ends(party, second)) == [], "not while others may come back"
    assert claims.settle(hull) == [token for token, _, _ in hull.leases]
    clock.advance(second.attached.grace_ms)
    assert claims.claim(ALL, ends(party, second)) == [], "these ends may have been asked for before"
    again = only(claims.claim(ALL, ends(party, second)))
    assert owned(again) == owned(hull)
    assert claims.settle(again) == []
    assert party.floors(second) == [5]
