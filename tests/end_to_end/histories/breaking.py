"""Making faults happen: to members here and now, to servers in a thread of their own. A seed draws which.

Each is recorded from just before it begins until everything it broke is whole again.
"""

from __future__ import annotations

import heapq
import itertools
import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgpack
import redis

from kafkadur.admin.changes import Admin
from kafkadur.settings import Settings
from kafkadur.stack import Stack, TcpProxy, Valkey
from kafkadur_coordinators.redis.cluster import slot_of
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import SubscriptionKey
from tests.end_to_end.histories.crew import Crew, Process, Slot
from tests.end_to_end.histories.faults import (
    ADMIN,
    FAULTS,
    FEW_FILES,
    FORK,
    HOSTILE,
    MEMBER,
    NEW_PARTITION,
    NEW_TOPIC,
    SUBSCRIPTION,
)
from tests.end_to_end.histories.hostile import attack
from tests.end_to_end.histories.plan import Plan
from tests.end_to_end.histories.recording import OK, UNKNOWN, Recorder
from tests.end_to_end.histories.topics import Topics
from tests.integration.coordinators import stored

_ADMIN_S = 20.0
#: Within so many seconds damage of the state must be noticed, and the state rebuilt.
_NOTICED_S = 30.0


class Breaker:
    """Breaks things, and makes them whole again. Used by one thread."""

    def __init__(
        self,
        plan: Plan,
        stack: Stack,
        crew: Crew,
        recorder: Recorder,
        *,
        topics: Topics,
        settings: Settings,
    ) -> None:
        """Nothing is broken yet."""
        self._topics = topics
        self._plan = plan
        self._stack = stack
        self._crew = crew
        self._recorder = recorder
        self._settings = settings
        self._chance = random.Random(f"{plan.seed}-faults")
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._servers = ThreadPoolExecutor(1, thread_name_prefix="servers")
        self._busy: Future[None] | None = None
        self._member_kinds = [kind for kind in plan.faults if FAULTS[kind].hits == MEMBER]
        self._server_kinds = [kind for kind in plan.faults if FAULTS[kind].hits != MEMBER]
        #: kinds that are still to come before any comes once more
        self._next_kinds: dict[bool, list[str]] = {True: [], False: []}
        now = time.monotonic()
        self._member_at = now + self._wait(plan.member_fault_every)
        self._server_at = now + self._wait(plan.server_fault_every) / 2
        #: what hits one subscription
        self._of_subscriptions: dict[str, Callable[[str, float], None]] = {
            "pause": self._pause,
            NEW_PARTITION: self._add_partition,
            NEW_TOPIC: self._create_anew,
            HOSTILE: self._be_hostile,
        }
        #: faults that have begun
        self.injected = 0
        #: kinds that have not come yet
        self.missing = set(plan.faults)

    def _wait(self, mean: float) -> float:
        return mean * (0.4 + 1.2 * self._chance.random())

    def step(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        self._do_due(now)
        if self._member_kinds and now >= self._member_at:
            self._member_at = now + self._wait(self._plan.member_fault_every)
            self._break_member(self._chance.random())
        if self._server_kinds and now >= self._server_at:
            self._server_at = now + self._wait(self._plan.server_fault_every)
            much = self._chance.random()
            if self._busy is None or self._busy.done():
                self._raise_failure()
                kind = self._kind(members=False)
                self.injected += 1
                self.missing.discard(kind)
                self._busy = self._servers.submit(self._break_server, kind, much, self._chance.random())

    def _kind(self, *, members: bool) -> str:
        """The next kind: all of them in turn, in an order that is drawn anew each time."""
        kinds = self._next_kinds[members]
        if not kinds:
            kinds += self._member_kinds if members else self._server_kinds
            self._chance.shuffle(kinds)
        return kinds.pop()

    def _do_due(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()

    def _raise_failure(self) -> None:
        if self._busy is not None:
            self._busy.result()

    def heal(self) -> None:
        """Make everything whole again; returns when it is."""
        self._do_due(float("inf"))
        self._servers.shutdown()
        self._raise_failure()
        with Admin(self._settings) as admin:
            for name in self._plan.subscriptions:
                self._resume(admin, admin.key(self._full(name)))
        for slot in self._crew.slots:
            if slot.alive is None:
                self._crew.fill(slot)

    # -- members

    def _break_member(self, much: float) -> None:
        slots = [slot for slot in self._crew.slots if slot.alive is not None and not slot.disturbed]
        pick = self._chance.random()
        if not slots:
            return
        kind = self._kind(members=True)
        slot = slots[int(pick * len(slots))]
        process = slot.alive
        assert process is not None
        slot.disturbed = True
        self.injected += 1
        self.missing.discard(kind)
        number = self._recorder.call(kind, process=process.name)
        if kind == "kill":
            process.kill()
            self._recorder.done(number, OK)
            self._at(0.1 + much, lambda: self._fill(slot))
        elif kind == "stop":
            process.stop()
            self._at(much * 2.5 * self._plan.session, lambda: self._whole(slot, number, process.go_on))
        elif kind == FORK:
            process.order(FORK)
            self._at(0.1, lambda: self._told(slot, number))
        else:
            assert slot.proxy is not None, "only a single server has proxies"
            self._break_connections(kind, slot, slot.proxy, process, number, much)

    def _break_connections(
        self, kind: str, slot: Slot, proxy: TcpProxy, process: Process, number: int, much: float
    ) -> None:
        if kind == "cut":
            proxy.cut(refuse=True)
            self._at(max(much * 3 - 1, 0), lambda: self._whole(slot, number, proxy.resume))
        elif kind == "hole":
            proxy.pause()
            self._at(much * 2.5 * self._plan.session, lambda: self._whole(slot, number, proxy.resume))
        elif kind == "delay":
            proxy.delay(0.02 + much / 2)
            self._at(1 + 3 * much, lambda: self._whole(slot, number, lambda: proxy.delay(0)))
        elif kind == FEW_FILES:
            process.order(f"{FEW_FILES}:{1 + 2 * much:.3f}")
            proxy.cut()
            self._at(1 + 2 * much, lambda: self._told(slot, number))

    def _fill(self, slot: Slot) -> None:
        slot.disturbed = False
        self._crew.fill(slot)

    def _whole(self, slot: Slot, number: int, mend: Callable[[], None]) -> None:
        mend()
        self._recorder.done(number, OK)
        slot.disturbed = False

    def _told(self, slot: Slot, number: int) -> None:
        """The process was told what to do; when it did so, it records that itself."""
        self._recorder.done(number, UNKNOWN)
        slot.disturbed = False

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), action))

    # -- servers: in a thread of their own

    def _break_server(self, kind: str, much: float, pick: float) -> None:
        if FAULTS[kind].hits in (ADMIN, SUBSCRIPTION):
            name = list(self._plan.subscriptions)[int(pick * len(self._plan.subscriptions))]
            self._of_subscriptions[kind](name, much)
            return
        number = self._recorder.call(kind)
        _SERVERS[kind](self._stack, self._crew, much)
        self._recorder.done(number, OK)

    def _full(self, name: str) -> str:
        """Its name as the administrator says it."""
        return self._plan.subscriptions[name].full_name

    def _pause(self, name: str, much: float) -> None:
        number = self._recorder.call("pause", subscription=name)
        with Admin(self._settings) as admin:
            key = admin.key(self._full(name))
            try:
                admin.pause(key)
            except KafkadurError as error:
                self._recorder.done(number, UNKNOWN, error=type(error).__name__)
                self.missing.add("pause")
                return
            time.sleep(0.3 + 2 * much)  # how long it is paused
            self._resume(admin, key)
        self._recorder.done(number, OK)

    def _add_partition(self, name: str, _much: float) -> None:
        number = self._recorder.call(NEW_PARTITION, subscription=name)
        self._topics.add_partition(name)
        self._recorder.done(number, OK)

    def _create_anew(self, name: str, much: float) -> None:
        number = self._recorder.call(NEW_TOPIC, subscription=name)
        switched = self._topics.create_anew(name, unseen=much < 0.5)
        self._recorder.done(number, OK, switched=switched)

    def _be_hostile(self, name: str, much: float) -> None:
        number = self._recorder.call(HOSTILE, subscription=name)
        accepted = attack(self._settings, self._full(name), random.Random(much))
        self._recorder.done(number, OK, accepted=accepted)

    def _resume(self, admin: Admin, key: SubscriptionKey) -> None:
        deadline = time.monotonic() + _ADMIN_S
        while True:
            try:
                admin.pause(key, paused=False)
            except KafkadurError:
                if time.monotonic() > deadline:
                    raise
            else:
                return


