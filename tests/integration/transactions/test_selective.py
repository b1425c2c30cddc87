"""Selective transacted sessions: a commit settles the deliveries that it is given, and no others."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import kafkadur
from kafkadur import IllegalState, KafkaUnavailable, StateLost, TransactionRolledBack
from kafkadur.producer.transacted import TransactedProducer
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import Place, next_of, nothing, number, numbers, take
from tests.integration.transactions.helpers import DOWN, seen

every_type = pytest.mark.parametrize("kind", ["shared", "exclusive", "serial", "key-ordered"])


@contextlib.asynccontextmanager
async def working(
    place: Place, topic: str, **options: Any
) -> AsyncGenerator[tuple[kafkadur.Connection, kafkadur.Session, kafkadur.Subscription]]:
    """A selective session with a subscription `d`."""
    async with (
        place.connect() as connection,
        connection.session(transacted=True, selective=True) as session,
    ):
        chosen: dict[str, Any] = {"durable": "d", "start": "earliest", "window": 20} | options
        yield connection, session, await connection.subscribe(topic, session=session, **chosen)


@every_type
async def test_a_commit_settles_what_it_is_given_and_the_rest_gets_verdicts_of_its_own(
    place: Place, kind: TypeName
) -> None:
    topic, out = place.topic(range(8)), place.topic()
    async with working(place, topic, type=kind) as (connection, session, subscription):
        some = await take(subscription, 8)
        session.producer().publish(out, "7")
        await session.commit([some[0], some[2]])
        assert await seen(place, out) == [7]
        await some[1].ack()
        some[3].release_nowait()
        some[4].rollback_nowait()
        again = {number(each): each for each in await take(subscription, 2)}
        assert {value: each.attempt for value, each in again.items()} == {3: 1, 4: 2}
        await session.commit([again[3], again[4], some[5]])
        await session.commit([])
        await subscription.close()
        async with await connection.subscribe(topic, durable="d", type=kind) as plain:
            assert sorted(numbers(await take(plain, 2))) == [6, 7]
            await nothing(plain)


async def test_a_commit_of_what_is_not_in_flight_any_more_is_rolled_back(place: Place) -> None:
    topic, out = place.topic(range(4)), place.topic()
    async with working(place, topic) as (_, session, subscription):
        first, second, third, fourth = await take(subscription, 4)
        session.producer().publish(out, "1")
        first.release_nowait()
        with pytest.raises(TransactionRolledBack):
            await session.commit([first, second])
        assert await seen(place, out) == []
        again = sorted([(number(each), each.attempt) for each in await take(subscription, 2)])
        assert again == [(0, 1), (1, 2)]
        session.producer().publish(out, "2")
        await session.commit([third])
        assert await seen(place, out) == [2]
        await fourth.ack()


async def test_a_rollback_takes_back_what_was_sent_and_nothing_that_was_received(place: Place) -> None:
    topic, out = place.topic(range(2)), place.topic()
    async with working(place, topic) as (_, session, subscription):
        some = await take(subscription, 2)
        session.producer().publish(out, "1")
        await session.rollback()
        session.producer().publish(out, "2")
        await session.commit(some)
        assert await seen(place, out) == [2]
        await nothing(subscription)


@pytest.mark.parametrize("done", [True, False], ids=["committed", "not-committed"])
async def test_a_commit_that_raised_is_finished_by_the_same_call(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    commit = TransactedProducer.commit

    def unheard(self: TransactedProducer, timeout: float) -> None:
        if done:
            commit(self, timeout)
        raise DOWN

    def cannot(*_: object) -> None:
        raise DOWN

    topic, out = place.topic(range(3)), place.topic()
    async with working(place, topic) as (_, session, subscription):
        some = await take(subscription, 3)
        chosen = some[:2]
        session.producer().publish(out, "1")
        monkeypatch.setattr(TransactedProducer, "commit", unheard)
        monkeypatch.setattr(TransactedProducer, "renew", cannot)
        for _ in range(2):
            with pytest.raises((KafkaUnavailable, StateLost)):
                await session.commit(chosen)
        monkeypatch.undo()
        if done:
            await session.commit(chosen)
            assert await seen(place, out) == [1]
            await nothing(subscription)
        else:
            with pytest.raises(TransactionRolledBack):
                await session.commit(chosen)
            assert await seen(place, out) == []
            assert sorted(numbers(await take(subscription, 2))) == [0, 1]
        await some[2].ack()


async def test_deliveries_are_given_to_a_selective_session_only(place: Place) -> None:
    topic = place.topic(range(1))
    async with working(place, topic) as (connection, session, subscription):
        delivery = await next_of(subscription)
        with pytest.raises(IllegalState, match="selective"):
            await session.commit()
        await session.commit([delivery, delivery])
        async with connection.session(transacted=True) as other:
            with pytest.raises(IllegalState, match="selective"):
                await other.commit([delivery])
        with pytest.raises(IllegalState, match="not transacted"):
            connection.session(selective=True)
