"""Several real members on the real scripts: who gets what, how soon, and that they come to rest.

The first tests are of single situations, the last ones of random lives (`lives.py`).
"""

from collections.abc import Callable

import pytest

from kafkadur_sharing.definition import Definition
from tests.integration.coordinators.lives import Life
from tests.integration.coordinators.together import (
    EXCLUSIVE,
    OWN_TURNS,
    OWN_TURNS_STRICT,
    PARTITION,
    SERIAL,
    STRICT,
    Peer,
    Together,
)
from tests.integration.coordinators.world import World, report, rolled_back

Make = Callable[..., World]

#: Redelivery policy as the scripts take it, the last number for turns of each partition's own.
OWN_TURNS_POLICY = (0, 0, 0, 0, 1, 1)


def with_own_turns(make: Make, partitions: int) -> Together:
    return Together(make("serial", partitions=partitions, policy=OWN_TURNS_POLICY), OWN_TURNS)


def with_interleaved_promises(make: Make) -> tuple[Together, Peer, Peer]:
    """Two members that are promised every second message each, from 4 on."""
    together = Together(make())
    first, second = together.join("first"), together.join("second")
    together.settle()
    together.write(0, 4)
    together.settle()
    for peer in (first, second):
        peer.take_all()
        peer.ack_all()
    together.settle()
    return together, first, second


def settles(together: Together, most: int) -> bool:
    """Whether members come to rest after at most so many exchanges."""
    exchanges = together.settle(200)
    return exchanges is not None and exchanges <= most


def test_what_comes_into_gaps_of_who_left_is_handed_out_at_once(make: Make) -> None:
    together, stays, leaves = with_interleaved_promises(make)
    together.leave(leaves)
    together.settle()
    # promises of one member now interleave: the later one has messages before the first is complete
    for offset in range(4, 8):
        together.write()
        together.run(20)
        assert stays.take() == offset
        stays.ack()
        together.settle()


def test_what_is_granted_behind_a_promise_is_handed_out(make: Make) -> None:
    together, first, second = with_interleaved_promises(make)
    second.member.rest()
    together.settle()
    together.write(0, 2)
    second.member.wake_up()
    # the reader of the first one is slower: it is granted what was vacated before it has read it
    followed, first.followed = first.followed, {}
    second.read()
    while second.exchange():
        second.read()
    second.member.rest()
    together.settle()
    first.followed = followed
    together.run(20)
    assert sorted(first.take_all() + second.take_all()) == [4, 5]


def test_members_rest_when_ends_of_partitions_are_seen_one_after_the_other(make: Make) -> None:
    together = Together(make(partitions=2, starts=(0, 50)))
    together.ends[1] = 50
    one = together.join("one", window=4)
    for _ in range(2):
        one.exchange()
    later, one.followed = {1: one.followed[1]}, {0: one.followed[0]}
    one.read()
    one.member.wake()
    together.settle()
    # all that may be promised to it is of partition 0: it must not ask for what it would give back
    one.followed |= later
    one.read()
    one.member.wake()
    assert settles(together, 20)


def test_idle_turns_on_many_partitions_cost_nothing(make: Make) -> None:
    together = with_own_turns(make, 40)  # an exchange reports on fewer
    for name in "ab":
        together.join(name, window=1)
    assert settles(together, 60)


def test_members_rest_while_paused_with_a_message_of_another_turn_in_hands(make: Make) -> None:
    together = with_own_turns(make, 2)
    one = together.join("one", window=2)
    together.settle()
    together.write()
    together.settle()
    assert one.take() == 0
    together.pause(paused=True)
    assert settles(together, 20)


def test_members_rest_while_paused_with_a_message_of_another_lease_in_hands(make: Make) -> None:
    together = Together(make("exclusive"), EXCLUSIVE)
    one = together.join("one")
    together.settle()
    together.write(0, 3)
    together.settle()
    assert one.take() == 0
    one.roll_back()
    together.settle()
    assert one.take() == 0  # again, under a lease of its own; nothing of the lane is in hands
    together.pause(paused=True)
    assert settles(together, 10)


