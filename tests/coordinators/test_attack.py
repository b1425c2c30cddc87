"""Attacks on promises and on turns of their own."""

from collections.abc import Callable

from kafkadur_sharing.definition import SubscriptionType
from tests.coordinators.sim import Node, Sim
from tests.coordinators.world import World, report, rolled_back

Make = Callable[..., World]
OWN = {"type": SubscriptionType.SERIAL, "scope": "partition"}
TURNS = (0, 0, 0, 0, 1, 1)


def test_promise_of_a_gap_left_by_who_left_is_handed_out_at_once(make: Make) -> None:
    """D1: two promises of one member interleave; the later one is not filled before the first is complete."""
    sim = Sim(make())
    stays, leaves = sim.node("stays"), sim.node("leaves")
    sim.settle()
    sim.write(0, 4)  # so that both have stride two
    sim.settle()
    for node in (stays, leaves):
        while node.take() is not None:
            pass
        while node.hands:
            node.ack()
    sim.settle()
    sim.leave(leaves)
    sim.settle()
    for offset in range(4, 8):
        sim.write()
        sim.run(20)
        print(offset, sim.world.partition().avail, sim.world.partition().runs)
        assert stays.take() == offset
        stays.ack()
        sim.settle()


def test_a_grant_behind_a_promise_is_handed_out(make: Make) -> None:
    """D1b: what was vacated is granted before its new holder has read it: it waits behind a promise."""
    sim = Sim(make())
    first, second = sim.node("first"), sim.node("second")
    sim.settle()
    sim.write(0, 4)
    sim.settle()
    for node in (first, second):
        while node.take() is not None:
            pass
        while node.hands:
            node.ack()
    sim.settle()
    print(sim.world.partition().runs)  # 4, 6, 8, 10 of the first, 5, 7, 9, 11 of the second
    second.member.rest()
    sim.settle()
    sim.write(0, 2)  # 4 and 5; `second` reads first, and reports
    second.member.wake_up()
    followed, first.followed = first.followed, {}  # its reader is slower
    while second.read() or second.exchange():
        pass
    second.member.rest()
    sim.settle()
    first.followed = followed
    sim.run(20)
    print(sim.world.partition().runs, first.member.statistics(), second.member.statistics())
    got = [first.take(), first.take(), second.take()]
    print(got)
    assert sorted(filter(None, got)) == [4, 5]


def test_busy_loop_of_promises(make: Make) -> None:
    """D2: what is asked for of one partition is given back at once because another one has more than its share."""
    sim = Sim(make(partitions=2, starts=(0, 50)))
    sim.ends[1] = 50
    one = sim.node("one", window=4)
    one.exchange(), one.exchange()
    # the end of partition 0 is seen first
    two, one.followed = {1: one.followed[1]}, {0: one.followed[0]}
    one.read()
    one.member.wake()
    sim.settle()
    print(one.exchanges, one.member.statistics())
    one.followed |= two
    one.read()
    one.member.wake()
    count = sim.settle(200)
    print(count, one.member.statistics())
    assert 0 <= count < 20


def test_idle_turns_on_many_partitions_cost_nothing(make: Make) -> None:
    """D3: more than 16 lanes of a turn of their own with one member."""
    sim = Sim(make("serial", partitions=40, policy=TURNS))
    sim.node("a", window=1, **OWN), sim.node("b", window=1, **OWN)
    count = sim.settle(200)
    assert 0 <= count < 60


def test_paused_with_a_message_of_another_lane_in_hands(make: Make) -> None:
    """D4."""
    sim = Sim(make("serial", partitions=2, policy=TURNS))
    a = sim.node("a", window=2, **OWN)
    sim.settle()
    sim.write(0)
    sim.settle()
    assert a.take() == 0
    sim.world.run("pause", 1)
    a.member.wake()
    count = sim.settle(200)
    print(count)
    assert 0 <= count < 20


def test_a_message_goes_to_who_is_free_not_to_a_full_keeper(make: Make) -> None:
    """D5: own turns, windows of one."""
    sim = Sim(make("serial", partitions=2, policy=TURNS))
    a, b = sim.node("a", window=1, **OWN), sim.node("b", window=1, **OWN)

    def tell(when: str) -> None:
        keepers = [sim.world.coordinator.command("HGET", sim.world.keys(p)[0], "keeper") for p in (0, 1)]
        print(
            when,
            "keepers",
            keepers,
            {
                n.name: ({p: g.standing.name for p, g in n.member._groups.items()}, n.exchanges)
                for n in (a, b)
            },
            sim.world.leases(),
        )

    sim.run(12)
    tell("idle")
    sim.write(1)
    sim.settle()
    assert a.take() == 1000  # partition 1 passed to it
    a.ack()
    sim.settle()
    sim.write(0)
    sim.settle()
    assert b.take() == 0  # and partition 0 to the other one, whose handler goes on for an hour
    sim.run(3)
    tell("in hands")
    free = a
    before = sim.now()
    sim.write(1)
    sim.settle()
    tell("another came")
    while free.take() is None:
        sim.run(0.1)
        assert sim.now() - before < 30
    tell("taken")
    assert sim.now() - before < 2


