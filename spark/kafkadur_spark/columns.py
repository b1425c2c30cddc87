"""The columns of the sink, checked before a query begins. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kafkadur_sharing.errors import IllegalState

#: Columns of a sink: for single offsets, for stretches, and optional ones for both.
OFFSETS, STRETCHES = ("partition", "offset"), ("partition", "start", "end")
FURTHER = ("topic", "disposition", "reason")
_INTEGERS = ("byte", "short", "integer", "long")


def check_columns(types: Mapping[str, str]) -> None:
    """Check the columns of a frame, by Spark's names of their types. Raises `IllegalState`."""
    needed = OFFSETS if "offset" in types else STRETCHES
    missing = [name for name in needed if name not in types]
    more = sorted(set(types) - {*needed, *FURTHER})
    wrong = [name for name in needed if name in types and types[name] not in _INTEGERS]
    wrong += [name for name in FURTHER if name in types and types[name] != "string"]
    if not (missing or more or wrong):
        return
    problem = [f"{what} {', '.join(names)}" for what, names in (
        ("there is no", missing), ("not known:", more), ("of a wrong type:", wrong)) if names]  # fmt: skip
    raise IllegalState(
        "The sink does not take these columns.",
        state="; ".join(problem),
        owner="the query",
        remedy='select "partition" and "offset", or "partition", "start" and "end", as integers; and, '
        'optionally, "topic", "disposition" (ack, rollback, reject or leave) and "reason" as strings',
    )
