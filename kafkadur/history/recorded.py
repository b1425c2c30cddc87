"""What a chunk keeps for the delivery history of its records, by their indices."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Recorded:
    """Made when the first of it is known: most chunks of subscriptions without a history have none."""

    #: when records were handed out: first index, end index, ms since 1970; in order
    handouts: list[list[int]] = field(default_factory=list[list[int]])
    #: end of the records that are handed out one by one; 0: they are handed out in blocks
    run_end: int = 0
    #: why records were given up
    causes: dict[int, str] = field(default_factory=dict[int, str])
    #: records that expired before the application received them
    expired: set[int] = field(default_factory=set[int])
    #: records before this index were recorded as handed out
    told: int = 0
