"""The fields of what clients and scripts send each other, by name: one list for both sides.

A request is a `Request` followed by the fields of the script's own class. A reply begins as a `Reply`. If its
code is OK, the fields of the script's own class follow; else those of `Active`, `Changing`, `Busy` or `Held`.
Both travel as arrays. Lua reads the same classes: `scripts.py` replaces `AttachRequest.name` in a script by
the position of that field. A new field goes to the end of its class, because older clients leave it out.

Text arrives as bytes. Times are milliseconds; `now` and what is named `..._at` are since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kafkadur_coordinators.interface import Claim, Claimed, PartitionReport, Returned, Settled


class Request(NamedTuple):
    """The beginning of every request."""

    state_version: int
    #: ms since the epoch; 0: the server's own
    clock: int
    #: '' before it is known
    subscription_id: str
    #: 0: any; -n: n or a later one
    incarnation: int
    #: id of the member, or of the connection; '': none
    member: str


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
    """ACTIVE: other members are in the way."""

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
    name: str
    #: session time-out, ms
    session: int
    #: version of the definition that was decided on
    version: int
    #: most members, this one included; 0: no limit
    most: int
    #: '', 'whole' (the only member, holds everything) or 'claims' (takes stretches at once, beside others)
    kind: str
    #: of a priority subscription: higher is better
    priority: int
    #: 1: a holder of lower priority has to pass the lanes on
    preempt: int
    #: 1: it settles by transactions of Kafka
    transacted: int


class RoleRow(NamedTuple):
    """A member's place among the members."""

    #: from 0, in the order of attaching
    rank: int
    members: int
    #: id of the next member; '': there is none
    neighbour: bytes


class AttachReply(NamedTuple):
    """What `attach` answers."""

    role: RoleRow
    partitions: int
    #: ms until leases are granted
    grace: int
    #: number of this attachment: exchanges of an earlier one are refused
    attachment: int


class ExchangeRequest(NamedTuple):
    """What `exchange` takes. Verdicts in it that are outside of their leases are refused as a whole."""

    #: rises by 1; a repeat is answered again and not applied again
    number: int
    #: free credit, records
    credit: int
    #: highest token that the member has seen
    have: int
    #: 1: ask whether the other members are present
    ask_presence: int
    #: of a lane: window and unconfirmed budget, records
    span: int
    parts: Sequence[PartitionReport]
    #: 1: the lanes are offered: nothing of them is in the application's hands, nor will be until the reply
    offer: int
    attachment: int


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
    #: 1: dispatched while nothing else is in the application's hands
    isolated: int
    #: ms until it may be dispatched
    due: int


class HorizonRow(NamedTuple):
    """How far a lane is leased."""

    token: int
    horizon: int


class StateRow(NamedTuple):
    """Where a touched partition stands."""

    partition: int
    base: int
    next: int
    readable_end: int
    floor: int
    #: ms until the next exception is due; -1: there is none
    due: int
    #: of a lane with a keeper: 0 another member keeps it, 1 this one does, 2 it does and is asked to drain it
    standing: int
    #: first offset at or beyond the readable end that is not reserved
    free_from: int
    #: leader epoch of what lies before the readable end; -1: not known
    epoch: int
    #: 1: the log's end is wanted; nothing is granted until it is known
    log_end_unknown: int


