"""Transacted sessions: `commit` covers what was received and what was sent, `rollback` takes both back."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest

import kafkadur
from kafkadur import (
    DeliveryFailed,
    IllegalState,
    KafkadurError,
    Redelivery,
    StateLost,
    SubscriptionActive,
    TransactionRolledBack,
)
from kafkadur.producer.transacted import TransactedProducer
from kafkadur.runtime import transactions
from kafkadur.runtime.transactions import Transaction
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    next_of,
    nothing,
    number,
    numbers,
    speaks,
    take,
    wait_until,
)
from tests.integration.transactions.helpers import DOWN, committed, seen

every_type = pytest.mark.parametrize("kind", ["shared", "exclusive", "serial", "key-ordered"])


@contextlib.asynccontextmanager
async def working(
    place: Place, topic: str, **options: Any
) -> AsyncGenerator[tuple[kafkadur.Connection, kafkadur.Session, kafkadur.Subscription]]:
    """A transacted session with a subscription `d`."""
    async with place.connect() as connection, connection.session(transacted=True) as session:
        chosen: dict[str, Any] = {"durable": "d", "start": "earliest"} | options
        yield connection, session, await connection.subscribe(topic, session=session, **chosen)


# -- commit and rollback


@every_type
async def test_k1_commit_covers_what_was_received_and_sent(place: Place, kind: TypeName) -> None:
    topic, out = place.topic(range(20)), place.topic()
    async with working(place, topic, type=kind) as (connection, session, subscription):
        producer = session.producer()
        for first in (0, 5, 10):
            some = await take(subscription, 5)
            assert numbers(some) == list(range(first, first + 5))
            for delivery in some:
                producer.publish(out, delivery.value)
            assert await seen(place, out) == list(range(first)), "not before the commit"
            await session.commit()
            assert await seen(place, out) == list(range(first + 5))
        await subscription.close()
        async with await connection.subscribe(topic, durable="d", type=kind) as plain:
            assert numbers(await take(plain, 5)) == [15, 16, 17, 18, 19]
            await nothing(plain)


@every_type
async def test_rollback_takes_both_back(place: Place, kind: str) -> None:
    topic, out = place.topic(range(3)), place.topic()
    async with working(place, topic, type=kind) as (_, session, subscription):
        for delivery in await take(subscription, 3):
            session.producer().publish(out, delivery.value)
        await session.rollback()
        again = await take(subscription, 3)
        assert sorted((number(delivery), delivery.attempt) for delivery in again) == [(0, 2), (1, 2), (2, 2)]
        assert all(delivery.redelivered for delivery in again)
        session.producer().publish(out, "7")
        await session.commit()
        assert await seen(place, out) == [7]
        await nothing(subscription)


@pytest.mark.parametrize("kind", ["shared", pytest.param("serial", marks=pytest.mark.long)])
async def test_what_is_rolled_back_waits_as_the_policy_says(place: Place, kind: TypeName) -> None:
    topic, wait = place.topic(range(1)), timedelta(seconds=4)
    async with working(place, topic, type=kind, redelivery=Redelivery(backoff=wait)) as (_, session, mine):
        await next_of(mine)
        await session.rollback()
        assert await mine.receive(timeout=1) is None, "it waits for two seconds at least"
        again = await next_of(mine)
        assert (number(again), again.attempt) == (0, 2)
        await session.commit()


@every_type
async def test_what_failed_comes_alone_where_that_is_asked_for(place: Place, kind: TypeName) -> None:
    topic = place.topic()
    place.publish(topic, range(6))
    async with working(place, topic, type=kind, window=10) as (_, session, mine):
        mine.dispatch_failed_alone()
        first: list[int] = []
        while len(first) < 6:
            batch = await mine.receive_batch(6, timeout=LIMIT_S)
            assert batch is not None
            first += [each.offset for each in batch]
        await session.rollback()
        for _ in range(6):
            batch = await mine.receive_batch(6, timeout=LIMIT_S)
            assert batch is not None
            assert [each.attempt for each in batch] == [2]
            await session.commit()
        assert await mine.receive_batch(6, timeout=0.2) is None


async def test_several_subscriptions_and_topics(place: Place) -> None:
    first, second, out, other = place.topic([1, 2]), place.topic([3, 4]), place.topic(), place.topic()
    async with working(place, first) as (connection, session, one):
        two = await connection.subscribe(
            second, durable="e", type="exclusive", start="earliest", session=session
        )
        for subscription, to in ((one, out), (two, other)):
            for delivery in await take(subscription, 2):
                await asyncio.wait_for(send_in_time(session, to, delivery.value), LIMIT_S)
        await session.commit()
        assert (await seen(place, out), await seen(place, other)) == ([1, 2], [3, 4])
        await nothing(one)
        await nothing(two)


async def send_in_time(session: kafkadur.Session, topic: str, value: bytes | None) -> None:
    """Send and wait for the receipt: it says that Kafka has it, not that it is committed."""
    receipt = await session.producer().send(topic, value)
    assert receipt.topic == topic


async def test_what_was_only_sent_or_only_received(place: Place) -> None:
    topic, out = place.topic([1]), place.topic()
    async with working(place, topic) as (_, session, subscription):
        await session.commit()  # of nothing
        session.producer().publish(out, "5")
        await session.commit()
        assert await seen(place, out) == [5]
        await next_of(subscription)
        await session.commit()
        await nothing(subscription)


async def test_what_the_iterator_has_taken_in_advance_is_not_committed(place: Place) -> None:
    topic = place.topic(range(40))
    async with working(place, topic, window=40) as (connection, session, subscription):
        count = 0
        async for _ in subscription:
            count += 1
            if count == 3:
                break
        await session.commit()
        await subscription.close()
        async with await connection.subscribe(topic, durable="d") as plain:
            assert sorted(numbers(await take(plain, 37))) == list(range(3, 40))


async def test_batches(place: Place) -> None:
    topic = place.topic(range(10))
    async with working(place, topic) as (_, session, subscription):
        batch = await subscription.receive_batch(10, timeout=LIMIT_S)
        assert batch is not None
        assert batch.values() == [str(value).encode() for value in range(10)]
        with pytest.raises(IllegalState):
            batch.ack_nowait()
        with pytest.raises(IllegalState):
            batch[0].ack_nowait()
        await session.commit()
        await nothing(subscription)


async def test_k6_close_rolls_back(place: Place) -> None:
    topic, out = place.topic([1, 2]), place.topic()
    async with working(place, topic) as (_, session, subscription):
        await next_of(subscription)
        session.producer().publish(out, "1")
        await session.close()
        await session.close()
        with pytest.raises(IllegalState) as caught:
            await session.commit()
        speaks(caught.value, "closed")
    assert await seen(place, out) == []
    async with working(place, topic) as (_, session, subscription):
        assert sorted(numbers(await take(subscription, 2))) == [1, 2]


async def test_who_closes_a_subscription_first_rolls_back(place: Place) -> None:
    """What it had received goes to others, so nothing of the transaction may hold."""
    topic, out = place.topic([1]), place.topic()
    async with working(place, topic) as (connection, session, subscription):
        await next_of(subscription)
        session.producer().publish(out, "1")
        await subscription.close()
        with pytest.raises(TransactionRolledBack):
            await session.commit()
        assert await seen(place, out) == []
        async with await connection.subscribe(topic, durable="d", session=session) as again:
            session.producer().publish(out, (await next_of(again)).value)
            await session.commit()
        assert await seen(place, out) == [1]


async def test_k3_verdicts_are_the_sessions(place: Place) -> None:
    topic = place.topic([1])
    async with working(place, topic) as (_, session, subscription):
        delivery = await next_of(subscription)
        for verdict in (delivery.ack, delivery.rollback, delivery.reject, delivery.release):
            with pytest.raises(IllegalState) as caught:
                await verdict()
            speaks(caught.value, "commit")
        for now in (
            delivery.ack_nowait,
            delivery.rollback_nowait,
            delivery.reject_nowait,
            delivery.release_nowait,
        ):
            with pytest.raises(IllegalState):
                now()
        for together in (session.acknowledge, session.recover):
            with pytest.raises(IllegalState) as caught:
                await together()
            speaks(caught.value, "transacted")

        async def handler(_: kafkadur.Delivery) -> None:
            raise AssertionError

        with pytest.raises(IllegalState):
            await subscription.run(handler)
        await session.commit()
        await nothing(subscription)


async def test_what_cannot_be_transacted(place: Place) -> None:
    topic = place.topic([1])
    async with place.connect() as connection:
        session = connection.session(transacted=True)
        with pytest.raises(IllegalState) as caught:
            await connection.subscribe(topic, durable="d", session=session)
        speaks(caught.value, "open()")
        async with session:
            with pytest.raises(IllegalState) as caught:
                await connection.subscribe(topic, session=session)
            speaks(caught.value, "durable=")
            with pytest.raises(IllegalState) as caught:
                await connection.subscribe(
                    topic,
                    durable="d",
                    session=session,
                    redelivery=Redelivery(max_hold=timedelta(seconds=5)),
                )
            speaks(caught.value, "max_hold")
        plain = connection.session()
        with pytest.raises(IllegalState) as caught:
            plain.producer()
        speaks(caught.value, "transacted=True")
        for use in (plain.commit, plain.rollback):
            with pytest.raises(IllegalState):
                await use()


async def test_x3_nobody_unsubscribes_while_something_is_in_an_open_transaction(place: Place) -> None:
    topic = place.topic([1])
    async with working(place, topic) as (connection, session, subscription):
        await next_of(subscription)
        with pytest.raises(SubscriptionActive):
            await connection.unsubscribe("d")
        await session.commit()
        await session.close()
        await connection.unsubscribe("d")
        assert await connection.known("d") is None


# -- failures


async def test_a_message_that_kafka_refuses_rolls_back(place: Place) -> None:
    topic, out = place.topic([1]), place.topic()
    async with working(place, topic) as (_, session, subscription):
        session.producer().publish(out, (await next_of(subscription)).value)
        with pytest.raises(DeliveryFailed):
            session.producer().publish(out, b"x" * 2_000_000)
        await session.rollback()
        session.producer().publish(out, (await next_of(subscription)).value)
        await session.commit()
        session.producer().flush(LIMIT_S)  # what was rolled back has not failed
        assert await seen(place, out) == [1]


async def test_others_took_over_between_two_transactions(place: Place) -> None:
    """A client made anew may not settle what was leased before: others have it by now."""
    topic, out = place.topic([1, 2]), place.topic()
    async with working(place, topic) as (_, session, subscription):
        await next_of(subscription)
        old = subscription.parts_of(subscription.take_handed())
        transaction = session.transaction
        assert transaction is not None
        journal = Journal({"bootstrap.servers": place.stack.kafka}, place.namespace)
        tag = subscription.definition.key.tag
        journal.append_incarnations("other", {journal.shard(tag): [tag]})  # somebody begins to take over
        await asyncio.wrap_future(transaction.roll_back(anew=True))
        session.producer().publish(out, "1")
        with pytest.raises(TransactionRolledBack) as caught:
            await asyncio.wrap_future(transaction.commit(old))
        speaks(caught.value)
        journal.close()
        assert await seen(place, out) == []


async def test_what_a_commit_came_to_is_looked_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's answer is lost: the session finds out by itself, whichever it was."""
    commit = TransactedProducer.commit

    def committed_unheard(self: TransactedProducer, timeout: float) -> None:
        commit(self, timeout)
        raise DOWN

    def never_sent(*_: object) -> None:
        raise DOWN

    topic, out = place.topic(range(4)), place.topic()
    async with working(place, topic) as (_, session, subscription):
        for value in await take(subscription, 2):
            session.producer().publish(out, value.value)
        monkeypatch.setattr(TransactedProducer, "commit", committed_unheard)
        await session.commit()
        assert await seen(place, out) == [0, 1]
        for value in await take(subscription, 2):
            session.producer().publish(out, value.value)
        monkeypatch.setattr(TransactedProducer, "commit", never_sent)
        with pytest.raises(TransactionRolledBack):
            await session.commit()
        monkeypatch.undo()
        for value in await take(subscription, 2):
            assert value.attempt == 2
            session.producer().publish(out, value.value)
        await session.commit()
        assert sorted(await seen(place, out)) == [0, 1, 2, 3]
        await nothing(subscription)


