"""The routes that change something. Each act is recorded before and after it (`audit.py`).

What skips, repeats or deletes messages only says what it would do, unless `dry_run` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from kafkadur.admin.dead_letters import DeadLetterAdmin
from kafkadur.admin.documents import PartitionMove, moved
from kafkadur.admin.snapshots import Snapshot
from kafkadur.admin.subscription_info import SubscriptionInfo, refuse_attached
from kafkadur.service.access import Caller
from kafkadur.service.backend import Backend
from kafkadur.service.dependencies import ANSWERS, Administrator, Id, Operator, TheBackend
from kafkadur.service.ids import ID_PATTERN
from kafkadur_sharing.changing import Changes, changed
from kafkadur_sharing.definition import AckLevel, Definition, HeaderType, Scope, TypeName
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.selector import parse_selector

router = APIRouter(prefix="/api/v1/subscriptions/{id}", responses=ANSWERS)

#: The longest time that an answer is waited for, seconds.
_LONGEST: Final = 60.0
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Order(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Careful(_Order):
    #: True: only say what would be done
    dry_run: bool = True


@dataclass(frozen=True, slots=True)
class _Plan:
    """An act that is about to be done."""

    backend: Backend
    caller: Caller
    action: str
    key: SubscriptionKey
    parameters: Mapping[str, Any]


def _act(plan: _Plan, before: Any, do: Callable[[], Any]) -> Any:  # noqa: ANN401 - any JSON
    """Do something between two records of it; returns what `do` returns. `before`: the state it finds."""
    audit = plan.backend.audit
    act = audit.begin(plan.caller, plan.action, str(plan.key), plan.parameters, before=before)
    try:
        after = do()
    except BaseException as error:
        # whatever it is, the record must not end with an act that was only begun
        audit.end(act, error=str(error) if isinstance(error, KafkadurError) else repr(error))
        raise
    audit.end(act, after=after)
    return after


def _state(info: SubscriptionInfo) -> dict[str, Any]:
    return {"state": info.state, "backlog": info.backlog, "in_flight": info.in_flight}


# --- pause, resume, drain -------------------------------------------------------------------------------


class Paused(TypedDict):
    """Whether messages are handed out."""

    subscription: str
    paused: bool


@router.post("/pause", summary="Stop handing out messages")
def pause(id: Id, caller: Operator, backend: TheBackend) -> Paused:  # noqa: A002 - the word of the API
    """Hand out nothing more; messages in flight can be settled, and members stay attached."""
    return _pause(backend, caller, id, paused=True)


@router.post("/resume", summary="Go on")
def resume(id: Id, caller: Operator, backend: TheBackend) -> Paused:  # noqa: A002
    """Resume a paused subscription."""
    return _pause(backend, caller, id, paused=False)


def _pause(backend: Backend, caller: Caller, id: str, *, paused: bool) -> Paused:  # noqa: A002
    key = backend.key(id)
    with backend.admin() as admin:
        info = admin.info(key)

        def do() -> Paused:
            admin.pause(key, paused=paused)
            return {"subscription": str(key), "paused": paused}

        plan = _Plan(backend, caller, "pause" if paused else "resume", key, {})
        done: Paused = _act(plan, _state(info), do)
    return done


class Drain(_Order):
    """How long to wait until nothing is in flight."""

    timeout: float = Field(default=10.0, ge=0, le=_LONGEST, allow_inf_nan=False, description="seconds")
    resume: bool = Field(default=False, description="go on when nothing is in flight")


class Drained(TypedDict):
    """What is in flight at the end."""

    subscription: str
    drained: bool
    in_flight: int
    paused: bool
    #: members that still have messages in flight
    holders: list[str]


@router.post("/drain", summary="Pause, and wait until nothing is in flight")
def drain(id: Id, order: Drain, caller: Operator, backend: TheBackend) -> Drained:  # noqa: A002
    """Pause the subscription, and wait until none of its messages is in flight."""
    key = backend.key(id)
    with backend.admin() as admin:
        info = admin.info(key)

        def do() -> Drained:
            found = admin.drain(key, timeout=order.timeout)
            goes_on = order.resume and not found.held
            if goes_on:
                admin.pause(key, paused=False)
            return {
                "subscription": str(key),
                "drained": not found.held,
                "in_flight": found.in_flight,
                "paused": not goes_on,
                "holders": [member.name or member.id for member in found.held],
            }

        plan = _Plan(backend, caller, "drain", key, order.model_dump())
        done: Drained = _act(plan, _state(info), do)
    return done


# --- evict ----------------------------------------------------------------------------------------------


class Evict(_Careful):
    """Which member."""

    member: str = Field(min_length=1, max_length=300, description="its id, or its name")


class Evicted(TypedDict):
    """A member whose session was ended, or would be."""

    subscription: str
    member: str
    name: str
    evicted: bool
    leases: int


@router.post("/evict", summary="End the session of a member")
def evict(id: Id, order: Evict, caller: Administrator, backend: TheBackend) -> Evicted:  # noqa: A002
    """Have the messages of a member delivered again, elsewhere, as if it had died; it may attach again."""
    key = backend.key(id)
    with backend.admin() as admin:
        found = admin.member(key, order.member)

        def answer(*, evicted: bool) -> Evicted:
            if evicted:
                admin.evict(key, found.id)
            return {
                "subscription": str(key),
                "member": found.id,
                "name": found.name,
                "evicted": evicted,
                "leases": found.leases,
            }

        if order.dry_run:
            return answer(evicted=False)
        plan = _Plan(backend, caller, "evict", key, {"member": order.member})
        done: Evicted = _act(plan, {"leases": found.leases}, lambda: answer(evicted=True))
    return done


# --- seek, restore, fork, alter, unsubscribe ------------------------------------------------------------

Offset = Annotated[int, Field(ge=0, lt=2**53)]


class Seek(_Careful):
    """Where to move a subscription."""

    to: Annotated[str, Field(max_length=300)] | dict[Annotated[int, Field(ge=0)], Offset] = Field(
        description="earliest, latest, group:NAME, a time (ISO 8601, else in UTC), offsets by partition",
        examples=["earliest", "2026-01-31T12:00:00Z", {"0": 17}],
    )


class Moved(TypedDict):
    """What a move does, or would do."""

    subscription: str
    moved: bool
    partitions: list[PartitionMove]


@router.post("/seek", summary="Move a subscription")
def seek(id: Id, order: Seek, caller: Administrator, backend: TheBackend) -> Moved:  # noqa: A002
    """Have messages from a position on delivered again, and those before it skipped."""
    to = order.to if isinstance(order.to, dict) else _time(order.to)
    told = {"to": order.model_dump(mode="json")["to"]}
    return _move(_Plan(backend, caller, "seek", backend.key(id), told), to, order)


def _time(text: str) -> datetime | str:
    """Return a time if the text is one, else the text: `Admin.seek` refuses what it does not know."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


