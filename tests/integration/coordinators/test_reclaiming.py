"""Claims after a loss: who had an offset in hands keeps it, once, and never against what is settled."""

from collections.abc import Callable

import pytest

from kafkadur_coordinators.interface import PRESENCE_GRACE, Claim
from kafkadur_coordinators.redis.scripts import assemble
from tests.integration.coordinators.world import (
    SESSION_MS,
    Member,
    World,
    refusal,
    report,
    rolled_back,
    settled,
)

Make = Callable[..., World]
#: Types whose lanes have one holder of several members.
ORDERED = ("priority", "serial")


def restart(world: World, incarnation: int = 9) -> None:
    """Let the state look as one that another server had written, and go on with it."""
    world.change(server="before:0")
    assert world.run("rebuild", "again", 20_000).code == "OK"
    assert world.run("reincarnate", "again", incarnation).code == "OK"


def lose(world: World, *starts: int, incarnation: int = 9) -> None:
    """Lose everything, and bring it back from floors."""
    for key in world.dump():
        world.coordinator.command("DEL", key)
    world.version = 0
    assert world.run("rebuild", "again", 20_000).code == "OK"
    assert world.put("again", starts=starts).code == "OK"
    assert world.install("again", version=1, incarnation=incarnation, grace=SESSION_MS).code == "OK"
    world.version = 1


def claim(
    member: Member,
    token: int,
    *held: int,
    incarnation: int = 1,
    marks: int = 0,
    partition: int = 0,
    heard: bool = True,
) -> tuple[int, list[int]]:
    """One claim: the new token, and what it holds."""
    claims = {partition: [Claim(incarnation, token, marks, held)]}
    (found,) = member.session.reclaim(claims, heard=heard)[partition]
    return found.token, list(found.held)


def waiting(world: World, partition: int = 0) -> list[tuple[int, int, int, int]]:
    """Exceptions: start, end, attempts, token."""
    return [(r.start, r.end, r.attempts, r.token) for r in world.partition(partition).runs]


def test_what_is_in_hands_is_kept_over_a_restart(make: Make) -> None:
    world = make()
    member = world.attach("m")
    member.say(report(0, readable_end=6), credit=6)
    member.say(report(0, settled=[settled(1, 0, 2)]))
    restart(world)
    member = world.attach("m")
    token, held = claim(member, 1, 2, 4, 5, 6)
    assert token > 1
    assert held == [2, 4, 5, 6]
    assert waiting(world) == [(2, 4, 0, token), (4, 5, 0, 0), (5, 6, 0, token)]
    member.say(report(0, settled=[settled(token, 2, 4)]))
    assert waiting(world) == [(4, 5, 0, 0), (5, 6, 0, token)]
    assert world.partition().floor == 4
    reply = member.say(report(0, returned=[rolled_back(token, 5, 6)]))
    assert reply.refused == []
    assert waiting(world)[-1][:3] == (5, 6, 1)


def test_attempts_are_those_of_the_claim(make: Make) -> None:
    world = make()
    world.attach("m").say(report(0, readable_end=2), credit=2)
    restart(world)
    token, _ = claim(world.attach("m"), 1, 0, 1, marks=7)
    assert waiting(world) == [(0, 1, 3, token), (1, 2, 0, 0)]


def test_what_is_in_hands_is_kept_after_a_loss(make: Make) -> None:
    """The state never heard of what was granted: it learns of it by the claim, and what is before waits."""
    world = make()
    lose(world, 10)
    member = world.attach("m")
    token, held = claim(member, 7, 14, 16, 19, 20)
    assert held == [14, 16, 19, 20]
    view = world.partition()
    assert (view.floor, view.next, view.readable_end) == (10, 20, 20)
    assert waiting(world) == [(10, 14, 0, 0), (14, 16, 0, token), (16, 19, 0, 0), (19, 20, 0, token)]
    assert [run.redelivered for run in view.runs] == [True, False, True, False]
    member.have = token
    assert not member.say(report(0, readable_end=30), credit=9).grants, "grace"
    world.clock.advance(SESSION_MS)
    grants = member.say(report(0, readable_end=30, log_end=30), credit=9).grants
    assert min(g.start for g in grants) == 10


