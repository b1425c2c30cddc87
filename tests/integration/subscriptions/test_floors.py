"""Floors that Kafka has as offsets of a subscription's group: for other tools, and after a loss of Redis."""

from contextlib import closing

import pytest

from kafkadur.fetch import floor_mirror
from kafkadur_coordinators.topics import Topics
from tests.integration.subscriptions.helpers import LIMIT_S, Place, take, wait_until


async def test_a_commit_that_another_one_overtook_is_repeated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing changes any more, and Kafka's client has sent an earlier commit after the last one."""
    monkeypatch.setattr(floor_mirror, "REPEATS", tuple(map(float, range(1, int(LIMIT_S)))))
    topic = place.topic(range(3))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        for delivery in await take(subscription, 3):
            await delivery.ack()
        group = connection.key("d").group
        with closing(Topics({"bootstrap.servers": place.stack.kafka})) as topics:
            wait_until(lambda: topics.committed(group, topic, 1) == {0: 3}, "the floor")
            topics.commit(group, topic, {0: 1})
            wait_until(lambda: topics.committed(group, topic, 1) == {0: 3}, "the floor once more")
