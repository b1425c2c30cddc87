"""Members that acknowledge whatever comes while servers fail, and what must hold whatever failed.

Every message was handed out and is settled; never does the floor lie above a message that nobody was given.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Self

import pytest

import kafkadur
from kafkadur import KafkadurError
from kafkadur.admin.changes import Admin
from kafkadur.admin.subscription_info import SubscriptionInfo
from kafkadur.settings import settings
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import Place, number

#: After a change of the server nothing is granted for one session: a short one keeps the tests short.
SESSION = timedelta(seconds=1)
#: Time-out of one call to Redis.
CALL = timedelta(seconds=1)
#: Seconds in which all must be settled after everything is whole again.
HEALED_S = 60.0


class Crew:
    """Some members of the subscription "d" on partition 0 of a topic whose values are their offsets."""

    def __init__(self, place: Place, topic: str, kind: TypeName, count: int) -> None:
        self.place = place
        self.topic = topic
        self.kind: TypeName = kind
        self.count = count
        #: how often each message was handed out
        self.given: Counter[int] = Counter()
        self.confirmed: set[int] = set()
        self._ended = asyncio.Event()
        self._members: list[asyncio.Task[None]] = []
        self.events: list[kafkadur.Event] = []
        #: one for the whole test: it finds the servers again by itself, as members do
        self._admin = Admin(
            settings(place.settings(redis_timeout=CALL, session_timeout=SESSION, kafka_timeout=CALL))
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended.set()
        try:
            await asyncio.gather(*self._members)
        finally:
            await asyncio.to_thread(self._admin.close)

    async def join(self, **more: Any) -> None:
        """Let one more member work; `more` are settings of its connection."""
        attached = asyncio.Event()
        task = asyncio.create_task(self._work(attached, more))
        self._members.append(task)
        waiting = asyncio.create_task(attached.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            waiting.cancel()
            await task

    async def _work(self, attached: asyncio.Event, more: dict[str, Any]) -> None:
        async with (
            self.place.connect(**{"redis_timeout": CALL, "session_timeout": SESSION, **more}) as connection,
            await connection.subscribe(
                self.topic,
                durable="d",
                type=self.kind,
                window=20,
                start="earliest",
                on_event=self.events.append,
            ) as subscription,
        ):
            attached.set()
            while not self._ended.is_set():
                delivery = await subscription.receive(timeout=0.1)
                if delivery is None:
                    continue
                self.given[number(delivery)] += 1
                with contextlib.suppress(kafkadur.LeaseLost):  # it comes again, or was settled
                    async with asyncio.timeout(HEALED_S):
                        await delivery.ack()
                    self.confirmed.add(number(delivery))

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something; fail the test when it does not come in time, or when a member ended."""
        deadline = time.monotonic() + HEALED_S
        while not condition():
            for member in self._members:
                if member.done():
                    member.result()
            if time.monotonic() > deadline:
                missing = sorted(set(range(self.count)) - self.given.keys())
                pytest.fail(f"{what}: not within {HEALED_S:g} s; never handed out: {missing[:20]}")
            await asyncio.sleep(0.01)

    async def given_some(self, part: float) -> None:
        """Wait until this part of the messages was acknowledged."""
        await self.until(lambda: len(self.confirmed) >= self.count * part, f"{part:.0%} acknowledged")

    async def look(self) -> SubscriptionInfo | None:
        """The subscription as an administrator sees it; None while the servers do not answer.

        Whenever somebody looks the floor is not above the truth.
        """
        info = await asyncio.to_thread(self._info)
        if info is not None:
            first = min(set(range(self.count)) - self.given.keys(), default=self.count)
            assert info.partitions[0].floor <= first, (info, first)
        return info

    async def seen(self) -> SubscriptionInfo:
        """As `look`, when the servers answer."""
        deadline = time.monotonic() + HEALED_S
        while (info := await self.look()) is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        return info

    async def seen_after(self, incarnation: int) -> SubscriptionInfo:
        """As `seen`, when the subscription has a later incarnation."""
        deadline = time.monotonic() + HEALED_S
        while (info := await self.seen()).incarnation <= incarnation:
            assert time.monotonic() < deadline, info
            await asyncio.sleep(0.05)
        return info

    async def attached_after(self, incarnation: int) -> SubscriptionInfo:
        """As `seen_after`, when a member is attached to the later incarnation."""
        deadline = time.monotonic() + HEALED_S
        while not (info := await self.seen_after(incarnation)).attached:
            assert time.monotonic() < deadline, info
            await asyncio.sleep(0.05)
        return info

    def _info(self) -> SubscriptionInfo | None:
        try:
            return self._admin.info(self._admin.key("d"))
        except KafkadurError:
            return None

    async def drained(self) -> SubscriptionInfo:
        """Wait until everything is settled, looking all the time; each message was handed out then."""
        deadline = time.monotonic() + HEALED_S
        while True:
            await self.until(lambda: True, "")
            info = await self.look()
            if info is not None and info.backlog == 0 and info.partitions[0].floor >= self.count:
                break
            assert time.monotonic() < deadline, (info, sorted(set(range(self.count)) - self.given.keys()))
            await asyncio.sleep(0.2)
        assert set(range(self.count)) <= self.given.keys(), "settled, but never handed out"
        return info


async def work_through(
    crew: Crew, fault: Callable[[], Awaitable[None]], *, members: int = 2
) -> SubscriptionInfo:
    """Let members work through a fault that happens when a quarter is done."""
    async with crew:
        for _ in range(members):
            await crew.join()
        await crew.given_some(0.25)
        await fault()
        return await crew.drained()
