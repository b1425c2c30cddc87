"""What a check finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: The invariants by their numbers, in words.
INVARIANTS: Final = {
    "I1": "no loss",
    "I2": "no invention",
    "I3": "fencing",
    "I4": "settled stays settled",
    "I5": "single holder",
    "I6": "order",
    "I7": "window",
    "I8": "attempts",
    "I9": "conservation",
    "I10": "floors",
    "I11": "fairness",
    "I12": "liveness",
    "I14": "times",
    "run": "the run itself",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A violation of an invariant."""

    #: number of the invariant
    invariant: str
    #: what kind of violation it is, in a few words that are the same for all of its kind
    kind: str
    #: what is the case, and where
    text: str
    #: the lines of the history that show it
    lines: Sequence[str] = ()
