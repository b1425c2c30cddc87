"""From the backlog to live and back: the events, and the seven steps, each with a race injected just there.

The steps and what they are in this product: docs/decisions/0011-to-the-live-end.md. Every test of a step
checks which offsets came, in which order: no gap, no repetition.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import kafkadur
import kafkadur.sync
from kafkadur import CoordinatorUnavailable, Event
from kafkadur.fetch.kafka_thread import AT_ONCE
from kafkadur.runtime.stages import Probe, Stage
from kafkadur.stack import TcpProxy
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    PRIORITY_TOO,
    Place,
    next_of,
    nothing,
    tail_of,
    take,
    wait_until,
)

TYPES = ("shared", "exclusive", PRIORITY_TOO, "serial", "key-ordered")
every_type = pytest.mark.parametrize("kind", TYPES)
#: Messages that wait when a member comes, and those that a race adds.
BACKLOG = 300
MORE = 50
#: Seconds that are less than half a session, and more than anything takes that does not wait for that.
AT_ONCE_S = 4.0
#: Records that a reader holds back at most with a small window: the buffer of a live member.
BUFFER = 10_000


class Told:
    """Notes the events of a member."""

    def __init__(self) -> None:
        self.all: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.all.append(event)

    @property
    def live(self) -> list[Event]:
        """Without those that say who is active."""
        return [event for event in self.all if event in (Event.CAUGHT_UP, Event.FELL_BEHIND)]

    async def until(self, *events: Event) -> None:
        """Wait until these, and nothing else, were told of the live end."""
        await asyncio.to_thread(wait_until, lambda: len(self.live) >= len(events), f"{events}: {self.all}")
        assert self.live == list(events)


class Race:
    """Does something once, at a stage, in the thread that is at work there; armed at once, or later."""

    def __init__(self, stage: Stage, act: Callable[[], None], *, armed: bool = True) -> None:
        self._stage = stage
        self._act = act
        self._armed = armed
        self.done = threading.Event()
        self.failed: Exception | None = None

    def arm(self) -> None:
        self._armed = True

    def __call__(self, stage: Stage) -> None:
        if stage is not self._stage or not self._armed:
            return
        self._armed = False
        try:
            self._act()
        except AssertionError as error:  # it must fail the test, not the thread it runs in
            self.failed = error
        finally:
            self.done.set()

    async def over(self) -> None:
        """Wait until it has happened."""
        assert await asyncio.to_thread(self.done.wait, LIMIT_S), "the stage was not reached"
        if self.failed is not None:
            raise self.failed


class Hold:
    """Holds a thread at a stage from when it is armed until it is let go: then it cannot help.

    It passes until `when`: an end of the partition may come late, and must not keep the reader from reading.
    """

    def __init__(self, stage: Stage, when: Callable[[], bool]) -> None:
        self._stage = stage
        self._when = when
        self._go = threading.Event()
        self._go.set()

    def arm(self) -> None:
        self._go.clear()

    def let_go(self) -> None:
        self._go.set()

    def __call__(self, stage: Stage) -> None:
        if stage is self._stage and not self._go.is_set() and self._when():
            self._go.wait(LIMIT_S)


def both(*probes: Probe) -> Probe:
    """Several probes, one after the other."""

    def probe(stage: Stage) -> None:
        for each in probes:
            each(stage)

    return probe


def publish(place: Place, topic: str, count: int, *, partition: int = 0) -> None:
    """Publish so many messages of one key and wait until Kafka has them."""
    for _ in range(count):
        place.raw.produce(topic, b"x", key=b"k", partition=partition)
    assert place.raw.flush(LIMIT_S) == 0


def a_topic(place: Place, count: int = 0, *, partitions: int = 1) -> str:
    topic = place.make_topic(partitions)
    publish(place, topic, count)
    return topic


async def offsets(subscription: kafkadur.Subscription, count: int) -> list[int]:
    """Offsets of the next messages, each acknowledged; and nothing comes after them.

    None may wait for a renewal, which would come after half a session.
    """
    seen: list[int] = []
    for _ in range(count):
        delivery = await subscription.receive(timeout=AT_ONCE_S)
        assert delivery is not None, (seen, subscription.statistics())
        seen.append(delivery.offset)
        delivery.ack_nowait()
    await nothing(subscription)
    return seen


def trim(admin: AdminClient, topic: str, offset: int) -> None:
    """Remove the records of partition 0 before `offset`."""
    place = TopicPartition(topic, 0, offset)
    admin.delete_records([place])[place].result(LIMIT_S)


@pytest.fixture
def redis_proxy(place: Place) -> Iterator[TcpProxy]:
    """Provide a proxy before Redis."""
    address = urlsplit(place.stack.redis)
    assert address.hostname is not None
    assert address.port is not None
    with TcpProxy((address.hostname, address.port)) as made:
        yield made


# -- the events


@every_type
async def test_caught_up_once_everything_is_handed_out(place: Place, kind: TypeName) -> None:
    topic, told = a_topic(place, BACKLOG), Told()
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=100, on_event=told
        ) as subscription,
    ):
        full = 1 if kind == "key-ordered" else 100  # all have one key
        held = await take(subscription, full)
        assert await subscription.receive(timeout=0.0) is None, "the window is full"
        assert told.live == []
        assert subscription.statistics()["live"] == 0
        for delivery in held:
            delivery.ack_nowait()
        assert await offsets(subscription, BACKLOG - full) == list(range(full, BACKLOG))
        await told.until(Event.CAUGHT_UP)
        statistics = subscription.statistics()
        assert (statistics["live"], statistics["lag"]) == (1, 0)


@every_type
async def test_caught_up_with_an_empty_topic(place: Place, kind: TypeName) -> None:
    topic, told = a_topic(place, partitions=3), Told()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, on_event=told),
    ):
        await told.until(Event.CAUGHT_UP)


async def test_a_message_in_the_hands_is_handed_out(place: Place) -> None:
    """Caught up says nothing of verdicts."""
    topic, told = a_topic(place, 3), Told()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", on_event=told) as subscription,
    ):
        held = await take(subscription, 3)
        await told.until(Event.CAUGHT_UP)
        assert subscription.statistics()["in_hands"] == 3
        await held[0].rollback(delay=60)  # it waits for a time, not for the member
        assert subscription.statistics()["live"] == 1


async def test_not_caught_up_before_the_last_message_is_received(place: Place) -> None:
    """A block of them is taken for the application at once; it has not received them before it asks."""
    topic, told = a_topic(place, BACKLOG), Told()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", on_event=told) as subscription,
    ):
        await take(subscription, BACKLOG - 1)
        subscription._member.look_around(float("inf"))  # noqa: SLF001 - as that thread does
        assert told.live == []
        await take(subscription, 1)
        subscription._member.look_around(float("inf"))  # noqa: SLF001 - as that thread does
        await told.until(Event.CAUGHT_UP)


@every_type
async def test_not_caught_up_while_the_reader_has_more_to_read(place: Place, kind: TypeName) -> None:
    """All that was read so far was handed out; the reader did not come to the end of the partition."""
    many = 3 * AT_ONCE
    topic, told = a_topic(place, many), Told()
    subscriptions: list[kafkadur.Subscription] = []
    hold = Hold(Stage.READ, lambda: bool(subscriptions) and subscriptions[0].statistics()["records_read"] > 0)
    hold.arm()
    async with (
        place.connect(probe=hold) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", on_event=told
        ) as subscription,
    ):
        subscriptions.append(subscription)
        seen: list[int] = []
        while (delivery := await subscription.receive(timeout=1.0)) is not None:
            seen.append(delivery.offset)
            delivery.ack_nowait()
        assert 0 < len(seen) < many, "the reader was not held"
        subscription._member.look_around(float("inf"))  # noqa: SLF001 - as that thread does
        assert told.live == []
        hold.let_go()
        seen += await offsets(subscription, many - len(seen))
        assert seen == list(range(many))
        await told.until(Event.CAUGHT_UP)


@every_type
async def test_b2_falls_behind_when_a_whole_buffer_waits_and_not_before(place: Place, kind: TypeName) -> None:
    """The fall-back: the reader pauses, and the rest is pulled from Kafka when there is room again."""
    topic, told = a_topic(place), Told()
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=100, on_event=told
        ) as subscription,
    ):
        await told.until(Event.CAUGHT_UP)
        await asyncio.to_thread(publish, place, topic, BUFFER // 2)
        await asyncio.to_thread(
            wait_until, lambda: subscription.statistics()["lag"] >= BUFFER // 2 - 100, "the lag"
        )
        assert told.live == [Event.CAUGHT_UP], "half a buffer is no reason"
        await asyncio.to_thread(publish, place, topic, BUFFER)
        await told.until(Event.CAUGHT_UP, Event.FELL_BEHIND)
        end = BUFFER // 2 + BUFFER
        seen: list[int] = []
        while len(seen) < end:
            batch = await subscription.receive_batch(500, timeout=LIMIT_S)
            assert batch is not None, subscription.statistics()
            for delivery in batch:
                seen.append(delivery.offset)
                delivery.ack_nowait()
            if len(seen) == end - 500:
                assert told.live == [Event.CAUGHT_UP, Event.FELL_BEHIND], "less than a buffer is not the end"
        assert seen == list(range(end))
        await nothing(subscription)
        await told.until(Event.CAUGHT_UP, Event.FELL_BEHIND, Event.CAUGHT_UP)


async def test_a_stream_without_a_pause_is_caught_up_with(place: Place) -> None:
    """No fetch is ever answered without a record, so Kafka's event of the end never comes."""
    kafka = {"bootstrap.servers": place.stack.kafka, "fetch.wait.max.ms": 10_000}
    topic, told = a_topic(place, BACKLOG), Told()
    stop = threading.Event()

    def stream() -> None:
        while not stop.wait(0.01):
            place.raw.produce(topic, b"x", partition=0)
            assert place.raw.flush(LIMIT_S) == 0

    writing = asyncio.create_task(asyncio.to_thread(stream))
    try:
        async with (
            place.connect(kafka=kafka) as connection,
            await connection.subscribe(
                topic, durable="d", type="exclusive", start="earliest", on_event=told
            ) as subscription,
        ):
            seen: list[int] = []
            while not told.live:
                delivery = await next_of(subscription)
                seen.append(delivery.offset)
                delivery.ack_nowait()
                assert len(seen) < BACKLOG + 1_000, "the end was not noticed"
            assert len(seen) >= BACKLOG
            assert seen == list(range(len(seen)))
    finally:
        stop.set()
        await writing


