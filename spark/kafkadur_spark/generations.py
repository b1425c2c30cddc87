"""Generations: with which checkpoint a query continues, and when it begins anew. Pure functions of values.

The subscription determines what is settled, a checkpoint what Spark has planned. A query keeps its checkpoint
as long as Spark, continuing from it, reads every unsettled message: those that it planned and did not commit,
and all later ones. If an earlier message is unsettled again - it was rolled back, or the subscription was
moved - only a new generation with its own checkpoint reads it. The offsets that were settled when a
generation began are recorded with it and never computed anew: a replayed batch must leave out the same
offsets as before. After the planned offsets, each start may leave out more, in another revision of the
generation, because another member may have settled them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.ranges import Ranges, count, joined, within

#: Version of the record of a generation.
FORMAT = 1

#: How a query settles: each batch by a call, or each batch that Spark commits.
Acking = Literal["batch", "progress"]
#: What happens if Spark has passed messages that are to be read again.
OnAhead = Literal["refuse", "new", "redeliver"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A generation of a query: the values with which it began."""

    number: int
    #: rises when more offsets are left out
    revision: int = 0
    #: "progress" if all of its queries settle what Spark commits
    acking: Acking = "batch"
    #: the subscription, and the number of its life
    subscription_id: str
    epoch: int
    topic_id: str
    #: first offset to read, by partition
    starts: Mapping[int, int]
    #: offsets to leave out, by partition: they were settled already
    skip: Mapping[int, Ranges]
    #: whether its queries also read the topic that wakes them (`waking.py`); Spark cannot leave it out again
    wakes: bool = False

    def to_json(self) -> str:
        """Return the record that is stored beside its checkpoint."""
        return json.dumps(
            {
                "format": FORMAT,
                "number": self.number,
                "revision": self.revision,
                "acking": self.acking,
                "subscription": self.subscription_id,
                "epoch": self.epoch,
                "topic": self.topic_id,
                "starts": {str(p): offset for p, offset in sorted(self.starts.items())},
                "skip": {str(p): [list(pair) for pair in some] for p, some in sorted(self.skip.items())},
                "wakes": self.wakes,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Generation:
        """Read a record; raises `IllegalState` for a damaged one and for another version."""
        try:
            content: Any = json.loads(text)
            if content["format"] != FORMAT:
                raise IllegalState(
                    "This checkpoint was written by another version of kafkadur.",
                    state=f"format {content['format']!r}",
                    owner="the checkpoint",
                    remedy="use that version, or another checkpoint_root",
                )
            return cls(
                number=int(content["number"]),
                revision=int(content["revision"]),
                acking="progress" if content["acking"] == "progress" else "batch",
                subscription_id=str(content["subscription"]),
                epoch=int(content["epoch"]),
                topic_id=str(content["topic"]),
                starts={int(p): int(offset) for p, offset in content["starts"].items()},
                skip={int(p): [(int(a), int(b)) for a, b in some] for p, some in content["skip"].items()},
                wakes=content.get("wakes") is True,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IllegalState(
                "The record of the checkpoint cannot be read.",
                state=text[:60],
                owner="the checkpoint",
                remedy="use another checkpoint_root: settled messages stay settled",
            ) from error


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The state of a subscription when a query begins, by partition."""

    subscription_id: str
    epoch: int
    topic_id: str
    #: lowest offset to be read
    floors: Mapping[int, int]
    #: offsets above the floor that are not to be read: they are settled or delayed
    holes: Mapping[int, Ranges]

    def unsettled(self, partition: int, end: int) -> int:
        """Return the number of offsets below `end` that are to be read."""
        floor = self.floors.get(partition, 0)
        return max(end - floor, 0) - count(within(self.holes.get(partition, ()), floor, end))


class Verdict(Enum):
    """Whether a query can continue with a checkpoint."""

    #: Spark can continue from it
    KEEP = "keep"
    #: there is none
    FIRST = "first"
    #: it belongs to another subscription, or to an earlier life of this one
    FOREIGN = "foreign"
    #: a message before its position is to be read again
    AHEAD = "ahead"


def judge(last: Generation | None, committed: Mapping[int, int] | None, now: Standing) -> Verdict:
    """Return whether a query can continue with the last generation.

    `committed` is the end of the last batch that Spark has committed, by partition; None if there is none.
    Spark replays a batch that was planned and not committed anyway.
    """
    if last is None:
        return Verdict.FIRST
    if (last.subscription_id, last.epoch, last.topic_id) != (now.subscription_id, now.epoch, now.topic_id):
        return Verdict.FOREIGN
    position = dict(last.starts) | dict(committed or {})
    return Verdict.AHEAD if any(now.unsettled(p, end) > 0 for p, end in position.items()) else Verdict.KEEP


def choose(
    last: Generation | None,
    committed: Mapping[int, int] | None,
    now: Standing,
    *,
    planned: Mapping[int, int] | None = None,
    on_ahead: OnAhead,
    acking: Acking = "batch",
) -> Generation:
    """Return the generation with which a query continues: the last one or the next.

    `planned` is the end of the last batch that Spark has planned; None: that of `committed`. Raises
    `IllegalState` if the last one has passed messages that are to be read again and `on_ahead` is "refuse":
    the state of operators would count these messages twice.
    """
    verdict = judge(last, committed, now)
    keep = verdict is Verdict.KEEP or (verdict is Verdict.AHEAD and on_ahead == "redeliver")
    if keep and last is not None:
        if acking == "batch" != last.acking:  # from now on a committed batch need not be settled
            last = replace(last, acking=acking, revision=last.revision + 1)
        return _extended(last, dict(last.starts) | dict(planned or committed or {}), now)
    if verdict is Verdict.AHEAD and on_ahead == "refuse":
        raise IllegalState(
            "The query is ahead of what is settled: it would not read the rolled back messages again.",
            state=f"generation {last.number if last else 0}",
            owner="the checkpoint",
            remedy='use on_ahead="new" to begin a new generation, which reads them; the state of '
            "aggregations begins anew then, too",
        )
    return Generation(
        number=1 if last is None else last.number + 1,
        acking=acking,
        subscription_id=now.subscription_id,
        epoch=now.epoch,
        topic_id=now.topic_id,
        starts=dict(now.floors),
        skip={p: list(some) for p, some in now.holes.items() if some},
    )


def _extended(last: Generation, planned: Mapping[int, int], now: Standing) -> Generation:
    """Return the generation, which also leaves out settled offsets that Spark has not planned yet."""
    skip = {partition: list(ranges) for partition, ranges in last.skip.items()}
    for partition in now.floors:
        end = planned.get(partition, 0)
        more = [(end, max(now.floors[partition], end)), *within(now.holes.get(partition, ()), end, 2**63)]
        merged = joined([*skip.get(partition, ()), *more])
        if merged:
            skip[partition] = merged
    pinned = {partition: joined(ranges) for partition, ranges in last.skip.items() if ranges}
    return last if skip == pinned else replace(last, revision=last.revision + 1, skip=skip)


def offsets_of(entry: str, topic: str) -> dict[int, int] | None:
    """Return the end offsets, by partition, of a topic in an entry of Spark's offset log.

    An entry is `v1`, then a line about the batch, then a line for each source: JSON for a Kafka source, `-`
    for a source without messages. None if no line names the topic. Raises `IllegalState` for another format.
    """
    version, _, *sources = [*entry.splitlines(), "", ""]
    if version != "v1":
        raise IllegalState(
            "The offset log of the checkpoint cannot be read.",
            state=f"version {version[:20]!r}",
            owner="Spark",
            remedy="use a version of Spark that kafkadur knows: 4.0 and newer",
        )
    found: list[Any] = [json.loads(line) for line in sources if line.startswith("{")]
    ends: list[Any] = [content[topic] for content in found if topic in content]
    if len(ends) > 1:
        raise IllegalState(
            "A query reads the topic of its subscription twice.",
            state=f"{len(ends)} sources of topic {topic}",
            owner="the query",
            remedy="read it once, or read the other one in a query of its own",
        )
    return {int(p): int(offset) for p, offset in ends[0].items()} if ends else None