class Restore(_Careful):
    """A snapshot to bring a subscription back to."""

    snapshot: Snapshot


@router.post("/restore", summary="Bring a subscription back to a snapshot")
def restore(id: Id, order: Restore, caller: Administrator, backend: TheBackend) -> Moved:  # noqa: A002
    """Bring a subscription to where it stood when the snapshot was taken."""
    told = {"taken": order.snapshot.taken}
    return _move(_Plan(backend, caller, "restore", backend.key(id), told), order.snapshot, order)


def _move(plan: _Plan, to: Mapping[int, int] | str | datetime | Snapshot, order: _Careful) -> Moved:
    with plan.backend.admin() as admin:

        def move() -> Moved:
            moves = [moved(each) for each in admin.seek(plan.key, to, dry_run=order.dry_run)]
            return {"subscription": str(plan.key), "moved": not order.dry_run, "partitions": moves}

        if order.dry_run:
            return move()
        done: Moved = _act(plan, _state(admin.info(plan.key)), move)
    return done


class Fork(_Order):
    """The id of a new subscription."""

    new: str = Field(pattern=ID_PATTERN, examples=["invoices-2"])


class Forked(TypedDict):
    """Two subscriptions at the same position."""

    subscription: str
    fork: str


@router.post("/fork", summary="Make a second subscription at the same position")
def fork(id: Id, order: Fork, caller: Administrator, backend: TheBackend) -> Forked:  # noqa: A002
    """Make a second subscription at the same position; from then on they are independent."""
    key, other = backend.key(id), backend.key(order.new)
    with backend.admin() as admin:
        info = admin.info(key)

        def do() -> Forked:
            admin.fork(key, other)
            return {"subscription": str(key), "fork": str(other)}

        plan = _Plan(backend, caller, "fork", key, order.model_dump())
        done: Forked = _act(plan, _state(info), do)
    return done


