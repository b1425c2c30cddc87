"""An error that nobody expected ends what it was met with, and is told: nobody waits for ever."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaError

import kafkadur
from kafkadur.consumer.answers import Answers
from kafkadur.consumer.member import Member
from kafkadur.fetch.tail_fetcher import TailFetcher
from kafkadur.runtime.checkpoint_thread import CheckpointThread
from kafkadur.runtime.retention_watch import RetentionWatch
from kafkadur.runtime.stages import Stage
from kafkadur.runtime.waiters import Waiters
from kafkadur_coordinators.interface import Pushed
from kafkadur_coordinators.redis.listening import ListeningConnection
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, next_of, numbers, speaks, take, wait_until

COUNT = 5
#: Messages that two members who take turns do not settle before a turn comes with a wake.
MANY = 200


class Defective(Exception):
    """Raised where nothing should be."""


class Defect:
    """A probe that raises at a stage, from when it is armed on."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.armed = True

    def __call__(self, stage: Stage) -> None:
        if self.armed and stage is self.stage:
            raise Defective(str(stage))


@pytest.mark.parametrize("kind", ["shared", "exclusive", "serial", "key-ordered"])
@pytest.mark.parametrize("stage", list(Stage))
async def test_who_waits_is_told_and_what_was_in_hands_comes_again(
    place: Place, stage: Stage, kind: TypeName, caplog: pytest.LogCaptureFixture
) -> None:
    topic, defect = place.topic(range(COUNT)), Defect(stage)
    async with place.connect(probe=defect) as connection:
        try:
            subscription = await connection.subscribe(topic, durable="d", type=kind, start="earliest")
            with pytest.raises(kafkadur.InternalError) as caught:
                await take(subscription, COUNT + 1)
        finally:
            defect.armed = False
        speaks(caught.value, str(stage), "again", "log")
        assert isinstance(caught.value.__cause__, Defective)
        assert "Traceback" in caplog.text
        # what else there is on the connection goes on, and so does the subscription when it is made again
        other = await connection.subscribe(place.topic(range(1)), durable="e", start="earliest")
        await (await next_of(other)).ack()
        await subscription.close()
        anew = await connection.subscribe(topic, durable="d", type=kind)
        assert sorted(numbers(await take(anew, COUNT))) == list(range(COUNT))


@pytest.mark.parametrize("kind", ["shared", "serial"])
async def test_who_waits_for_a_confirmation_is_told(place: Place, kind: TypeName) -> None:
    topic, defect = place.topic(range(1)), Defect(Stage.SEND)
    defect.armed = False
    async with place.connect(probe=defect) as connection:
        subscription = await connection.subscribe(topic, durable="d", type=kind, start="earliest")
        delivery = await next_of(subscription)
        defect.armed = True
        with pytest.raises(kafkadur.LeaseLost):
            await delivery.ack()
        defect.armed = False
        await subscription.close()
        anew = await connection.subscribe(topic, durable="d", type=kind)
        assert (await next_of(anew)).offset == delivery.offset


async def test_a_member_that_cannot_even_fail_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where forgetting its leases fails, too, the application is told nonetheless, and others take over."""
    topic, defect = place.topic(range(COUNT)), Defect(Stage.ANSWERED)
    session = timedelta(seconds=1)

    def fail(*_: object, **__: object) -> None:
        raise Defective

    async with place.connect(probe=defect, session_timeout=session) as connection:
        with monkeypatch.context() as broken:
            broken.setattr(Member, "lose", fail)
            subscription = await connection.subscribe(topic, durable="d", start="earliest")
            with pytest.raises(kafkadur.InternalError):
                await next_of(subscription)
            async with place.connect(session_timeout=session) as beside:
                other = await beside.subscribe(topic, durable="d")
                assert sorted(numbers(await take(other, COUNT))) == list(range(COUNT))
        defect.armed = False


async def test_run_stops_where_a_breaker_is_open(place: Place) -> None:
    """It waits for the end of a long pause, not for a message; after a defect nobody else wakes it."""
    topic, defect = place.topic(range(COUNT)), Defect(Stage.SEND)
    defect.armed = False
    breaker = kafkadur.CircuitBreaker(failures=1, pause=timedelta(hours=1))

    async def handle(_: kafkadur.Delivery) -> None:
        raise ValueError

    async with place.connect(probe=defect) as connection:
        subscription = await connection.subscribe(topic, durable="d", start="earliest")
        running = asyncio.create_task(subscription.run(handle, breaker=breaker))
        member = subscription._member  # noqa: SLF001 - what the application does not see while it waits
        await asyncio.to_thread(wait_until, lambda: member.gate.resting, "an open breaker")
        defect.armed = True
        await asyncio.to_thread(wait_until, lambda: member.failed is not None, "the defect")
        subscription.stop()
        await asyncio.wait_for(running, LIMIT_S)
        defect.armed = False


async def test_a_reader_that_cannot_be_made_is_told_of(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_: TailFetcher) -> None:
        raise Defective

    monkeypatch.setattr(TailFetcher, "_make", make)
    async with place.connect() as connection:
        subscription = await connection.subscribe(place.topic(range(1)), durable="d", start="earliest")
        with pytest.raises(kafkadur.InternalError, match="reader"):
            await next_of(subscription)


class Once:
    """Stands for a method: raises the first times, then does what that does."""

    def __init__(self, owner: type, name: str, times: int = 1) -> None:
        self.method = getattr(owner, name)
        self.left = times
        self.calls = 0

    def __get__(self, instance: object, _: type) -> object:
        def call(*args: object, **kwargs: object) -> object:
            self.calls += 1
            if self.left:
                self.left -= 1
                raise Defective
            return self.method(instance, *args, **kwargs)

        return call


async def test_checkpoints_are_written_after_a_round_that_failed(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    once = Once(CheckpointThread, "_work", 3)
    monkeypatch.setattr(CheckpointThread, "_work", once)
    async with place.connect() as connection:
        subscription = await connection.subscribe(
            place.topic(range(1)), durable="d", start="earliest", ack_level="journal"
        )
        await (await next_of(subscription)).ack()
    assert not once.left
    assert "Traceback" in caplog.text


async def test_levels_are_told_of_after_a_round_that_failed(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No replica is there: who waits for one is told when the time is over."""
    once = Once(Waiters, "_replicate", 3)
    monkeypatch.setattr(Waiters, "_replicate", once)
    async with place.connect(level_timeout=timedelta(seconds=1)) as connection:
        subscription = await connection.subscribe(place.topic(range(1)), durable="d", start="earliest")
        with pytest.raises(kafkadur.LevelNotReached):
            await (await next_of(subscription)).ack(level="replicated")
    assert once.calls > 3
    assert "Traceback" in caplog.text