def test_a_member_that_reads_its_own_partition_leaves_others_alone(make: Make) -> None:
    together = Together(make(partitions=2))
    full, reads = together.join("full"), together.join("reads")
    together.settle()
    reads.reads_at_once = 10
    together.write(0, 900)
    together.write(1, 900)
    taken: list[int] = []
    while sum(place >= PARTITION for place in taken) < 700:
        together.settle(1)  # what was read is acknowledged before more is there: it holds nothing then
        taken += reads.take_all()
        reads.ack_all()
    # at first its partition was empty: it took one window of the other one
    assert [place < PARTITION for place in taken] == [True] * 100 + [False] * (len(taken) - 100)
    reads.reads_at_once = 0  # Kafka does not answer any more
    together.settle()
    reads.take_all()
    reads.ack_all()
    together.settle()
    together.write(0)
    full.member.request_exchange()  # it reports a message that it has no room for
    together.settle()
    assert reads.take() is None, "granted by the exchange of another member"
    together.run(0.5)
    taken = reads.take_all()
    assert taken
    assert max(taken) < PARTITION
    assert full.take() == 0


def test_a_message_goes_to_who_is_free_not_to_a_full_keeper(make: Make) -> None:
    together = with_own_turns(make, 2)
    free, full = together.join("free", window=1), together.join("full", window=1)
    together.run(12)
    together.write(1)
    together.settle()
    assert free.take() == 1000
    free.ack()
    together.settle()
    together.write(0)
    together.settle()
    assert full.take() == 0  # its handler goes on for an hour
    together.run(3)
    together.write(1)
    together.settle()
    assert together.first_taken(2.0, free) == 1001


@pytest.mark.parametrize("free", [0, 1])
def test_what_comes_when_all_are_full_goes_to_who_is_free_first(make: Make, free: int) -> None:
    together = Together(make())
    peers = [together.join(f"n{i}", window=1) for i in range(2)]
    together.run(12)
    together.write(0, 2)
    together.settle()
    assert [peer.take() for peer in peers] == [0, 1]
    together.run(3)
    together.write()
    together.settle()
    peers[free].ack()  # the other one's handler goes on for an hour
    assert together.first_taken(2.0, peers[free]) == 2


def test_who_watches_again_reports_what_was_promised_in_the_meantime(make: Make) -> None:
    together = Together(make(partitions=2))
    home, other = together.join("home", window=4), together.join("other")
    together.settle()
    together.run(6)
    together.write(0, 4)
    together.settle()
    assert home.take_all() == [0, 1, 2, 3]  # partition 0 is home's, and home is full: the other one watches
    together.run(6)
    home.ack_all()
    together.settle()
    together.write(0, 4)
    together.settle()
    assert (home.take_all(), other.take_all()) == ([], [4, 5, 6, 7])
    other.ack_all()
    together.settle()
    home.member.rest()
    together.settle()
    together.write()
    together.settle()
    together.run(1)
    assert together.first_taken(1.0, other) == 8


@pytest.mark.parametrize("definition", [SERIAL, OWN_TURNS], ids=["turns", "own turns"])
def test_every_partition_is_read_however_many_members_there_are(make: Make, definition: Definition) -> None:
    policy = OWN_TURNS_POLICY if definition is OWN_TURNS else OWN_TURNS_POLICY[:5]
    together = Together(make("serial", partitions=10, policy=policy), definition)
    peers = [together.join(f"n{i}", window=1) for i in range(10)]
    together.run(12)
    together.write(3)
    assert together.first_taken(1.0, *peers) == 3000


