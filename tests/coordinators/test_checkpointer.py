"""The checkpoint thread on a real Valkey and a real journal: what it writes is of the state that it read."""

from kafkadur.checkpointer import Checkpointer
from kafkadur.pytest_plugin import TopicFactory
from kafkadur.stack import Stack
from kafkadur_coordinators.checkpoints import united
from kafkadur_coordinators.interface import PartitionReport, Settled
from kafkadur_coordinators.journal import Journal
from kafkadur_coordinators.origins import Origin
from kafkadur_coordinators.places import Place
from kafkadur_coordinators.redis_coordinator import RedisCoordinator
from tests.coordinators.party import Party, say


class Settler:
    """A member that settled something on partition 0."""

    display = "invoices"

    def __init__(self) -> None:
        self.settled = {0}

    def take_settled(self) -> set[int]:
        taken, self.settled = self.settled, set()
        return taken


def test_a_checkpoint_is_of_the_epoch_that_was_read(
    alone: Party, kafkadur_stack: Stack, kafkadur_topic: TopicFactory
) -> None:
    """The member was away while the subscription was moved back; it is attached again, to the same one.

    So it is, too, when an old master answers who has seen the subscription moved elsewhere.
    """
    name = kafkadur_topic()
    before = alone.attach(name, start="earliest")
    say(before, 1, PartitionReport(partition=0, avail=6))
    say(before, 2, PartitionReport(partition=0, settled=[Settled(1, (0, 6))]), credit=0)
    alone.leave(before)
    alone.lifecycle.amend(alone.key(), lambda definition: definition, lambda _: {0: Place(next=2)})
    again = alone.attach(name, start="earliest")
    token = say(again, 1, PartitionReport(partition=0, avail=6)).grants[0].token
    say(again, 2, PartitionReport(partition=0, settled=[Settled(token, (2, 4))]), credit=0)
    checkpointer = Checkpointer(
        coordinator=lambda: RedisCoordinator(alone.url, clock=alone.clock),
        journal=lambda: Journal({"bootstrap.servers": kafkadur_stack.kafka}, alone.namespace, shards=2),
        replicas=0,
        patience=10.0,
        beacon="beacon",
    )
    checkpointer.add(Settler(), before.subscription)
    checkpointer.close()
    shard = alone.journal.shard(alone.key().tag)
    found = alone.journal.read_shards([shard])[shard].checkpoints
    id_, state = before.subscription.id, before.subscription.topic.id
    assert united(found, Origin(id_, 0, state)) == {}
    assert united(found, Origin(id_, 1, state))[0].floor == 4
