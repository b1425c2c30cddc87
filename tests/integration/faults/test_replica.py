"""A replica that takes over by hand: an old copy, back to the first master, and two masters at once.

Clients reach "Redis" through a proxy that points at one of the servers, as through a virtual address or a DNS
name; the replica copies through another proxy, which can be cut: then it stays behind.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from kafkadur.runtime import checkpoint_thread
from kafkadur.stack import Stack, TcpProxy, Valkey, embedded
from kafkadur_sharing.definition import TypeName
from tests.integration.faults.crew import Crew
from tests.integration.subscriptions.helpers import Place, wait_until

COUNT = 300


class Pair:
    """Two servers, of which one copies the other, and where clients are sent."""

    def __init__(self, stack: Stack) -> None:
        assert stack.valkey is not None
        assert stack.replica is not None
        assert stack.redis_proxy is not None
        assert stack.replication_proxy is not None
        self.first, self.second = stack.valkey, stack.replica
        self.address = stack.redis_proxy
        self.copying = stack.replication_proxy
        self._administrator = stack.admin_redis

    def make_whole(self) -> None:
        """The first is the master, the second its replica, in step."""
        self.copying.resume()
        for server in (self.first, self.second):
            server.start()
        if not self.first.is_master:
            self.first.promote()
        self.second.copy(self.copying)
        self.send_to(self.first)

    def send_to(self, server: Valkey) -> None:
        """Let clients come to this one, the connected ones too."""
        self.address.point_at(("127.0.0.1", server.port))

    def stop_copying(self) -> None:
        """The replica hears nothing of its master any more; it has everything from before."""
        client: Any = redis.Redis.from_url(self._administrator)
        with client:
            client.set("in-step", "1", px=60_000)  # WAIT is for what this connection has written
            assert client.wait(1, 10_000) == 1
        self.copying.cut(refuse=True)

    def first_refused(self) -> bool:
        """Whether the first server has refused to write for the lack of a replica."""
        return "errorstat_NOREPLICAS" in str(self.first.ask("INFO", "errorstats"))

    def take_over(self) -> None:
        """Make the second the master, and send clients there."""
        self.second.promote()
        self.send_to(self.second)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Provide a stack whose Valkey has a replica, with proxies."""
    settings = {"min-replicas-max-lag": "1", "repl-ping-replica-period": "1", "repl-timeout": "5"}
    with embedded(replica=True, proxy=True, users=True, valkey_settings=settings) as running:
        yield running


@pytest.fixture
def pair(stack: Stack) -> Pair:
    """Provide the two servers, in step."""
    found = Pair(stack)
    found.make_whole()
    return found


async def move_to_second(crew: Crew, pair: Pair) -> None:
    """Let a member work on the first server, then on the second one, which the first knows nothing of."""
    await crew.join()
    await crew.given_some(0.2)
    pair.stop_copying()
    await asyncio.to_thread(pair.take_over)
    there = len(crew.confirmed)
    await crew.until(lambda: len(crew.confirmed) >= there + COUNT * 0.3, "work on the second")


LONG_EXCLUSIVE = pytest.mark.parametrize(
    "kind", ["shared", pytest.param("exclusive", marks=pytest.mark.long)]
)


@LONG_EXCLUSIVE
async def test_a_copy_from_before_takes_over(
    stack: Stack,
    pair: Pair,
    place_on: Callable[[Stack], Place],
    monkeypatch: pytest.MonkeyPatch,
    kind: TypeName,
) -> None:
    """What was settled after the copy ended comes again; nothing else, and nothing is lost."""
    # On a busy machine a second passes before the first server is killed. Then the journal knows all of it.
    monkeypatch.setattr(checkpoint_thread, "EVERY", 600.0)
    place = place_on(stack)
    async with Crew(place, place.topic(range(COUNT)), kind, COUNT) as crew:
        await crew.join()
        await crew.given_some(0.2)
        pair.stop_copying()
        known = len(crew.confirmed)
        await crew.given_some(0.6)
        pair.first.kill()
        await asyncio.to_thread(pair.take_over)
        await crew.drained()
    again = [n for n, count in crew.given.items() if count > 1]
    assert len(again) >= COUNT * 0.3, "the copy had not seen this settled"
    # 20 in hands when the copy ended, and a few whose acknowledgement was under way to the replica
    assert min(again) >= known - 40


