"""The journal on a real broker: its topic, durable appends, reading to the end."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from kafkadur.stack import Stack
from kafkadur_coordinators.journal import checkpoints
from kafkadur_coordinators.journal import topic as journal_topic
from kafkadur_coordinators.journal.origins import Origin
from kafkadur_coordinators.journal.records import Change, in_force, last_incarnation
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.settlement_states import SettlementState
from kafkadur_sharing.errors import CoordinatorRefused, StateLost

TAG = "0123456789abcdef"
SHARDS = 3
ORIGIN = Origin("s", 0, "t")


def change(expected: int, name: str = "a") -> Change:
    return Change(
        tag=TAG,
        key={"name": "n"},
        expected=expected,
        under=0,
        definition={"topic": name},
        id=None,
        topic_id="t",
        starts={0: 1},
    )


@pytest.fixture
def journal(kafkadur_stack: Stack, kafkadur_namespace: str) -> Iterator[Journal]:
    opened = Journal({"bootstrap.servers": kafkadur_stack.kafka}, kafkadur_namespace, shards=SHARDS)
    yield opened
    opened.close()


def test_the_topic_is_created_compacted(journal: Journal, kafkadur_admin: AdminClient) -> None:
    assert journal.open() == SHARDS
    resource = ConfigResource(ResourceType.TOPIC, journal.topic)
    config: dict[str, Any] = kafkadur_admin.describe_configs([resource])[resource].result(10)
    assert config["cleanup.policy"].value == "compact"
    assert config["unclean.leader.election.enable"].value == "false"


def test_all_shards_are_read_at_once(journal: Journal) -> None:
    assert journal.read_all() == {0: [], 1: [], 2: []}
    for shard in (0, 2, 2):
        journal.append_change(shard, change(0))
    found = journal.read_all()
    assert [len(found[shard]) for shard in range(SHARDS)] == [1, 0, 2]
    assert found == {shard: journal.read(shard) for shard in range(SHARDS)}


def test_an_earlier_scan_is_read_on(journal: Journal) -> None:
    """What was understood of a shard holds also what came later."""

    def settled(settlement: SettlementState) -> None:
        key = checkpoints.key_of(ORIGIN, 0, "w", 1)
        journal.append([(shard, key, checkpoints.encode(settlement))])

    shard = journal.shard(TAG)
    first = journal.append_change(shard, change(0))
    settled(SettlementState(next=5))
    scan = journal.scan()
    assert [entry.offset + 1 for entry in journal.read_all(scan)[shard]] == [first]
    assert [item.settlement.next for item in scan[shard].checkpoints_of("s")] == [5]
    second = journal.append_change(shard, change(first, "b"))
    settled(SettlementState(next=7))
    found = journal.read_shards([shard], scan)[shard]
    assert [entry.offset + 1 for entry in found.entries] == [first, second]
    assert [item.settlement.next for item in found.checkpoints_of("s")] == [7]
    assert len(found.records) == len(journal.scan()[shard].records)


def test_what_was_appended_is_read_in_order(journal: Journal) -> None:
    shard = journal.shard(TAG)
    assert journal.read(shard) == []
    first = journal.append_change(shard, change(0))
    incarnation = journal.append_incarnations("server", {shard: [TAG]})[shard]
    second = journal.append_change(shard, change(first, "b"))
    assert first < incarnation < second
    entries = journal.read(shard)
    assert [entry.offset + 1 for entry in entries] == [first, incarnation, second]
    assert last_incarnation(entries, TAG) == incarnation
    found = in_force(entries, TAG, shard)
    assert found is not None
    assert (found.version, found.id) == (first, f"{shard}.{first - 1}"), (
        "the second began before the incarnation"
    )


def test_a_damaged_record_is_left_out(journal: Journal, kafkadur_stack: Stack) -> None:
    shard = journal.shard(TAG)
    first = journal.append_change(shard, change(0))
    producer = Producer({"bootstrap.servers": kafkadur_stack.kafka})
    producer.produce(journal.topic, key=b"change/x", value=b'{"body": {}, "sum": 1}', partition=shard)
    producer.produce(journal.topic, key=b"change/y", value=None, partition=shard)
    assert producer.flush(10) == 0
    second = journal.append_change(shard, change(first, "b"))
    assert [entry.offset + 1 for entry in journal.read(shard)] == [first, second]


def test_processes_that_race_to_create_it_share_one(kafkadur_stack: Stack, kafkadur_namespace: str) -> None:
    journals = [
        Journal({"bootstrap.servers": kafkadur_stack.kafka}, kafkadur_namespace, shards=SHARDS)
        for _ in range(4)
    ]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(Journal.open, journals)) == [SHARDS] * 4
        versions = list(threads.map(lambda j: j.append_change(j.shard(TAG), change(0)), journals))
    found = in_force(journals[0].read(journals[0].shard(TAG)), TAG, journals[0].shard(TAG))
    assert found is not None
    assert found.version == min(versions)
    for opened in journals:
        opened.close()


def test_a_journal_whose_partitions_were_added_to_is_refused(
    journal: Journal, kafkadur_stack: Stack, kafkadur_namespace: str, kafkadur_admin: AdminClient
) -> None:
    journal.open()
    kafkadur_admin.create_partitions([NewPartitions(journal.topic, SHARDS + 1)])[journal.topic].result(10)
    other = Journal({"bootstrap.servers": kafkadur_stack.kafka}, kafkadur_namespace, shards=SHARDS)

    def grown() -> bool:
        return (
            len(kafkadur_admin.list_topics(journal.topic, timeout=5).topics[journal.topic].partitions)
            > SHARDS
        )

    from tests.integration.embedded.helpers import wait_until

    wait_until(grown, "the new partition")
    with pytest.raises(CoordinatorRefused, match="Partitions were added"):
        other.open()
    other.close()


def test_a_topic_that_forgets_is_refused(journal: Journal, kafkadur_admin: AdminClient) -> None:
    topic = NewTopic(journal.topic, num_partitions=1, config={"cleanup.policy": "delete"})
    kafkadur_admin.create_topics([topic])[journal.topic].result(10)
    with pytest.raises(CoordinatorRefused, match=r"cleanup\.policy must be compact"):
        journal.open()


def test_a_broker_that_does_not_answer_is_told_in_time() -> None:
    silent = Journal({"bootstrap.servers": "127.0.0.1:1"}, "nowhere", timeout=0.5)
    with pytest.raises(StateLost, match="cannot be used"):
        silent.open()
    silent.close()


def test_older_incarnations_are_seen_by_whoever_needs_them(journal: Journal) -> None:
    """Two subscriptions share a shard; that of the first question has the newer incarnation."""
    shard = journal.shard(TAG)
    older = journal.append_incarnations("server", {shard: [TAG]})[shard]
    between = journal.append_incarnations("server", {shard: [TAG]})[shard]
    newer = journal.append_incarnations("server", {shard: ["other"]})[shard]
    assert journal.incarnations({shard: newer}, {shard: newer}) == {shard: []}
    seen = journal.incarnations({shard: newer}, {shard: older})[shard]
    assert [entry.offset + 1 for entry in seen] == [between, newer]
    last = journal.append_incarnations("server", {shard: [TAG]})[shard]
    assert journal.incarnations({shard: last}, {shard: newer})[shard][-1].offset + 1 == last


def test_a_reader_that_has_rested_goes_on_where_it_was(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_topic, "REST_S", 0.0)
    shard = journal.shard(TAG)
    first, second = (journal.append_incarnations("server", {shard: [TAG]})[shard] for _ in range(2))
    seen = journal.incarnations({shard: second}, {shard: first})[shard]
    assert [entry.offset + 1 for entry in seen] == [second]
    journal.rest()
    read: list[int] = []
    note = Journal._note_incarnation  # noqa: SLF001 - nothing else tells what is read

    def watched(self: Journal, shard: int, offset: int, message: Message) -> None:
        read.append(offset)
        note(self, shard, offset, message)

    monkeypatch.setattr(Journal, "_note_incarnation", watched)
    third = journal.append_incarnations("server", {shard: [TAG]})[shard]
    seen = journal.incarnations({shard: third}, {shard: first})[shard]
    assert [entry.offset + 1 for entry in seen] == [second, third]
    assert read == [third - 1], "nothing is read again"


def test_subscriptions_without_a_definition_are_told_apart(journal: Journal) -> None:
    tags = [f"{number:016x}" for number in range(12)]
    assert {journal.shard(tag) for tag in tags} == set(range(SHARDS))
    for tag in tags[::2]:
        journal.append_change(journal.shard(tag), replace(change(0), tag=tag))
    assert journal.without_definition(tags) == set(tags[1::2])
    assert journal.without_definition(tags[::2]) == set()
