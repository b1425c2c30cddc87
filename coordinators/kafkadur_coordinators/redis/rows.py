"""The records that scripts store, packed as arrays; and the Lua that packs and unpacks them.

A script that has the line `--- @rows` gets a table `rows`: for `MemberRow` a function `rows.member`, which
returns the record as a table with the names below, and `rows.pack_member`; so for each class. The line
`--- @names MemberRow` is replaced by a list of its names. Processes of several versions read these records: a
new field goes to the end, and is missing in older ones. Times are ms since 1970, 0: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, get_type_hints


class SubscriptionRow(NamedTuple):
    """The record of a subscription itself. Texts are '' and numbers 0 unless something else was said."""

    id: str
    #: of the definition
    version: int
    incarnation: int
    #: run id and replication id of the server that wrote it
    server: str
    #: highest token of a lease
    token: int
    #: number of the last change
    sequence: int
    #: of the last change, and what the server's clock was set back by before it
    time: int
    skew: int
    type: str
    #: how many it has, or lanes of keys
    partitions: int
    #: until then no lease is granted
    grace: int
    #: earliest end of a session
    next_expiry: int
    #: number of the last attachment
    attached: int
    #: until then no member counts as silent
    quiet: int
    #: number of the last service
    served: int
    #: the change in progress: its name, its deadline, and the version that it replaces
    changing: str
    changing_until: int
    changing_from: int
    #: longest session time-out of a member, ms
    session_ttl: int
    #: member that has the lanes
    holder: str
    #: 1: it is paused
    paused: int
    #: incarnation that began with a loss of state
    recovered: int
    #: 1: a member that commits in Kafka has gone; 2: its commits are being looked up
    doubt: int
    #: the right to rebuild: who has it, until when, and on which server
    rebuild: str
    rebuild_until: int
    rebuild_server: str
    #: for people: when it began, when the last member left, when the last verdict came
    begun: int
    left: int
    verdict: int
    #: leases of incarnations below this one cannot be claimed
    unclaimed: int
    #: 1: a member was attached that settles by transactions
    transacted: int
    #: SHA-1 of the definition
    digest: str
    #: as `Policy` (`wire.py`)
    policy: Sequence[int]


class MemberRow(NamedTuple):
    """An attached member."""

    #: number of the attachment
    n: int
    #: end of the session
    expiry: int
    #: free records
    credit: int
    #: number of the exchange that was applied last
    exchange: int
    #: of its leases
    tokens: Sequence[int]
    #: since when its channel is silent
    silent: int
    name: str
    #: tokens that were refused in the last exchange
    refused: Sequence[int]
    #: session time-out, ms
    ttl: int
    #: partitions of which it reports how far they are readable
    watches: Sequence[int]
    #: '', 'whole' or 'claims'
    kind: str
    #: number of its last service
    served: int
    #: when it attached
    since: int
    #: higher is better; and 1: it takes the lanes over from a member of lower priority
    priority: int
    preempt: int
    #: its lease of a last attempt: it has nothing else; 0: none; -1 - p: it is kept free for one of p
    isolated: int
    #: its lease of suspects; 0: none
    suspect: int
    #: how many of its leases are of what is not written yet
    reservations: int
    #: 1: it settles by transactions
    transacted: int


class LeaseRow(NamedTuple):
    """A lease (`lua/include/partition.lua`)."""

    #: partition
    p: int
    #: start, and end (exclusive)
    s: int
    e: int
    #: id of its holder
    member: str
    #: of its offsets (`lua/include/redelivery.lua`)
    marks: int
    kind: str
    #: how many it was granted
    records: int
    #: offsets below this one may have been delivered before
    seen: int
    #: 1: the last attempt of a suspect, alone
    isolated: int
    #: from when on it may be dispatched
    due: int


class PartitionRow(NamedTuple):
    """A partition, or a lane of keys."""

    #: everything below is decided (`lua/include/bits.lua`)
    base: int
    #: everything at or beyond was never granted
    next: int
    readable_end: int
    #: offset of the first bit
    origin: int
    #: lower bound of the due times of exceptions without a lease; -1: there is none
    xd: int
    #: offsets below may have been delivered before
    seen: int
    #: token of the lease that is extended; 0: none
    lane: int
    #: member that has this lane, where lanes do not pass together
    keeper: str
    #: offsets that Kafka removed before they were settled
    expired: int
    #: incarnation whose loss of state was dealt with here
    recovered: int
    #: leader epoch of the last readable record; -1: not known
    epoch: int
    #: offsets that were known and that Kafka lost
    truncated: int
    #: offsets that expired after they were read
    expired_read: int
    #: SHA-1 of its bits; '': it has none
    digest: str
    #: length of the index of its exceptions, bytes
    index_length: int


ROWS = (SubscriptionRow, MemberRow, LeaseRow, PartitionRow)
#: Positions of fields in a packed record, which begin at 1, by class and field.
POSITIONS = {row.__name__: {field: at for at, field in enumerate(row._fields, 1)} for row in ROWS}
#: Names in one line of Lua.
_A_LINE = 6


def name_of(row: type) -> str:
    """Name of a class in Lua, such as "member"."""
    return row.__name__.removesuffix("Row").lower()


def lua() -> str:
    """Return the Lua source that `--- @rows` stands for."""
    return "\n".join(["local rows = {}", *(line for row in ROWS for line in _functions(row))])


def names(row: type) -> str:
    """Return the Lua source of a list of the names of a class, for `--- @names MemberRow`."""
    quoted = [f"'{name}'" for name in row._fields]  # type: ignore[attr-defined]  # it is a NamedTuple
    return "\n".join([f"local {name_of(row)}_names = {{", *_lines(quoted), "}"])


def _functions(row: type) -> list[str]:
    fields: Sequence[str] = row._fields  # type: ignore[attr-defined]  # it is a NamedTuple
    name = name_of(row)
    values = [f"{field} = a[{at}]" for at, field in enumerate(fields, 1)]
    return [
        f"function rows.{name}(packed)",
        f"  local a = store.list(packed, {len(fields)})",
        "  return {",
        *_lines(values),
        "  }",
        "end",
        f"function rows.pack_{name}(row)",
        "  return cmsgpack.pack({",
        *_lines([f"row.{field}" for field in fields]),
        "  })",
        "end",
        *(_nothing() if row is SubscriptionRow else ()),
    ]


def _nothing() -> list[str]:
    """The function that returns a subscription of which nothing is known."""
    hints = get_type_hints(SubscriptionRow)
    values = [f"{name} = {_default(kind)}" for name, kind in hints.items()]
    return ["function rows.nothing()", "  return {", *_lines(values), "  }", "end"]


def _default(kind: type) -> str:
    if kind is str:
        return "''"
    return "0" if kind is int else "{ 0, 0, 0, 0, 1 }"  # no policy


def _lines(items: Sequence[str]) -> list[str]:
    return ["    " + ", ".join(items[at : at + _A_LINE]) + "," for at in range(0, len(items), _A_LINE)]