class Parts(_Order):
    """Parts of a definition, as those of `Connection.alter`; what is left out stays. Times are seconds."""

    type: TypeName | None = None
    selector: str | None = Field(default=None, max_length=8_000)
    no_local: bool | None = None
    header_types: dict[str, HeaderType] | None = None
    strict_order: bool | None = None
    key_lanes: int | None = None
    scope: Scope | None = None
    ack_level: AckLevel | None = None
    max_consumers: int | None = None
    history: _Seconds | None = None
    max_attempts: int | None = None
    backoff: _Seconds | None = None
    max_backoff: _Seconds | None = None
    max_hold: _Seconds | None = None
    dead_letter_topic: str | None = Field(default=None, max_length=249)
    rescue: bool | None = None


class Alter(_Careful):
    """Which parts of the definition change."""

    changes: Parts = Field(examples=[{"max_attempts": 10, "backoff": 1.5}])


class Altered(TypedDict):
    """A definition before and after a change."""

    subscription: str
    altered: bool
    before: dict[str, Any]
    after: dict[str, Any]


@router.post("/alter", summary="Change the definition")
def alter(id: Id, order: Alter, caller: Administrator, backend: TheBackend) -> Altered:  # noqa: A002
    """Change parts of the definition; what is settled and what waits is kept."""
    key = backend.key(id)
    changes = cast("Changes", order.changes.model_dump(exclude_unset=True))
    with backend.admin() as admin:
        before = admin.info(key).definition

        def answer(after: Definition, *, altered: bool) -> Altered:
            return {
                "subscription": str(key),
                "altered": altered,
                "before": before.to_record(),
                "after": after.to_record(),
            }

        parse_selector(changes.get("selector"))
        after = changed(key, before, changes, mode=backend.settings.mode)  # refuses what is not possible
        if order.dry_run:
            return answer(after, altered=False)
        plan = _Plan(backend, caller, "alter", key, order.changes.model_dump(mode="json", exclude_unset=True))
        done: Altered = _act(
            plan, before.to_record(), lambda: answer(admin.alter(key, **changes), altered=True)
        )
    return done


class Unsubscribe(_Careful):
    """Whether to delete."""


class Unsubscribed(TypedDict):
    """A subscription that was deleted, or would be."""

    subscription: str
    deleted: bool
    backlog: int | None


@router.post("/unsubscribe", summary="Delete a subscription")
def unsubscribe(id: Id, order: Unsubscribe, caller: Administrator, backend: TheBackend) -> Unsubscribed:  # noqa: A002
    """Delete a subscription with all that waits in it."""
    key = backend.key(id)
    with backend.admin() as admin:
        info = admin.info(key)
        admin.refuse_record(info)

        def answer(*, deleted: bool) -> Unsubscribed:
            if deleted:
                admin.unsubscribe(key)
            return {"subscription": str(key), "deleted": deleted, "backlog": info.backlog}

        if order.dry_run:
            refuse_attached(info)
            return answer(deleted=False)
        plan = _Plan(backend, caller, "unsubscribe", key, {})
        done: Unsubscribed = _act(plan, _state(info), lambda: answer(deleted=True))
    return done


# --- dead letters ---------------------------------------------------------------------------------------


class Letters(_Careful):
    """Which dead letters."""

    where: str | None = Field(default=None, max_length=8_000, examples=["_cause = 'attempts'"])


class Handled(TypedDict):
    """How many dead letters there were, and how many of them were redriven or purged."""

    subscription: str
    letters: int
    done: int


@router.post("/dead/redrive", summary="Publish dead letters again")
def redrive(id: Id, order: Letters, caller: Operator, backend: TheBackend) -> Handled:  # noqa: A002
    """Publish the messages of dead letters to their topic again: every subscription of it gets them."""
    return _letters(backend, caller, "redrive", id, order)


@router.post("/dead/purge", summary="Discard dead letters")
def purge(id: Id, order: Letters, caller: Administrator, backend: TheBackend) -> Handled:  # noqa: A002
    """Discard dead letters."""
    return _letters(backend, caller, "purge", id, order)


def _letters(backend: Backend, caller: Caller, action: str, id: str, order: Letters) -> Handled:  # noqa: A002
    key, where = backend.key(id), parse_selector(order.where)
    with backend.admin() as admin:
        dead_letters = DeadLetterAdmin(backend.settings, admin)
        found = sum(1 for _ in dead_letters.letters(key, where))

        def do() -> Handled:
            done = dead_letters.redrive(key, where) if action == "redrive" else dead_letters.purge(key, where)
            return {"subscription": str(key), "letters": found, "done": done}

        if order.dry_run or not found:
            return {"subscription": str(key), "letters": found, "done": 0}
        done: Handled = _act(
            _Plan(backend, caller, action, key, {"where": order.where}), {"letters": found}, do
        )
    return done
