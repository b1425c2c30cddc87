"""Who gives up waiting leaves nothing attached, and who closes leaves nobody waiting."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import kafkadur
from kafkadur.runtime.coordinator_thread import CoordinatorThread
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    next_of,
    numbers,
    tail_of,
    take,
    wait_until,
)

#: A session that does not end while a test waits.
LONG = timedelta(minutes=10)


async def attached_again(place: Place, topic: str, count: int) -> None:
    """An exclusive subscription is free, and its messages come to who has it next."""
    async with place.connect() as connection, asyncio.timeout(LIMIT_S):
        while True:
            try:
                other = await connection.subscribe(topic, durable="d", type="exclusive", start="earliest")
            except kafkadur.SubscriptionActive:
                continue  # the one before is about to leave
            assert numbers(await take(other, count)) == list(range(count))
            return


class Gate:
    """Stands before a function: those who came are told of, and wait until it opens."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.reached, self.opened, self.passed = threading.Event(), threading.Event(), threading.Event()

    def open_when(self, condition: Callable[[], bool]) -> None:
        """Open, in a thread of its own, when that is so."""

        def wait() -> None:
            wait_until(condition, "when to open")
            self.opened.set()

        threading.Thread(target=wait).start()

    def __get__(self, instance: object, _: type) -> Callable[..., Any]:
        return partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.reached.set()
        assert self.opened.wait(LIMIT_S)
        try:
            return self.function(*args, **kwargs)
        finally:
            self.passed.set()


async def test_a_subscribe_that_was_cancelled_leaves(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cancelled while it was attached, which cannot be taken back any more."""
    topic = place.topic(range(2))
    async with place.connect() as connection:
        gate = Gate(CoordinatorThread.attach)
        with monkeypatch.context() as patched:
            patched.setattr(CoordinatorThread, "attach", gate)
            subscribing = asyncio.create_task(
                connection.subscribe(topic, durable="d", type="exclusive", start="earliest")
            )
            await asyncio.to_thread(gate.reached.wait, LIMIT_S)
            subscribing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await subscribing
        gate.opened.set()
        await asyncio.to_thread(gate.passed.wait, LIMIT_S)
        await attached_again(place, topic, 2)


async def test_a_subscribe_that_was_cancelled_leaves_with_its_connection(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connection of the process goes on: it is not seen that this one has gone."""
    topic = place.topic(range(2))
    before = threading.active_count()
    async with place.connect():
        async with place.connect(session_timeout=LONG) as connection:
            gate = Gate(CoordinatorThread.attach)
            with monkeypatch.context() as patched:
                patched.setattr(CoordinatorThread, "attach", gate)
                subscribing = asyncio.create_task(
                    connection.subscribe(topic, durable="d", type="exclusive", start="earliest")
                )
                await asyncio.to_thread(gate.reached.wait, LIMIT_S)
                subscribing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await subscribing
            gate.open_when(lambda: connection._opened.thread._closing)  # type: ignore[union-attr]  # noqa: SLF001 - it waits
        await attached_again(place, topic, 2)
    # one of them is asyncio's own
    await asyncio.to_thread(
        wait_until, lambda: threading.active_count() <= before + 1, "threads that have ended"
    )


async def test_a_subscribe_that_comes_too_late_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends while its connection is closed: what it returns is closed, too, and free for others."""
    topic = place.topic(range(2))
    async with place.connect():
        async with place.connect(session_timeout=LONG) as connection:
            gate = Gate(CoordinatorThread.attach)
            with monkeypatch.context() as patched:
                patched.setattr(CoordinatorThread, "attach", gate)
                subscribing = asyncio.create_task(
                    connection.subscribe(topic, durable="d", type="exclusive", start="earliest")
                )
                await asyncio.to_thread(gate.reached.wait, LIMIT_S)
            gate.open_when(lambda: connection._opened.thread._closing)  # type: ignore[union-attr]  # noqa: SLF001 - it waits
        late = await subscribing
        with pytest.raises(kafkadur.ConnectionClosed):
            await next_of(late)
        await attached_again(place, topic, 2)


async def test_a_close_that_was_cancelled_leaves(place: Place) -> None:
    """It was cancelled while the coordinator's thread had something else to do."""
    topic = place.topic(range(2))
    async with place.connect() as connection:
        subscription = await connection.subscribe(topic, durable="d", type="exclusive", start="earliest")
        held = await next_of(subscription)
        gate, coordinator_thread = Gate(int), connection._opened.thread  # type: ignore[union-attr]  # noqa: SLF001 - its thread is to be busy
        assert coordinator_thread is not None
        coordinator_thread.submit(gate)
        await asyncio.to_thread(gate.reached.wait, LIMIT_S)
        closing = asyncio.create_task(subscription.close())
        await asyncio.sleep(0)  # it has handed in that it leaves
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        gate.opened.set()
        assert held.offset == 0
        await attached_again(place, topic, 2)


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_who_waits_for_a_dead_letter_is_told_of_the_close(place: Place, kind: TypeName) -> None:
    """Of one that is not written: the message stays unsettled, and comes again."""
    topic = place.topic(range(1))
    async with place.connect() as connection:
        letters: list[object] = []
        connection._opened._dead_letters.write = letters.append  # type: ignore[union-attr,method-assign]  # noqa: SLF001 - keeps them
        subscription = await connection.subscribe(topic, durable="d", type=kind, start="earliest")
        rejecting = asyncio.create_task((await next_of(subscription)).reject("wrong"))
        await asyncio.to_thread(wait_until, lambda: bool(letters), "a letter to be written")
        await subscription.close()
        with pytest.raises(kafkadur.LeaseLost):
            await asyncio.wait_for(rejecting, LIMIT_S)
        anew = await connection.subscribe(topic, durable="d", type=kind)
        assert (await next_of(anew)).offset == 0


async def test_what_a_reader_is_to_try_again_waits_for_the_rest(place: Place) -> None:
    """Else what cannot be done now would be tried for ever, and nothing be read meanwhile."""
    async with place.connect() as connection:
        subscription = await connection.subscribe(place.topic(), durable="d")
        tail = tail_of(connection, subscription)
        done: list[str] = []

        def again(_: object) -> None:
            done.append("again")
            if len(done) < 10:
                tail._put(again)  # noqa: SLF001 - as a reader does with what has to be tried again

        rest = threading.Event()
        tail._commands.extend([again, lambda _: done.append("rest"), lambda _: rest.set()])  # noqa: SLF001
        tail._work.set()  # noqa: SLF001 - as above
        assert await asyncio.to_thread(rest.wait, LIMIT_S)
        assert done[:2] == ["again", "rest"]


async def test_two_members_that_report_a_lost_end_at_once_go_on(place: Place) -> None:
    """The second one is refused, because the first one began a new incarnation: it attaches again."""
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", window=1) as first,
        await connection.subscribe(topic, durable="d", window=1) as second,
    ):
        gate, opened = Gate(int), connection._opened  # noqa: SLF001 - its thread is to be busy
        assert opened is not None
        opened.thread.submit(gate)
        await asyncio.to_thread(gate.reached.wait, LIMIT_S)
        for served in opened.thread._served.values():  # noqa: SLF001 - as their readers do
            served.member.intake.cut(0, 0)
        gate.opened.set()
        await asyncio.to_thread(place.publish, topic, range(2))
        held = await asyncio.gather(next_of(first), next_of(second))
        assert sorted(numbers(held)) == [0, 1]