class ExchangeReply(NamedTuple):
    """What `exchange` answers."""

    #: highest token up to which all leases were told
    token: int
    #: ms after which to ask for presence again; -1: all members are present
    again: int
    role: RoleRow
    #: leases with tokens above `have`
    grants: Sequence[GrantRow]
    #: of lanes
    horizons: Sequence[HorizonRow]
    #: tokens that are fenced; nothing was changed for them
    refused: Sequence[int]
    states: Sequence[StateRow]
    #: partitions to report
    watches: Sequence[int]
    #: partitions to touch next: leases of members that are gone, or of this one, are still to be seen there
    left_over: Sequence[int]
    #: ms until leases are granted again
    grace: int
    #: of the lanes: 0 stands by, 1 holds them, 2 holds them and is asked to offer them; of a shared
    #: subscription 2: the member is asked to give back what is reserved for it
    standing: int
    #: tokens held, if the lanes were offered or one was given up; else empty
    held: Sequence[int]
    #: 1: the subscription is paused: nothing is dispatched
    paused: int
    #: ms until a session may have ended; -1: there is no other member
    expiry: int
    #: 1: nothing is granted until what was committed in Kafka is known (`rebuild`)
    outcome_unknown: int


class DetachRequest(NamedTuple):
    """What `detach` takes."""

    #: what is still leased of these goes back at once
    partitions: Sequence[int]


class PartClaims(NamedTuple):
    """What a member claims of a partition."""

    partition: int
    claims: Sequence[Claim]


class ReclaimRequest(NamedTuple):
    """What `reclaim` takes."""

    attachment: int
    parts: Sequence[PartClaims]


class ReclaimReply(NamedTuple):
    """What `reclaim` answers."""

    #: by partition, for each claim
    claimed: Sequence[Sequence[Claimed]]


class Cut(NamedTuple):
    """The end of a partition that Kafka lost."""

    partition: int
    #: first offset that was lost
    first: int


class TruncateRequest(NamedTuple):
    """What `truncate` takes."""

    cuts: Sequence[Cut]
    #: offset of its journal record; 0: the next incarnation
    incarnation: int


class TruncateReply(NamedTuple):
    """What `truncate` answers."""

    #: offsets that were known and are lost, by partition
    lost: Sequence[int]


# -- reading


class MemberRow(NamedTuple):
    """A member, for people."""

    id: bytes
    name: bytes
    kind: bytes
    #: 1: it listens on its channel
    heard: int
    leases: int
    since_at: int
    expires_at: int
    credit: int


class PeekReply(NamedTuple):
    """What `peek` answers, with MISSING as far as it is known."""

    #: JSON; '': none
    definition: bytes
    version: int
    id: bytes
    #: ms until the deadline of a change in progress; -1: none, 0: past
    changing: int
    #: version which that change expects
    changing_from: int
    members: Sequence[MemberRow]
    partitions: int
    #: ms until leases are granted
    grace: int
    paused: int
    #: since when this server knows the subscription
    begun_at: int
    #: when the last member left; 0: never, or not known
    left_at: int
    #: when the last verdict came; 0: never, or not known
    verdict_at: int


class InspectRequest(NamedTuple):
    """What `inspect` takes."""

    partitions: Sequence[int]
    #: 1: the leases, too
    leases: int
    #: of a rebuild, which sees what a restarted server kept; '': none
    token: str


class ViewRow(NamedTuple):
    """The state of a partition. One without state has only partition and base, which is -1."""

    partition: int
    base: int
    next: int
    readable_end: int
    origin: int
    #: decided offsets above base
    decided: int
    #: exceptions (`lua/include/runs.lua`)
    runs: bytes
    seen: int
    bits: bytes
    #: offsets that expired unsettled
    expired: int
    #: leader epoch of what lies before the readable end
    epoch: int
    #: offsets lost by truncation
    truncated: int


class LeaseRow(NamedTuple):
    """A lease, for people."""

    token: int
    partition: int
    start: int
    horizon: int
    member: bytes
    marks: int
    kind: bytes


class InspectReply(NamedTuple):
    """What `inspect` answers."""

    partitions: Sequence[Sequence[Any]]
    leases: Sequence[LeaseRow]
    #: of the definition: what is settled was settled since that began
    epoch: int


# -- definitions


class PauseRequest(NamedTuple):
    """What `pause` takes."""

    #: 1: pause, 0: go on
    paused: int