def test_what_is_settled_is_not_claimed(make: Make) -> None:
    world = make()
    member = world.attach("m")
    member.say(report(0, readable_end=6), credit=6)
    member.say(report(0, settled=[settled(1, 1, 3)]))
    restart(world)
    member = world.attach("m")
    token, held = claim(member, 1, 0, 4)
    assert held == [0, 1, 3, 4]
    assert claim(member, 1, 1, 3) == (0, [])
    assert token in world.leases()
    (found,) = member.session.reclaim({0: [Claim(1, 1, 0, (0, 6))]}, heard=True)[0]
    assert list(found.settled) == [1, 3], "who asked is told that its acknowledgement had arrived"
    assert found.attached


def test_a_member_whose_session_had_ended_is_told_so_in_the_reply_to_its_claim(make: Make) -> None:
    """Another member may have settled the messages: its own acknowledgement may not have arrived."""
    world = make()
    world.attach("m").say(report(0, readable_end=3), credit=3)
    world.clock.advance(SESSION_MS - 1)
    other = world.attach("other")
    world.clock.advance(1)
    other.say(report(0, readable_end=3), credit=3)
    other.have = 2
    other.say(report(0, settled=[settled(2, 0, 3)]))
    restart(world)
    (found,) = world.attach("m").session.reclaim({0: [Claim(1, 1, 0, (0, 3))]}, heard=True)[0]
    assert (found.token, list(found.settled), found.attached) == (0, [0, 3], 0)


def test_whether_a_member_was_attached_is_not_known_after_a_wipe(make: Make) -> None:
    world = make()
    lose(world, 4)
    (found,) = world.attach("m").session.reclaim({0: [Claim(1, 1, 0, (0, 3))]}, heard=True)[0]
    assert (list(found.settled), found.attached) == ([0, 3], 0)


def test_a_member_that_was_not_heard_leases_nothing_again_after_a_wipe(make: Make) -> None:
    """Another member may have been granted its messages and have settled them; only the lost state knew."""
    world = make()
    lose(world, 0)
    member = world.attach("m")
    assert claim(member, 3, 0, 2, heard=False) == (0, [])
    assert not world.leases()
    world.clock.advance(SESSION_MS)
    grants = member.say(report(0, readable_end=2, log_end=2), credit=2).grants
    assert [(g.start, g.horizon) for g in grants] == [(0, 2)], "they are delivered again"


def test_a_member_that_was_not_heard_leases_again_what_a_state_that_lasted_knows(make: Make) -> None:
    world = make()
    world.attach("m").say(report(0, readable_end=2), credit=2)
    restart(world)
    token, held = claim(world.attach("m"), 1, 0, 2, heard=False)
    assert token > 1
    assert held == [0, 2]


def test_the_time_without_presence_is_the_same_in_scripts_and_members() -> None:
    assert f"PRESENCE_GRACE_MS = {PRESENCE_GRACE * 1000:.0f}\n" in assemble("exchange")


def test_the_higher_token_has_it_whoever_comes_first(make: Make) -> None:
    for first, second in ((3, 8), (8, 3)):
        world = make()
        lose(world, 0)
        members = {3: world.attach("stopped"), 8: world.attach("current")}
        granted = {token: claim(members[token], token, 0, 4) for token in (first, second)}
        held = {run[3] for run in waiting(world)}
        assert held == {granted[8][0]}
        assert members[8].say(report(0, settled=[settled(granted[8][0], 0, 4)])).refused == []
        assert world.partition().floor == 4
        members[3].say(report(0, settled=[settled(granted[3][0] or 3, 0, 4)]))
        assert world.partition().unsettled == 0


@pytest.mark.parametrize("kind", ["shared", *ORDERED])
def test_messages_that_the_later_holder_gave_back_are_not_leased_to_an_earlier_one(
    make: Make, kind: str
) -> None:
    """Its acknowledgement would settle them, and the later holder has been promised that they come again."""
    world = make(kind)
    lose(world, 0)
    old, new = world.attach("stopped", most=0), world.attach("current", most=0)
    token, held = claim(new, 8, 1, 3)
    assert held == [1, 3]
    assert new.say(report(0, returned=[rolled_back(token, 1, 3)])).refused == []
    again, held = claim(old, 3, 0, 4)
    assert held == ([0, 1, 3, 4] if kind == "shared" else [])
    if kind == "shared":
        old.say(report(0, settled=[settled(again, 0, 1), settled(again, 3, 4)]))
    assert [(run[0], run[1], run[3]) for run in waiting(world) if run[2]] == [(1, 3, 0)], "they come again"


