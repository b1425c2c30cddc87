"""Rebuilding what Redis lost, or went on with: from checkpoints, mirrored floors, and what a server kept."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis

from kafkadur.stack import as_administrator
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_coordinators.changes import Changes
from kafkadur_coordinators.interface import PartitionReport, Settled
from kafkadur_coordinators.journal import checkpoints, recovery_reports
from kafkadur_coordinators.journal.origins import Origin, state_of
from kafkadur_coordinators.journal.rebuilding import Outcome
from kafkadur_coordinators.journal.records import Change
from kafkadur_coordinators.journal.recovery_reports import Cause, Recovery
from kafkadur_coordinators.lifecycle import Membership
from kafkadur_coordinators.redis.coordinator import Refusal
from kafkadur_coordinators.settlement_states import SettlementState, Waiting
from kafkadur_sharing.errors import InvalidDestination
from kafkadur_sharing.keys import SubscriptionKey
from tests.integration.coordinators import stored
from tests.integration.coordinators.party import SESSION_MS, Party, produce, say, wipe
from tests.integration.subscriptions.helpers import remove


def checkpoint(
    party: Party,
    membership: Membership,
    lane: int,
    settlement: SettlementState,
    writer: str = "w",
    incarnation: int = 1,
) -> None:
    """Write a checkpoint as a member does."""
    subscription = membership.subscription
    state = state_of(subscription.topic.id, subscription.definition.lanes)
    key = checkpoints.key_of(Origin(subscription.id, subscription.epoch, state), lane, writer, incarnation)
    shard = party.journal.shard(subscription.key.tag)
    party.journal.append([(shard, key, checkpoints.encode(settlement))])


def standing(party: Party) -> dict[int, SettlementState]:
    """Where each partition stands, after whatever has to be repaired."""
    known = party.known()
    assert known is not None
    return party.lifecycle.settlements(party.key(), known)


def restart(party: Party) -> None:
    """Let the state look as one that another server had written."""
    state = party.lifecycle.address(party.key()).fixed()[0]
    stored.change(party.coordinator.command, state, server="before:0")


def kept_by_a_replica(party: Party) -> Callable[[], None]:
    """Remember all keys as they are now; the result brings them back."""
    client: Any = redis.Redis.from_url(as_administrator(party.url))
    root = party.lifecycle.address(party.key()).root
    copied = {key: client.dump(key) for key in client.scan_iter(match=f"{root}*", count=1000)}

    def fail_over() -> None:
        for key in client.scan_iter(match=f"{root}*", count=1000):
            client.delete(key)
        for key, value in copied.items():
            client.restore(key, 0, value)
        client.close()
        restart(party)

    return fail_over


def report_of(party: Party) -> Recovery:
    (found,) = party.lifecycle.recoveries()
    return found


def again(recovery: Recovery) -> Mapping[int, tuple[tuple[int, int], ...]]:
    return {item.partition: item.ranges for item in recovery.partitions}


def test_what_checkpoints_say_is_settled_after_a_loss(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic(2)
    produce(alone.kafka, topic, [20, 5])
    first = alone.attach(topic, start="earliest")
    checkpoint(
        alone,
        first,
        0,
        SettlementState(next=12, waiting=(Waiting(3, 5), Waiting(8, 10, 2, redelivered=True))),
    )
    checkpoint(alone, first, 0, SettlementState(next=4, waiting=(Waiting(1, 2),)), writer="another")
    wipe(alone.url)
    found = standing(alone)
    assert found[0] == SettlementState(
        next=12, seen=20, waiting=(Waiting(4, 5), Waiting(8, 10, 2, redelivered=True))
    )
    assert found[1] == SettlementState(next=0, seen=5)
    recovery = report_of(alone)
    assert (recovery.cause, recovery.id) == (Cause.LOST, first.subscription.id)
    assert again(recovery) == {0: ((4, 5), (8, 10), (12, 20)), 1: ((0, 5),)}
    assert recovery.offsets == 16


def test_an_undecodable_checkpoint_leaves_the_floor(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic, start="earliest")
    settlement = SettlementState(next=9, waiting=(Waiting(6, 7),))
    origin = Origin(first.subscription.id, 0, first.subscription.topic.id)
    value = bytearray(checkpoints.encode(settlement))
    value[-1] ^= 1
    shard = alone.journal.shard(alone.key().tag)
    alone.journal.append([(shard, checkpoints.key_of(origin, 0, "w", 1), bytes(value))])
    wipe(alone.url)
    assert standing(alone)[0].next == 6


def test_checkpoints_of_before_a_move_say_nothing(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic, start="earliest")
    checkpoint(alone, first, 0, SettlementState(next=9))
    alone.leave(first)
    alone.lifecycle.amend(alone.key(), lambda definition: definition, lambda _: {0: SettlementState(next=2)})
    wipe(alone.url)
    assert standing(alone)[0].next == 2


def test_lanes_of_keys_come_back_each_by_itself(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic(2)
    first = alone.attach(topic, type_="key-ordered", key_lanes=2, start="earliest")
    for lane, end in ((0, 5), (1, 7), (3, 9)):
        checkpoint(alone, first, lane, SettlementState(next=end))
    wipe(alone.url)
    known = alone.known()
    assert known is not None
    views = alone.lifecycle.views(alone.key(), known)
    assert {lane: view.floor for lane, view in views.items()} == {0: 5, 1: 7, 2: 0, 3: 9}


def test_a_restarted_server_goes_on_with_what_it_kept(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    produce(alone.kafka, topic, [10])
    first = alone.attach(topic, start="earliest")
    say(first, 1, PartitionReport(partition=0, readable_end=10))
    say(first, 2, PartitionReport(partition=0, settled=[Settled(1, (0, 2, 4, 6))]), credit=0)
    checkpoint(alone, first, 0, SettlementState(next=2))
    restart(alone)
    assert [(w.start, w.end) for w in standing(alone)[0].waiting] == [(2, 4), (6, 10)]
    recovery = report_of(alone)
    assert recovery.cause is Cause.KEPT
    assert again(recovery) == {0: ((2, 4), (6, 10))}


def test_what_the_server_did_not_keep_that_it_granted_is_marked(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    """A restart with a log of a second ago: nothing was settled since, but more was delivered."""
    topic = kafkadur_topic()
    produce(alone.kafka, topic, [10])
    first = alone.attach(topic, start="earliest")
    say(first, 1, PartitionReport(partition=0, readable_end=4))
    fail_over = kept_by_a_replica(alone)
    say(first, 2, PartitionReport(partition=0, readable_end=10))
    fail_over()
    assert standing(alone)[0].seen == 10
    assert report_of(alone).cause is Cause.KEPT


def test_what_the_journal_knows_more_than_an_older_copy_stays_settled(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    """A failover to a replica that lacked the last writes: what was confirmed by the journal is not lost."""
    topic = kafkadur_topic(2)
    produce(alone.kafka, topic, [10, 10])
    first = alone.attach(topic, start="earliest")
    say(first, 1, PartitionReport(partition=0, readable_end=10))
    say(first, 2, PartitionReport(partition=0, settled=[Settled(1, (0, 2))]), credit=0)
    fail_over = kept_by_a_replica(alone)
    say(first, 3, PartitionReport(partition=0, settled=[Settled(1, (4, 6))]), credit=0)
    checkpoint(alone, first, 0, SettlementState(next=6, waiting=(Waiting(2, 4),)))
    fail_over()
    found = standing(alone)
    assert [(w.start, w.end, w.redelivered) for w in found[0].waiting] == [(2, 4, True), (6, 10, True)]
    assert found[1].next == 0
    assert report_of(alone).cause is Cause.OLDER
    known = alone.known()
    assert known is not None
    assert 0 < known.grace_ms <= SESSION_MS
    second = alone.attach(topic)
    assert second.attached.incarnation > first.attached.incarnation
    assert say(second, 1).grace_ms == 0, "all who were attached to the copy are back"
    with pytest.raises(Refusal, match="INCARNATION"):
        say(first, 4, PartitionReport(partition=0, settled=[Settled(1, (6, 7))]))


def test_partitions_that_the_older_copy_did_not_have_come_from_the_journal(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic, start="earliest")
    checkpoint(alone, first, 1, SettlementState(next=7))  # of a partition that came after the copy
    fail_over = kept_by_a_replica(alone)
    fail_over()
    known = alone.known()
    assert known is not None
    assert known.partitions == 2
    views = alone.lifecycle.views(alone.key(), known)
    assert {lane: view.floor for lane, view in views.items()} == {0: 0, 1: 7}


def test_many_are_rebuilt_together(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topics = [kafkadur_topic(), kafkadur_topic(2)]
    keys = [SubscriptionKey(namespace=alone.namespace, client_id="c", name=f"s{n}") for n in range(7)]
    for n, key in enumerate(keys):
        alone.subscribe(key, topics[n % 2])
    before = {key: alone.lifecycle.known(key) for key in keys}
    wipe(alone.url)
    told: list[tuple[int, int]] = []
    found = alone.lifecycle.rebuild_all(lambda done, total: told.append((done, total)))
    assert found.outcomes == dict.fromkeys(sorted(keys, key=str), Outcome.REBUILT)
    assert told[-1] == (7, 7)
    for key in keys:
        known, old = alone.lifecycle.known(key), before[key]
        assert known is not None
        assert old is not None
        assert (known.id, known.version, known.definition) == (old.id, old.version, old.definition)
        assert known.incarnation > old.incarnation
    assert alone.lifecycle.rebuild_all().count(Outcome.INTACT) == 7
    entries = [entry for shard in alone.journal.read_all().values() for entry in shard if not entry.change]
    assert len(entries) <= 2, "one incarnation a shard"


def test_one_that_cannot_be_rebuilt_does_not_keep_the_others(
    alone: Party, kafkadur_topic: TopicFactory, kafkadur_admin: Any
) -> None:
    kept, gone = kafkadur_topic(), kafkadur_topic()
    keys = [SubscriptionKey(namespace=alone.namespace, client_id="c", name=name) for name in ("kept", "gone")]
    for key, topic in zip(keys, (kept, gone), strict=True):
        alone.subscribe(key, topic)
    remove(kafkadur_admin, gone)
    wipe(alone.url)
    found = alone.lifecycle.rebuild_all()
    assert found.count(Outcome.REBUILT) == 1
    ((key, error),) = found.failed.items()
    assert key.name == "gone"
    assert isinstance(error, InvalidDestination)


def test_processes_that_rebuild_at_once_end_with_one_state(
    party: Callable[..., Party], kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    parties = [party(real=True) for _ in range(4)]
    first = parties[0].attach(topic, start="earliest")
    checkpoint(parties[0], first, 0, SettlementState(next=5))
    wipe(parties[0].url)
    found: list[SettlementState] = []
    threads = [threading.Thread(target=lambda p=p: found.append(standing(p)[0])) for p in parties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [settlement.next for settlement in found] == [5] * 4


def test_what_is_being_created_is_not_taken_for_lost(
    party: Callable[..., Party], kafkadur_topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process finds nothing in Redis, and in the journal a definition that another is about to install."""
    topic, creator, other = kafkadur_topic(), party(), party()
    append = creator.journal.append_change

    def append_and_let_the_other_look(shard: int, change: Change) -> int:
        version = append(shard, change)
        assert other.lifecycle._rebuild(other.key(), kept=False, seen=0) is None  # noqa: SLF001 - as `known` does
        return version

    monkeypatch.setattr(creator.journal, "append_change", append_and_let_the_other_look)
    creator.attach(topic)
    assert other.attach(topic, "other").attached.grace_ms == 0
    assert creator.lifecycle.recoveries() == []


