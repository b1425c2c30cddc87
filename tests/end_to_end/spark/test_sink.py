"""The sink `format("kafkadur")` and rejecting: what rows say is done, and what fails changes nothing."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import kafkadur_spark
from kafkadur.runtime.dead_letters import ATTEMPTS, CAUSE, ORIGIN, REASON
from kafkadur_sharing.errors import IllegalState, LeaseLost
from kafkadur_spark.dispositions import Disposition, Said
from kafkadur_spark.settlement_server import SettlementServer, hand_in
from kafkadur_spark.sink import ADDRESS, SECRET
from tests.end_to_end.spark.helpers import Lab, in_partition, letters
from tests.integration.subscriptions.helpers import LIMIT_S, Place

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]

#: Makes the rows of a sink of the frame that is read.
Says = Callable[[DataFrame], DataFrame]


@pytest.fixture
def lab(place: Place, spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(place, spark, tmp_path)


def sink(lab: Lab, holder: kafkadur_spark.Holder, says: Says, **options: str) -> int:
    """Run a query into the sink to the end of what is there; returns its generation."""
    reading = lab.read(holder)
    writer = says(reading.frame).writeStream.format("kafkadur").options(**reading.sink).options(**options)
    reading.start(writer.trigger(availableNow=True)).awaitTermination()
    return reading.generation


def unsettled(holder: kafkadur_spark.Holder) -> list[tuple[int, int]]:
    places = holder.whereabouts().settlements
    return [(p, o) for p, place in places.items() for w in place.waiting for o in range(w.start, w.end)]


def test_rows_of_offsets_settle_what_they_name(lab: Lab) -> None:
    topic = lab.place.topic(range(100), partitions=2)
    lab.place.publish(topic, range(50), partition=1)
    with lab.hold(topic) as holder:
        assert sink(lab, holder, lambda f: f.select("topic", "partition", "offset")) == 1
        assert {p: place.floor for p, place in holder.whereabouts().settlements.items()} == {0: 100, 1: 50}
        assert unsettled(holder) == []
    assert lab.run(topic).records == []


@pytest.mark.long
def test_what_no_row_names_comes_with_the_next_generation(lab: Lab) -> None:
    topic = lab.place.topic(range(20))
    with lab.hold(topic) as holder:
        sink(lab, holder, lambda f: f.select("partition", "offset").where("offset % 5 <> 2"))
        assert unsettled(holder) == in_partition(0, 2, 7, 12, 17)
        run = lab.go(holder)
        assert (run.generation, run.records) == (2, in_partition(0, 2, 7, 12, 17))


@pytest.mark.long
def test_all_else_is_settled_where_the_query_says_so(lab: Lab) -> None:
    topic = lab.place.topic(range(20))
    with lab.hold(topic) as holder:
        exceptions = "offset in (3, 4)"
        sink(
            lab,
            holder,
            lambda f: f.where(exceptions).selectExpr("partition", "offset", "'rollback' as disposition"),
            unlisted="ack",
        )
        assert unsettled(holder) == in_partition(0, 3, 4)
        assert [w.attempts for w in holder.whereabouts().settlements[0].waiting] == [1]


@pytest.mark.long
def test_records_of_transactions_are_settled_where_all_else_is(lab: Lab) -> None:
    """Their marks have offsets and no row; what is to come again is named."""
    topic = lab.place.topic()
    producer = Producer({"bootstrap.servers": lab.place.stack.kafka, "transactional.id": topic})
    producer.init_transactions(LIMIT_S)
    for _ in range(2):
        producer.begin_transaction()
        for _ in range(4):
            producer.produce(topic, b"x")
        producer.commit_transaction(LIMIT_S)
    leaves = "case when offset = 6 then 'leave' else 'ack' end as disposition"
    with lab.hold(topic) as holder:
        sink(lab, holder, lambda f: f.selectExpr("partition", "offset", leaves), unlisted="ack")
        (waiting,) = holder.whereabouts().settlements[0].waiting
        assert (waiting.start, waiting.end, waiting.attempts) == (6, 7, 0)
        assert holder.whereabouts().settlements[0].next == 10


def test_with_a_selector_all_else_has_to_be_settled(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    with lab.hold(topic, selector="a IS NULL") as holder:
        with pytest.raises(StreamingQueryException, match="no row that could settle it"):
            sink(lab, holder, lambda f: f.select("partition", "offset"))
        assert holder.whereabouts().settlements[0].floor == 0
        sink(lab, holder, lambda f: f.select("partition", "offset"), unlisted="ack")
        assert holder.whereabouts().settlements[0].floor == 10


@pytest.mark.long
def test_with_no_local_too(lab: Lab) -> None:
    topic = lab.place.topic(range(3))
    with (
        lab.place.connect_sync() as connection,
        kafkadur_spark.hold(
            connection, topic, durable="d", type="exclusive", start="earliest", no_local=True
        ) as holder,
        pytest.raises(StreamingQueryException, match="State: no_local"),
    ):
        sink(lab, holder, lambda f: f.select("partition", "offset"))


def test_rows_of_stretches(lab: Lab) -> None:
    topic = lab.place.topic(range(20))
    with lab.hold(topic) as holder:
        rows = ("partition", "offset - offset % 10 as start", "offset - offset % 10 + 8 as end")
        sink(lab, holder, lambda f: f.selectExpr(*rows))
        assert unsettled(holder) == in_partition(0, 8, 9)
        assert holder.whereabouts().settlements[0].next == 18


def test_what_is_rejected_is_a_dead_letter_and_settled(lab: Lab) -> None:
    topic = lab.place.topic(range(20))
    says = "case when offset in (5, 15) then 'reject' else 'ack' end as disposition"
    with lab.hold(topic) as holder:
        sink(lab, holder, lambda f: f.selectExpr("partition", "offset", says, "'too late' as reason"))
        assert unsettled(holder) == []
        assert holder.whereabouts().settlements[0].floor == 20
    found = letters(lab.place, topic)
    assert [(value, headers[REASON], headers[CAUSE], headers[ATTEMPTS]) for value, headers in found] == [
        (b"5", b"too late", b"rejected", b"1"),
        (b"15", b"too late", b"rejected", b"1"),
    ]
    assert [headers[ORIGIN] for _, headers in found] == [f"{topic}[0]@{o}".encode() for o in (5, 15)]


def test_a_batch_rejects_what_came_again_and_is_replayed_without_a_second_letter(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    lab.run(topic, lambda reading, batch, _: reading.ack_batch(batch, rolled_back=[(0, 4)]))

    def die(reading: kafkadur_spark.Reading, batch: int, _: object) -> None:
        reading.ack_batch(batch, rejected=[(0, 4, "again")])
        raise RuntimeError

    with pytest.raises(StreamingQueryException):
        lab.run(topic, die)
    again = lab.run(topic, lambda reading, batch, _: reading.ack_batch(batch, rejected=[(0, 4, "again")]))
    assert again.records == in_partition(0, 4)
    assert [(value, headers[ATTEMPTS]) for value, headers in letters(lab.place, topic)] == [(b"4", b"2")]


@pytest.mark.long
def test_messages_far_from_each_other_are_rejected(lab: Lab) -> None:
    topic = lab.place.topic(range(3_000))
    rejected = [(0, 2, "a"), (0, 700, "b"), (0, 701, "c"), (0, 2_999, "d")]
    lab.run(topic, lambda reading, batch, _: reading.ack_batch(batch, rejected=rejected))
    assert [(value, headers[REASON]) for value, headers in letters(lab.place, topic)] == [
        (b"2", b"a"), (b"700", b"b"), (b"701", b"c"), (b"2999", b"d"),
    ]  # fmt: skip


def test_a_commit_that_is_repeated_settles_nothing_twice(lab: Lab) -> None:
    """As Spark does where its driver died between the sink's commit and its own log."""
    topic = lab.place.topic(range(10))
    with lab.hold(topic) as holder:
        reading = lab.read(holder)
        options = reading.sink
        rows = reading.frame.select("partition", "offset").where("offset <> 7")
        writer = rows.writeStream.format("kafkadur").options(**options)
        reading.start(writer.trigger(availableNow=True)).awaitTermination()
        said = [Said(0, 0, 7), Said(0, 8, 10), Said(0, 7, 8, Disposition.ROLLBACK)]
        assert hand_in(options[ADDRESS], options[SECRET], 0, said[:2], all_else=False) == 0
        assert unsettled(holder) == in_partition(0, 7)
        with pytest.raises(IllegalState, match="Batch 1 is not in the checkpoint"):
            hand_in(options[ADDRESS], options[SECRET], 1, said, all_else=False)


