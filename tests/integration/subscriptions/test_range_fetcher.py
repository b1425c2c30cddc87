"""The range fetcher by itself, over a real topic."""

from typing import cast

from kafkadur import KafkadurError
from kafkadur.fetch.buffer import Records
from kafkadur.fetch.kafka_thread import Receiver
from kafkadur.fetch.range_fetcher import RangeFetcher
from kafkadur.stack.kafka import quiet_admin
from tests.integration.subscriptions.helpers import LIMIT_S, Place, topic_id, wait_until


class Asker:
    """Notes the calls of the range fetcher, and wants all records of each range."""

    display = "a test"

    def __init__(self, end: int) -> None:
        self.end = end
        self.offsets: list[int | None] = []
        self.cuts: list[tuple[int, int]] = []
        self.failures: list[KafkadurError] = []

    def add_range_records(self, _token: int, messages: Records, reached: int) -> bool:
        self.offsets += [message.offset() for message in messages]
        return reached < self.end

    def cut(self, partition: int, offset: int) -> None:
        self.cuts.append((partition, offset))

    def fail(self, error: KafkadurError) -> None:
        self.failures.append(error)


def test_a_range_beyond_the_end_is_a_loss_and_the_next_one_is_read(place: Place) -> None:
    """Kafka lost records that are to be read again: the member learns it, and the reader lives on."""
    topic = place.topic(range(3))
    asker = Asker(end=12)
    fetcher = RangeFetcher(
        member=cast("Receiver", asker),
        kafka={"bootstrap.servers": place.stack.kafka},
        topic=topic,
        topic_id=topic_id(quiet_admin(place.stack.kafka), topic),
        group=place.namespace,
    )
    fetcher.read_range(0, 10, 12, 1)
    try:
        wait_until(lambda: bool(asker.cuts or asker.failures), "the loss is told")
        assert asker.cuts == [(0, 3)]
        asker.end = 3
        fetcher.read_range(0, 0, 3, 2)
        wait_until(lambda: len(asker.offsets) == 3 or bool(asker.failures), "the next range is read")
    finally:
        fetcher.stop()
        assert fetcher.join(LIMIT_S)
    assert asker.failures == []
    assert asker.offsets == [0, 1, 2]
