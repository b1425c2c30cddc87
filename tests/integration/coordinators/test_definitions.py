"""Changes of a definition in the shared state; a server that restarts or loses everything."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from kafkadur.stack import Valkey, as_administrator, embedded
from kafkadur_coordinators.redis.wire import Changing, InstallRequest, Policy, Reply
from kafkadur_sharing.errors import CoordinatorUnavailable
from tests.integration.coordinators.world import SESSION_MS, World, refusal, report, rolled_back, settled

Make = Callable[..., World]
DEADLINE_MS = 20_000


def code(call: Callable[[], object]) -> str:
    """The code a call is refused with; OK if it is not."""
    refused = refusal(call)
    return "OK" if refused is None else refused.code


@pytest.fixture
def blank(valkey: Valkey) -> Iterator[World]:
    """Provide a subscription that does not exist yet."""
    world = World(valkey.url)
    yield world
    world.close()


# -- creating


def test_nothing_is_known_of_what_does_not_exist(blank: World) -> None:
    assert code(lambda: blank.coordinator.peek(blank.address)) == "MISSING"
    assert code(blank.attach) == "MISSING"
    assert code(lambda: blank.session("m").detach([])) == "MISSING"
    assert blank.dump() == {}


def test_of_two_creators_one_begins(blank: World) -> None:
    assert blank.run("change", 0, "first", DEADLINE_MS).code == "OK"
    blank.clock.advance(1_000)
    reply = blank.run("change", 0, "second", DEADLINE_MS)
    assert (reply.code, reply.body[0]) == ("CHANGING", DEADLINE_MS - 1_000)
    assert blank.run("change", 0, "first", DEADLINE_MS).code == "OK", "its own repeat"
    assert blank.put("second").code == "CHANGED"
    assert blank.install("second", version=1).code == "CHANGED"
    assert blank.put("first").code == "OK"
    assert blank.install("first", version=7).code == "OK"
    known = blank.coordinator.peek(blank.address)
    assert (known.version, known.id, known.changing_ms, known.partitions) == (7, blank.id, None, 1)


def test_what_is_being_created_is_not_rebuilt(blank: World) -> None:
    """Its creator has written the definition into the journal: others must not take that for a loss."""
    assert blank.run("change", 0, "first", DEADLINE_MS).code == "OK"
    blank.clock.advance(1_000)
    reply = blank.run("rebuild", "second", DEADLINE_MS)
    assert (reply.code, reply.body[0]) == ("BUSY", DEADLINE_MS - 1_000)
    assert blank.put("first").code == "OK"
    assert blank.install("first", version=1).code == "OK"
    assert blank.run("rebuild", "second", DEADLINE_MS).code == "INTACT"


def test_what_a_process_did_not_create_in_time_is_rebuilt(blank: World) -> None:
    blank.run("change", 0, "dies", DEADLINE_MS)
    blank.clock.advance(DEADLINE_MS)
    assert blank.run("rebuild", "second", DEADLINE_MS).code == "OK"
    assert blank.install("dies", version=1).code == "CHANGED", "it is too late"


def test_a_change_is_seen_with_its_deadline_until_it_is_resolved(blank: World) -> None:
    blank.run("change", 0, "lost", DEADLINE_MS)
    assert blank.coordinator.peek(blank.address).changing_ms == DEADLINE_MS
    blank.clock.advance(DEADLINE_MS + 5)
    known = blank.coordinator.peek(blank.address)
    assert (known.changing_ms, known.changing_from, known.version) == (0, 0, 0)
    assert blank.run("change", 0, "next", DEADLINE_MS).code == "CHANGING", "it must be resolved first"


def test_a_late_install_changes_nothing(make: Make) -> None:
    world = make()
    world.attach().say(report(readable_end=3), credit=3)
    before = world.dump()
    assert world.install("first", version=1).code == "OK"
    assert world.install("first", version=9).code == "CHANGED"
    assert world.put("first").code == "CHANGED"
    assert world.dump() == before


# -- changing


def test_an_active_subscription_is_not_changed(make: Make) -> None:
    world = make()
    member = world.attach()
    reply = world.run("change", 1, "other", DEADLINE_MS)
    assert (reply.code, *reply.body) == ("ACTIVE", [f"name of {member.id}".encode()], -1)
    world.ears.forget(member.channel)
    assert world.run("change", 1, "other", DEADLINE_MS).body[1] == 500
    world.clock.advance(500)
    assert world.run("change", 1, "other", DEADLINE_MS).code == "OK"


def test_a_change_of_another_version_is_refused(make: Make) -> None:
    world = make()
    assert world.run("change", 2, "other", DEADLINE_MS).code == "CHANGED"
    assert world.run("change", 0, "other", DEADLINE_MS).code == "CHANGED"


def test_nobody_attaches_while_the_definition_is_changed(make: Make) -> None:
    world = make()
    world.run("change", 1, "other", DEADLINE_MS)
    refused = refusal(world.attach)
    assert refused is not None
    assert (refused.code, Changing._make(refused.reply.body).left) == ("CHANGING", DEADLINE_MS)
    world.install("other", version=2)
    assert code(world.attach) == "CHANGED"
    world.version = 2
    assert code(world.attach) == "OK"


def test_a_change_given_up_leaves_everything_as_it_was(make: Make) -> None:
    """What members who are gone held stays known: it would be stranded otherwise."""
    world = make("exclusive")
    member = world.attach()
    member.say(report(readable_end=6), span=10)
    member.say(report(settled=[settled(1, 0, 2)]), span=10)
    world.clock.advance(SESSION_MS + 1)
    assert world.run("change", 1, "given-up", DEADLINE_MS).code == "OK"
    world.clock.advance(DEADLINE_MS + 1)
    assert world.install("given-up", version=2).code == "OK"
    world.version = 2
    known = world.coordinator.peek(world.address)
    assert (known.version, known.changing_ms, known.incarnation) == (2, None, 1)
    other = world.attach()
    reply = other.say(report(), span=10)
    assert [(g.kind, g.start, g.attempts) for g in reply.grants] == [("runs", 2, 1), ("lane", 6, 0)]
    assert min(g.token for g in reply.grants) > 1


def test_a_definition_that_is_deleted_leaves_nothing_of_itself(make: Make) -> None:
    world = make()
    assert world.run("change", 1, "delete", DEADLINE_MS).code == "OK"
    assert world.run("install", "", 2, "", "", 0, 1, "delete", 0, (), 0, 0, 0).code == "OK"
    assert code(lambda: world.coordinator.peek(world.address)) == "MISSING"
    assert set(world.dump()) <= {key.encode() for key in world.keys(0)}


def test_a_definition_with_the_offsets_of_thousands_of_partitions_is_installed(make: Make) -> None:
    world = make()
    content = json.dumps({"topic_id": "topic-1", "starts": {str(p): 10**12 for p in range(10_000)}})
    assert world.run("change", 1, "other", DEADLINE_MS).code == "OK"
    request = InstallRequest(
        id=world.id,
        version=2,
        definition=content,
        type=world.type,
        partitions=1,
        incarnation=1,
        token="other",
        quiet=0,
        policy=Policy(0, 0, 0, 0, 1, 0),
        anew=0,
        unclaimed=0,
    )
    assert world.run("install", *request).code == "OK"
    assert world.coordinator.peek(world.address).definition == content


def test_a_zombie_of_a_replaced_subscription_changes_nothing(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=3), credit=3)
    world.clock.advance(SESSION_MS + 1)
    world.run("change", 1, "other", DEADLINE_MS)
    old, world.id = world.id, "0.new"
    world.version = 0  # scripts of the change name no id
    world.put("other")
    world.install("other", version=2)
    before = world.dump()
    assert code(lambda: member.say(report(settled=[settled(1, 0, 3)]))) == "GONE"
    world.id = old
    assert code(lambda: world.session(member.id).detach([0])) == "GONE"
    assert world.dump() == before


# -- who may attach


def test_an_exclusive_subscription_has_one_member(make: Make) -> None:
    world = make("exclusive")
    member = world.attach()
    refused = refusal(lambda: world.attach("other"))
    assert refused is not None
    assert (refused.code, *refused.active) == (
        "ACTIVE",
        [f"name of {member.id}".encode()],
        -1,
    )
    world.ears.forget(member.channel)
    refused = refusal(lambda: world.attach("other"))
    assert refused is not None
    assert refused.active.again == 500
    world.clock.advance(500)
    assert code(lambda: world.attach("other")) == "OK"
    assert code(member.say) == "FENCED"


def test_who_holds_the_whole_keeps_others_out(make: Make) -> None:
    world = make()
    whole = world.attach(most=1, kind="whole")
    assert code(world.attach) == "ACTIVE"
    whole.detach()
    world.attach()
    assert code(lambda: world.attach(most=1, kind="whole")) == "ACTIVE"


def test_attaching_again_ends_the_former_attachment(make: Make) -> None:
    world = make("exclusive")
    member = world.attach("m")
    member.say(report(readable_end=3), span=5)
    again = world.attach("m")
    reply = again.say(report(), span=5)
    assert [(g.kind, g.start, g.attempts) for g in reply.grants] == [("runs", 0, 1), ("lane", 3, 0)]
    assert reply.role.members == 1


# -- partitions


def test_added_partitions_start_empty_and_known_ones_keep_their_state(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=3), credit=3)
    world.partitions = 3
    assert world.put("", starts=[99, 0, 7]).code == "OK"
    assert [(v.base, v.next, v.readable_end) for v in world.inspect().partitions] == [
        (0, 3, 3),
        (0, 0, 0),
        (7, 7, 7),
    ]
    assert world.coordinator.peek(world.address).partitions == 3
    world.partitions = 2
    world.put("")
    assert world.coordinator.peek(world.address).partitions == 3, "a late one takes none away"


# -- loss and restart


def test_a_wiped_server_is_noticed_by_the_next_call(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=3), credit=3)
    client: Any = redis.Redis.from_url(as_administrator(world.url))
    with client:
        client.flushall()
    assert code(lambda: member.say(report(settled=[settled(1, 0, 3)]))) == "MISSING"
    assert code(lambda: world.session(member.id).detach([0])) == "MISSING"
    assert code(world.inspect) == "MISSING"
    assert code(world.attach) == "MISSING"
    assert world.dump() == {}


def rebuild(world: World, token: str) -> Reply:
    return world.run("rebuild", token, DEADLINE_MS)


def test_one_rebuilds_and_the_others_wait(make: Make) -> None:
    world = make()
    client: Any = redis.Redis.from_url(as_administrator(world.url))
    assert rebuild(world, "early").code == "INTACT"
    with client:
        client.flushall()
    reply = rebuild(world, "one")
    assert (reply.code, reply.body[0]) == ("OK", 0)
    world.clock.advance(1_000)
    reply = rebuild(world, "two")
    assert (reply.code, reply.body[0]) == ("BUSY", DEADLINE_MS - 1_000)
    assert rebuild(world, "one").code == "OK", "its own repeat"
    world.clock.advance(DEADLINE_MS)
    assert rebuild(world, "two").code == "OK", "the first one took too long"
    world.version = 0
    assert world.put("one").code == "CHANGED"
    assert world.install("one", version=1, incarnation=5).code == "CHANGED"
    assert world.put("two", starts=[4], seen=9).code == "OK"
    assert world.install("two", version=1, incarnation=6, grace=SESSION_MS).code == "OK"
    world.version = 1
    known = world.coordinator.peek(world.address)
    assert (known.incarnation, known.grace_ms) == (6, SESSION_MS)
    assert rebuild(world, "three").code == "INTACT"


def lost(world: World) -> World:
    """The subscription, wiped and rebuilt."""
    client: Any = redis.Redis.from_url(as_administrator(world.url))
    with client:
        client.flushall()
    rebuild(world, "one")
    world.version = 0
    world.put("one", starts=[4], seen=9)
    world.install("one", version=1, incarnation=6, grace=SESSION_MS)
    world.version = 1
    return world


def test_after_a_rebuild_leases_are_granted_when_the_grace_is_over(make: Make) -> None:
    world = lost(make())
    member = world.attach()
    reply = member.say(report(readable_end=12), credit=20)
    assert (member.session.incarnation, list(reply.grants), reply.grace_ms) == (6, [], SESSION_MS)
    world.clock.advance(SESSION_MS)
    reply = member.say(report(), credit=20)
    # who had not noticed may have handed out what came until now, also what this member has not read
    assert (list(reply.grants), reply.partitions[0].log_end_unknown) == ([], True)
    reply = member.say(report(log_end=14), credit=20)
    assert [(g.start, g.horizon, g.seen) for g in reply.grants] == [(4, 12, 14)]
    reply = member.say(report(readable_end=15), credit=20)
    assert [(g.start, g.horizon, g.seen) for g in reply.grants] == [(12, 15, 14)]


@pytest.fixture(scope="module")
def own() -> Iterator[Valkey]:
    """Provide a Valkey that the tests of this file may stop."""
    with embedded(kafka=False, users=True) as stack:
        assert stack.valkey is not None
        yield stack.valkey


@pytest.fixture
def restarted(own: Valkey) -> Iterator[World]:
    """Provide a subscription with two members, each with leases, on a server that has restarted since."""
    world = World(own.url, partitions=2).create()
    first, second = world.attach("first"), world.attach("second")
    first.say(report(0, readable_end=8), credit=4)
    second.say(report(1, readable_end=8), credit=4)
    first.say(report(0, settled=[settled(1, 0, 1)], returned=[rolled_back(1, 1, 2, delay=1)]), credit=0)
    world.members = (first, second)  # type: ignore[attr-defined]
    own.stop()
    own.start()
    with pytest.raises(CoordinatorUnavailable):
        world.inspect()
    world.ears.close()
    world.ears = type(world.ears)(own.url)
    yield world
    world.close()


def test_a_restart_that_kept_the_data_is_noticed(restarted: World) -> None:
    world = restarted
    before = world.dump()
    assert before, "the data was kept"
    for member in world.members:  # type: ignore[attr-defined]
        assert code(lambda: member.say(report())) == "RESTARTED"  # noqa: B023 # called at once
    assert code(world.attach) == "RESTARTED"
    assert world.run("change", 1, "other", DEADLINE_MS).code == "RESTARTED"
    assert world.put("", starts=[0, 0]).code == "RESTARTED"
    assert code(lambda: world.coordinator.peek(world.address)) == "RESTARTED"
    assert world.dump() == before


def test_settled_offsets_survive_a_restart_and_leases_end_uncounted(restarted: World) -> None:
    world = restarted
    reply = rebuild(world, "one")
    assert (reply.code, reply.body[0]) == ("OK", 1)
    assert rebuild(world, "two").code == "BUSY"
    assert world.run("reincarnate", "two", 9).code == "CHANGED"
    assert world.run("reincarnate", "one", 9).code == "OK"
    assert world.run("reincarnate", "one", 9).code == "OK", "its own repeat"
    known = world.coordinator.peek(world.address)
    assert (known.incarnation, known.members, known.grace_ms) == (9, (), SESSION_MS)
    for member in world.members:  # type: ignore[attr-defined]
        assert code(lambda: member.say(report())) == "INCARNATION"  # noqa: B023 # called at once
    first = world.attach("first")
    assert first.attached.grace_ms == SESSION_MS
    early = first.say(report(0), report(1), credit=20)
    assert not early.grants, "the other one may still hold what it had"
    assert [(r.start, r.end, r.attempts) for v in world.inspect().partitions for r in v.runs] == [
        (1, 2, 1),
        (2, 4, 0),
        (0, 4, 0),
    ]
    second = world.attach("second")
    assert second.attached.grace_ms > 0, "it may claim what it had, first of all"
    world.ears.heard()
    assert second.say(report(), credit=0).grace_ms == 0, "all who held leases are back"
    assert world.ears.heard() == [first.channel]
    granted = first.say(report(0, log_end=4), report(1, log_end=4), credit=20).grants
    assert granted
    assert min(grant.token for grant in granted) > 2


def test_who_does_not_come_back_is_waited_for_one_session(restarted: World) -> None:
    world = restarted
    rebuild(world, "one")
    world.run("reincarnate", "one", 9)
    first = world.attach("first")
    world.clock.advance(SESSION_MS - 1)
    assert first.say(report(0), credit=20).grace_ms == 1
    world.clock.advance(1)
    assert first.say(report(0, log_end=4), credit=20).grants


def test_nobody_is_given_up_for_silence_right_after_a_restart(restarted: World) -> None:
    world = restarted
    rebuild(world, "one")
    world.run("reincarnate", "one", 9)
    first = world.attach("first")
    world.attach("second", listening=False)
    for _ in range(4):
        world.clock.advance(600)
        assert first.say(ask=True).silent_ms is None
    assert first.say(ask=True).role.members == 2


def test_a_change_that_a_restart_interrupted_is_resolved_after_it(own: Valkey) -> None:
    world = World(own.url).create()
    world.run("change", 1, "lost", DEADLINE_MS)
    own.stop()
    own.start()
    with pytest.raises(CoordinatorUnavailable):
        world.inspect()
    assert world.install("lost", version=2).code == "CHANGED", "the restart comes first"
    rebuild(world, "one")
    assert world.run("reincarnate", "one", 9).code == "OK"
    world.clock.advance(DEADLINE_MS + 1)
    assert world.coordinator.peek(world.address).changing_ms == 0
    assert world.install("lost", version=2).code == "OK"
    assert world.coordinator.peek(world.address).version == 2
    world.close()


def test_a_restart_on_an_open_connection_is_a_lost_connection(own: Valkey) -> None:
    """The run id is read once a connection: it must not outlive the server's process."""
    world = World(own.url).create()
    own.kill()
    own.start()
    with pytest.raises(CoordinatorUnavailable):
        world.inspect()
    assert code(world.inspect) in {"RESTARTED", "MISSING"}
    world.close()
