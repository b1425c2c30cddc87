"""A part of a subscription's state in Redis is lost, cut off, older or overwritten: that is noticed (I13).

The state is rebuilt then, as after the loss of the server: nothing is skipped, and no member is stuck.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis

import kafkadur
from kafkadur import KafkadurError
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, next_of, number

KINDS = ("shared", "exclusive", "priority", "serial", "key-ordered")
SITUATIONS = ("attached", "busy", "alone")
BEFORE, AFTER = 40, 10
SETTINGS = {"session_timeout": timedelta(seconds=1)}
#: No record, no list and no number that is stored begins so.
FOREIGN = b"\xc1\x00what is this\xff"


class State:
    """The keys of one subscription."""

    def __init__(self, client: Any, root: str) -> None:
        """`root` is the beginning of the keys; copies what there is now."""
        self.client = client
        self.keys = {name: f"{root}{name}" for name in ("def", "seal")}
        self._copies = {name: client.dump(key) for name, key in self.keys.items()}

    def delete(self, name: str) -> None:
        """Remove a key."""
        assert self.client.delete(self.keys[name]) == 1

    def put_back(self, name: str) -> None:
        """Bring the copy back."""
        assert self.client.dump(self.keys[name]) != self._copies[name], "nothing has changed"
        self.client.restore(self.keys[name], 0, self._copies[name], replace=True)

    def cut_off(self, name: str) -> None:
        """Remove half of a key's content."""
        key = self.keys[name]
        if self.client.type(key) == b"hash":
            fields = sorted(self.client.hkeys(key))
            self.client.hdel(key, *fields[len(fields) // 2 :])
        else:
            content = self.client.get(key)
            self.client.set(key, content[: len(content) // 2])

    def overwrite(self, name: str) -> None:
        """Put another content in place of a key."""
        self.client.set(self.keys[name], FOREIGN)

    def fields(self, begin: str) -> list[bytes]:
        """The fields of the state that begin so, of which there is one at least."""
        found = [name for name in self.client.hkeys(self.keys["def"]) if name.startswith(begin.encode())]
        assert found, f"there is no {begin}"
        return found

    def spoil(self, begin: str) -> None:
        """Overwrite the fields that begin so."""
        for name in self.fields(begin):
            self.client.hset(self.keys["def"], name, FOREIGN)

    def take_away(self, begin: str) -> None:
        """Remove the fields that begin so."""
        self.client.hdel(self.keys["def"], *self.fields(begin))


#: Beginnings of the fields of a subscription.
FIELDS = ("s", "lists", "definition", "p:", "b:", "i:", "r:", "m:", "l:")
#: What happens to the state: name of a method, and what it is done to.
DAMAGES = [
    *((how, name) for how in ("delete", "put_back", "cut_off", "overwrite") for name in ("def", "seal")),
    *((how, begin) for how in ("spoil", "take_away") for begin in FIELDS),
]
#: In `make test` each damage is tried with one type in one situation.
QUICK = {
    (damage, KINDS[at % len(KINDS)], SITUATIONS[at % len(SITUATIONS)]) for at, damage in enumerate(DAMAGES)
}
CASES = [
    pytest.param(
        *case, marks=() if case in QUICK else pytest.mark.long, id=f"{' '.join(case[0])}-{case[1]}-{case[2]}"
    )
    for case in ((damage, kind, where) for damage in DAMAGES for kind in KINDS for where in SITUATIONS)
    # without a member there are no leases, and no message in flight keeps bits
    if not (case[2] == "alone" and case[0][1] in {"m:", "l:", "b:"})
]


@pytest.fixture
def administrator(place: Place) -> Iterator[Any]:
    """Provide a client that may do everything."""
    with redis.Redis.from_url(place.stack.admin_redis) as client:
        yield client


async def try_to_ack(delivery: kafkadur.Delivery, acked: set[int]) -> None:
    """Acknowledge a message; without success it comes again."""
    with contextlib.suppress(KafkadurError):
        await delivery.ack()
        acked.add(number(delivery))


async def drain(subscription: kafkadur.Subscription, acked: set[int], wanted: set[int]) -> None:
    """Acknowledge whatever comes until all that is wanted was acknowledged."""
    async with asyncio.timeout(LIMIT_S):
        while wanted - acked:
            await try_to_ack(await next_of(subscription), acked)


@pytest.mark.parametrize(("damage", "kind", "where"), CASES)
async def test_i13_the_damage_is_noticed_and_nothing_is_skipped(
    place: Place, administrator: Any, damage: tuple[str, str], kind: TypeName, where: str
) -> None:
    topic = place.topic(range(BEFORE))
    acked: set[int] = set()
    everything = set(range(BEFORE + AFTER))
    async with place.connect(**SETTINGS) as connection:
        subscription = await connection.subscribe(topic, durable="d", type=kind, start="earliest", window=20)
        address = f"kafkadur:{place.namespace}:{{{connection.key('d').tag}}}:"
        state = State(administrator, address)
        held = await next_of(subscription)
        for at in range(1, 20):  # every third one waits, and the settled ones have holes
            delivery = await next_of(subscription)
            if at % 3 == 0:
                await delivery.rollback(delay=timedelta(seconds=1))
            else:
                await delivery.ack()
                acked.add(number(delivery))
        if where == "alone":
            await subscription.close()
        if where == "busy":
            task = asyncio.create_task(drain(subscription, acked, everything))
            getattr(state, damage[0])(damage[1])
            place.publish(topic, range(BEFORE, BEFORE + AFTER))
            await try_to_ack(held, acked)
            await task
            return
        getattr(state, damage[0])(damage[1])
        place.publish(topic, range(BEFORE, BEFORE + AFTER))
        if where == "alone":
            subscription = await connection.subscribe(topic, durable="d", type=kind, window=20)
        else:
            await try_to_ack(held, acked)
        await drain(subscription, acked, everything)
