"""Random lives of a subscription whose members are real ones: they join, work, rest, leave and die.

What must hold at every step is asserted here, too: a message is in one hand, a partition that takes turns has
one holder, no window is exceeded, nothing that was acknowledged comes again, and members come to rest. In the
end everything that was written is acknowledged, without a wait. `test_members_together.py` says which lives
are run.
"""

import random
from collections.abc import Callable, Collection

from tests.integration.coordinators.together import OWN_TURNS, PARTITION, SHARED, Peer, Together, place_of
from tests.integration.coordinators.world import SESSION_MS, World

STEPS = 120
MOST_MEMBERS = 5
#: Windows that the members of one life have.
WINDOWS = ((1,), (1, 2), (4,), (3, 8), (100,), (1, 100))
#: Members that exchange more often before they come to rest are busy with themselves.
MOST_EXCHANGES = 90
ROUNDS = 100
#: In the end all that was left over may be due at once.
ROUNDS_AT_THE_END = 300
MOST_LEASES = 40


class Life:
    """One subscription and its members, all that is random in it drawn from one seed."""

    def __init__(self, make: Callable[..., World], *, own_turns: bool, seed: int) -> None:
        self.seed = seed
        self.own_turns = own_turns
        self._random = random.Random(seed)
        partitions = self._random.choice((1, 1, 2, 3, 5))
        world = make(
            "serial" if own_turns else "shared",
            partitions=partitions,
            policy=(self._random.choice((0, 0, 1000)), 0, 0, 0, 1, int(own_turns)),
        )
        self._windows = self._random.choice(WINDOWS)
        self._together = Together(world, OWN_TURNS if own_turns else SHARED)
        self._joined = 0
        self._died = False
        self._paused = False
        self._acked: set[int] = set()
        resting = () if own_turns else ((0.81, self._rest), (0.83, self._wake_up))
        #: what happens, by the share of all steps up to which it does
        self._steps: tuple[tuple[float, Callable[[Peer], None]], ...] = (
            (0.25, self._write),
            (0.50, self._take_some),
            (0.70, self._ack),
            (0.74, self._give_back),
            (0.77, self._join),
            (0.79, self._leave),
            (0.80, self._kill),
            *resting,
            (0.84, self._pause_or_resume),
            (0.86, self._let_time_go_by),
            (0.90, self._exchange),
            (0.93, self._read),
            (1.00, self._settle),
        )

    def run(self) -> None:
        """Live, and see that it ends well."""
        self._join_one()
        for _ in range(STEPS):
            self._step()
        self._come_back()
        self._work_beside_who_is_full()
        self._work_off(self._together.peers, self._written(), within=2.0)
        for _ in range(6):
            self._together.write(self._random.randrange(len(self._together.ends)))
            self._work_off(self._together.peers, self._written(), within=1.0)
        self._idle()

    # -- steps; the member that was drawn takes part in most of them

    def _step(self) -> None:
        chance, peer = self._random.random(), self._random.choice(self._together.peers)
        alone = len(self._together.peers) == 1
        for bound, step in self._steps:
            if chance < bound and not (alone and step == self._kill):
                step(peer)
                return

    def _write(self, _: Peer) -> None:
        partition = self._random.randrange(len(self._together.ends))
        self._together.write(partition, self._random.choice((1, 1, 1, 2, 3, 10)))

    def _take_some(self, peer: Peer) -> None:
        for _ in range(self._random.choice((1, 1, 5))):
            self._take(peer)

    def _ack(self, peer: Peer) -> None:
        if peer.hands:
            index = self._random.randrange(len(peer.hands))
            self._acked.add(place_of(peer.hands[index]))
            peer.ack(index)

    def _give_back(self, peer: Peer) -> None:
        if peer.hands:
            index = self._random.randrange(len(peer.hands))
            give = peer.release if self._random.random() < 0.5 else peer.roll_back
            give(index)

    def _join(self, _: Peer) -> None:
        if len(self._together.peers) < MOST_MEMBERS:
            self._join_one()

    def _join_one(self) -> None:
        self._joined += 1
        self._together.join(f"n{self._joined}", window=self._random.choice(self._windows))

    def _leave(self, peer: Peer) -> None:
        if len(self._together.peers) > 1:
            self._together.leave(peer)

    def _kill(self, peer: Peer) -> None:
        self._died = True
        self._together.kill(peer)

    def _rest(self, peer: Peer) -> None:
        peer.member.rest()

    def _wake_up(self, peer: Peer) -> None:
        peer.member.wake_up()

    def _pause_or_resume(self, _: Peer) -> None:
        self._paused = not self._paused
        self._together.pause(paused=self._paused)

    def _let_time_go_by(self, _: Peer) -> None:
        self._together.run(self._random.choice((0.2, 1, 6)))

    def _exchange(self, _: Peer) -> None:
        peer = self._random.choice(self._together.peers)
        peer.read()
        peer.exchange()

    def _read(self, _: Peer) -> None:
        self._random.choice(self._together.peers).read()

    def _settle(self, _: Peer) -> None:
        self._random.shuffle(self._together.peers)
        exchanges = self._together.settle(ROUNDS)
        assert exchanges is not None, self._tell("does not come to rest")
        assert exchanges <= MOST_EXCHANGES, self._tell(f"comes to rest after {exchanges} exchanges only")

    # -- what must hold whenever a message is taken

    def _take(self, peer: Peer) -> bool:
        place = peer.take()
        if place is None:
            return False
        others = {place_of(one) for other in self._together.peers if other is not peer for one in other.hands}
        assert place not in others, self._tell(f"{place} is in two hands")
        if self.own_turns:
            held = {other // PARTITION for other in others}
            assert place // PARTITION not in held, self._tell(f"the partition of {place} has two holders")
        # what a dead member acknowledged without waiting may not have been said
        assert self._died or place not in self._acked, self._tell(f"{place} comes again")
        assert len(peer.hands) <= peer.member.window, self._tell(f"the window of {peer.name} is exceeded")
        return True

    # -- the end

    def _come_back(self) -> None:
        if self._paused:
            self._together.pause(paused=False)
        for peer in self._together.peers:
            peer.member.wake_up()
        if self._died:
            self._together.run(SESSION_MS / 1000 + 4)

    def _work_beside_who_is_full(self) -> None:
        """Now and then one member keeps what it has, for ever; others work off the rest."""
        peers = self._together.peers
        if len(peers) == 1 or self._random.random() >= 0.5:
            return
        full = self._random.choice(peers)
        while self._take(full):
            pass
        if len(full.hands) < full.member.window:
            return
        kept = {place_of(one) for one in full.hands}
        held = {place // PARTITION for place in kept} if self.own_turns else set[int]()
        wanted = {place for place in self._written() - kept if place // PARTITION not in held}
        self._work_off([peer for peer in peers if peer is not full], wanted, within=2.0)

    def _work_off(self, peers: Collection[Peer], wanted: Collection[int], *, within: float) -> None:
        """Have `peers` take and acknowledge all of `wanted`, `within` seconds from one to the next."""
        last = self._together.now()
        while missing := set(wanted) - self._acked:
            assert self._together.settle(ROUNDS_AT_THE_END) is not None, self._tell("does not come to rest")
            for peer in peers:
                while self._take(peer):
                    pass
                while peer.hands:
                    self._ack(peer)
                    last = self._together.now()
            self._together.run(0.05)
            assert self._together.now() - last <= within, self._tell(f"nobody gets {sorted(missing)[:10]}")

    def _idle(self) -> None:
        """Nothing is left to do: that is known to the coordinator, and costs next to nothing."""
        before = self._together.exchanges()
        self._together.run(4)
        exchanges = self._together.exchanges() - before
        assert exchanges <= 6 * len(self._together.peers), self._tell(f"idles with {exchanges} exchanges")
        for peer in self._together.peers:
            assert peer.member.statistics()["leases"] <= MOST_LEASES, self._tell("too many leases")
        world = self._together.world
        floors = {partition: world.partition(partition).floor for partition in self._together.ends}
        assert floors == self._together.ends, self._tell(f"acknowledged up to {floors}")

    def _written(self) -> set[int]:
        ends = self._together.ends.items()
        return {partition * PARTITION + offset for partition, end in ends for offset in range(end)}

    def _tell(self, what: str) -> str:
        numbers = {peer.name: peer.member.statistics() for peer in self._together.peers}
        return f"seed {self.seed}: {what}; log {self._together.ends}, members {numbers}"