def _primary(stack: Stack, much: float) -> Valkey:
    """The server, or one of the primaries of the cluster."""
    if stack.valkey_cluster is None:
        assert stack.valkey is not None
        return stack.valkey
    primaries = stack.valkey_cluster.primaries()
    return primaries[int(much * len(primaries))]


def _flush(stack: Stack, _crew: Crew, much: float) -> None:
    with redis.Redis.from_url(_primary(stack, much).admin_url) as client:
        client.execute_command("FLUSHALL")


def _damage(stack: Stack, _crew: Crew, much: float) -> None:
    """Damage a key of a subscription, or a record that each exchange reads; wait until it is rebuilt."""
    chance = random.Random(much)
    client: Any = redis.Redis.from_url(_primary(stack, much).admin_url)
    with client:
        states = sorted(client.scan_iter(match="*}:def", count=1_000))
        if not states:
            return  # of a cluster: no subscription lies on this node
        state = chance.choice(states).decode()
        key = chance.choice((state, state.removesuffix("def") + "seal"))
        before = stored.read(client.execute_command, state).incarnation
        how = chance.choice(("delete", "overwrite", "older", "record"))
        copy = client.dump(key)
        if how == "delete":
            client.unlink(key)
        elif how == "overwrite":
            client.set(key, b"something else")
        elif how == "record":
            client.hset(state, chance.choice(("s", "lists", "p:0")), b"something else")
        else:
            _wait_until(lambda: client.dump(key) != copy, "a change of the state")
            client.restore(key, 0, copy, replace=True)
        _wait_until(lambda: _incarnation(client, state) > before, "the damage was noticed")


