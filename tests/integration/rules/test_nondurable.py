"""Rules P2 and P6: who shares a non-durable subscription in WebLogic mode, where they have no names."""

from collections.abc import Callable

import pytest

from kafkadur import InvalidSubscriptionSharing
from kafkadur_sharing.decisions import nondurable_name
from kafkadur_sharing.definition import Definition, SubscriptionType, TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, nothing, numbers
from tests.integration.subscriptions.workers import Worker


def name(mode: str, client_id: str | None = "c", shared: str | None = None, **details: object) -> str:
    definition = Definition(type=SubscriptionType.SHARED, topic=str(details.pop("topic", "t")), **details)  # type: ignore[arg-type]
    return nondurable_name(
        definition,
        client_id=client_id,
        shared=shared,
        mode="weblogic" if mode == "weblogic" else "jms",
        anonymous="anonymous",
    )


def test_d2_p2_p6_the_name_in_the_key() -> None:
    assert name("jms") == name("weblogic", client_id=None) == "anonymous"
    assert name("jms", shared="s") == name("weblogic", shared="s") == "s"
    same = name("weblogic")
    assert same == name("weblogic", client_id="other") != "anonymous"
    others = [
        name("weblogic", topic="u"),
        name("weblogic", selector="n > 1"),
        name("weblogic", no_local=True),
    ]
    assert len({same, *others}) == 4


def test_p2_consumers_of_two_processes_share(place: Place, start_worker: Callable[..., Worker]) -> None:
    topic = place.topic()
    worker = start_worker(topic, mode="weblogic", type="shared", window=1)
    with (
        place.connect_sync(mode="weblogic") as connection,
        connection.subscribe(topic, type="shared", window=1) as subscription,
    ):
        place.publish(topic, range(1, 3))
        mine = subscription.receive(timeout=LIMIT_S)
        assert mine is not None
        ((theirs, _),) = worker.receive(1)
        assert {int(mine.value or b"0"), theirs} == {1, 2}


async def test_p2_without_a_client_id_each_has_its_own(place: Place) -> None:
    topic = place.topic()
    async with place.connect(mode="weblogic", client_id=None) as connection:
        both = [await connection.subscribe(topic, type="shared") for _ in range(2)]
        place.publish(topic, [1])
        for subscription in both:
            delivery = await subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            assert numbers([delivery]) == [1]


async def test_p6_other_details_are_another_subscription(place: Place) -> None:
    topic = place.topic()
    async with place.connect(mode="weblogic") as connection:
        some = await connection.subscribe(topic, type="shared", selector="kind = 'x'")
        all_of_it = await connection.subscribe(topic, type="shared")
        async with connection.producer() as producer:
            await producer.send(topic, b"1")
        delivery = await all_of_it.receive(timeout=LIMIT_S)
        assert delivery is not None
        await nothing(some)


@pytest.mark.parametrize(
    ("held", "wanted"), [("exclusive", "exclusive"), ("exclusive", "shared"), ("shared", "exclusive")]
)
async def test_p3_p4_exclusive_and_shared_consumers_refuse_each_other(
    place: Place, held: TypeName, wanted: TypeName
) -> None:
    topic = place.topic()
    async with place.connect(mode="weblogic") as connection, await connection.subscribe(topic, type=held):
        with pytest.raises(InvalidSubscriptionSharing):
            await connection.subscribe(topic, type=wanted)
