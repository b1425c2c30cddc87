"""The checkpoint thread on a real Valkey and a real journal: what it writes is of the state that it read."""

import threading
from functools import partial
from typing import cast

import pytest
from confluent_kafka import Message

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.member import Member
from kafkadur.consumer.turn import LaneGroup
from kafkadur.runtime.checkpoint_thread import CheckpointThread
from kafkadur.runtime.waiters import Waiters
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_coordinators.interface import PartitionReport, Settled
from kafkadur_coordinators.journal import checkpoints
from kafkadur_coordinators.journal.checkpoints import united
from kafkadur_coordinators.journal.origins import Origin
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.lifecycle import Membership
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_coordinators.settlement_states import SettlementState
from kafkadur_sharing.errors import KafkadurError, LevelNotReached
from tests.integration.coordinators.party import Party, say


class Settler:
    """A member that settled something on partition 0."""

    display = "invoices"

    def __init__(self) -> None:
        self.settled = {0}

    def take_settled(self) -> set[int]:
        taken, self.settled = self.settled, set()
        return taken


class Told:
    """Somebody who waits for a level."""

    def __init__(self) -> None:
        self.answers: list[KafkadurError | None] = []

    def resolve(self, error: KafkadurError | None) -> None:
        self.answers.append(error)


def checkpoints_of(party: Party) -> CheckpointThread:
    """The checkpoint thread of a party's process."""

    def coordinator() -> RedisCoordinator:
        return RedisCoordinator(party.url, clock=party.clock)

    return CheckpointThread(
        coordinator=coordinator,
        journal=lambda: Journal({"bootstrap.servers": party.kafka}, party.namespace, shards=2),
        waiters=partial(Waiters, coordinator=coordinator, replicas=0, patience=10.0),
        rebuild=lambda _coordinator, _journal, seen: pytest.fail(f"no later incarnation was begun: {seen}"),
    )


def chunk_of(held: Membership, token: int) -> Chunk:
    """Records of a lease on [0, 1) of partition 0, as a member holds them."""
    lease = Lease(
        token=token,
        incarnation=held.attached.incarnation,
        partition=0,
        start=0,
        end=1,
        attempts=0,
        redelivered=False,
        lane=False,
        group=LaneGroup(),
        seen=0,
    )
    return Chunk(cast("Member", None), lease, [cast("Message", None)], 0, None, size=1)


@pytest.mark.parametrize("whole", [True, False])
def test_a_level_is_reached_when_the_record_says_all(
    alone: Party, kafkadur_topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    """One that is too long is cut: what it says is true, but it does not say what was asked for."""
    held = alone.attach(kafkadur_topic(), start="earliest")
    token = say(held, 1, PartitionReport(partition=0, readable_end=9)).grants[0].token
    say(held, 2, PartitionReport(partition=0, settled=[Settled(token, (0, 1, 2, 3, 4, 5, 6, 7))]), credit=0)
    if not whole:
        monkeypatch.setattr(checkpoints, "LARGEST_BODY", 20)
    member, told = Settler(), Told()
    checkpointer = checkpoints_of(alone)
    checkpointer.add(member, held.subscription)
    checkpointer.above(member, "journal", chunk_of(held, token), told).resolve(None)
    checkpointer.close()
    if whole:
        assert told.answers == [None]
    else:
        assert [type(answer) for answer in told.answers] == [LevelNotReached]


def test_a_checkpoint_is_of_the_epoch_that_was_read(alone: Party, kafkadur_topic: TopicFactory) -> None:
    """The member was away while the subscription was moved back; it is attached again, to the same one.

    So it is, too, when an old master answers who has seen the subscription moved elsewhere.
    """
    name = kafkadur_topic()
    before = alone.attach(name, start="earliest")
    say(before, 1, PartitionReport(partition=0, readable_end=6))
    say(before, 2, PartitionReport(partition=0, settled=[Settled(1, (0, 6))]), credit=0)
    alone.leave(before)
    alone.lifecycle.amend(alone.key(), lambda definition: definition, lambda _: {0: SettlementState(next=2)})
    again = alone.attach(name, start="earliest")
    token = say(again, 1, PartitionReport(partition=0, readable_end=6)).grants[0].token
    say(again, 2, PartitionReport(partition=0, settled=[Settled(token, (2, 4))]), credit=0)
    checkpointer = checkpoints_of(alone)
    checkpointer.add(Settler(), before.subscription)
    checkpointer.close()
    shard = alone.journal.shard(alone.key().tag)
    found = alone.journal.read_shards([shard])[shard].checkpoints
    id_, state = before.subscription.id, before.subscription.topic.id
    assert united(found, Origin(id_, 0, state)) == {}
    assert united(found, Origin(id_, 1, state))[0].floor == 4


def test_a_member_that_leaves_in_the_middle_of_a_round_has_its_last_checkpoint(
    alone: Party, kafkadur_topic: TopicFactory
) -> None:
    held = alone.attach(kafkadur_topic(), start="earliest")
    token = say(held, 1, PartitionReport(partition=0, readable_end=9)).grants[0].token
    say(held, 2, PartitionReport(partition=0, settled=[Settled(token, (0, 3))]), credit=0)
    checkpointer = checkpoints_of(alone)

    class Leaving(Settler):
        def take_settled(self) -> set[int]:
            """The first time nothing is settled; it settles something and leaves just after."""
            if not looked.is_set():
                looked.set()
                checkpointer.remove(self)
                return set()
            return super().take_settled()

    looked = threading.Event()
    checkpointer.add(Leaving(), held.subscription)
    assert looked.wait(10)
    checkpointer.close()
    shard = alone.journal.shard(alone.key().tag)
    found = alone.journal.read_shards([shard])[shard].checkpoints
    origin = Origin(held.subscription.id, 0, held.subscription.topic.id)
    assert united(found, origin)[0].floor == 3
