"""The life of a subscription on a real broker and Valkey: races, losses, finishing what others began."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_coordinators.changes import CHANGE_MS
from kafkadur_coordinators.interface import MAX_PARTITIONS, PartitionReport, Settled
from kafkadur_coordinators.journal.records import Change
from kafkadur_coordinators.lifecycle import Membership
from kafkadur_coordinators.settlement_states import SettlementState
from kafkadur_coordinators.topics import floor_metadata
from kafkadur_sharing.decisions import Request, UnsubscribeRequest
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import (
    CoordinatorUnavailable,
    InvalidDestination,
    SubscriptionActive,
    TopicChanged,
)
from kafkadur_sharing.keys import SubscriptionKey
from tests.integration.coordinators import stored
from tests.integration.coordinators.party import SESSION_MS, Party, produce, say, wipe
from tests.integration.subscriptions.helpers import make_anew

# -- creating


def test_a_subscription_is_created_in_the_journal_and_then_in_redis(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic(partitions=2)
    produce(alone.kafka, topic, [3, 5])
    membership = alone.attach(topic)
    version, id_, change = alone.in_force()
    assert (change.expected, change.starts, change.topic_id) == (
        0,
        {0: 3, 1: 5},
        membership.subscription.topic.id,
    )
    assert (membership.subscription.id, membership.subscription.version) == (id_, version)
    assert alone.floors(membership) == [3, 5]
    known = alone.known()
    assert known is not None
    assert [(m.id, m.name, m.heard) for m in known.members] == [("m", "name of m", True)]


def test_it_may_start_at_the_beginning(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    produce(alone.kafka, topic, [3])
    assert alone.floors(alone.attach(topic, start="earliest")) == [0]


def test_a_topic_that_does_not_exist_leaves_nothing_behind(alone: Party) -> None:
    with pytest.raises(InvalidDestination):
        alone.attach("there-is-no-such-topic")
    assert alone.stored() == set()


def test_processes_that_race_to_create_it_get_one_definition(
    party: Callable[..., Party], kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic(partitions=2)
    parties = [party(real=True) for _ in range(4)]
    start = threading.Barrier(len(parties))

    def attach(number: int) -> Membership:
        start.wait(30)
        return parties[number].attach(topic, f"m{number}")

    with ThreadPoolExecutor(len(parties)) as threads:
        memberships = list(threads.map(attach, range(len(parties))))
    version, id_, _ = parties[0].in_force()
    assert {(m.subscription.id, m.subscription.version) for m in memberships} == {(id_, version)}
    known = parties[0].known()
    assert known is not None
    assert sorted(m.id for m in known.members) == ["m0", "m1", "m2", "m3"]


def test_of_processes_that_race_for_an_exclusive_one_one_attaches(
    party: Callable[..., Party], kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    parties = [party(real=True) for _ in range(4)]
    start = threading.Barrier(len(parties))

    def attach(number: int) -> str:
        start.wait(30)
        try:
            parties[number].attach(topic, f"m{number}", type_="exclusive")
        except SubscriptionActive as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(parties)) as threads:
        answers = list(threads.map(attach, range(len(parties))))
    winner = answers.index("")
    assert answers.count("") == 1
    assert all(f"name of m{winner}" in answer for answer in answers if answer)


# -- replacing and attaching


def test_the_same_details_attach_to_what_exists(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic)
    alone.leave(first)
    produce(alone.kafka, topic, [4])
    second = alone.attach(topic, "other")
    assert second.subscription.id == first.subscription.id
    assert alone.floors(second) == [0], "what came meanwhile waits"


def test_other_details_replace_what_nobody_uses(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic)
    alone.leave(first)
    produce(alone.kafka, topic, [4])
    second = alone.attach(topic, selector="amount > 1")
    assert second.subscription.id != first.subscription.id
    assert second.subscription.definition.selector == "amount > 1"
    assert alone.floors(second) == [4], "what waited is dropped"
    assert not any(key.startswith(first.subscription.id) for key in alone.stored())
    assert alone.in_force()[2].expected == first.subscription.version


def test_other_details_are_refused_while_somebody_is_attached(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic)
    with pytest.raises(SubscriptionActive, match="name of m"):
        alone.attach(topic, "other", selector="amount > 1")
    assert alone.in_force()[0] == first.subscription.version


def test_a_killed_holder_is_waited_for_and_then_replaced(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic, type_="exclusive")
    alone.ears.forget(first.subscription.address.channel("m"))
    assert alone.clock is not None
    before = alone.clock.now
    second = alone.attach(topic, "other", type_="exclusive")
    assert 500 <= alone.clock.now - before <= 1_500
    assert second.subscription.id == first.subscription.id


def add_partitions(party: Party, admin: AdminClient, topic: str, count: int) -> None:
    """Give a topic so many partitions, and wait until the broker says so, too."""
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(10)
    deadline = time.monotonic() + 30
    while party.topics.describe(topic).partitions < count:
        assert time.monotonic() < deadline


def test_partitions_that_were_added_start_at_their_beginning(
    alone: Party, kafkadur_topic: TopicFactory, kafkadur_admin: AdminClient
) -> None:
    topic = kafkadur_topic()
    produce(alone.kafka, topic, [2])
    alone.leave(alone.attach(topic))
    add_partitions(alone, kafkadur_admin, topic, 3)
    membership = alone.attach(topic)
    assert alone.floors(membership) == [2, 0, 0]


# -- unsubscribing


def test_x1_an_inactive_subscription_is_deleted(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic)
    alone.leave(first)
    alone.lifecycle.unsubscribe(UnsubscribeRequest(key=alone.key()))
    assert alone.known() is None
    assert alone.stored() == set()
    assert alone.in_force()[2].definition is None
    assert alone.lifecycle.all_keys() == []
    again = alone.attach(topic)
    assert again.subscription.id != first.subscription.id
    assert alone.lifecycle.all_keys() == [alone.key()]


def test_x2_an_unknown_one_is_not_deleted(alone: Party) -> None:
    with pytest.raises(InvalidDestination):
        alone.lifecycle.unsubscribe(UnsubscribeRequest(key=alone.key()))


def test_x3_an_active_one_is_not_deleted(alone: Party, kafkadur_topic: TopicFactory) -> None:
    first = alone.attach(kafkadur_topic())
    with pytest.raises(SubscriptionActive, match="name of m"):
        alone.lifecycle.unsubscribe(UnsubscribeRequest(key=alone.key()))
    assert alone.in_force()[0] == first.subscription.version
    assert say(first, 1).role.members == 1


def test_a_deleted_one_stays_deleted_when_redis_is_wiped(alone: Party, kafkadur_topic: TopicFactory) -> None:
    alone.leave(alone.attach(kafkadur_topic()))
    alone.lifecycle.unsubscribe(UnsubscribeRequest(key=alone.key()))
    wipe(alone.url)
    assert alone.known() is None


def test_who_was_attached_does_not_bring_back_what_was_deleted(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic)
    alone.leave(first)
    alone.lifecycle.unsubscribe(UnsubscribeRequest(key=alone.key()))
    request = Request(key=alone.key(), definition=Definition(type=SubscriptionType.SHARED, topic=topic))
    with pytest.raises(TopicChanged):
        alone.lifecycle.attach(request, member="m", name="m", only=first.subscription.id)
    assert alone.known() is None


# -- losing Redis


def commit(party: Party, topic: str, floors: dict[int, int], metadata: str) -> None:
    consumer = Consumer({"bootstrap.servers": party.kafka, "group.id": party.key().group})
    offsets = [TopicPartition(topic, p, offset, metadata) for p, offset in floors.items()]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def test_a_wiped_redis_gets_its_definition_back_with_the_mirrored_floors(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic(partitions=3)
    first = alone.attach(topic)
    produce(alone.kafka, topic, [9, 9, 9])
    metadata = first.subscription.floor_metadata
    commit(alone, topic, {0: 7, 1: 4}, metadata)
    wipe(alone.url)
    second = alone.attach(topic, "other")
    assert (second.subscription.id, second.subscription.version) == (
        first.subscription.id,
        first.subscription.version,
    )
    assert alone.floors(second) == [7, 4, 0]
    assert second.attached.incarnation > first.attached.incarnation
    assert second.attached.grace_ms > 0
    assert alone.clock is not None
    alone.clock.advance(SESSION_MS - 1)
    assert not say(second, 1, PartitionReport(partition=0, readable_end=12)).partitions[0].log_end_unknown, (
        "it is too early to ask"
    )
    alone.clock.advance(1)
    reply = say(second, 2, PartitionReport(partition=0, readable_end=12))
    assert (list(reply.grants), reply.partitions[0].log_end_unknown) == ([], True), (
        "how far it was delivered is to be known"
    )
    reply = say(second, 3, PartitionReport(partition=0, log_end=15))
    assert [(g.start, g.horizon, g.seen) for g in reply.grants] == [(7, 12, 15)], "marked as redelivered"
    assert not reply.partitions[0].log_end_unknown


@pytest.mark.parametrize("wrong", ["subscription", "epoch", "topic", "nothing"])
def test_a_floor_of_something_else_is_ignored(alone: Party, kafkadur_topic: TopicFactory, wrong: str) -> None:
    topic = kafkadur_topic()
    subscription = alone.attach(topic).subscription
    produce(alone.kafka, topic, [9])
    metadata = {
        "subscription": floor_metadata("9.9", 0, subscription.topic.id),
        "epoch": floor_metadata(subscription.id, 1, subscription.topic.id),
        "topic": floor_metadata(subscription.id, 0, "other"),
        "nothing": "",
    }[wrong]
    commit(alone, topic, {0: 7}, metadata)
    wipe(alone.url)
    assert alone.floors(alone.attach(topic, "other")) == [0]


def test_processes_that_race_to_rebuild_agree(
    party: Callable[..., Party], kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic(partitions=2)
    parties = [party(real=True) for _ in range(3)]
    first = parties[0].attach(topic)
    wipe(parties[0].url)
    start = threading.Barrier(len(parties))

    def attach(number: int) -> Membership:
        start.wait(30)
        return parties[number].attach(topic, f"m{number}")

    with ThreadPoolExecutor(len(parties)) as threads:
        memberships = list(threads.map(attach, range(len(parties))))
    assert {m.subscription.id for m in memberships} == {first.subscription.id}
    assert len({m.attached.incarnation for m in memberships}) == 1


def test_a_topic_made_anew_stops_the_subscription(
    alone: Party, kafkadur_topic: TopicFactory, kafkadur_admin: AdminClient
) -> None:
    topic = kafkadur_topic()
    alone.leave(alone.attach(topic))
    make_anew(kafkadur_admin, topic)
    with pytest.raises(TopicChanged):
        alone.attach(topic)


def test_partitions_whose_addition_was_broken_off_are_added_by_the_next_one(
    alone: Party, kafkadur_topic: TopicFactory, kafkadur_admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No member touches any before all have a state: a script would find some missing."""
    topic = kafkadur_topic()
    membership = alone.attach(topic)
    count = 2 * MAX_PARTITIONS + 2
    calls: list[str] = []
    run = alone.coordinator.run

    def killed(name: str, *rest: Any) -> Any:
        calls.append(name)
        if len(calls) > 1:
            raise CoordinatorUnavailable
        return run(name, *rest)

    monkeypatch.setattr(alone.coordinator, "run", killed)
    with pytest.raises(CoordinatorUnavailable):
        alone.lifecycle.add_partitions(membership, count)
    monkeypatch.undo()
    assert calls == ["partitions", "partitions"]
    known = alone.known()
    assert known is not None
    assert known.partitions == 1
    add_partitions(alone, kafkadur_admin, topic, count)
    again = alone.attach(topic, "other")
    assert again.attached.role.partitions == count
    assert alone.floors(again) == [0] * count


