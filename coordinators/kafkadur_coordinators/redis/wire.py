"""The fields of requests and replies between clients and scripts, by name: one list for both sides.

A request is a `Request` followed by the fields of the script's own class. A reply begins as a `Reply`. If its
code is OK, the fields of the script's own class follow; else those of `Active`, `Changing`, `Busy` or `Held`.
Both travel as arrays. Lua reads the same classes: `scripts.py` replaces `AttachRequest.name` in a script by
the position of that field. Scripts check the types of the fields (`shapes.py`). Client and script are of one
version; a row that scripts store is read by other versions, so a new field of it goes to the end.

Text arrives as bytes. Times are milliseconds; `now` and fields named `..._at` are since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from kafkadur_coordinators.bounds import (
    Bounds,
    Count,
    Document,
    Duration,
    Flag,
    MaybeEpoch,
    MaybeOffset,
    MaybeTime,
    Name,
    Offset,
    Partition,
    Records,
    Serial,
    TimeOut,
)
from kafkadur_coordinators.interface import (
    Attached,
    Claim,
    Claimed,
    ExchangeReply,
    Known,
    LeaseView,
    MemberInfo,
    MemberKind,
    PartitionReport,
    PartitionState,
    PartitionView,
    Returned,
    Role,
    Settled,
)
from kafkadur_sharing.numbers import MOST_PRIORITY


class Request(NamedTuple):
    """The beginning of every request."""

    state_version: Serial
    #: ms since the epoch; 0: the server's own
    clock: Serial
    #: '' before it is known
    subscription_id: Name
    #: 0: any; -n: n or a later one
    incarnation: Annotated[int, Bounds(-(2**47), 2**47)]
    #: id of the member, or of the connection; '': none
    member: Name


class Reply(NamedTuple):
    """The beginning of every reply."""

    code: str
    #: number of the last change of the subscription
    sequence: int
    incarnation: int
    now: int
    #: the fields that depend on script and code
    body: Sequence[Any] = ()


# -- refusals


class Active(NamedTuple):
    """ACTIVE: other members are attached."""

    #: names for people
    names: Sequence[bytes]
    #: ms after which asking again makes sense; -1: the members are alive
    again: int


class Changing(NamedTuple):
    """CHANGING: the definition is being changed."""

    #: ms until the deadline of that change
    left: int


class Busy(NamedTuple):
    """BUSY: another process rebuilds the subscription."""

    #: ms until its right to do so ends
    left: int


class Held(NamedTuple):
    """HELD: another connection holds the client id."""

    #: name of that connection, for people
    name: bytes
    since_at: int
    #: names this holder and its last renewal; another text: the holder renewed, or another one holds it
    renewal: bytes
    #: ms after which the holder counts as gone unless it renews
    left: int


# -- members


class AttachRequest(NamedTuple):
    """What `attach` takes."""

    #: for people
    name: Name
    #: session time-out, ms
    session: TimeOut
    #: version of the definition that was decided on
    version: Serial
    #: most members, this one included; 0: no limit
    most: Count
    #: '', 'whole' (the only member, holds everything) or 'claims' (takes stretches at once, beside others)
    kind: MemberKind
    #: of a priority subscription: higher is better
    priority: Annotated[int, Bounds(-MOST_PRIORITY, MOST_PRIORITY)]
    #: 1: a holder of lower priority has to pass the lanes on
    preempt: Flag
    #: 1: it settles by transactions of Kafka
    transacted: Flag
    #: of the change whose maker this is (`InstallRequest.held`); '': none
    token: Name = ""


class ExchangeRequest(NamedTuple):
    """What `exchange` takes. Verdicts in it that are outside of their leases are refused as a whole."""

    #: rises by 1; a repeat is answered again and not applied again
    number: Serial
    #: free credit, records
    credit: Records
    #: highest token that the member has seen
    have: Serial
    #: 1: ask whether the other members are present
    ask_presence: Flag
    #: of a lane: window and unconfirmed budget, records
    span: Records
    parts: Sequence[PartitionReport]
    #: 1: the lanes are offered: none of their messages is in flight, nor will be until the reply
    handover: Flag
    #: as in `Exchange`
    reads_on: Flag
    attachment: Serial


class ConfirmRequest(NamedTuple):
    """What `confirm` takes: an exchange that settles a range of one lease, and says nothing else."""

    #: as in `ExchangeRequest`
    number: Serial
    attachment: Serial
    credit: Records
    have: Serial
    span: Records
    #: as in `PartitionReport`
    partition: Partition
    readable_end: MaybeOffset
    position: MaybeOffset
    epoch: MaybeEpoch
    #: of the lease
    token: Serial
    #: what is settled of it, and the end of that (exclusive)
    start: Offset
    stop: Offset
    #: 1: the lease is finished
    ends: Flag
    #: as in `PartitionReport`
    reserve: Count


class RenewRequest(NamedTuple):
    """What `renew` takes: a member has nothing to say since the change with this number."""

    attachment: Serial
    sequence: Serial


class ConfirmReply(NamedTuple):
    """What `confirm` answers, where it differs from the last exchange."""

    #: as in `Role`
    partitions: int
    #: as in `PartitionState`
    base: int
    next: int
    readable_end: int
    epoch: int
    #: how far the lane is leased now; 0: there is none
    horizon: int
    #: highest token given out so far
    token: int
    #: records of a new lease, which has that token and ends at `next`; 0: there is none
    granted: int
    #: as in `Grant`
    seen: int


class GrantRow(NamedTuple):
    """A lease that the member has not seen."""

    token: int
    partition: int
    start: int
    horizon: int
    marks: int
    kind: bytes
    seen: int
    #: of kind 'runs' or 'ahead': start, end, start, end, ...; else empty
    stretch: Sequence[int]
    #: 1: dispatched while no other message is in flight
    isolated: int
    #: ms until it may be dispatched; -1: not before it is armed
    due: int


class HorizonRow(NamedTuple):
    """How far a lane is leased."""

    token: int
    horizon: int


class DetachRequest(NamedTuple):
    """What `detach` takes."""

    #: leases on these partitions end at once
    partitions: Sequence[Partition]
    #: whether the member does not leave by itself: its deliveries count as attempts
    evicted: Flag


class PartClaims(NamedTuple):
    """The claims of a member on a partition."""

    partition: Partition
    claims: Sequence[Claim]


class ReclaimRequest(NamedTuple):
    """What `reclaim` takes."""

    attachment: Serial
    parts: Sequence[PartClaims]
    #: 1: other processes heard this one until the loss, so that no other member can have had its messages
    heard: Flag


class ReclaimReply(NamedTuple):
    """What `reclaim` answers."""

    #: by partition, for each claim
    claimed: Sequence[Sequence[Claimed]]


class Cut(NamedTuple):
    """The end of a partition that Kafka lost."""

    partition: Partition
    #: first offset that was lost
    first: Offset


class TruncateRequest(NamedTuple):
    """What `truncate` takes."""

    cuts: Sequence[Cut]
    #: offset of its journal record; 0: the next incarnation
    incarnation: Serial


class TruncateReply(NamedTuple):
    """What `truncate` answers."""

    #: offsets that were known and are lost, by partition
    lost: Sequence[int]


# -- reading


class InspectRequest(NamedTuple):
    """What `inspect` takes."""

    partitions: Sequence[Partition]
    #: 1: the leases, too
    leases: Flag
    #: of a rebuild, which may read the state of a restarted server; '': none
    token: Name


class InspectReply(NamedTuple):
    """What `inspect` answers."""

    partitions: Sequence[Sequence[Any]]
    leases: Sequence[LeaseView]
    #: epoch of the definition in force, since whose begin the offsets were settled
    epoch: int


# -- definitions


class PauseRequest(NamedTuple):
    """What `pause` takes."""

    #: 1: pause, 0: go on
    paused: Flag


class ChangeRequest(NamedTuple):
    """What `change` takes."""

    #: version expected; 0: there is no subscription
    version: Serial
    #: of this change
    token: Name
    #: ms from now
    deadline: TimeOut


class InstallRequest(NamedTuple):
    """What `install` takes."""

    #: '': unsubscribed
    id: Name
    version: Serial
    #: JSON
    definition: Document
    type: Name
    partitions: Count
    incarnation: Serial
    #: of the change or of the rebuild that ends with this
    token: Name
    #: ms without fresh leases; fewer where a restarted server knows which members were attached
    quiet: TimeOut
    policy: Policy | tuple[()]
    #: 1: the partitions of the same subscription were laid anew
    anew: Flag
    #: leases of incarnations below this one cannot be claimed; 0: all can
    unclaimed: Serial
    #: how long only the one that made this change can attach, ms; 0: any member can at once
    held: TimeOut = 0


class Policy(NamedTuple):
    """The redelivery policy of a definition, as `Definition.policy` gives it."""

    #: 0: no limit
    most_attempts: Count
    #: first and longest back-off, ms
    backoff: Duration
    longest_backoff: Duration
    #: 1: in strict order
    strict: Flag
    #: lanes a partition (`lua/include/keyed.lua`)
    lanes: Count
    #: 1: each partition has a turn of its own (`lua/include/own_turns.lua`)
    own_turns: Flag


class Laid(NamedTuple):
    """The first state of a partition."""

    partition: Partition
    first: Offset
    #: offsets below this may have been delivered before
    seen: Offset
    #: exceptions before `first` (`lua/include/runs.lua`), which no member holds
    runs: bytes
    #: when the first exception is due; -1: there are none
    due_at: MaybeTime


class PartitionsRequest(NamedTuple):
    """What `partitions` takes."""

    partitions: Sequence[Laid]
    #: of the change or rebuild that goes on; '': the topic has grown
    token: Name
    #: partitions that the topic has now
    total: Count
    #: 1: of the state that is installed next; 0: of the one in force
    aside: Flag


class RebuildRequest(NamedTuple):
    """What `rebuild` takes."""

    token: Name
    #: ms for which the right to rebuild lasts
    lasts: TimeOut


class RebuildReply(NamedTuple):
    """What `rebuild` answers."""

    #: 1: the state was kept (`reincarnate` follows, or `install` if it is old); 0: it is gone (`partitions`
    #: and `install` follow)
    kept: int
    #: version of the definition that was kept
    version: int
    #: partitions that were kept
    partitions: int


class ReincarnateRequest(NamedTuple):
    """What `reincarnate` takes."""

    #: of the rebuild
    token: Name
    #: offset of its journal record
    incarnation: Serial


# -- client ids


class HoldRequest(NamedTuple):
    """What `holdid` takes."""

    #: of the connection, for people
    name: Name
    #: time-out, ms
    ttl: TimeOut


# -- rows that only scripts read


class Orphan(NamedTuple):
    """A lease of a member that is gone, until its partition is touched."""

    token: int
    #: as `How`; 3, 4: `lua/include/redelivery.lua`
    how: int
    partition: int


class Made(NamedTuple):
    """A lease that was made of a claim."""

    token: int
    #: of the claim, as is the token below
    incarnation: int
    claimed: int
    #: that claimed
    member: str
    partition: int
    #: offsets that it claimed: start, end, start, end, ...
    held: Sequence[int]


class Push(NamedTuple):
    """What wakes a member to which lanes have passed: what another member's exchange granted to it."""

    #: of the member that is woken
    attachment: int
    #: number of its last exchange
    number: int
    #: a `Reply`, followed by an `ExchangeReply`
    reply: Sequence[Any]