@pytest.mark.parametrize("done", [True, False], ids=["committed", "not-committed"])
async def test_what_is_not_known_stays_with_the_session(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    """Kafka does not answer at all for a while: nobody else gets the messages, and the next call tells."""
    commit = TransactedProducer.commit

    def unheard(self: TransactedProducer, timeout: float) -> None:
        if done:
            commit(self, timeout)
        raise DOWN

    def cannot(*_: object) -> None:
        raise DOWN

    topic, out = place.topic(range(4)), place.topic()
    async with working(place, topic) as (_, session, subscription):
        for value in await take(subscription, 2):
            session.producer().publish(out, value.value)
        monkeypatch.setattr(TransactedProducer, "commit", unheard)
        monkeypatch.setattr(TransactedProducer, "renew", cannot)
        for _ in range(2):
            with pytest.raises(StateLost):
                await session.commit()
        monkeypatch.undo()
        if done:
            await session.commit()
        else:
            with pytest.raises(TransactionRolledBack):
                await session.commit()
        assert await seen(place, out) == ([0, 1] if done else [])
        left = await take(subscription, 2 if done else 4)
        for value in left:
            session.producer().publish(out, value.value)
        await session.commit()
        assert sorted(await seen(place, out)) == [0, 1, 2, 3]


async def test_a_session_that_ends_without_knowing_leaves_it_to_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = TransactedProducer.commit

    def unheard(self: TransactedProducer, timeout: float) -> None:
        commit(self, timeout)
        raise DOWN

    def cannot(*_: object) -> None:
        raise DOWN

    topic, out = place.topic(range(4)), place.topic()
    async with place.connect(session_timeout=timedelta(seconds=1)) as connection:
        session = connection.session(transacted=True)
        await session.open()
        subscription = await connection.subscribe(topic, durable="d", start="earliest", session=session)
        for value in await take(subscription, 2):
            session.producer().publish(out, value.value)
        with monkeypatch.context() as patched:
            patched.setattr(TransactedProducer, "commit", unheard)
            patched.setattr(TransactedProducer, "renew", cannot)
            with pytest.raises(StateLost):
                await session.commit()
            await session.close()
    async with working(place, topic) as (_, session, subscription):
        assert sorted(numbers(await take(subscription, 2))) == [2, 3]
        await session.commit()
        assert await seen(place, out) == [0, 1]


async def test_many_ranges_move_into_the_journal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies between was settled by others: what the session says grows, and is moved now and then."""
    monkeypatch.setattr(transactions, "MOST_RANGES", 5)
    monkeypatch.setattr(transactions, "_RANGES_A_RECORD", 2)
    topic = place.topic(range(100))
    async with (
        working(place, topic, window=1) as (connection, session, subscription),
        await connection.subscribe(topic, durable="d", window=1) as plain,
    ):
        got: list[int] = []
        while len(got) < 100:
            for each in (subscription, plain):
                delivery = await each.receive(timeout=0.1)
                if delivery is not None:
                    got.append(number(delivery))
                    await (session.commit() if each is subscription else delivery.ack())
        assert sorted(got) == list(range(100))
        transaction = session.transaction
        assert transaction is not None
        tag = subscription.definition.key.tag
        early = Journal({"bootstrap.servers": place.stack.kafka}, place.namespace)
        said = early.read_shards()[early.shard(tag)].written_of(subscription.definition.id)
        early.close()
        assert any(transaction.session.encode() in key for key in said), "moved while it works"
    journal = Journal({"bootstrap.servers": place.stack.kafka}, place.namespace)
    shard = journal.read_shards()[journal.shard(tag)]
    assert shard.sessions_of(tag) == []
    assert any(transaction.session.encode() in key for key in shard.written_of(subscription.definition.id))
    beside = journal.transactions()
    left = beside.read_shards()[beside.shard(tag)]
    assert left.written_of(subscription.definition.id) == {}
    journal.close()


async def test_sessions_together(place: Place) -> None:
    """Several sessions of one connection share a subscription; each commits its own."""
    topic, out = place.topic(range(200)), place.topic()
    got: list[int] = []
    enough = asyncio.Event()

    async def work(connection: kafkadur.Connection) -> None:
        async with (
            connection.session(transacted=True) as session,
            await connection.subscribe(
                topic, durable="d", start="earliest", session=session, window=10
            ) as subscription,
        ):
            while not enough.is_set():
                delivery = await subscription.receive(timeout=0.1)
                if delivery is None:
                    continue
                session.producer().publish(out, delivery.value)
                await session.commit()
                got.append(number(delivery))
                if len(got) == 200:
                    enough.set()

    async with place.connect() as connection:
        await asyncio.wait_for(asyncio.gather(*(work(connection) for _ in range(3))), 3 * LIMIT_S)
    assert sorted(got) == list(range(200))
    assert sorted(await seen(place, out)) == list(range(200))


def test_the_synchronous_twin(place: Place) -> None:
    topic, out, before = place.topic(range(4)), place.topic(), threads()
    with place.connect_sync() as connection, connection.session(transacted=True) as session:
        with connection.subscribe(topic, durable="d", start="earliest", session=session) as subscription:
            for _ in range(2):
                delivery = subscription.receive(timeout=LIMIT_S)
                assert delivery is not None
                session.producer().publish(out, delivery.value)
            session.commit()
            assert subscription.receive(timeout=LIMIT_S) is not None
            session.rollback()
            assert committed(place, out) == [0, 1]
        started = {thread.name for thread in threads() - before}
        assert started == {"kafkadur-producer", "kafkadur-transactions_0"}
    assert threads() <= before


def threads() -> set[threading.Thread]:
    """Threads that transacted sessions start, those of other tests included."""
    return {
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(("kafkadur-producer", "kafkadur-transactions"))
    }


def test_a_session_that_cannot_be_opened_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DOWN

    monkeypatch.setattr(Transaction, "_start", refuse)
    before = threads()
    with place.connect_sync() as connection:
        session = connection.session(transacted=True)
        with pytest.raises(StateLost):
            session.open()
        monkeypatch.undo()
        assert threads() <= before
        with pytest.raises(IllegalState, match="has ended"):
            session.open()
        wrong = connection.session(transacted=True, config={"transaction.timeout.ms": 100_000_000})
        with pytest.raises(KafkadurError) as caught:
            wrong.open()
        speaks(caught.value)
        assert threads() <= before


async def test_the_configuration_is_that_of_the_producer(place: Place) -> None:
    async with place.connect() as connection:
        with pytest.raises(IllegalState) as caught:
            connection.session(config={"linger.ms": 1})
        speaks(caught.value, "transacted=True")
        async with connection.session(transacted=True, config={"transaction.timeout.ms": 5_000}) as session:
            topic = place.topic()
            await session.producer().send(topic, "1")
            session.producer().close()  # of no harm: it ends with the session
            await session.commit()
            assert await seen(place, topic) == [1]


@pytest.mark.parametrize("point", ["asking", "telling"])
async def test_what_a_cancelled_commit_began_is_finished_by_the_next_call(
    place: Place, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Kafka commits although nobody waits any more; nothing of it is given back."""
    commit = TransactedProducer.commit
    asked, go_on = threading.Event(), threading.Event()

    def slowly(self: TransactedProducer, timeout: float) -> None:
        asked.set()
        assert go_on.wait(LIMIT_S)
        commit(self, timeout)

    topic, out = place.topic(range(4)), place.topic()
    async with working(place, topic) as (connection, session, subscription):
        for value in await take(subscription, 2):
            session.producer().publish(out, value.value)
        if point == "asking":
            monkeypatch.setattr(TransactedProducer, "commit", slowly)
        else:

            async def forever(*_: object) -> None:
                asked.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(type(subscription), "confirm_taken", forever)
        task = asyncio.create_task(session.commit())
        assert await asyncio.to_thread(asked.wait, LIMIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        monkeypatch.undo()
        await session.rollback()  # of what came since: nothing
        await session.close()
        assert await seen(place, out) == [0, 1]
        async with await connection.subscribe(topic, durable="d") as plain:
            assert sorted(numbers(await take(plain, 2))) == [2, 3]
            await nothing(plain)


async def test_what_a_cancelled_rollback_began_is_finished_by_the_next_call(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither are messages committed whose results were taken back, nor results whose messages were."""
    asked, go_on = threading.Event(), threading.Event()
    abort = TransactedProducer.abort

    def slowly(self: TransactedProducer, timeout: float) -> None:
        asked.set()
        assert go_on.wait(LIMIT_S)
        abort(self, timeout)

    topic, out = place.topic(range(2)), place.topic()
    async with working(place, topic) as (_, session, subscription):
        for value in await take(subscription, 2):
            session.producer().publish(out, value.value)
        monkeypatch.setattr(TransactedProducer, "abort", slowly)
        task = asyncio.create_task(session.rollback())
        assert await asyncio.to_thread(asked.wait, LIMIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        monkeypatch.undo()
        with pytest.raises(TransactionRolledBack):
            await session.commit()
        for value in await take(subscription, 2):
            assert value.attempt == 2
            session.producer().publish(out, value.value)
        await session.commit()
        assert sorted(await seen(place, out)) == [0, 1]


async def test_tasks_that_share_a_subscription_commit_what_they_got(place: Place) -> None:
    """What was taken in advance for one, while another one waited, is neither committed nor forgotten."""
    topic = place.topic()
    async with working(place, topic, window=40) as (connection, session, subscription):
        waiting = [asyncio.create_task(subscription.receive(timeout=LIMIT_S)) for _ in range(4)]
        for first in range(0, 40, 10):
            place.publish(topic, range(first, first + 10))
        got = [delivery for delivery in await asyncio.gather(*waiting) if delivery is not None]
        assert len(got) == 4
        await session.commit()
        got += await take(subscription, 6)
        await session.commit()
        await subscription.close()
        async with await connection.subscribe(topic, durable="d") as plain:
            left = await take(plain, 30)
            assert sorted(numbers([*got, *left])) == list(range(40))
            await nothing(plain)


async def test_who_reads_uncommitted_messages_settles_committed_ones(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's settings of the connection do not reach what reads the topic of transactions."""

    def flushed(self: TransactedProducer, _: float) -> None:
        assert self._kafka.flush(LIMIT_S) == 0
        raise DOWN

    topic = place.topic([1, 2])
    kafka = {"bootstrap.servers": place.stack.kafka, "isolation.level": "read_uncommitted"}
    async with place.connect(kafka=kafka) as connection, connection.session(transacted=True) as session:
        subscription = await connection.subscribe(topic, durable="d", start="earliest", session=session)
        await take(subscription, 2)
        monkeypatch.setattr(TransactedProducer, "commit", flushed)
        with pytest.raises(TransactionRolledBack):
            await session.commit()
        monkeypatch.undo()
        assert sorted(numbers(await take(subscription, 2))) == [1, 2]


@pytest.mark.parametrize("done", [True, False], ids=["committed", "not-committed"])
async def test_a_subscription_closed_while_a_commit_is_unknown(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    """It leaves as if it had died; who looks up what was committed waits for nobody."""
    commit = TransactedProducer.commit

    def unheard(self: TransactedProducer, timeout: float) -> None:
        if done:
            commit(self, timeout)
        raise DOWN

    def cannot(*_: object) -> None:
        raise DOWN

    topic, out = place.topic(range(3)), place.topic()
    async with (
        place.connect(session_timeout=timedelta(seconds=1)) as connection,
        connection.session(transacted=True) as session,
    ):
        async with await connection.subscribe(
            topic, durable="d", start="earliest", session=session
        ) as subscription:
            session.producer().publish(out, (await next_of(subscription)).value)
            # Otherwise the next member may be given them first, and again when the lookup is done.
            await asyncio.to_thread(
                wait_until, lambda: subscription.statistics()["in_hands"] == 3, "the other two are leased"
            )
            with monkeypatch.context() as patched:
                patched.setattr(TransactedProducer, "commit", unheard)
                patched.setattr(TransactedProducer, "renew", cannot)
                with pytest.raises(StateLost):
                    await session.commit()
        if done:
            await asyncio.wait_for(session.commit(), LIMIT_S)
        else:
            with pytest.raises(TransactionRolledBack):
                await asyncio.wait_for(session.commit(), LIMIT_S)
    assert await seen(place, out) == ([0] if done else [])
    async with working(place, topic) as (_, session, subscription):
        left = [1, 2] if done else [0, 1, 2]
        assert sorted(numbers(await take(subscription, len(left)))) == left
        await nothing(subscription)


async def test_a_session_settles_on_its_own_connection(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        place.connect() as other,
        connection.session(transacted=True) as session,
    ):
        with pytest.raises(IllegalState, match="its own connection") as caught:
            await other.subscribe(topic, durable="d", session=session)
        speaks(caught.value)


async def test_a_hold_time_that_is_in_force_already_does_not_count(place: Place) -> None:
    """Nothing is taken back from a transaction because it takes long."""
    topic = place.topic([1])
    hold = timedelta(milliseconds=100)
    async with place.connect() as connection:
        made = await connection.subscribe(
            topic, durable="d", start="earliest", redelivery=Redelivery(max_hold=hold)
        )
        await made.close()
        async with connection.session(transacted=True) as session:
            subscription = await connection.subscribe(topic, durable="d", session=session)
            await next_of(subscription)
            await nothing(subscription)  # three times as long
            await session.commit()
            await nothing(subscription)