def test_a_damaged_report_is_left_out(alone: Party, kafkadur_topic: TopicFactory) -> None:
    alone.attach(kafkadur_topic())
    wipe(alone.url)
    assert alone.known() is not None
    shard = alone.journal.shard(alone.key().tag)
    assert alone.lifecycle.recoveries()
    for value in (b"", b"{}", b"[" * 100_000, b'{"body": [], "sum": 0}'):
        alone.journal.append([(shard, recovery_reports.key_of(alone.key().tag), value)])
        assert alone.lifecycle.recoveries() == []


def test_old_checkpoints_are_removed_from_the_journal(alone: Party, kafkadur_topic: TopicFactory) -> None:
    first = alone.attach(kafkadur_topic(), start="earliest")
    shard = alone.journal.shard(alone.key().tag)
    for number in range(3):
        checkpoint(alone, first, 0, SettlementState(next=number), writer=f"w{number}")
    now = max(item.written for item in alone.journal.read_shards([shard])[shard].checkpoints)
    assert alone.journal.collect([shard], now) == 0
    assert alone.journal.collect([shard], now + checkpoints.KEPT_MS + 1) == 2
    assert [item.settlement.next for item in alone.journal.read_shards([shard])[shard].checkpoints] == [2]


def test_checkpoints_of_a_definition_that_cannot_be_read_are_kept(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    """It may be of a later version; those of the other subscriptions of the shard go as ever."""
    first = alone.attach(kafkadur_topic(), start="earliest")
    shard = alone.journal.shard(alone.key().tag)
    change = replace(
        alone.in_force()[2], tag="0" * 16, expected=0, definition={"type": "of tomorrow"}, id="its-id"
    )
    alone.journal.append_change(shard, change)
    origin = Origin("its-id", 0, state_of(first.subscription.topic.id, 1))
    theirs = [checkpoints.key_of(origin, 0, f"w{number}", 1) for number in range(2)]
    alone.journal.append([(shard, key, checkpoints.encode(SettlementState(next=1))) for key in theirs])
    for number in range(2):
        checkpoint(alone, first, 0, SettlementState(next=number), writer=f"w{number}")
    now = max(item.written for item in alone.journal.read_shards([shard])[shard].checkpoints)
    assert alone.journal.collect([shard], now + checkpoints.KEPT_MS + 1) == 1
    left = {item.key for item in alone.journal.read_shards([shard])[shard].checkpoints}
    assert left > set(theirs)


def test_a_change_begins_nowhere_where_the_journal_knows_a_later_incarnation(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    """An old master, or a fence that came after another recovery: it is rebuilt first, and then moved."""
    first = alone.attach(kafkadur_topic(), start="earliest")
    alone.leave(first)
    shard = alone.journal.shard(alone.key().tag)
    late = alone.journal.append_incarnations("elsewhere", {shard: [alone.key().tag]})[shard]
    checkpoint(alone, first, 0, SettlementState(next=7))  # what the other server had confirmed
    seen: list[int] = []

    def move(standing: Mapping[int, SettlementState]) -> Mapping[int, SettlementState]:
        seen.append(standing[0].floor)
        return {0: SettlementState(next=3)}

    alone.lifecycle.amend(alone.key(), lambda definition: definition, move)
    assert seen == [7], "it was united with the journal before"
    known = alone.known()
    assert known is not None
    assert known.incarnation > late
    assert standing(alone)[0].floor == 3


def test_members_settle_nothing_while_a_process_that_knows_a_later_incarnation_rebuilds(
    alone: Party, kafkadur_topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is read, and replaced later: what is confirmed in between would be forgotten."""
    topic = kafkadur_topic()
    produce(alone.kafka, topic, [20])
    first = alone.attach(topic, start="earliest")
    say(first, 1, PartitionReport(partition=0, readable_end=10))
    shard = alone.journal.shard(alone.key().tag)
    late = alone.journal.append_incarnations("elsewhere", {shard: [alone.key().tag]})[shard]
    read = Changes.inspected
    refusals: list[str] = []

    def read_and_settle(self: Changes, *arguments: Any) -> Sequence[Any]:
        found = list(read(self, *arguments))
        with pytest.raises(Refusal) as refused:
            say(first, 2, PartitionReport(partition=0, settled=[Settled(1, (0, 2))]), credit=0)
        refusals.append(refused.value.code)
        return found

    monkeypatch.setattr(Changes, "inspected", read_and_settle)
    alone.lifecycle.rebuild({alone.key(): late})
    assert refusals == ["RESTARTED"]
    monkeypatch.undo()
    second = alone.attach(topic)
    assert second.attached.incarnation > late
    assert say(second, 1).grace_ms == 0, "all who were attached are back"
    say(second, 2, PartitionReport(partition=0, readable_end=20, log_end=20), credit=20)
    assert standing(alone)[0].floor == 0


def test_a_process_that_dies_while_members_wait_for_its_rebuild_is_replaced(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    produce(alone.kafka, topic, [10])
    first = alone.attach(topic, start="earliest")
    say(first, 1, PartitionReport(partition=0, readable_end=10))
    say(first, 2, PartitionReport(partition=0, settled=[Settled(1, (0, 4))]), credit=0)
    keys, common = alone.lifecycle.address(alone.key()).fixed(), alone.coordinator.common(incarnation=-99)
    assert alone.coordinator.run("rebuild", keys, [*common, "dies", 20_000]).code == "OK"
    with pytest.raises(Refusal, match="RESTARTED"):
        say(first, 3, PartitionReport(partition=0, settled=[Settled(1, (4, 6))]))
    second = alone.attach(topic)
    assert second.attached.incarnation > first.attached.incarnation
    assert standing(alone)[0].floor == 4, "what was confirmed stays settled, and nothing else is"