@LONG_EXCLUSIVE
async def test_back_to_the_first_master(
    stack: Stack, pair: Pair, place_on: Callable[[Stack], Place], kind: TypeName
) -> None:
    """The first master, with what it had, takes over again from one that went further."""
    place = place_on(stack)
    async with Crew(place, place.topic(range(COUNT)), kind, COUNT) as crew:
        await move_to_second(crew, pair)
        second = await crew.seen()
        pair.send_to(pair.first)
        first = await crew.attached_after(second.incarnation)
        # and once more: neither takes up where it was without noticing
        pair.send_to(pair.second)
        await crew.seen_after(first.incarnation)  # the second may have been drained when it was left
        info = await crew.drained()
    assert second.incarnation < first.incarnation < info.incarnation


@LONG_EXCLUSIVE
async def test_back_before_it_was_attached_again(
    stack: Stack,
    pair: Pair,
    place_on: Callable[[Stack], Place],
    kind: TypeName,
) -> None:
    """The first master takes no writes; the second one, to which it comes back, knows its last attachment."""
    place = place_on(stack)
    try:
        async with Crew(place, place.topic(range(COUNT)), kind, COUNT) as crew:
            await move_to_second(crew, pair)
            pair.first.ask("CONFIG", "SET", "min-replicas-to-write", "1")
            pair.first.ask("CONFIG", "RESETSTAT")
            pair.send_to(pair.first)
            await crew.until(pair.first_refused, "the first refuses to attach it")
            pair.send_to(pair.second)
            await crew.drained()
    finally:
        pair.first.ask("CONFIG", "SET", "min-replicas-to-write", "0")


@pytest.mark.parametrize("guarded", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_two_masters(
    stack: Stack, pair: Pair, place_on: Callable[[Stack], Place], *, guarded: bool
) -> None:
    """One member reaches the old master, another one the new one; then the old one is a replica of the new.

    Guarded: with min-replicas-to-write 1 the old master takes no writes, so nothing is confirmed there.
    """
    place = place_on(stack)
    pair.first.ask("CONFIG", "SET", "min-replicas-to-write", str(int(guarded)))
    try:
        with TcpProxy(("127.0.0.1", pair.first.port)) as other_side:
            async with Crew(place, place.topic(range(COUNT)), "shared", COUNT) as crew:
                await crew.join()
                await crew.join(redis=pair.first.url_at(other_side.address))
                await crew.given_some(0.2)
                pair.stop_copying()
                await asyncio.to_thread(pair.take_over)  # `other_side` still leads to the old one
                if guarded:
                    with (
                        redis.Redis.from_url(pair.first.admin_url) as client,
                        pytest.raises(redis.ResponseError, match="NOREPLICAS"),
                    ):
                        client.set("kafkadur-test", "1")
                await crew.given_some(0.7)
                await asyncio.to_thread(pair.first.copy, pair.second)
                other_side.point_at(("127.0.0.1", pair.second.port))
                await crew.drained()
    finally:
        for server in (pair.first, pair.second):
            server.ask("CONFIG", "SET", "min-replicas-to-write", "0")


async def test_members_of_a_replica_wait_for_a_master(
    stack: Stack, pair: Pair, place_on: Callable[[Stack], Place]
) -> None:
    """An old master that comes back as a replica is refused in words, and left for the new one."""
    place = place_on(stack)
    async with Crew(place, place.topic(range(COUNT)), "shared", COUNT) as crew:
        await crew.join()
        await crew.given_some(0.3)
        await asyncio.to_thread(pair.second.promote)
        await asyncio.to_thread(pair.first.copy, pair.second)
        given = sum(crew.given.values())
        await asyncio.sleep(0.3)
        assert sum(crew.given.values()) <= given + 20, "nothing is granted by a replica"
        pair.send_to(pair.second)
        await crew.drained()
    await asyncio.to_thread(wait_until, lambda: not pair.first.is_master, "a replica")