def _incarnation(client: Any, state: str) -> int:
    """Incarnation of a subscription; 0: its state cannot be read."""
    try:
        found: int = stored.read(client.execute_command, state).incarnation
    except (redis.ResponseError, TypeError, ValueError, msgpack.UnpackException):
        return 0
    return found


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _NOTICED_S
    while not condition():
        if time.monotonic() > deadline:
            msg = f"I13: not within {_NOTICED_S:g} s: {what}"
            raise AssertionError(msg)
        time.sleep(0.01)  # polls for a condition, with a deadline


def _redis_restart(stack: Stack, _crew: Crew, _much: float) -> None:
    assert stack.valkey is not None
    stack.valkey.kill()
    shutil.rmtree(stack.data / "valkey" / "appendonlydir")
    stack.valkey.start()


def _redis_crash(stack: Stack, _crew: Crew, _much: float) -> None:
    assert stack.valkey is not None
    stack.valkey.kill()
    stack.valkey.start()


def _node_kill(stack: Stack, _crew: Crew, much: float) -> None:
    assert stack.valkey_cluster is not None
    victim = _primary(stack, much)
    successor = stack.valkey_cluster.replica_of(victim)
    victim.kill()
    _wait_until(lambda: successor.is_master, "a failover")
    victim.start()
    stack.valkey_cluster.settle()


def _node_hang(stack: Stack, _crew: Crew, much: float) -> None:
    assert stack.valkey_cluster is not None
    victim = _primary(stack, much)
    successor = stack.valkey_cluster.replica_of(victim)
    victim.freeze()
    try:
        _wait_until(lambda: successor.is_master, "a failover")
    finally:
        victim.thaw()
    stack.valkey_cluster.settle()


def _slot_move(stack: Stack, _crew: Crew, much: float) -> None:
    assert stack.valkey_cluster is not None
    source = _primary(stack, much)
    with redis.Redis.from_url(source.admin_url) as client:
        states = sorted(client.scan_iter(match="*}:def", count=1_000))
    if not states:
        return  # no subscription lies on this node
    target = next(node for node in stack.valkey_cluster.primaries() if node is not source)
    stack.valkey_cluster.move(slot_of(states[0].decode()), target)


def _redis_cut(_stack: Stack, crew: Crew, _much: float) -> None:
    for proxy in _proxies(crew):
        proxy.cut()


def _redis_hole(_stack: Stack, crew: Crew, much: float) -> None:
    for proxy in _proxies(crew):
        proxy.pause()
    time.sleep(6 * much)  # how long the hole lasts
    for proxy in _proxies(crew):
        proxy.resume()


def _proxies(crew: Crew) -> list[TcpProxy]:
    """Those of all members."""
    return [slot.proxy for slot in crew.slots if slot.proxy is not None]


def _kafka_cut(stack: Stack, _crew: Crew, much: float) -> None:
    for proxy in stack.kafka_proxies:
        proxy.cut(refuse=True)
    time.sleep(2 * much)  # how long nobody is let in
    for proxy in stack.kafka_proxies:
        proxy.resume()


def _kafka_hole(stack: Stack, _crew: Crew, much: float) -> None:
    for proxy in stack.kafka_proxies:
        proxy.pause()
    time.sleep(4 * much)  # how long the hole lasts
    for proxy in stack.kafka_proxies:
        proxy.resume()


def _kafka_delay(stack: Stack, _crew: Crew, much: float) -> None:
    for proxy in stack.kafka_proxies:
        proxy.delay(0.02 + much / 2)
    time.sleep(1 + 3 * much)  # how long it lasts
    for proxy in stack.kafka_proxies:
        proxy.delay(0)


def _broker_restart(stack: Stack, _crew: Crew, much: float) -> None:
    for broker in stack.brokers:
        if much < 0.5:
            broker.kill()
        else:
            broker.stop()
        broker.start()


_SERVERS: dict[str, Callable[[Stack, Crew, float], None]] = {
    "flush": _flush,
    "damage": _damage,
    "redis-restart": _redis_restart,
    "redis-crash": _redis_crash,
    "node-kill": _node_kill,
    "node-hang": _node_hang,
    "slot-move": _slot_move,
    "redis-cut": _redis_cut,
    "redis-hole": _redis_hole,
    "kafka-cut": _kafka_cut,
    "kafka-hole": _kafka_hole,
    "kafka-delay": _kafka_delay,
    "broker-restart": _broker_restart,
}