# -- changes that others left unfinished


def test_a_creation_abandoned_before_its_record_is_created_by_the_next_one(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    alone.begin_change(0)
    assert alone.clock is not None
    before = alone.clock.now
    membership = alone.attach(topic)
    assert alone.clock.now - before >= CHANGE_MS, "the deadline is waited for"
    assert alone.in_force()[1] == membership.subscription.id


def test_a_change_abandoned_before_its_record_is_given_up(alone: Party, kafkadur_topic: TopicFactory) -> None:
    """The subscription stays what it is, with what its dead member held."""
    topic = kafkadur_topic()
    first = alone.attach(topic)
    say(first, 1, PartitionReport(partition=0, readable_end=6))
    say(first, 2, PartitionReport(partition=0, settled=[Settled(1, (0, 2))]), credit=0)
    assert alone.clock is not None
    alone.clock.advance(SESSION_MS + 1)
    alone.begin_change(first.subscription.version)
    second = alone.attach(topic, "other")
    assert second.subscription.id == first.subscription.id
    assert second.subscription.version > first.subscription.version
    reply = say(second, 1, PartitionReport(partition=0))
    assert [(g.start, g.horizon, g.attempts) for g in reply.grants] == [(2, 6, 1)]


def abandoned(alone: Party, definition: Definition | None, **more: Any) -> None:
    """Write the record of a change that was begun, and stop there."""
    known = alone.known()
    assert known is not None
    alone.begin_change(known.version)
    shard = alone.journal.shard(alone.key().tag)
    before = alone.in_force()[2]
    alone.journal.append_change(
        shard,
        replace(
            before,
            expected=known.version,
            definition=None if definition is None else definition.to_record(),
            **{"starts": dict.fromkeys(before.starts, 0), **more},
        ),
    )


def test_another_type_abandoned_after_its_record_keeps_what_is_settled(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    """From one lane to four and back: each time somebody else has to finish it."""
    topic = kafkadur_topic(2)
    first = alone.attach(topic)
    say(first, 1, PartitionReport(partition=0, readable_end=6), PartitionReport(partition=1, readable_end=3))
    say(first, 2, PartitionReport(partition=0, settled=[Settled(1, (0, 2, 4, 6))]), credit=0)
    alone.leave(first)
    known = alone.known()
    assert known is not None
    key, before = alone.key(), alone.lifecycle.settlements(alone.key(), known)
    assert [(item.start, item.end) for item in before[0].waiting] == [(2, 4)]
    kinds = ((SubscriptionType.KEY_ORDERED, 4), (SubscriptionType.SHARED, None))
    for epoch, (kind, lanes) in enumerate(kinds, 1):
        definition = replace(first.subscription.definition, type=kind, key_lanes=lanes)
        starts = {partition: settlement.floor for partition, settlement in before.items()}
        abandoned(alone, definition, id=known.id, starts=starts, epoch=epoch)
        found = alone.known()
        assert found is not None
        assert (found.id, found.partitions) == (known.id, 2 * (lanes or 1))
        assert found.incarnation > known.incarnation
        assert alone.lifecycle.settlements(key, found) == before
        assert len(alone.stored("p:")) == found.partitions, "the state of the other lanes is gone"
        known = found
    again = alone.attach(topic)
    reply = say(again, 1, PartitionReport(partition=0), PartitionReport(partition=1))
    assert min((g.partition, g.start, g.horizon) for g in reply.grants) == (0, 2, 4)


def test_giving_a_change_up_keeps_the_place_after_a_move(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic)
    say(first, 1, PartitionReport(partition=0, readable_end=6))
    say(first, 2, PartitionReport(partition=0, settled=[Settled(1, (0, 6))]), credit=0)
    alone.leave(first)
    alone.lifecycle.amend(alone.key(), lambda definition: definition, lambda _: {0: SettlementState(next=2)})
    second = alone.attach(topic)
    reply = say(second, 1, PartitionReport(partition=0, readable_end=6))
    token = reply.grants[0].token
    say(second, 2, PartitionReport(partition=0, settled=[Settled(token, (2, 5))]), credit=0)
    alone.leave(second)
    known = alone.known()
    assert known is not None
    alone.begin_change(known.version)
    found = alone.known()
    assert found is not None
    assert alone.lifecycle.settlements(alone.key(), found)[0].floor == 5
    assert alone.in_force()[2].epoch == 1


def test_a_change_abandoned_after_its_record_is_installed(alone: Party, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic)
    alone.leave(first)
    definition = replace(first.subscription.definition, selector="amount > 1")
    abandoned(alone, definition)
    second = alone.attach(topic, selector="amount > 1")
    assert second.subscription.id != first.subscription.id
    assert alone.in_force()[1] == second.subscription.id


def test_a_deletion_abandoned_after_its_record_is_finished(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    alone.leave(alone.attach(kafkadur_topic()))
    abandoned(alone, None)
    assert alone.known() is None
    assert not any(key in {"def", "members", "leases"} for key in alone.stored())


def test_a_deletion_recorded_when_the_server_restarted_is_finished(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    first = alone.attach(topic)
    alone.leave(first)
    abandoned(alone, None)
    fixed = first.subscription.address.fixed()
    stored.change(alone.coordinator.command, fixed[0], server="the-one-before:0")  # what a restart looks like
    assert alone.known() is None
    assert alone.attach(topic).subscription.id != first.subscription.id


def test_who_was_overtaken_leaves_the_state_alone(
    party: Callable[..., Party], kafkadur_topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change stops before its record; another process gives it up and works on; the first one wakes."""
    topic = kafkadur_topic()
    slow, quick = party(), party()
    first = slow.attach(topic)
    slow.leave(first)
    append = slow.journal.append_change
    second: list[Membership] = []

    def late(shard: int, change: Change) -> int:
        monkeypatch.setattr(slow.journal, "append_change", append)
        assert slow.clock is not None
        slow.clock.advance(CHANGE_MS + 1)
        second.append(quick.attach(topic, "quick"))
        return append(shard, change)

    monkeypatch.setattr(slow.journal, "append_change", late)
    with pytest.raises(SubscriptionActive):
        slow.lifecycle.unsubscribe(UnsubscribeRequest(key=slow.key()))
    assert second[0].subscription.id == first.subscription.id
    assert quick.floors(second[0]) == [0]
    assert say(second[0], 1, PartitionReport(partition=0, readable_end=3)).grants


def test_a_creation_given_up_does_not_come_back(
    party: Callable[..., Party], kafkadur_topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unsubscribe a creation stops before its record and is given up; its record comes late."""
    topic = kafkadur_topic()
    slow, quick = party(), party()
    slow.leave(slow.attach(topic))
    slow.lifecycle.unsubscribe(UnsubscribeRequest(key=slow.key()))
    append = slow.journal.append_change

    def late(shard: int, change: Change) -> int:
        monkeypatch.setattr(slow.journal, "append_change", append)
        assert slow.clock is not None
        slow.clock.advance(CHANGE_MS + 1)
        assert quick.known() is None
        append(shard, change)
        raise KeyboardInterrupt

    monkeypatch.setattr(slow.journal, "append_change", late)
    with pytest.raises(KeyboardInterrupt):
        slow.attach(topic)
    assert quick.known() is None


def test_what_is_kept_in_redis_says_which_topic_it_is_for(alone: Party, kafkadur_topic: TopicFactory) -> None:
    membership = alone.attach(kafkadur_topic())
    known = alone.known()
    assert known is not None
    kept = json.loads(known.definition)
    assert kept["topic_id"] == membership.subscription.topic.id
    assert SubscriptionKey(**kept["key"]) == alone.key()
