"""The batches of a query: the offsets of each partition in them, from Spark's log of offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.ranges import Ranges, without
from kafkadur_spark.checkpoints import Checkpoints
from kafkadur_spark.generations import Generation, offsets_of

#: [start, end) by partition.
Stretches = Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Batches:
    """The batches of one generation."""

    checkpoints: Checkpoints
    generation: Generation
    topic: str

    def last(self, log: str) -> dict[int, int] | None:
        """Return the ends of the last batch in a log ("offsets": planned, "commits": committed).

        They are given by partition; None if there is no batch.
        """
        batch = self.checkpoints.latest(self.generation.number, log)
        return None if batch is None else self.ends(batch)

    def ends(self, batch: int) -> dict[int, int]:
        """Return the ends of a batch, by partition. Raises `IllegalState` if it was never planned."""
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
        """Return the starts of a batch, by partition; an absent partition was added later and starts at 0."""
        return dict(self.generation.starts) | (self.ends(batch - 1) if batch > 0 else {})

    def stretches(self, batch: int) -> Stretches:
        """Return the stretches of a batch, including offsets that the generation leaves out (`read_of`)."""
        ends = self.ends(batch)  # first, so that the error names this batch
        return self.since(self.starts(batch), ends)

    def since(self, before: Mapping[int, int] | None, ends: Mapping[int, int]) -> Stretches:
        """Return the stretches between the ends of two batches; None: from the start of the generation."""
        starts = dict(self.generation.starts) | dict(before or {})
        # a partition that was added later is read from its first offset on
        return {p: (starts.get(p, 0), end) for p, end in ends.items() if starts.get(p, 0) < end}

    def read_of(self, stretches: Stretches) -> dict[int, Ranges]:
        """Return the offsets of stretches that were read, by partition: not those that are left out."""
        skip = self.generation.skip
        return {p: without([stretch], skip.get(p, ())) for p, stretch in stretches.items()}