#: Classes that follow the head of a reply, beside those whose names end in "Reply".
_AFTER_HEAD = (Active, Changing, Busy, Held, Attached, Known)
#: The classes whose fields the scripts name: those of this module, and some of `interface.py`.
_CLASSES: Sequence[Any] = [
    *(value for value in tuple(globals().values()) if hasattr(value, "_fields")),
    *(ExchangeReply, MemberInfo, PartitionState, PartitionView, Returned, Role, Settled),
]
#: Fields of a `Reply` before those that depend on the script.
HEAD = 4


def _fields_before(fields: type) -> int:
    """Return how many fields precede those of a class in its array."""
    if fields in _AFTER_HEAD or (fields is not Reply and fields.__name__.endswith("Reply")):
        return HEAD
    return len(Request._fields) if fields is not Request and fields.__name__.endswith("Request") else 0


#: Positions in Lua's arrays, which begin at 1, by class and field.
POSITIONS: Mapping[str, Mapping[str, int]] = {
    each.__name__: {field: at for at, field in enumerate(each._fields, _fields_before(each) + 1)}
    for each in _CLASSES
}


def read_reply(raw: Sequence[Any]) -> Reply:
    """Return the reply of a script."""
    code, sequence, incarnation, now = raw[:HEAD]
    return Reply(code.decode(), sequence, incarnation, now, raw[HEAD:])
