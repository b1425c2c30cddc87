"""A member of a shared subscription makes no more exchanges than it needs, and none while it is detached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafkadur.runtime.coordinator_thread import CoordinatorThread
from kafkadur.runtime.served import Served
from kafkadur_coordinators.interface import MAX_PARTITIONS, Exchange, Grant
from kafkadur_coordinators.redis.coordinator import Refusal
from kafkadur_coordinators.redis.wire import Reply
from kafkadur_sharing.errors import CoordinatorUnavailable
from tests.unit.client.test_member import Driver, lease, state

#: Offsets of each partition.
END = 100
#: More than a member could need.
MANY = 50


class Server:
    """Answers the exchanges of a driver's member: all partitions have a backlog."""

    def __init__(self, driver: Driver, *, members: int = 1) -> None:
        self.driver = driver
        self.members = members
        self.watches: set[int] = set()
        self.next = [0] * driver.partitions
        driver.attach(0, members)

    def answer(self, exchange: Exchange, grants: list[Grant]) -> None:
        """Grant these; if the member is full it passes on what it watches of the partitions touched."""
        touched = [part.partition for part in exchange.parts]
        for grant in grants:
            self.next[grant.partition] = grant.horizon
        if exchange.credit - sum(grant.horizon - grant.start for grant in grants) <= 0:
            self.watches -= set(touched)
        states = [state(p, next_=self.next[p], readable_end=END) for p in touched]
        reply = self.driver.reply(0, self.members, states, grants)
        token = max([0, *(grant.token for grant in grants)])
        self.driver.member.apply(reply._replace(watches=sorted(self.watches), token=token), 1.0)

    def until_quiet(self) -> list[Exchange]:
        """Answer exchanges that grant nothing until there are no more; return them."""
        made: list[Exchange] = []
        while len(made) < MANY:
            exchange = self.driver.member.build(1.0)
            if exchange is None:
                break
            made.append(exchange)
            self.answer(exchange, [])
        return made


@pytest.mark.parametrize("partitions", [2, 3 * MAX_PARTITIONS + 1])
def test_a_member_to_which_nothing_is_granted_although_it_has_room_rests(partitions: int) -> None:
    """The subscription is paused, for example. It has touched every partition with a backlog by then."""
    driver = Driver(partitions=partitions, window=5)
    server = Server(driver)
    first = driver.member.build(1.0)
    assert first is not None
    server.answer(first, [lease(1, 0, 0, 5)])
    server.until_quiet()
    driver.records(0, range(20))
    chunk, start, _ = driver.block()
    assert chunk.acknowledge(start)
    driver.member.request_exchange()
    made = server.until_quiet()
    assert len(made) < partitions
    assert {part.partition for exchange in made for part in exchange.parts} == set(range(partitions))


@pytest.mark.parametrize("partitions", [2, 3 * MAX_PARTITIONS + 1])
def test_a_full_member_rests(partitions: int) -> None:
    driver = Driver(partitions=partitions, window=5)
    server = Server(driver)
    server.until_quiet()
    driver.member.request_exchange()
    exchange = driver.member.build(1.0)
    assert exchange is not None
    server.answer(exchange, [lease(1, exchange.parts[0].partition, 0, 5)])
    assert server.until_quiet() == []


def test_a_full_member_passes_all_on_whose_ends_it_reports() -> None:
    """Another member has room: it learns of new records only of partitions that it watches."""
    partitions = 3 * MAX_PARTITIONS + 1
    driver = Driver(partitions=partitions, window=5)
    server = Server(driver, members=2)
    server.watches = set(range(partitions))
    server.until_quiet()
    assert len(server.watches) == partitions
    driver.member.request_exchange()
    exchange = driver.member.build(1.0)
    assert exchange is not None
    server.answer(exchange, [lease(1, exchange.parts[0].partition, 0, 5)])
    server.until_quiet()
    assert server.watches == set()


def test_a_detached_member_is_attached_before_its_next_exchange() -> None:
    driver = Driver(partitions=1)
    driver.attach(0, 1)
    log: list[str] = []

    def exchange(_: Exchange) -> Any:
        log.append("exchange")
        if len(log) == 1:
            raise Refusal(Reply("RESTARTED", 0, 0, 0))
        return driver.reply(0, 1, [])

    def attach(*_: object, **__: object) -> Any:
        log.append("attach")
        if log.count("attach") < 3:
            raise CoordinatorUnavailable
        attached = SimpleNamespace(role=role, grace_ms=0, attachment=2, incarnation=2)
        return SimpleNamespace(session=session, attached=attached, subscription=subscription)

    role = driver.reply(0, 1, []).role
    session: Any = SimpleNamespace(member="m", exchange=exchange)
    subscription: Any = SimpleNamespace(id="s")
    lifecycle: Any = SimpleNamespace(attach=attach)
    nothing: Any = None
    membership: Any = SimpleNamespace(session=session, subscription=subscription)
    thread = CoordinatorThread(
        coordinator=nothing, lifecycle=lifecycle, presence=nothing, probe=lambda _: None
    )
    served = Served(
        member=driver.member, request=nothing, membership=membership, name="", rank=nothing, session_name=""
    )
    for _ in range(4):
        driver.member.request_exchange()
        thread._attach_or_exchange(served)  # noqa: SLF001 - what the thread calls
    assert log == ["exchange", "attach", "attach", "attach", "exchange"]
    assert driver.member.failed is None


def test_a_member_that_leaves_reports_all_its_verdicts_beside_gaps() -> None:
    """More partitions have something to report than one exchange touches, fewer have verdicts."""
    gaps, verdicts = range(10), range(10, 20)
    driver = Driver(partitions=len(gaps) + len(verdicts))
    driver.attach(0, 1)
    states = [state(p, next_=4, readable_end=4) for p in range(driver.partitions)]
    driver.exchange(0, 1, states, [lease(p + 1, p, 0, 4) for p in range(driver.partitions)])
    for partition in verdicts:
        driver.records(partition, range(4))
    for _ in verdicts:
        chunk, start, end = driver.block()
        assert chunk.acknowledge_range(start, end)
    for partition in gaps:
        driver.records(partition, range(3, 4))
    driver.member.begin_close()
    driver.member.release_all()
    reported: set[int] = set()
    for _ in range(MANY):
        farewell = driver.member.farewell()
        exchange = farewell or driver.member.build(driver.now)
        assert exchange is not None
        assert len(exchange.parts) <= MAX_PARTITIONS
        reported |= {part.partition for part in exchange.parts if part.settled}
        driver.member.apply(driver.reply(0, 1, []), driver.now)
        if farewell is not None:
            break
    assert reported >= set(verdicts)
    assert driver.member.unconfirmed_acks() == 0
