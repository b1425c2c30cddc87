"""Topics of more partitions than a member may hold leases, and than one exchange touches: nothing is stuck.

What holds of one partition is shown elsewhere; here it is that each of a hundred gets its due.
"""

import asyncio
import json
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import Any

import pytest
from typer.testing import CliRunner

import kafkadur
from kafkadur.admin.changes import Admin
from kafkadur.cli.application import app
from kafkadur.settings import settings
from kafkadur_coordinators.interface import MAX_PARTITIONS
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    ack_all,
    next_of,
    nothing,
    number,
    ready,
    take,
)

#: More than 64, far more than an exchange touches, and no multiple of that.
PARTITIONS = 100
assert PARTITIONS > 64
assert PARTITIONS % MAX_PARTITIONS
#: Messages on each partition in the first wave, and in both.
FIRST, BOTH = 4, 5
#: Values are partition * APART + number.
APART = 1_000

#: Seconds without any delivery after which a test has failed.
STUCK_S = 5.0

KINDS: dict[str, dict[str, Any]] = {
    "exclusive": {"type": "exclusive"},
    "priority": {"type": "priority"},
    "serial": {"type": "serial"},
    "serial of each partition": {"type": "serial", "scope": "partition"},
    "key-ordered": {"type": "key-ordered"},
    "shared": {"type": "shared"},
}


def publish(place: Place, topic: str, numbers: range) -> None:
    """Publish so many messages of two keys to each partition."""
    for partition in range(PARTITIONS):
        for n in numbers:
            value = str(partition * APART + n)
            place.raw.produce(topic, value, key=f"{partition}-{n % 2}", partition=partition)
    assert place.raw.flush(LIMIT_S) == 0


def info(place: Place, durable: str) -> tuple[dict[str, Any], str]:
    """What `sub info` says, as data and for people."""
    where = {"KAFKADUR_JOURNAL_PARTITIONS": "2", "COLUMNS": "200"}
    options = [
        "--kafka",
        place.stack.kafka,
        "--redis",
        place.stack.redis,
        "--namespace",
        place.namespace,
        "--client-id",
        "c1",
        "--client-id-policy",
        "unrestricted",
    ]
    told: list[str] = []
    for form in (["--json"], []):
        ended = CliRunner(env=where).invoke(app, [*options, *form, "sub", "info", durable])
        assert ended.exit_code == 0, ended.output
        told.append(ended.stdout)
    return json.loads(told[0]), told[1]


class Work:
    """What members got; each message once, and each partition in order where one member has it."""

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self.by_partition: dict[int, list[int]] = defaultdict(list)
        self.by_member: dict[int, int] = defaultdict(int)
        self.last = time.monotonic()

    @property
    def count(self) -> int:
        return sum(map(len, self.by_partition.values()))

    async def consume(self, me: int, subscription: kafkadur.Subscription, until: int) -> None:
        """Settle what comes until so many were settled by all."""
        while self.count < until:
            delivery = await subscription.receive(timeout=0.05)
            if delivery is None:
                now = time.monotonic()
                assert now < self.last + STUCK_S, (self.count, until, subscription.statistics())
                continue
            self.last = time.monotonic()
            partition, n = divmod(number(delivery), APART)
            assert partition == delivery.partition
            assert delivery.attempt == 1
            self.by_partition[partition].append(n)
            self.by_member[me] += 1
            delivery.ack_nowait()

    def check(self, each: int) -> None:
        assert sorted(self.by_partition) == list(range(PARTITIONS))
        for partition, values in self.by_partition.items():
            assert (values if self.ordered else sorted(values)) == list(range(each)), partition