class ChangeRequest(NamedTuple):
    """What `change` takes."""

    #: version expected; 0: there is no subscription
    version: int
    #: of this change
    token: str
    #: ms from now
    deadline: int


class InstallRequest(NamedTuple):
    """What `install` takes."""

    #: '': unsubscribed
    id: str
    version: int
    #: JSON
    definition: str
    type: str
    partitions: int
    incarnation: int
    #: of the change or of the rebuild that ends with this
    token: str
    #: ms without fresh leases, of which less is taken where a restarted server kept who was attached
    quiet: int
    policy: Sequence[int]
    #: 1: the partitions of the same subscription were laid anew
    anew: int
    #: leases of incarnations below this one cannot be claimed; 0: all can
    unclaimed: int


class Policy(NamedTuple):
    """The redelivery policy of a definition, as `Definition.policy` gives it."""

    #: 0: no limit
    most_attempts: int
    #: first and longest back-off, ms
    backoff: int
    longest_backoff: int
    #: 1: in strict order
    strict: int
    #: lanes a partition (`lua/include/keyed.lua`)
    lanes: int
    #: 1: each partition has a turn of its own (`lua/include/own_turns.lua`)
    own_turns: int


class Laid(NamedTuple):
    """The first state of a partition."""

    partition: int
    first: int
    #: offsets below this may have been delivered before
    seen: int
    #: exceptions before `first` (`lua/include/runs.lua`), which no member holds
    runs: bytes
    #: when the first exception is due; -1: there are none
    due_at: int


class PartitionsRequest(NamedTuple):
    """What `partitions` takes."""

    partitions: Sequence[Laid]
    #: of the change or rebuild that goes on; '': the topic has grown
    token: str
    #: partitions that the topic has now
    total: int


class RebuildRequest(NamedTuple):
    """What `rebuild` takes."""

    token: str
    #: ms for which the right to rebuild lasts
    lasts: int


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
    token: str
    #: offset of its journal record
    incarnation: int


# -- client ids


class HoldRequest(NamedTuple):
    """What `holdid` takes."""

    #: of the connection, for people
    name: str
    #: time-out, ms
    ttl: int


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


_REQUESTS = (
    AttachRequest,
    ExchangeRequest,
    DetachRequest,
    ReclaimRequest,
    TruncateRequest,
    InspectRequest,
    PauseRequest,
    ChangeRequest,
    InstallRequest,
    PartitionsRequest,
    RebuildRequest,
    ReincarnateRequest,
    HoldRequest,
)
_REPLIES = (
    Active,
    Changing,
    Busy,
    Held,
    AttachReply,
    ExchangeReply,
    ReclaimReply,
    TruncateReply,
    PeekReply,
    InspectReply,
    RebuildReply,
)
_ROWS = (
    Request,
    Reply,
    PartitionReport,
    Settled,
    Returned,
    Claim,
    Claimed,
    PartClaims,
    Cut,
    RoleRow,
    GrantRow,
    HorizonRow,
    StateRow,
    MemberRow,
    ViewRow,
    LeaseRow,
    Policy,
    Laid,
    Orphan,
    Made,
)
#: Fields of a `Reply` before those that depend on the script.
HEAD = 4


def _numbered() -> Iterator[tuple[str, Mapping[str, int]]]:
    for lists, before in ((_REQUESTS, len(Request._fields)), (_REPLIES, HEAD), (_ROWS, 0)):
        for fields in lists:
            yield (
                fields.__name__,
                {field: before + at for at, field in enumerate(fields._fields, 1)},
            )


#: Positions in Lua's arrays, which begin at 1, by class and field.
POSITIONS: Mapping[str, Mapping[str, int]] = dict(_numbered())


def read_reply(raw: Sequence[Any]) -> Reply:
    """Return what a script answered."""
    code, sequence, incarnation, now = raw[:HEAD]
    return Reply(code.decode(), sequence, incarnation, now, raw[HEAD:])
