"""Origin of settled offsets: a subscription since its last move, its topic, and its number of lanes.

It names the state in Redis and the checkpoints in the journal. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkadur_coordinators.journal.records import InForce


class Origin(NamedTuple):
    """The state that a checkpoint describes."""

    #: the subscription's id
    id: str
    #: rises when the subscription is moved: earlier settled offsets are not valid then
    epoch: int
    #: names the topic's id and its number of lanes (`state_of`)
    state: str


def state_of(topic_id: str, lanes: int) -> str:
    """Return the name of the state of a topic's partitions; it includes the number of lanes of keys."""
    return topic_id if lanes == 1 else f"{topic_id}~{lanes}"


def origin_of(found: InForce) -> Origin:
    """Return the origin of a subscription's checkpoints; an empty one if it is deleted."""
    change = found.change
    if change.definition is None:
        return Origin("", 0, "")
    return Origin(found.id, change.epoch, state_of(change.topic_id, found.definition.lanes))
