"""How far a query of a holder has come, for people: a key of Redis beside the subscription's state.

It is `<root>progress:<member>`, JSON, written by that member alone and gone after a day. No script reads it
and nothing is decided by it, so it is set without a script, and what is damaged there counts as nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from kafkadur_coordinators.redis.coordinator import RedisCoordinator, SubscriptionAddress

#: For so long it is kept, ms: longer than a batch takes.
KEPT_MS: Final = 24 * 3_600_000
#: More bytes are not read as one.
_MOST_BYTES: Final = 1_000
#: What is larger is no count, and no time.
_MOST: Final = 2**47


@dataclass(frozen=True, kw_only=True, slots=True)
class HolderProgress:
    """What the running query of a holder did last."""

    #: which checkpoint of the subscription, from 1
    generation: int
    #: number of the batch in it
    batch: int
    #: records that were read for it: what the work on a batch reads twice counts twice
    rows: int
    #: records a second that came in, and that were worked on; None: not known
    input_rate: float | None
    processed_rate: float | None
    #: offsets that were in the topic and that the batch did not reach; None: not known
    lag: int | None
    #: clock of the holder when it was told, ms since 1970
    at: int


def tell(
    coordinator: RedisCoordinator, address: SubscriptionAddress, member: str, progress: HolderProgress | None
) -> None:
    """Write it down for a member; None: nothing runs. Raises as `RedisCoordinator.command`."""
    key = address.progress(member)
    if progress is None:
        coordinator.command("DEL", key)
    else:
        coordinator.command("SET", key, json.dumps(asdict(progress)), "PX", KEPT_MS)


def told(coordinator: RedisCoordinator, address: SubscriptionAddress, member: str) -> HolderProgress | None:
    """What a member wrote down; None: nothing, or nothing readable. Raises as `RedisCoordinator.command`."""
    found = coordinator.command("GET", address.progress(member))
    return None if found is None else read(bytes(found))


def read(text: bytes) -> HolderProgress | None:
    """What was written down; None for what is none."""
    try:
        content: Any = json.loads(text) if len(text) <= _MOST_BYTES else None
        return HolderProgress(
            generation=_number(content["generation"]),
            batch=_number(content["batch"]),
            rows=_number(content["rows"]),
            input_rate=_rate(content["input_rate"]),
            processed_rate=_rate(content["processed_rate"]),
            lag=None if content["lag"] is None else _number(content["lag"]),
            at=_number(content["at"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(value)
    return value


def _rate(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        raise ValueError(value)
    return float(value)