async def emptied(place: Place) -> dict[str, Any]:
    """What `sub info` says when nothing waits any more: acknowledgements may still be on their way."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        data, text = await asyncio.to_thread(info, place, "d")
        if data["backlog"] == 0:
            break
        assert time.monotonic() < deadline, data
    assert [part["partition"] for part in data["partitions"]] == list(range(PARTITIONS))
    assert all(part["floor"] == part["log_end"] for part in data["partitions"])
    assert data["exceptions"] == 0
    rows = [line.split()[0] for line in text.partition("Partitions")[2].splitlines() if line.strip()]
    assert [int(row) for row in rows if row.isdigit()] == list(range(PARTITIONS))
    return data


@pytest.mark.parametrize("kind", KINDS)
async def test_a_member_that_leaves_sends_all_its_verdicts(place: Place, kind: str) -> None:
    """On more partitions, or lanes of keys, than one exchange touches."""
    topic = place.make_topic(PARTITIONS)
    publish(place, topic, range(1))
    async with place.connect() as connection:
        subscription = await connection.subscribe(topic, durable="d", start="earliest", **KINDS[kind])
        deliveries = await take(subscription, 3 * MAX_PARTITIONS)
        assert len({delivery.partition for delivery in deliveries}) == 3 * MAX_PARTITIONS
        for delivery in deliveries:
            delivery.ack_nowait()
        await subscription.close()  # raises `LeaseLost` if an acknowledgement is not confirmed
        async with await connection.subscribe(topic, durable="d", **KINDS[kind]) as rest:
            await ack_all(await take(rest, PARTITIONS - len(deliveries)))
    await emptied(place)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_partition_gets_its_due(place: Place, kind: str) -> None:
    """Two members share the work, or the second one takes over; then comes one more on each partition."""
    topic = place.make_topic(PARTITIONS)
    publish(place, topic, range(FIRST))
    work = Work(ordered=kind not in ("shared", "key-ordered"))
    everything = PARTITIONS * FIRST

    async with place.connect() as connection, AsyncExitStack() as stack:
        members: list[kafkadur.Subscription] = []
        for n in range(1 if kind == "exclusive" else 2):
            more: dict[str, Any] = {"priority": -n} if kind == "priority" else {}
            subscription = await connection.subscribe(
                topic, durable="d", window=10, start="earliest", **KINDS[kind], **more
            )
            members.append(await stack.enter_async_context(subscription))
        await ready(connection, "d", len(members))
        if kind == "priority":
            half = everything // 2
            await work.consume(0, members[0], half)
            taking_over = asyncio.create_task(work.consume(1, members[1], everything))
            await members.pop(0).close()
            await taking_over
            assert work.by_member == {0: half, 1: half}
        else:
            await asyncio.gather(*(work.consume(i, m, everything) for i, m in enumerate(members)))
            assert len(work.by_member) == len(members), "everybody had work"
        work.check(FIRST)
        # once more, now that everything stands still
        publish(place, topic, range(FIRST, BOTH))
        everything = PARTITIONS * BOTH
        work.last = time.monotonic()
        await asyncio.gather(*(work.consume(i, m, everything) for i, m in enumerate(members)))
        work.check(BOTH)
        await asyncio.gather(*map(nothing, members))
        data = await emptied(place)
        assert data["attached"] == len(members)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long if kind in ("priority", "serial") else ()) for kind in KINDS],
)
async def test_what_is_rolled_back_on_each_partition_comes_again(place: Place, kind: str) -> None:
    """A hundred at a time, by themselves: no two can go in one lease."""
    topic = place.make_topic(PARTITIONS)
    publish(place, topic, range(1))
    window = 60 if kind == "shared" else PARTITIONS
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", window=window, start="earliest", **KINDS[kind]
        ) as only,
    ):
        everything = [partition * APART for partition in range(PARTITIONS)]
        first: list[int] = []
        while len(first) < PARTITIONS:
            held = await take(only, min(window, PARTITIONS - len(first)))
            first += map(number, held)
            await asyncio.gather(*(delivery.rollback(delay=1.5) for delivery in held))
        assert sorted(first) == everything
        data, _ = await asyncio.to_thread(info, place, "d")
        assert [part["floor"] for part in data["partitions"]] == [0] * PARTITIONS
        assert (data["backlog"], data["exceptions"]) == (PARTITIONS, PARTITIONS)
        again: list[int] = []
        for _ in range(PARTITIONS):
            delivery = await next_of(only)
            assert delivery.attempt == 2
            again.append(number(delivery))
            await delivery.ack()
        assert sorted(again) == everything
        await nothing(only)
        await emptied(place)


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        ("exclusive", False),
        ("key-ordered", False),
        ("shared", False),
        ("exclusive", True),
        pytest.param("key-ordered", True, marks=pytest.mark.long),
        pytest.param("shared", True, marks=pytest.mark.long),
    ],
)
async def test_a_message_of_each_partition_in_hands_at_once(place: Place, kind: str, *, again: bool) -> None:
    """The window has room for all, also for those that were rolled back."""
    topic = place.make_topic(PARTITIONS)
    publish(place, topic, range(1))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", window=2 * PARTITIONS, start="earliest", **KINDS[kind]
        ) as only,
    ):
        held: list[kafkadur.Delivery] = []
        for attempt in range(1, 3 if again else 2):
            if held:
                await asyncio.gather(*(delivery.rollback() for delivery in held))
            held = []
            for _ in range(PARTITIONS):
                delivery = await only.receive(timeout=STUCK_S)
                assert delivery is not None, (len(held), only.statistics())
                held.append(delivery)
            assert sorted(map(number, held)) == [partition * APART for partition in range(PARTITIONS)]
            assert {delivery.attempt for delivery in held} == {attempt}
        data, _ = await asyncio.to_thread(info, place, "d")
        assert [part["floor"] for part in data["partitions"]] == [0] * PARTITIONS
        await ack_all(held)
        await emptied(place)


async def test_what_is_settled_makes_room_for_the_rest(place: Place) -> None:
    topic = place.make_topic(PARTITIONS)
    publish(place, topic, range(1))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", window=64, start="earliest") as only,
    ):
        held = await take(only, 64)
        await nothing(only)
        await ack_all(held)
        rest = await take(only, PARTITIONS - 64)
        assert sorted(map(number, [*held, *rest])) == [partition * APART for partition in range(PARTITIONS)]
        await ack_all(rest)
        await emptied(place)


async def test_what_nobody_has_room_for_is_not_asked_for_all_the_time(place: Place) -> None:
    topic = place.make_topic(PARTITIONS)
    publish(place, topic, range(1))
    async with place.connect() as connection:
        async with await connection.subscribe(topic, durable="d", start="earliest") as left:
            await take(left, PARTITIONS)
        async with await connection.subscribe(topic, durable="d", window=20) as only:
            await take(only, 20)  # what was released waits on the other partitions, and is due
            before = only.statistics()["exchanges"]
            assert await only.receive(timeout=1) is None
            assert only.statistics()["exchanges"] - before < 50


async def test_of_two_members_that_take_turns_one_finds_the_partition_with_a_message(place: Place) -> None:
    partitions = 2 * MAX_PARTITIONS + 1
    topic = place.make_topic(partitions)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="serial") as first,
        await connection.subscribe(topic, durable="d", type="serial") as second,
    ):
        await ready(connection, "d", 2)
        for n in range(10):
            place.publish(topic, [n], partition=n * 7 % partitions)
            deadline = time.monotonic() + STUCK_S
            delivery = None
            while delivery is None:
                assert time.monotonic() < deadline, (n, first.statistics(), second.statistics())
                delivery = await first.receive(timeout=0.02) or await second.receive(timeout=0.02)
            assert number(delivery) == n
            await delivery.ack()


async def test_a_full_window_needs_no_exchanges_however_many_partitions_have_a_backlog(place: Place) -> None:
    topic = place.topic(partitions=PARTITIONS)
    publish(place, topic, range(FIRST))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", window=5, start="earliest") as subscription,
    ):
        held = await take(subscription, 5)
        await nothing(subscription)
        before = subscription.statistics()["exchanges"]
        await nothing(subscription)
        assert subscription.statistics()["exchanges"] - before <= 2
        await ack_all(held)


async def test_a_full_window_needs_no_exchanges_where_the_backlogs_are_known(place: Place) -> None:
    """Exchanges that carried acknowledgements have reported the readable end of every partition."""
    topic = place.topic(partitions=PARTITIONS)
    publish(place, topic, range(FIRST))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", window=5, start="earliest") as subscription,
    ):
        held = await take(subscription, 5)
        await nothing(subscription)  # meanwhile all partitions are read
        for _ in range(20):
            await held.pop(0).ack()
            held += await take(subscription, 1)
        before = subscription.statistics()["exchanges"]
        await nothing(subscription)
        assert subscription.statistics()["exchanges"] - before <= 2
        await ack_all(held)


def pause(place: Place, name: str) -> None:
    """Pause a subscription."""
    with Admin(settings(place.settings())) as admin:
        admin.pause(admin.key(name))


async def test_a_paused_member_with_room_makes_no_exchanges(place: Place) -> None:
    topic = place.topic(partitions=2)
    for partition in range(2):
        place.publish(topic, range(50), partition=partition)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", window=5, start="earliest") as subscription,
    ):
        held = await take(subscription, 5)
        await nothing(subscription)
        for _ in range(3):  # so that both backlogs are known
            await held.pop(0).ack()
            held += await take(subscription, 1)
        await asyncio.to_thread(pause, place, "d")
        await held.pop(0).ack()
        await nothing(subscription)
        before = subscription.statistics()["exchanges"]
        await nothing(subscription)
        assert subscription.statistics()["exchanges"] - before <= 2
        await ack_all(held)


async def test_what_a_full_member_does_not_take_goes_to_one_with_room(place: Place) -> None:
    """A full member is silent, and reports the ends of more partitions than one exchange touches."""
    partitions = 80
    topic = place.make_topic(partitions)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", window=partitions) as full,
        await connection.subscribe(topic, durable="d", window=10 * partitions) as other,
    ):
        await ready(connection, "d", 2)
        for partition in range(partitions):
            place.publish(topic, range(FIRST), partition=partition)
        held = await take(full, partitions)
        begun, got = time.monotonic(), 0
        while got < partitions * (FIRST - 1):
            delivery = await other.receive(timeout=STUCK_S)
            assert delivery is not None, (got, full.statistics(), other.statistics())
            delivery.ack_nowait()  # a member holds 64 leases at most
            got += 1
        assert time.monotonic() - begun < STUCK_S
        await ack_all(held)
