"""What settled offsets are of: a subscription, as it was since it was moved last, on one topic and its lanes.

It names the state in Redis and the checkpoints in the journal. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkadur_coordinators.journal.records import InForce


class Origin(NamedTuple):
    """Of what a checkpoint is."""

    #: the subscription's id
    id: str
    #: rises when the subscription is moved: what was settled before says nothing then
    epoch: int
    #: names the topic's id and its number of lanes (`state_of`)
    state: str


def state_of(topic_id: str, lanes: int) -> str:
    """What names the state of a topic's partitions: it lies elsewhere where they have lanes of keys."""
    return topic_id if lanes == 1 else f"{topic_id}~{lanes}"


def origin_of(found: InForce) -> Origin:
    """What checkpoints of a subscription are of; nothing of one that is deleted."""
    change = found.change
    if change.definition is None:
        return Origin("", 0, "")
    return Origin(found.id, change.epoch, state_of(change.topic_id, found.definition.lanes))
