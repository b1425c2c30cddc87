"""Progress of the queries of a holder, for people: a key of Redis beside the subscription's state.

It is `<root>progress:<member>`, JSON, written by that member alone and gone after a day: an object for a
query without a name, else an array of objects. No script reads it and no decision depends on it, so it is
set without a script, and a damaged value counts as none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from kafkadur_coordinators.redis.coordinator import RedisCoordinator, SubscriptionAddress

#: For so long it is kept, ms: longer than a batch takes.
KEPT_MS: Final = 24 * 3_600_000
#: More bytes are not read.
_MOST_BYTES: Final = 10_000
#: More queries are not published.
_MOST_QUERIES: Final = 25
#: No count, rate or time is so large.
_MOST: Final = 2**47
_Count = Annotated[int, Field(strict=True, ge=0, lt=_MOST)]
_Rate = Annotated[float, Field(strict=True, ge=0, lt=_MOST)]


@dataclass(frozen=True, kw_only=True, slots=True)
class HolderProgress:
    """The last progress of a running query of a holder."""

    #: its name; None: the holder has one query, without a name
    query: Annotated[str, Field(strict=True, max_length=200)] | None = None
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
def _reader() -> TypeAdapter[HolderProgress | list[HolderProgress]]:
    return TypeAdapter(HolderProgress | list[HolderProgress])  # it takes a hundredth of a second to make


def tell(
    coordinator: RedisCoordinator,
    address: SubscriptionAddress,
    member: str,
    running: Sequence[HolderProgress],
) -> None:
    """Write the progress of the running queries of a member. Raises as `RedisCoordinator.command`."""
    key = address.progress(member)
    if not running:
        coordinator.command("UNLINK", key)
        return
    values = [asdict(progress) for progress in running[:_MOST_QUERIES]]
    value = values[0] if running[0].query is None else values
    coordinator.command("SET", key, json.dumps(value), "PX", KEPT_MS)


def told(
    coordinator: RedisCoordinator, address: SubscriptionAddress, member: str
) -> tuple[HolderProgress, ...]:
    """Return the progress of the queries of a member. Raises as `RedisCoordinator.command`."""
    found = coordinator.command("GET", address.progress(member))
    return () if found is None else read(bytes(found))


def read(text: bytes) -> tuple[HolderProgress, ...]:
    """Decode the progress of queries; empty if it is damaged."""
    if len(text) > _MOST_BYTES:
        return ()
    try:
        found = _reader().validate_json(text)
    except ValidationError:
        return ()
    return tuple(found) if isinstance(found, list) else (found,)
