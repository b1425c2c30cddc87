"""The batches of a query: which offsets of each partition belong to one, read off Spark's log of offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafkadur_sharing.errors import IllegalState
from kafkadur_spark.checkpoints import Checkpoints
from kafkadur_spark.generations import Generation, offsets_of
from kafkadur_spark.ranges import Ranges, without

#: [start, end) by partition.
Stretches = Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Batches:
    """The batches of one generation."""

    checkpoints: Checkpoints
    generation: Generation
    topic: str

    def last(self, log: str) -> dict[int, int] | None:
        """Behind the last offset of the last batch in a log ("offsets": planned, "commits": committed).

        By partition; None: there is no batch.
        """
        batch = self.checkpoints.latest(self.generation.number, log)
        return None if batch is None else self.ends(batch)

    def ends(self, batch: int) -> dict[int, int]:
        """Behind the last offset of a batch, by partition. Raises `IllegalState` for one never planned."""
        entry = self.checkpoints.entry(self.generation.number, "offsets", batch)
        if entry is None:
            raise IllegalState(
                f"Batch {batch} is not in the checkpoint of this generation.",
                state=f"generation {self.generation.number}",
                owner="the query",
                remedy="start the query with checkpointLocation=reading.checkpoint (Reading.start does), and "
                "settle its own batches only",
            )
        return offsets_of(entry, self.topic) or dict(self.generation.starts)

    def starts(self, batch: int) -> dict[int, int]:
        """Where a batch begins, by partition; a partition that was added later, and is not there, at 0."""
        return dict(self.generation.starts) | (self.ends(batch - 1) if batch > 0 else {})

    def stretches(self, batch: int) -> Stretches:
        """The stretch of a batch; what the generation leaves out lies in there, too (`read_of`)."""
        ends = self.ends(batch)  # first: it is named where it is not there
        return self.since(self.starts(batch), ends)

    def since(self, before: Mapping[int, int] | None, ends: Mapping[int, int]) -> Stretches:
        """What lies between two ends of batches; None: from where the generation begins."""
        starts = dict(self.generation.starts) | dict(before or {})
        # a partition that was added later is read from its first offset on
        return {p: (starts.get(p, 0), end) for p, end in ends.items() if starts.get(p, 0) < end}

    def read_of(self, stretches: Stretches) -> dict[int, Ranges]:
        """What was read of stretches, by partition: what is left out may wait for its time, unread."""
        skip = self.generation.skip
        return {p: without([stretch], skip.get(p, ())) for p, stretch in stretches.items()}
