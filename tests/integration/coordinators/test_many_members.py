"""Five thousand members on a hundred nodes: is their work even, do they wake seldom, is one replaced soon?

The members and scripts are the real ones, and time is moved by hand (`together.py`). Each node has a member
of each of 50 subscriptions, which are tried one after the other: they share nothing but the server.
`python -m benchmarks plan` calculates with what is confirmed here.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from kafkadur_coordinators.redis.coordinator import STATE_VERSION
from tests.integration.coordinators.together import SHARED, Peer, Together, place_of
from tests.integration.coordinators.world import World

Make = Callable[..., World]

#: Members of a subscription, each on a node of its own, and partitions of its topic.
NODES, PARTITIONS = 100, 20
WINDOW = 10
#: ms between two looks of a node whether the neighbours of its members still listen.
LOOK_MS = 200
STEP_MS = 50
#: Messages that come one by one, and the time between two, ms.
TRICKLE, APART_MS = 200, 10


@dataclass
class Measured:
    """What one subscription showed."""

    #: messages of a backlog that each member worked on, while there was a backlog
    shares: list[int]
    #: exchanges and wakes for each message that came alone
    exchanges: float
    wakes: float
    #: seconds until others had all messages of a node that died
    recovery: float


class Counting(Together):
    """Counts the wakes of its members."""

    wakes = 0

    def deliver_wakes(self) -> None:
        """As everywhere, and count."""
        by_channel = {peer.channel: peer for peer in self.peers}
        for channel, _ in self.world.ears.messages():
            if (peer := by_channel.get(channel)) is not None:
                self.wakes += 1
                peer.member.wake()


def work_on_a_backlog(together: Together) -> list[int]:
    """Have every member work equally fast on a backlog, until half of it is done; what each has done."""
    each = 40
    for partition in range(PARTITIONS):
        together.write(partition, each * NODES // PARTITIONS)
    done: Counter[str] = Counter()
    while sum(done.values()) < each * NODES // 2:
        for peer in together.peers:
            peer.read()
            peer.exchange()
            peer.read()
            if peer.take() is not None:
                done[peer.name] += 1
                peer.ack()
        together.world.clock.advance(STEP_MS)
    shares = [done[peer.name] for peer in together.peers]
    busy = True
    while busy:
        exchanges = together.exchanges()
        taken = sum(_work(peer) for peer in together.peers)
        busy = bool(taken) or together.exchanges() > exchanges
        together.world.clock.advance(STEP_MS)
    return shares


def trickle(together: Counting) -> tuple[float, float]:
    """Write messages one by one; exchanges and wakes for each."""
    exchanges, wakes, taken = together.exchanges(), together.wakes, 0
    for number in range(TRICKLE):
        together.write(number % PARTITIONS)
        for peer in together.peers:
            taken += _work(peer)
        together.world.clock.advance(APART_MS)
    until = together.now() + 5
    while taken < TRICKLE and together.now() < until:
        taken += sum(_work(peer) for peer in together.peers)
        together.world.clock.advance(STEP_MS)
    assert taken == TRICKLE
    return (together.exchanges() - exchanges) / TRICKLE, (together.wakes - wakes) / TRICKLE


def _work(peer: Peer) -> int:
    """Have a member do what is due; how many messages it has worked on."""
    peer.read()
    if peer.exchange():
        peer.read()
    taken = len(peer.take_all())
    peer.ack_all()
    return taken


def lose_a_node(together: Together) -> float:
    """End a member that has messages in hands; seconds until others had them all."""
    for partition in range(PARTITIONS):
        together.write(partition, NODES)
    together.settle(5)
    victim = together.peers[NODES // 2]
    victim.take_all()
    lost = {place_of(delivery) for delivery in victim.hands}
    assert len(lost) == WINDOW
    together.kill(victim)
    died, looked = together.now(), together.now()
    while lost:
        assert together.now() - died < 20, f"{len(lost)} messages are with nobody"
        together.world.clock.advance(STEP_MS)
        if together.now() - looked >= LOOK_MS / 1000:
            looked = together.now()
            look_at_neighbours(together.peers, together.world)
        for peer in together.peers:
            peer.read()
            if peer.exchange():
                peer.read()
            lost -= {*peer.take_all()}
            peer.ack_all()
    return together.now() - died


def look_at_neighbours(peers: Iterable[Peer], world: World) -> None:
    """As `session_keeper.py`."""
    for peer in peers:
        neighbour = peer.member.neighbour
        if neighbour and world.address.channel(neighbour) not in world.ears.channels:
            peer.member.report_silence()


def measured(make: Make) -> Measured:
    together = Counting(make(partitions=PARTITIONS), SHARED)
    for number in range(NODES):
        together.join(f"node-{number}", window=WINDOW)
    together.settle()
    shares = work_on_a_backlog(together)
    exchanges, wakes = trickle(together)
    return Measured(shares, exchanges, wakes, lose_a_node(together))


@pytest.mark.parametrize("state_version", [STATE_VERSION])
@pytest.mark.parametrize(
    "subscriptions", [pytest.param(1, id="short"), pytest.param(50, id="long", marks=pytest.mark.long)]
)
def test_work_is_even_wakes_are_rare_and_a_node_is_replaced_soon(make: Make, subscriptions: int) -> None:
    found = [measured(make) for _ in range(subscriptions)]
    for each in found:
        assert max(each.shares) - min(each.shares) <= 2, "every member is as fast as the others"
        assert each.exchanges <= 1.2, "one that says that the message is settled"
        assert each.wakes <= 0.05
        assert each.recovery <= 1