def test_a_later_incarnation_is_higher_than_any_token(make: Make) -> None:
    world = make()
    lose(world, 0)
    old, new = world.attach("old"), world.attach("new")
    token, _ = claim(new, 1, 0, 4, incarnation=5)
    assert claim(old, 99, 2, 6, incarnation=4)[1] == [4, 6]
    assert waiting(world)[0] == (0, 4, 0, token)


@pytest.mark.parametrize("kind", ORDERED)
def test_a_lane_has_one_holder_after_claims(make: Make, kind: str) -> None:
    world = make(kind)
    lose(world, 0)
    old = world.attach("old", most=0)
    new = world.attach("new", most=0)
    token, _ = claim(old, 3, 0, 2)
    assert token
    mine, held = claim(new, 8, 4, 6)
    assert held == [4, 6]
    assert {lease.member for lease in world.leases().values()} == {"new"}
    assert claim(old, 3, 0, 2) == (0, [])
    assert old.say(report(0, settled=[settled(token, 0, 2)])).refused == [token]
    world.clock.advance(SESSION_MS - 1)
    new.say(report())
    world.clock.advance(1)
    assert not old.say(report(0, readable_end=9, log_end=9), credit=9).grants
    assert new.say(report(0, readable_end=9, settled=[settled(mine, 4, 6)]), credit=9).grants


def test_nothing_is_claimed_when_leases_are_granted_again(make: Make) -> None:
    world = make()
    lose(world, 0)
    member = world.attach("m")
    world.clock.advance(SESSION_MS)
    assert claim(member, 3, 0, 2) == (0, [])
    assert not world.leases()


def test_grace_lasts_until_all_have_claimed(make: Make) -> None:
    world = make()
    for name in ("a", "b"):
        world.attach(name).say(report(0, readable_end=9), credit=2)
    restart(world)
    a, b = world.attach("a"), world.attach("b")
    a_reply = a.say(report(0), credit=5)
    assert a_reply.grace_ms > 0
    assert not a_reply.grants
    token, held = claim(b, 2, 2, 4)
    assert held == [2, 4]
    assert b.say(report(0)).grace_ms == 0
    offsets = {run[0] for run in waiting(world) if run[3] == token}
    assert offsets == {2}
    assert all(not 2 <= g.start < 4 for g in a.say(report(0), credit=9).grants)


def test_refused(make: Make) -> None:
    world = make()
    lose(world, 0)
    member = world.attach("m")
    for held in ((), (3,), (4, 4), (4, 2), (0, 3, 2, 5), (0, 2**49), (-2, 1)):
        refused = refusal(lambda: claim(member, 1, *held))  # noqa: B023 - called at once
        assert refused is not None
        assert refused.code == "INVALID"
    world.attach("m")
    late = refusal(lambda: claim(member, 1, 0, 2))
    assert late is not None
    assert late.code == "FENCED"
    assert not world.leases()


def test_the_next_restart_asks_for_claims_anew(make: Make) -> None:
    world = make()
    lose(world, 0)
    member = world.attach("m")
    token, _ = claim(member, 5, 0, 3)
    restart(world, incarnation=20)
    member = world.attach("m")
    again, held = claim(member, token, 0, 3, incarnation=9)
    assert held == [0, 3]
    assert world.leases().keys() == {again}


def test_a_repeated_claim_is_answered_again(make: Make) -> None:
    """Its answer was lost: the member asks again, and must neither lose what it has nor get it twice."""
    world = make()
    member = world.attach("m")
    member.say(report(0, readable_end=3), credit=3)
    restart(world)
    member = world.attach("m")
    first = claim(member, 1, 0, 2)
    assert claim(member, 1, 0, 2) == first
    assert [lease.token for lease in world.leases().values()] == [first[0]]
    member.have = first[0]
    grants = member.say(report(0, readable_end=3, log_end=3), credit=1).grants
    assert [(g.start, g.horizon) for g in grants] == [(2, 3)]


def test_who_lost_an_offset_to_a_higher_claim_is_told(make: Make) -> None:
    """Its acknowledgement must not be confirmed: the other one has the message in hands."""
    world = make()
    lose(world, 0)
    old, new = world.attach("old"), world.attach("new")
    token, _ = claim(old, 3, 0, 4)
    mine, held = claim(new, 8, 2, 4)
    assert held == [2, 4]
    assert old.say(report(0, settled=[settled(token, 2, 4)])).refused == [token]
    assert waiting(world) == [(0, 2, 0, 0), (2, 4, 0, mine)]
