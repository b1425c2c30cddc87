"""How the demo ended: what its parts found, and the line that says it."""

from __future__ import annotations

from dataclasses import dataclass

from examples.demo.verification import Proof


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A batch in which a Spark job was killed, and which the next one had again."""

    killed: str
    #: It was written and settled, but Spark had not noted that; else it was only written.
    settled: bool
    generation: int
    batch: int
    messages: int
    #: Messages that were settled when it came again.
    settled_again: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """How the part with Spark ended (`report.py`)."""

    #: Why there is no report; None: there is.
    left_out: str | None = None
    flights: int = 0
    #: Rows: carriers and routes.
    rows: int = 0
    dead_letters: int = 0
    #: Messages of its subscription that are not settled.
    backlog: int | None = None
    replays: tuple[Replay, ...] = ()
    #: Paths of what stays.
    parquet: str | None = None
    chart: str | None = None
    #: What is wrong, in sentences.
    defects: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the demo ended."""

    total: int
    proofs: tuple[Proof, ...]
    report: Report
    #: What is wrong, in sentences; empty when all is well.
    defects: tuple[str, ...]
    #: Seconds from the kill to the first message of the next process, for `audit`.
    takeover: float
    #: What was broken, in order (`chaos.py`).
    broken: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything was settled exactly once."""
        return not self.defects

    @property
    def line(self) -> str:
        """The last line of the demo."""
        if not self.ok:
            return f"demo: FAILED {self.defects[0]}"
        redelivered = sum(proof.redelivered for proof in self.proofs)
        lost = sum(len(proof.lost) for proof in self.proofs)
        return (
            f"demo: ok, {self.total} messages, {len(self.proofs)} subscriptions, {lost} lost, "
            f"{redelivered} redelivered"
        )