def test_who_has_the_turn_keeps_it_until_what_comes_again_was_read(make: Make) -> None:
    together = Together(make("serial", policy=OWN_TURNS_POLICY[:5]), SERIAL)
    peers = [together.join(name, window=3) for name in ("one", "two")]
    together.settle()
    together.write(0, 6)
    for _ in range(3):
        together.settle()
        for peer in peers:
            for _ in peer.take_all():
                peer.roll_back(delay=5.0)
    # it fills two turns, lies behind where both read on, and to read it again takes longer than an exchange
    for peer in peers:
        peer.reads_ranges = False
    together.world.clock.advance(5_000)
    assert settles(together, 20)
    for peer in peers:
        peer.reads_ranges = True
    together.settle()
    assert [0, 1, 2] in [peer.take_all() for peer in peers]


def test_what_comes_again_of_what_came_again_holds_nothing_up(make: Make) -> None:
    together = Together(make("exclusive", policy=(0, 0, 0, 1, 1)), STRICT)
    one = together.join("one")
    together.settle()
    together.write(0, 4)
    together.settle()
    assert one.take_all() == [0, 1, 2, 3]
    for _ in range(4):
        one.roll_back()
    together.settle()
    assert one.take() == 0
    one.ack()
    assert one.take() == 1  # of one lease
    one.roll_back()
    together.settle()
    for place in (1, 2, 3):  # 1 of another lease, and what is left of the first one waits for it
        assert one.take() == place
        one.ack()
        together.settle()


def test_a_stopping_member_lets_go_of_turns_it_does_not_need(make: Make) -> None:
    together = with_own_turns(make, 2)
    stopping = together.join("stopping", window=2)
    together.settle()
    together.write()
    together.settle()
    assert stopping.take() == 0  # its handler goes on for an hour
    other = together.join("other", window=2)
    together.run(3)
    stopping.member.begin_close()
    together.run(3)
    together.write(1)
    assert together.first_taken(1.0, other) == 1000


def test_what_others_settled_holds_nothing_back(make: Make) -> None:
    """A member rolls back, and passes its turn without a lease that could end: somebody else settles that."""
    together = Together(make("serial", policy=(0, 0, 0, 1, 1, 1)), OWN_TURNS_STRICT)
    first = together.join("first", window=2)
    together.write(0, 6)
    together.settle()
    assert first.take_all() == [0, 1]
    second = together.join("second", window=1)
    together.settle()
    first.roll_back(delay=0.1)
    first.roll_back(delay=1.0)
    together.run(0.2)
    assert second.take() == 0, "its turn, and 1 is not due: there is nothing else"
    second.roll_back(delay=0.1)
    together.run(0.3)
    assert first.take() == 0
    first.ack()
    together.run(1.0)
    for place in range(1, 6):
        assert first.take() == place or second.take() == place
        first.ack_all()
        second.ack_all()
        together.run(0.1)


def test_leases_of_two_partitions_are_told_in_the_end(make: Make) -> None:
    world = make(partitions=2)
    first, second = world.attach("first"), world.attach("second")
    token = second.say(report(1, readable_end=3), credit=3).grants[0].token
    first.say(report(0), credit=5)
    second.say(report(1, returned=[rolled_back(token, 0, 3)], done=[token]), credit=0)  # the first one's now
    reply = first.say(report(0, reserve=4), credit=5)
    rounds = 0
    while reply.orphaned and rounds < 20:
        rounds += 1
        reply = first.say(*(report(p, reserve=4) for p in reply.orphaned), credit=2)
    assert rounds < 5


KINDS = ("shared", "own turns")


def test_what_came_beyond_the_window_goes_to_others(make: Make) -> None:
    """What was promised came while the exchange was under way that brought as many others."""
    Life(make, own_turns=False, seed=138).run()


@pytest.mark.parametrize("seed", range(26))
@pytest.mark.parametrize("kind", KINDS)
def test_random_lives_of_members(make: Make, kind: str, seed: int) -> None:
    Life(make, own_turns=kind == "own turns", seed=seed).run()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind in KINDS for seed in range(26, 300)])
def test_more_random_lives_of_members(make: Make, kind: str, seed: int) -> None:
    Life(make, own_turns=kind == "own turns", seed=seed).run()