@pytest.mark.long
def test_a_batch_whose_sink_fails_is_settled_by_the_restart(lab: Lab) -> None:
    """A row that means nothing ends the query; nothing of its batch is settled."""
    topic = lab.place.topic(range(10))
    with lab.hold(topic) as holder:
        wrong = "case when offset = 9 then 'maybe' else 'ack' end as disposition"
        with pytest.raises(StreamingQueryException, match="use ack, rollback, reject, leave"):
            sink(lab, holder, lambda f: f.selectExpr("partition", "offset", wrong))
        assert holder.whereabouts().settlements[0].floor == 0
        sink(lab, holder, lambda f: f.select("partition", "offset"))
        assert holder.whereabouts().settlements[0].floor == 10


@pytest.mark.long
def test_an_offset_of_no_batch_ends_the_query(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    with lab.hold(topic) as holder:
        with pytest.raises(StreamingQueryException, match="not in batch 0"):
            sink(lab, holder, lambda f: f.selectExpr("partition", "offset + 1 as offset"))
        assert holder.whereabouts().settlements[0].floor == 0


def test_a_driver_that_has_lost_the_subscription_settles_nothing(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    with lab.hold(topic) as holder:
        options = lab.read(holder).sink
    with pytest.raises(LeaseLost, match="driver that holds the subscription is gone"):
        hand_in(options[ADDRESS], options[SECRET], 0, [Said(0, 0, 10)], all_else=False)


@pytest.mark.long
def test_a_query_whose_driver_is_another_one_fails(lab: Lab) -> None:
    """The options of a sink are those of one life of a holder."""
    topic = lab.place.topic(range(10))
    with lab.hold(topic) as holder:
        old = lab.read(holder).sink
    with lab.hold(topic) as holder:
        reading = lab.read(holder)
        writer = reading.frame.select("partition", "offset").writeStream.format("kafkadur").options(**old)
        with pytest.raises(StreamingQueryException, match="driver that holds the subscription is gone"):
            reading.start(writer.trigger(availableNow=True)).awaitTermination()
        assert holder.whereabouts().settlements[0].floor == 0


def test_options_that_are_wrong_or_missing_are_named(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    with lab.hold(topic) as holder:
        reading = lab.read(holder)
        rows = reading.frame.select("partition", "offset")
        assert reading.sink  # asking for it registers the format
        with pytest.raises(StreamingQueryException, match=r"reading\.sink"):
            reading.start(rows.writeStream.format("kafkadur").trigger(availableNow=True)).awaitTermination()
        with pytest.raises(StreamingQueryException, match="use leave or ack"):
            sink(lab, holder, lambda f: f.select("partition", "offset"), unlisted="settle")
    with lab.hold(topic) as holder:
        reading = lab.read(holder, acking="progress", on_ahead="new")
        for call in (
            lambda: reading.sink,
            lambda: reading.ack_batch(0, rolled_back=[(0, 1)]),
            lambda: reading.redelivering(lambda *_: None),
        ):
            with pytest.raises(IllegalState, match="settled as a whole"):
                call()


def test_more_than_can_be_handed_in_is_refused_for_what_it_is() -> None:
    server = SettlementServer(lambda *_: 0)
    try:
        said = [Said(0, 0, 1, Disposition.REJECT, "x" * 1_000)] * 70_000
        with pytest.raises(IllegalState, match="more than a sink can hand in"):
            hand_in(server.address, server.secret, 1, said, all_else=False)
    finally:
        server.close()


def test_who_does_not_know_the_secret_settles_nothing() -> None:
    asked: list[object] = []

    def settle(*told: object) -> int:
        asked.append(told)
        return 1

    server = SettlementServer(settle)
    try:
        with pytest.raises(LeaseLost):
            hand_in(server.address, "0" * 64, 1, [], all_else=False)
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"\n")
            assert raw.recv(1) == b""
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(f"{server.secret}\nno json\n".encode())
            assert "error" in json.loads(raw.makefile().readline())
        assert asked == []
        assert hand_in(server.address, server.secret, 7, [Said(0, 0, 1)], all_else=True) == 1
        assert asked == [(7, [Said(0, 0, 1)], True)]
    finally:
        server.close()