def test_window_of_one_shared(make: Make) -> None:
    """D6: windows of one, both busy with what was promised: what comes next is whoever's that is free first."""
    sim = Sim(make())
    nodes = [sim.node(f"n{i}", window=1) for i in range(2)]
    sim.run(12)
    sim.write(0, 2)
    sim.settle()
    assert [node.take() for node in nodes] == [0, 1]
    sim.run(3)
    sim.write()
    sim.settle()
    print([node.member.statistics() for node in nodes], sim.world.leases())
    for node in nodes:
        if not node.member._leases or all(lease.ahead for lease in node.member._leases.values()):
            break
    node.ack()  # the other one's handler goes on for an hour
    sim.run(20)
    assert node.take() == 2


def test_watch_handed_on_again(make: Make) -> None:
    """D7: a member that watches again what it watched before reports what was promised in the meantime."""
    sim = Sim(make(partitions=2))
    home, other = sim.node("home", window=4), sim.node("other")

    def tell(when: str) -> None:
        state = other.member._states.get(0)
        view = sim.world.partition(0)
        print(
            when,
            "watch",
            home.member._watches,
            other.member._watches,
            "other knows",
            state and state.free_from,
            "is",
            view.avail,
            view.next,
            [(r.start, r.end, r.token) for r in view.runs],
        )

    def all_of(node: Node) -> list[int]:
        taken = []
        while (one := node.take()) is not None:
            taken.append(one)
        return taken

    sim.settle()
    sim.run(6)
    sim.write(0, 4)
    sim.settle()
    assert all_of(home) == [0, 1, 2, 3]  # home of partition 0 is full: the other one watches it
    sim.run(6)
    tell("full")
    home.ack(), home.ack(), home.ack(), home.ack()
    sim.settle()
    tell("home has room")
    sim.write(0, 4)  # what the other one was promised
    sim.settle()
    assert (all_of(home), all_of(other)) == ([], [4, 5, 6, 7])
    while other.hands:
        other.ack()
    sim.settle()
    tell("some came")
    home.member.rest()
    sim.settle()
    tell("home rests")
    before = sim.now()
    sim.write(0)
    sim.settle()
    sim.run(1)
    while not all_of(other):
        sim.run(0.1)
        assert sim.now() - before < 30
    print("took", sim.now() - before)
    assert sim.now() - before < 2


def _many(make: Make, own: bool) -> float:
    sim = Sim(make("serial", partitions=10, policy=TURNS if own else (0, 0, 0, 0, 1)))
    how = OWN if own else {"type": SubscriptionType.SERIAL}
    nodes = [sim.node(f"n{i}", window=1, **how) for i in range(10)]
    sim.run(12)
    print([sorted(node.followed) for node in nodes], [node.exchanges for node in nodes])
    sim.write(3)
    before = sim.now()
    while all(node.take() is None for node in nodes):
        sim.run(0.1)
        if sim.now() - before > 30:
            break
    return sim.now() - before


def test_more_than_eight_members_own(make: Make) -> None:
    """D8: who keeps a lane without a lease reads it."""
    assert _many(make, own=True) < 1


def test_more_than_eight_members_together(make: Make) -> None:
    assert _many(make, own=False) < 1


def test_a_stopping_member_lets_go_of_lanes(make: Make) -> None:
    """D9: nothing of partition 1 is in its hands, but it stays its keeper until it has left."""
    sim = Sim(make("serial", partitions=2, policy=TURNS))
    a = sim.node("a", window=2, **OWN)
    sim.settle()
    sim.write(0)
    sim.settle()
    assert a.take() == 0
    b = sim.node("b", window=2, **OWN)
    sim.run(3)
    a.member.begin_close()  # stop(); its handler goes on for an hour
    sim.run(3)
    sim.write(1)
    before = sim.now()
    while b.take() is None:
        sim.run(0.1)
        assert sim.now() - before < 30, sim.world.leases()
    assert sim.now() - before < 1


def test_leases_on_two_partitions_are_told_in_the_end(make: Make) -> None:
    """D10: each answer tells of one partition's and asks for the other one again, for ever."""
    world = make(partitions=2)
    first, second = world.attach("first"), world.attach("second")
    token = second.say(report(1, avail=3), credit=3).grants[0].token
    first.say(report(0), credit=5)
    second.say(report(1, returned=[rolled_back(token, 0, 3)], done=[token]), credit=0)  # the first one's now
    reply = first.say(report(0, ahead=4), credit=5)
    rounds = 0
    while reply.orphaned and rounds < 20:
        rounds += 1
        reply = first.say(*(report(p, ahead=4) for p in reply.orphaned), credit=2)
    assert rounds < 5


def test_paused_with_another_lease_of_the_lane(make: Make) -> None:
    """D11 (older): paused, a message in hands, and another lease of the lane of which none is."""
    sim = Sim(make("exclusive"))
    a = sim.node("a", type=SubscriptionType.EXCLUSIVE)
    sim.settle()
    sim.write(0, 3)
    sim.settle()
    assert a.take() == 0
    a.hands.pop().rollback_nowait()
    a.member.poke()
    sim.settle()
    assert a.take() == 0  # again, under a lease of its own; nothing of the lane is in hands
    sim.world.run("pause", 1)
    a.member.wake()
    assert 0 <= sim.settle(100) < 10