def test_retention_is_looked_at_after_a_look_that_failed(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    once = Once(RetentionWatch, "_look")
    monkeypatch.setattr(RetentionWatch, "_look", once)
    with place.connect_sync(retention_check=timedelta(milliseconds=50)) as connection:
        connection.subscribe(place.topic(range(1)), durable="d")
        wait_until(lambda: once.calls > 1, "a second look")
    assert "Traceback" in caplog.text


async def test_listening_goes_on_after_a_defect(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    once = Once(ListeningConnection, "_handle", 1)
    monkeypatch.setattr(ListeningConnection, "_handle", once)
    with caplog.at_level(logging.ERROR, "kafkadur.presence"):
        async with place.connect() as connection:
            subscription = await connection.subscribe(place.topic(range(2)), durable="d", start="earliest")
            assert numbers(await take(subscription, 2)) == [0, 1]
    assert "Traceback" in caplog.text


async def test_a_member_is_told_of_a_defect_that_its_wake_met(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The turn comes with the wake (decision 47); the listening thread takes it in."""

    def take_push(_answers: Answers, _push: Pushed) -> bool:
        raise Defective("a push")

    topic, received = place.topic(range(MANY)), set[int]()
    options: dict[str, Any] = {"durable": "d", "type": "serial", "window": 1, "start": "earliest"}

    async def work(subscription: kafkadur.Subscription) -> None:
        while len(received) < MANY:
            delivery = await next_of(subscription)
            received.update(numbers([delivery]))  # before this may be cancelled: its ack counts nevertheless
            await delivery.ack()

    monkeypatch.setattr(Answers, "take_push", take_push)
    async with place.connect() as one, place.connect() as two:
        working = [
            asyncio.create_task(work(await connection.subscribe(topic, **options)))
            for connection in (one, two)
        ]
        done, others = await asyncio.wait(working, return_when=asyncio.FIRST_EXCEPTION, timeout=LIMIT_S)
        for other in others:
            other.cancel()
        (error,) = (each.exception() for each in done)
    assert isinstance(error, kafkadur.InternalError)
    speaks(error, "a push", "log")
    assert "Traceback" in caplog.text
    monkeypatch.undo()
    async with place.connect() as connection, await connection.subscribe(topic, **options) as subscription:
        await asyncio.wait_for(work(subscription), LIMIT_S)
    assert received == set(range(MANY))


async def test_an_error_callback_that_fails_costs_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka's clients are told of a broker that is not there, and so is the callback."""

    def complain(error: KafkaError) -> None:
        raise Defective(error.str())

    # a client asks one of them at random
    absent = ",".join(f"127.0.0.1:{port}" for port in range(1, 20))
    async with place.connect(
        kafka={"bootstrap.servers": f"{absent},{place.stack.kafka}", "error_cb": complain}
    ) as connection:
        subscription = await connection.subscribe(place.topic(range(2)), durable="d", start="earliest")
        assert numbers(await take(subscription, 2)) == [0, 1]
    wait_until(lambda: "error_cb of the configuration failed" in caplog.text, "a line in the log")