async def test_an_open_transaction_does_not_keep_from_catching_up(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be read yet was not written yet, as far as readers of committed messages know."""
    topic, told = a_topic(place, 5), Told()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": place.stack.kafka, "transactional.id": place.namespace, "linger.ms": 0}
    )
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    for _ in range(20):
        producer.produce(topic, b"t", partition=0)
    assert producer.flush(LIMIT_S) == 0
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", on_event=told) as subscription,
    ):
        assert await offsets(subscription, 5) == list(range(5))
        await told.until(Event.CAUGHT_UP)
        waiting = f"20 offsets of {topic}[0] wait behind an open transaction"
        await asyncio.to_thread(wait_until, lambda: waiting in caplog.text, "a word about what waits")
        await asyncio.to_thread(producer.commit_transaction, LIMIT_S)
        assert await offsets(subscription, 20) == list(range(5, 25))
        await told.until(Event.CAUGHT_UP)


async def test_who_stands_by_says_nothing_and_who_is_displaced_falls_behind(place: Place) -> None:
    topic, low_told, high_told = a_topic(place, 5), Told(), Told()
    async with place.connect() as connection:
        low = await connection.subscribe(
            topic, durable="d", type="priority", start="earliest", on_event=low_told
        )
        assert await offsets(low, 5) == list(range(5))
        await low_told.until(Event.CAUGHT_UP)
        high = await connection.subscribe(
            topic, durable="d", type="priority", priority=5, preempt=True, on_event=high_told
        )
        await high_told.until(Event.CAUGHT_UP)
        assert high_told.all == [Event.BECAME_ACTIVE, Event.CAUGHT_UP]
        assert low_told.all == [
            Event.BECAME_ACTIVE,
            Event.CAUGHT_UP,
            Event.FELL_BEHIND,
            Event.BECAME_STANDBY,
        ]
        await high.close()
        await low_told.until(Event.CAUGHT_UP, Event.FELL_BEHIND, Event.CAUGHT_UP)


async def test_turns_do_not_make_it_flap(place: Place) -> None:
    """A member of a serial subscription stays what it was while others have their turns."""
    topic, tolds = a_topic(place, 20), [Told(), Told()]
    async with place.connect() as connection:
        members = [
            await connection.subscribe(
                topic, durable="d", type="serial", window=1, start="earliest", on_event=told
            )
            for told in tolds
        ]
        seen: list[int] = []

        async def work(member: kafkadur.Subscription) -> None:
            while (delivery := await member.receive(timeout=LIMIT_S)) is not None:
                seen.append(delivery.offset)
                await delivery.ack()

        tasks = [asyncio.create_task(work(member)) for member in members]
        for n in range(1, 41):
            await asyncio.to_thread(wait_until, lambda end=19 + n: len(seen) >= end, f"message {n}")  # type: ignore[misc]  # a bound argument
            await asyncio.to_thread(publish, place, topic, 1)
        await asyncio.to_thread(wait_until, lambda: len(seen) == 60, "all messages")
        for told in tolds:
            await told.until(Event.CAUGHT_UP)
        for member in members:
            member.stop()
        await asyncio.gather(*tasks)
    assert seen == list(range(60))


async def test_members_of_a_shared_subscription_speak_for_what_they_read(place: Place) -> None:
    """One has messages that wait on its partition; the other one has caught up with its own."""
    topic, tolds = a_topic(place, partitions=2), [Told(), Told()]
    async with place.connect() as connection:
        first, second = [
            await connection.subscribe(topic, durable="d", window=2, start="earliest", on_event=told)
            for told in tolds
        ]
        for told in tolds:
            await told.until(Event.CAUGHT_UP)
        # the first one learns with its next exchange that the second one reads partition 1
        await asyncio.to_thread(wait_until, lambda: first.statistics()["followed"] == 1, "its own partition")
        # a member with room would help with partition 1, and report its end
        await asyncio.to_thread(publish, place, topic, 2, partition=0)
        held = [await next_of(first) for _ in range(2)]
        await asyncio.to_thread(publish, place, topic, BUFFER + 100, partition=1)
        await tolds[1].until(Event.CAUGHT_UP, Event.FELL_BEHIND)
        assert tolds[0].live == [Event.CAUGHT_UP]
        assert [s.statistics()["live"] for s in (first, second)] == [1, 0]
        assert [delivery.partition for delivery in held] == [0, 0]


@every_type
async def test_an_application_that_raises_in_on_event_goes_on(
    place: Place, kind: TypeName, caplog: pytest.LogCaptureFixture
) -> None:
    topic = a_topic(place, 5)

    def fail(event: Event) -> None:
        raise ValueError(event)

    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", on_event=fail
        ) as subscription,
    ):
        assert await offsets(subscription, 5) == list(range(5))
        await asyncio.to_thread(wait_until, lambda: "on_event failed" in caplog.text, "a line in the log")
        publish(place, topic, 1)
        assert await offsets(subscription, 1) == [5]


# -- the seven steps


@every_type
async def test_b1_step_1_written_before_the_first_pull(place: Place, kind: TypeName) -> None:
    """It is attached and knows where to begin; before its reader does, more is written."""
    topic = a_topic(place, BACKLOG)
    race = Race(Stage.FOLLOW, lambda: publish(place, topic, MORE))
    async with (
        place.connect(probe=race) as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        await race.over()
        assert await offsets(subscription, BACKLOG + MORE) == list(range(BACKLOG + MORE))


@every_type
async def test_b1_step_1_trimmed_below_the_first_pull(
    place: Place, kind: TypeName, kafkadur_admin: AdminClient
) -> None:
    """What is removed lies before where it begins: nothing of it was to be delivered."""
    topic = a_topic(place, BACKLOG)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        assert await offsets(subscription, BACKLOG) == list(range(BACKLOG))
    publish(place, topic, MORE)
    race = Race(Stage.FOLLOW, lambda: trim(kafkadur_admin, topic, BACKLOG))
    async with (
        place.connect(probe=race) as connection,
        await connection.subscribe(topic, durable="d", type=kind) as subscription,
    ):
        assert await offsets(subscription, MORE) == list(range(BACKLOG, BACKLOG + MORE))
        await race.over()


@every_type
async def test_b1_step_1_trimmed_above_the_first_pull(
    place: Place, kind: TypeName, kafkadur_admin: AdminClient
) -> None:
    """What is removed was to be delivered: that is said, and not passed over as a gap."""
    topic, told = a_topic(place, BACKLOG), Told()
    race = Race(Stage.FOLLOW, lambda: trim(kafkadur_admin, topic, 10))
    async with (
        place.connect(probe=race) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", on_event=told
        ) as subscription,
    ):
        assert await offsets(subscription, BACKLOG - 10) == list(range(10, BACKLOG))
        await race.over()
        await told.until(Event.CAUGHT_UP)
        assert Event.EXPIRED in told.all


@every_type
async def test_b1_step_2_written_after_the_end_was_read(place: Place, kind: TypeName) -> None:
    """The reader has met the end; before the member knows, it is not the end any more."""
    topic, told = a_topic(place, BACKLOG), Told()
    race = Race(Stage.END, lambda: publish(place, topic, MORE))
    async with (
        place.connect(probe=race) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", on_event=told
        ) as subscription,
    ):
        assert await offsets(subscription, BACKLOG + MORE) == list(range(BACKLOG + MORE))
        await race.over()
        await told.until(Event.CAUGHT_UP)


@every_type
async def test_b1_step_3_read_while_the_exchange_is_on_its_way(place: Place, kind: TypeName) -> None:
    """The exchange with which it waits says how far was read; meanwhile more is read, and kept back."""
    topic, told = a_topic(place), Told()
    subscriptions: list[kafkadur.Subscription] = []

    def has_them() -> bool:
        return subscriptions[0].statistics()["lag"] >= MORE

    def write_and_read() -> None:
        hold.arm()  # the end of the partition must not be what brings the next exchange
        publish(place, topic, MORE)
        wait_until(has_them, "the reader has them")

    hold, race = Hold(Stage.END, has_them), Race(Stage.SEND, write_and_read, armed=False)
    async with (
        place.connect(probe=both(race, hold)) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", on_event=told
        ) as subscription,
    ):
        subscriptions.append(subscription)
        await told.until(Event.CAUGHT_UP)
        race.arm()
        subscription._member.request_exchange()  # noqa: SLF001 - an exchange now, with nothing to say
        await race.over()
        try:
            assert await offsets(subscription, MORE) == list(range(MORE))
        finally:
            hold.let_go()
        assert told.live == [Event.CAUGHT_UP]


@pytest.mark.parametrize("stage", [Stage.SEND, Stage.ANSWERED])
async def test_b1_step_3_woken_before_it_waits(place: Place, stage: Stage) -> None:
    """Another member reports what came and has this one woken, while its own exchange is under way."""
    topic = a_topic(place, partitions=2)
    told = Told()
    others: list[kafkadur.Subscription] = []

    def write_elsewhere() -> None:
        before = others[0].statistics()["exchanges"]
        publish(place, topic, MORE, partition=1)
        wait_until(lambda: others[0].statistics()["exchanges"] > before, "the other one has reported them")

    race = Race(stage, write_elsewhere, armed=False)
    async with place.connect(probe=race) as connection, place.connect() as beside:
        first = await connection.subscribe(topic, durable="d", window=MORE, start="earliest", on_event=told)
        other = await beside.subscribe(topic, durable="d", window=3, start="earliest")
        others.append(other)
        await ready_to_receive(first, other)
        race.arm()
        first._member.request_exchange()  # noqa: SLF001 - an exchange now, with nothing to say
        await race.over()
        held = await take(other, 3)  # its window is full: all else is for the first
        seen = [d.offset for d in held] + await offsets(first, MORE - 3)
        assert sorted(seen) == list(range(MORE))
        for delivery in held:
            await delivery.ack()
        await nothing(other)


def _is_live(subscription: kafkadur.Subscription) -> bool:
    return subscription.statistics()["live"] == 1


async def ready_to_receive(*subscriptions: kafkadur.Subscription) -> None:
    """Wait until these have caught up."""
    for subscription in subscriptions:
        await asyncio.to_thread(wait_until, partial(_is_live, subscription), "all have caught up")


@every_type
async def test_b1_step_4_read_after_the_last_exchange_was_answered(place: Place, kind: TypeName) -> None:
    """The answer says there is nothing more; before it is taken in, more was written and read."""
    topic, told = a_topic(place), Told()
    subscriptions: list[kafkadur.Subscription] = []

    def has_them() -> bool:
        return subscriptions[0].statistics()["lag"] >= MORE

    def write_and_read() -> None:
        hold.arm()  # the end of the partition must not be what brings the next exchange
        publish(place, topic, MORE)
        wait_until(has_them, "the reader has them")

    hold, race = Hold(Stage.END, has_them), Race(Stage.ANSWERED, write_and_read, armed=False)
    async with (
        place.connect(probe=both(race, hold)) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", on_event=told
        ) as subscription,
    ):
        subscriptions.append(subscription)
        await told.until(Event.CAUGHT_UP)
        race.arm()
        subscription._member.request_exchange()  # noqa: SLF001 - an exchange now, with nothing to say
        await race.over()
        try:
            assert await offsets(subscription, MORE) == list(range(MORE))
        finally:
            hold.let_go()


@every_type
@pytest.mark.parametrize("stage", [Stage.SEND, Stage.ANSWERED])
async def test_b1_step_4_the_last_exchange_fails(place: Place, kind: TypeName, stage: Stage) -> None:
    """It did not arrive, or its answer did not: it is made again, and applied once.

    It carries acknowledgements, and how far was read.
    """
    topic, told = a_topic(place, BACKLOG), Told()
    subscriptions: list[kafkadur.Subscription] = []

    def has_them() -> bool:
        return subscriptions[0].statistics()["lag"] >= MORE

    def write_and_read() -> None:
        hold.arm()
        publish(place, topic, MORE)
        wait_until(has_them, "the reader has them")
        for delivery in held:
            delivery.ack_nowait()
        failure.arm()

    def fail() -> None:
        raise CoordinatorUnavailable(state="a test says so")

    hold, failure = Hold(Stage.END, has_them), Race(stage, fail, armed=False)
    # the exchange after the one under way: in this order, the failure is for the next one
    race = Race(Stage.SEND, write_and_read, armed=False)
    async with (
        place.connect(probe=both(failure, race, hold)) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", on_event=told
        ) as subscription,
    ):
        subscriptions.append(subscription)
        held = await take(subscription, 1)
        if kind != "key-ordered":
            held += await take(subscription, BACKLOG - 1)
        race.arm()
        subscription._member.request_exchange()  # noqa: SLF001 - an exchange now, with nothing to say
        await race.over()
        try:
            await failure.over()
            rest = BACKLOG + MORE - len(held)
            assert await offsets(subscription, rest) == list(range(len(held), BACKLOG + MORE))
        finally:
            hold.let_go()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind) as subscription,
    ):
        await nothing(subscription)


@every_type
async def test_b1_step_4_the_connection_breaks_under_the_last_exchange(
    place: Place, kind: TypeName, redis_proxy: TcpProxy
) -> None:
    topic, told = a_topic(place, BACKLOG), Told()
    assert place.stack.valkey is not None
    redis = place.stack.valkey.url_at(redis_proxy.address)

    def write_and_cut() -> None:
        publish(place, topic, MORE)
        redis_proxy.cut()

    race = Race(Stage.SEND, write_and_cut, armed=False)
    async with (
        place.connect(probe=race, redis=redis) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", on_event=told
        ) as subscription,
    ):
        assert await offsets(subscription, BACKLOG) == list(range(BACKLOG))
        race.arm()
        subscription._member.request_exchange()  # noqa: SLF001 - an exchange now, with nothing to say
        await race.over()
        assert await offsets(subscription, MORE) == list(range(BACKLOG, BACKLOG + MORE))


@pytest.mark.parametrize("kind", ["shared", "serial", "priority", "key-ordered"])
@pytest.mark.parametrize("stage", [Stage.READ, Stage.ANSWERED])
async def test_b1_step_5_the_lease_changes_under_what_the_last_exchange_brought(
    place: Place, kind: TypeName, stage: Stage
) -> None:
    """What it read, or what was granted, is not handed out yet: another member comes and gets its part."""
    topic, told = a_topic(place, BACKLOG), Told()
    newcomers: list[kafkadur.sync.Subscription] = []
    newcomer = place.connect_sync()
    newcomer.open()
    rank: dict[str, Any] = {"priority": 5, "preempt": True} if kind == "priority" else {}

    def come() -> None:
        newcomers.append(newcomer.subscribe(topic, durable="d", type=kind, window=10, **rank))

    race = Race(stage, come, armed=False)
    seen: list[int] = []
    try:
        async with (
            place.connect(probe=race) as connection,
            await connection.subscribe(
                topic, durable="d", type=kind, window=10, start="earliest", on_event=told
            ) as subscription,
        ):
            lock = threading.Lock()

            def work() -> None:
                while (delivery := newcomers[0].receive(timeout=LIMIT_S)) is not None:
                    with lock:
                        seen.append(delivery.offset)
                    delivery.ack()

            async def work_too() -> None:
                async for delivery in subscription:
                    with lock:
                        seen.append(delivery.offset)
                    await delivery.ack()

            for delivery in await take(subscription, 1 if kind == "key-ordered" else 10):
                seen.append(delivery.offset)
                delivery.ack_nowait()
            race.arm()
            publish(place, topic, MORE)
            mine = asyncio.create_task(work_too())
            await race.over()
            theirs = asyncio.create_task(asyncio.to_thread(work))
            await asyncio.to_thread(wait_until, lambda: len(seen) >= BACKLOG + MORE, "all messages")
            newcomers[0].stop()
            subscription.stop()
            await asyncio.gather(mine, theirs)
    finally:
        newcomer.close()
    assert sorted(seen) == list(range(BACKLOG + MORE))
    if kind != "shared":
        assert seen == sorted(seen), "in order, whoever got them"


@every_type
@pytest.mark.parametrize("stage", [Stage.READ, Stage.END, Stage.ANSWERED])
async def test_b1_step_6_the_reader_begins_anew(place: Place, kind: TypeName, stage: Stage) -> None:
    """What is kept back and what was handed out comes from Kafka again: it is known by its offsets."""
    topic, told = a_topic(place, BACKLOG), Told()
    read_anew: list[Callable[[], None]] = []

    def restart() -> None:
        publish(place, topic, MORE)
        read_anew[0]()

    race = Race(stage, restart, armed=False)
    async with (
        place.connect(probe=race) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=20, on_event=told
        ) as subscription,
    ):
        tail = tail_of(connection, subscription)
        read_anew.append(lambda: tail.follow(0, 0, tail._followed[0]))  # noqa: SLF001 - as above
        seen: list[int] = []
        for n in range(BACKLOG + MORE):
            if n == BACKLOG // 2:
                race.arm()
                publish(place, topic, MORE)
            delivery = await next_of(subscription)
            seen.append(delivery.offset)
            await delivery.ack()
        await race.over()
        assert seen + await offsets(subscription, MORE) == list(range(BACKLOG + 2 * MORE))
        await told.until(Event.CAUGHT_UP)


@every_type
async def test_b1_step_7_live_until_its_leases_are_lost(
    place: Place, kind: TypeName, redis_proxy: TcpProxy
) -> None:
    """Cut off for longer than its session, it is taken for dead; what is written meanwhile comes once."""
    topic, told = a_topic(place, BACKLOG), Told()
    assert place.stack.valkey is not None
    redis = place.stack.valkey.url_at(redis_proxy.address)
    short = timedelta(seconds=1)
    async with place.connect(redis=redis, session_timeout=short) as connection:
        cut_off = await connection.subscribe(topic, durable="d", type=kind, start="earliest", on_event=told)
        assert await offsets(cut_off, BACKLOG) == list(range(BACKLOG))
        await told.until(Event.CAUGHT_UP)
        redis_proxy.cut(refuse=True)
        async with place.connect(session_timeout=short) as beside:
            other = await attach_when_free(beside, topic, kind)
            await alone(beside)
            publish(place, topic, MORE)
            assert await offsets(other, MORE) == list(range(BACKLOG, BACKLOG + MORE))
        publish(place, topic, MORE)
        redis_proxy.resume()
        after = BACKLOG + MORE
        assert await offsets(cut_off, MORE) == list(range(after, after + MORE))
        await told.until(Event.CAUGHT_UP, Event.FELL_BEHIND, Event.CAUGHT_UP)


async def alone(connection: kafkadur.Connection) -> None:
    """Wait until the other member is taken for dead."""
    deadline = time.monotonic() + LIMIT_S
    while (known := await connection.known("d")) is None or len(known.members) > 1:
        assert time.monotonic() < deadline, known
        await asyncio.sleep(0.02)


async def attach_when_free(
    connection: kafkadur.Connection, topic: str, kind: TypeName
) -> kafkadur.Subscription:
    """Attach as soon as nobody else is in the way."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return await connection.subscribe(topic, durable="d", type=kind)
        except kafkadur.SubscriptionActive:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


@every_type
async def test_b2_fall_back_written_and_read_anew_while_the_buffer_is_full(
    place: Place, kind: TypeName
) -> None:
    """A reader that paused is sent back to the beginning, and more is written."""
    topic, told = a_topic(place), Told()
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=100, on_event=told
        ) as subscription,
    ):
        await told.until(Event.CAUGHT_UP)
        await asyncio.to_thread(publish, place, topic, 2 * BUFFER)
        await told.until(Event.CAUGHT_UP, Event.FELL_BEHIND)
        tail = tail_of(connection, subscription)
        tail.follow(0, 0, tail._followed[0])  # noqa: SLF001 - as above
        await asyncio.to_thread(publish, place, topic, MORE)
        seen: list[int] = []
        while len(seen) < 2 * BUFFER + MORE:
            batch = await subscription.receive_batch(500, timeout=LIMIT_S)
            assert batch is not None, (len(seen), subscription.statistics())
            for delivery in batch:
                seen.append(delivery.offset)
                delivery.ack_nowait()
        assert seen == list(range(2 * BUFFER + MORE))
        await nothing(subscription)
        await told.until(Event.CAUGHT_UP, Event.FELL_BEHIND, Event.CAUGHT_UP)
