"""Progress of the query of a holder, for people: a key of Redis beside the subscription's state.

It is `<root>progress:<member>`, JSON, written by that member alone and gone after a day. No script reads it
and no decision depends on it, so it is set without a script, and a damaged value counts as none.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from kafkadur_coordinators.redis.coordinator import RedisCoordinator, SubscriptionAddress

#: For so long it is kept, ms: longer than a batch takes.
KEPT_MS: Final = 24 * 3_600_000
#: More bytes are not read as one.
_MOST_BYTES: Final = 1_000
#: No count, rate or time is so large.
_MOST: Final = 2**47
_Count = Annotated[int, Field(strict=True, ge=0, lt=_MOST)]
_Rate = Annotated[float, Field(strict=True, ge=0, lt=_MOST)]


@dataclass(frozen=True, kw_only=True, slots=True)
class HolderProgress:
    """The last progress of the running query of a holder."""

    #: which checkpoint of the subscription, from 1
    generation: _Count
    #: number of the batch in it
    batch: _Count
    #: records that were read for it: records that are read twice count twice
    rows: _Count
    #: records a second that came in, and that were worked on; None: not known
    input_rate: _Rate | None
    processed_rate: _Rate | None
    #: offsets that were in the topic and that the batch did not reach; None: not known
    lag: _Count | None
    #: clock of the holder when it was written, ms since 1970
    at: _Count


@cache
def _reader() -> TypeAdapter[HolderProgress]:
    return TypeAdapter(HolderProgress)  # it takes a hundredth of a second to make


def tell(
    coordinator: RedisCoordinator, address: SubscriptionAddress, member: str, progress: HolderProgress | None
) -> None:
    """Write the progress of a member; None: no query runs. Raises as `RedisCoordinator.command`."""
    key = address.progress(member)
    if progress is None:
        coordinator.command("UNLINK", key)
    else:
        coordinator.command("SET", key, json.dumps(asdict(progress)), "PX", KEPT_MS)


def told(coordinator: RedisCoordinator, address: SubscriptionAddress, member: str) -> HolderProgress | None:
    """Return the progress of a member; None: no readable one. Raises as `RedisCoordinator.command`."""
    found = coordinator.command("GET", address.progress(member))
    return None if found is None else read(bytes(found))


def read(text: bytes) -> HolderProgress | None:
    """Decode a progress; None if it is damaged."""
    try:
        return _reader().validate_json(text) if len(text) <= _MOST_BYTES else None
    except ValidationError:
        return None
