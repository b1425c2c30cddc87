"""The coordinator on Redis or Valkey: sends scripts, turns answers into values and codes into errors.

One `RedisCoordinator` is one connection to one server, used by one thread at a time. It never repeats a
call by itself: the caller knows which call may be repeated (an exchange under its number) and which state a
broken connection leaves. The rules are in `lua/`; who attaches and why is decided in `lifecycle.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import hiredis
import msgpack
from redis.exceptions import (
    ClusterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kafkadur_coordinators.interface import (
    UNRANKED,
    Attached,
    Claim,
    Claimed,
    Exchange,
    ExchangeReply,
    Grant,
    Inspection,
    Known,
    LeaseView,
    MemberInfo,
    PartitionState,
    PartitionView,
    Rank,
    Role,
    Run,
    Standing,
)
from kafkadur_coordinators.places import RUN_BYTES, SUSPECT
from kafkadur_coordinators.redis import scripts
from kafkadur_coordinators.redis.server import (
    is_watched,
    login_refused,
    open_server,
    refused_by_tls,
    shown,
    what_to_check,
)
from kafkadur_sharing.errors import CoordinatorRefused, CoordinatorUnavailable, KafkadurError, StateLost

#: Version of the shared state that this client writes and understands.
STATE_VERSION = 1
#: Oldest Redis or Valkey that is used.
OLDEST = (7, 2)

#: One script call: name, keys, request.
Call = tuple[str, Sequence[str], Sequence[object]]
#: Script calls that are sent before the first reply is read.
_AT_ONCE = 200

#: Told of every script call: script name, request, reply. For histories and tests; must not raise.
Recorder = Callable[[str, Sequence[object], Sequence[object]], None]


class Refusal(KafkadurError):
    """A script refused; `code` says why. Never reaches an application."""

    def __init__(self, code: str, reply: Sequence[Any]) -> None:
        """Keep the code and the whole reply."""
        super().__init__(f"The coordinator answered {code}.")
        self.code = code
        self.reply = reply


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionAddress:
    """Where the state of one subscription lies: prefix and hash tag of its keys."""

    prefix: str
    namespace: str
    tag: str

    @property
    def root(self) -> str:
        """The beginning of all its keys."""
        return f"{self.prefix}:{self.namespace}:{{{self.tag}}}:"

    def fixed(self) -> list[str]:
        """The six keys of the subscription, in the order scripts take them."""
        root = self.root
        return [root + name for name in ("def", "members", "leases", "hungry", "watchers", "scratch")]

    def partition(self, subscription_id: str, state: str, partition: int) -> list[str]:
        """The three keys of a partition or lane of keys, in the order scripts take them.

        `state` names the state of all of them (`changes.py`): the topic's id, and how many lanes they have.
        """
        root = f"{self.root}{subscription_id}:{state}:{partition}:"
        return [root + "state", root + "bits", root + "runs"]

    def channel(self, member: str) -> str:
        """The sharded channel on which a member listens."""
        return f"{self.root}c:{member}"

    def progress(self, member: str) -> str:
        """The key where a holder writes for people how far it has come (`holder_progress.py`)."""
        return f"{self.root}progress:{member}"


def pack(request: Sequence[object]) -> bytes:
    """Encode a request the way the scripts' msgpack reads it (no binary type)."""
    return cast("bytes", msgpack.packb(request, use_bin_type=False))


def attempts_of(marks: int) -> int:
    """Attempts that were counted."""
    return marks % SUSPECT // 2


def parse_runs(text: bytes) -> tuple[Run, ...]:
    """Read the exceptions of a partition (24 bytes each, see lua/include/runs.lua)."""
    runs = []
    for at in range(0, len(text), RUN_BYTES):
        start = int.from_bytes(text[at : at + 6], "big")
        length = int.from_bytes(text[at + 6 : at + 10], "big")
        marks = int.from_bytes(text[at + 10 : at + 12], "big")
        due = int.from_bytes(text[at + 12 : at + 18], "big")
        token = int.from_bytes(text[at + 18 : at + 24], "big")
        runs.append(
            Run(
                start=start,
                end=start + length,
                attempts=attempts_of(marks),
                redelivered=marks % 2 > 0,
                suspect=marks >= SUSPECT,
                due=due,
                token=token,
            )
        )
    return tuple(runs)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class RedisCoordinator:
    """One connection to the server that holds the coordination state.

    Not thread-safe. Every method that talks to the server raises `CoordinatorUnavailable` when it does not
    answer within the time-out, and `CoordinatorRefused` when it can't be used; a script's refusal is raised
    as `Refusal`.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 5.0,
        recorder: Recorder | None = None,
        clock: Callable[[], int] | None = None,
        on_warning: Callable[[str], None] | None = None,
        on_connect: Callable[[str], None] | None = None,
    ) -> None:
        """Remember the address (`server.py`); connects at the first call.

        `timeout` in seconds bounds connecting and every call. `clock` (ms since the epoch) replaces the
        server's clock in scripts: for tests. `on_connect` is told the run id of a server that can be used.
        """
        self._redis = open_server(url, timeout=timeout)
        self._url = url
        self._where = shown(url)
        self._connection: Any = None
        #: calls whose replies were not read yet, and the connection that they come on
        self._sent: tuple[Any, Sequence[Call]] = (None, ())
        #: scripts that the server has, as far as this connection knows
        self._loaded: set[str] = set()
        #: there was a master at this address
        self._used = False
        self._run_id = ""
        self._recorder = recorder
        self._clock = clock
        self._on_warning = on_warning
        self._on_connect = on_connect

    # -- the connection

    def connect(self) -> None:
        """Connect and look at the server, unless that was done on this connection.

        Raises `CoordinatorRefused` if the server is too old or may evict state.
        """
        if self._connection is not None:
            return
        try:
            connection = self._redis.connection_pool.get_connection()
        except (RedisError, OSError) as error:
            self._unavailable(error)
        self._connection = connection
        try:
            self._check_server()
        except BaseException:
            self.disconnect()
            raise
        self._used = True
        if self._on_connect is not None:
            self._on_connect(self._run_id)

    def disconnect(self) -> None:
        """Close the connection; the next call opens a new one."""
        connection, self._connection = self._connection, None
        self._loaded.clear()
        if connection is not None:
            connection.disconnect()
            self._redis.connection_pool.release(connection)

    def close(self) -> None:
        """Close the connection for good."""
        self.disconnect()
        self._redis.close()

    def _check_server(self) -> None:
        info = self._info("server", "memory", "persistence", "replication", "cluster")
        #: of the process at the other end, which is the same as long as the connection
        self._run_id = info.get("run_id", "")
        version = tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2])
        if version < OLDEST:
            raise CoordinatorRefused(
                "This Redis is too old.",
                state=f"version {info.get('redis_version')}",
                owner=self._where,
                remedy="use Redis or Valkey 7.2 or newer",
            )
        if info.get("role", "master") != "master":
            # where a master is expected because there was one, or Sentinels say so, there will be one again
            passing = self._used or is_watched(self._url)
            raise (CoordinatorUnavailable if passing else CoordinatorRefused)(
                "This Redis is a replica.",
                state=f"role {info['role']}",
                owner=self._where,
                remedy="wait until the address leads to the new master"
                if passing
                else "connect to the master",
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise CoordinatorRefused(
                "This Redis may evict coordination state when memory is short.",
                state=f"maxmemory-policy {policy}",
                owner=self._where,
                remedy="set maxmemory-policy noeviction",
            )
        loading = info.get("loading", "0") != "0"  # says that it has no append-only file while it reads it
        if info.get("aof_enabled", "0") == "0" and not loading and self._on_warning:
            self._on_warning(
                f"Redis at {self._where} keeps no append-only file: after its restart messages since the "
                "mirrored floor are delivered again. Set appendonly yes to avoid that."
            )

    def _info(self, *sections: str) -> dict[str, str]:
        text = _text(self.command("INFO", *sections))
        pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: value for name, _, value in pairs}

    def command(self, *arguments: str | bytes | float) -> Any:  # noqa: ANN401 - a server's answer has any type
        """Send one plain command and return its answer."""
        self.connect()
        try:
            self._connection.send_command(*arguments)
            return self._connection.read_response()
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            self._unavailable(error)
        except ResponseError as error:
            self._explain(error)

    def _unavailable(self, error: Exception) -> NoReturn:
        self.disconnect()
        if (login := login_refused(error)) is not None:
            raise CoordinatorRefused(
                "Redis does not accept the user or password.",
                state=str(error if is_watched(self._url) else login),
                owner=self._where,
                remedy="correct the credentials in the Redis URL",
            ) from error
        if (refused := refused_by_tls(self._url, error)) is not None:
            raise CoordinatorRefused(
                "Redis and this process do not agree on TLS.",
                state=refused.state,
                owner=self._where,
                remedy=refused.remedy,
            ) from error
        raise CoordinatorUnavailable(
            state=f"{type(error).__name__}: {error}",
            owner=self._where,
            remedy=f"{what_to_check(self._url)}; what was not confirmed is delivered again",
        ) from error

    def _explain(self, error: ResponseError) -> NoReturn:
        text = str(error)
        # redis-py takes the code off the text of those errors that it has a class for
        passing = isinstance(error, (OutOfMemoryError, ReadOnlyError, ClusterDownError, TryAgainError))
        if passing or text.startswith(("MISCONF", "NOREPLICAS", "BUSY")):
            if isinstance(error, ReadOnlyError) or text.startswith("NOREPLICAS"):
                self.disconnect()  # it may be the master no more: connecting again looks for that
            raise CoordinatorUnavailable(
                state=f"{type(error).__name__}: {text}" if passing else text,
                owner=self._where,
                remedy="wait until the server has recovered, or give it memory or disk; nothing is lost",
            ) from error
        raise CoordinatorRefused(
            "Redis refused a command.",
            state=text,
            owner=self._where,
            remedy="give the user what `kafkadur acl redis` prints, if it is said to lack permission",
        ) from error

    # -- scripts

    def run(self, name: str, keys: Sequence[str], request: Sequence[object]) -> list[Any]:
        """Run a script and return its reply, whatever its code."""
        connection: Any = self._connection
        if connection is None:
            self.connect()
            connection = self._connection
        try:
            connection.send_packed_command([self._packed(name, keys, request)])
            try:
                reply = connection.read_response()
            except NoScriptError:
                text = scripts.load(name).text
                connection.send_command("EVAL", text, len(keys), *keys, pack(request), self._run_id)
                reply = connection.read_response()
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            self._unavailable(error)
        except ResponseError as error:
            self._explain(error)
        return self._taken(name, request, reply)

    def _packed(self, name: str, keys: Sequence[str], request: Sequence[object]) -> bytes:
        # packed here: redis-py converts each argument in Python, which is a fifth of an exchange's cost
        arguments: Any = ("EVALSHA", scripts.load(name).sha, len(keys), *keys, pack(request), self._run_id)
        return cast("bytes", hiredis.pack_command(arguments))  # the stub says: arguments of length one

    def _taken(self, name: str, request: Sequence[object], reply: list[Any]) -> list[Any]:
        """A reply as callers get it."""
        reply[0] = reply[0].decode()
        if self._recorder is not None:
            self._recorder(name, request, reply)
        return reply

    def run_many(self, calls: Sequence[Call]) -> list[list[Any]]:
        """Run scripts one after the other without waiting in between; their replies, whatever the codes.

        Raises as `run`; then some may have run and others not.
        """
        replies: list[list[Any]] = []
        for first in range(0, len(calls), _AT_ONCE):
            self.begin_many(calls[first : first + _AT_ONCE])
            replies += self.finish_many()
        return replies

    def begin_many(self, calls: Sequence[Call]) -> None:
        """Send script calls; `finish_many` comes next. Whatever is called before has another connection."""
        self.connect()
        for name in {call[0] for call in calls} - self._loaded:
            self.command("SCRIPT", "LOAD", scripts.load(name).text)
            self._loaded.add(name)
        try:
            self._connection.send_packed_command([self._packed(*call) for call in calls])
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            self._unavailable(error)
        self._sent, self._connection = (self._connection, calls), None

    def finish_many(self) -> list[list[Any]]:
        """Wait for the replies to what was sent last, whatever the codes; raises as `run`."""
        connection, calls = self._sent
        if self._connection is not None:
            self.disconnect()
        self._sent, self._connection = (None, ()), connection
        try:
            replies = [connection.read_response() for _ in calls]
        except (RedisConnectionError, RedisTimeoutError, NoScriptError, OSError) as error:
            self._unavailable(error)  # of scripts: somebody removed them
        except ResponseError as error:
            self.disconnect()  # replies that were not read belong to nobody
            self._explain(error)
        return [
            self._taken(name, request, reply)
            for (name, _, request), reply in zip(calls, replies, strict=True)
        ]

    def call(self, name: str, keys: Sequence[str], request: Sequence[object]) -> list[Any]:
        """Run a script; raise `Refusal` unless it answers OK."""
        reply = self.run(name, keys, request)
        if reply[0] != "OK":
            raise Refusal(reply[0], reply)
        return reply

    def common(self, *, subscription_id: str = "", incarnation: int = 0, member: str = "") -> list[object]:
        """The first five elements of every request (lua/include/context.lua)."""
        return [STATE_VERSION, self._clock() if self._clock else 0, subscription_id, incarnation, member]

    # -- reading

    def peek(self, address: SubscriptionAddress, *, seen: int = 0) -> Known:
        """What is known of a subscription; raises `Refusal` with MISSING, RESTARTED or VERSION.

        RESTARTED also if it is of an incarnation before `seen`: then this server holds an old copy.
        """
        reply = self.run("peek", address.fixed(), self.common(incarnation=-seen))
        if reply[0] not in ("OK", "MISSING"):
            raise Refusal(reply[0], reply)
        if reply[0] == "MISSING" and reply[7] < 0:
            raise Refusal("MISSING", reply)
        return Known(
            id=_text(reply[6]),
            version=reply[5],
            definition=_text(reply[4]),
            incarnation=reply[2],
            changing_ms=reply[7] if reply[7] >= 0 else None,
            changing_from=reply[8],
            members=tuple(
                MemberInfo(
                    id=_text(m[0]),
                    name=_text(m[1]),
                    kind=_text(m[2]),
                    heard=bool(m[3]),
                    leases=m[4],
                    since=m[5],
                    expires=m[6],
                    credit=m[7],
                )
                for m in reply[9]
            ),
            partitions=reply[10],
            grace_ms=reply[11],
            paused=bool(reply[12]),
            now=reply[3],
            begun=reply[13],
            left=reply[14],
            last_verdict=reply[15],
        )

    def inspect(
        self, address: SubscriptionAddress, subscription_id: str, state: str, partitions: Iterable[int]
    ) -> Inspection:
        """State of partitions (at most 16 a call) and of all leases. Raises `Refusal`."""
        call = self.inspecting(address, subscription_id, state, partitions, leases=True)
        return inspection(self.call(*call))

    def inspecting(
        self,
        address: SubscriptionAddress,
        subscription_id: str,
        state: str,
        partitions: Iterable[int],
        *,
        leases: bool = False,
        token: str = "",
    ) -> Call:
        """The call that asks for the state of at most 16 partitions; `inspection` reads its reply.

        `token` is that of a rebuild.
        """
        wanted = list(partitions)
        keys = address.fixed()
        for partition in wanted:
            keys += address.partition(subscription_id, state, partition)
        common = self.common(subscription_id=subscription_id)
        return ("inspect", keys, [*common, wanted, int(leases), token])

    def pause(self, address: SubscriptionAddress, subscription_id: str, *, paused: bool) -> None:
        """Pause a subscription, or let it go on; raises `Refusal` with the common codes."""
        self.call("pause", address.fixed(), [*self.common(subscription_id=subscription_id), int(paused)])

    def heard(self, channels: Sequence[str]) -> dict[str, bool]:
        """Whether somebody listens on each of these channels of one subscription."""
        reply = self.command("PUBSUB", "SHARDNUMSUB", *channels)
        return {_text(reply[i]): reply[i + 1] > 0 for i in range(0, len(reply), 2)}


class MemberSession:
    """One attached member: builds its script calls on a coordinator."""

    def __init__(
        self,
        coordinator: RedisCoordinator,
        address: SubscriptionAddress,
        *,
        subscription_id: str,
        state: str,
        member: str,
    ) -> None:
        """Remember who the member is; `attach` comes next."""
        self._coordinator = coordinator
        self._address = address
        self._subscription_id = subscription_id
        self._state = state
        self.member = member
        self.incarnation = 0
        #: number of the attachment, which every exchange names
        self.attachment = 0
        self._fixed = address.fixed()
        self._keys: dict[int, list[str]] = {}

    def _common(self) -> list[object]:
        return self._coordinator.common(
            subscription_id=self._subscription_id, incarnation=self.incarnation, member=self.member
        )

    def _keys_with(self, partitions: Iterable[int]) -> list[str]:
        """The keys of the subscription and of these partitions, as scripts take them."""
        keys = list(self._fixed)
        for partition in partitions:
            known = self._keys.get(partition)
            if known is None:
                known = self._keys[partition] = self._address.partition(
                    self._subscription_id, self._state, partition
                )
            keys += known
        return keys

    def attach(
        self,
        *,
        name: str,
        session_ms: int,
        version: int,
        most: int,
        kind: str = "",
        rank: Rank = UNRANKED,
        transacted: bool = False,
    ) -> Attached:
        """Attach; raises `Refusal` (ACTIVE, CHANGED, CHANGING, and the common codes)."""
        self.incarnation = 0
        request = [name, session_ms, version, most, kind, rank.priority, int(rank.preempt), int(transacted)]
        reply = self._coordinator.call("attach", self._fixed, [*self._common(), *request])
        self.incarnation, self.attachment = reply[2], reply[7]
        return Attached(
            sequence=reply[1],
            incarnation=reply[2],
            role=_role(reply[4]),
            partitions=reply[5],
            grace_ms=reply[6],
        )

    def exchange(self, exchange: Exchange) -> ExchangeReply:
        """Do one exchange; raises `Refusal` (STALE, FENCED, INVALID, and the common codes)."""
        keys = self._keys_with(part.partition for part in exchange.parts)
        request = [
            *self._common(),
            exchange.number,
            exchange.credit,
            exchange.have,
            int(exchange.ask_presence),
            exchange.span,
            exchange.parts,
            int(exchange.offer),
            self.attachment,
        ]
        reply = self._coordinator.call("exchange", keys, request)
        offered = exchange.offer or any(part.drained for part in exchange.parts)
        return ExchangeReply(
            sequence=reply[1],
            incarnation=reply[2],
            token=reply[4],
            silent_ms=reply[5] if reply[5] >= 0 else None,
            role=_role(reply[6]),
            grants=[
                Grant(
                    token=v[0],
                    partition=v[1],
                    start=v[2],
                    horizon=v[3],
                    attempts=attempts_of(v[4]),
                    redelivered=v[4] > 0,
                    kind=_text(v[5]),
                    seen=v[6],
                    stretch=v[7],
                    alone=bool(v[8]),
                    due_ms=v[9],
                )
                for v in reply[7]
            ],
            horizons=dict(reply[8]),
            refused=reply[9],
            partitions=[
                PartitionState._make([*state[:6], Standing(state[6]), *state[7:9], bool(state[9])])
                for state in reply[10]
            ],
            watches=reply[11],
            orphaned=reply[12],
            grace_ms=reply[13],
            standing=Standing(reply[14]),
            held=frozenset(reply[15]) if offered else None,
            paused=bool(reply[16]),
            expiry_ms=reply[17] if reply[17] >= 0 else None,
            doubt=bool(reply[18]),
        )

    def reclaim(self, claims: Mapping[int, Sequence[Claim]]) -> dict[int, list[Claimed]]:
        """Claim what is still in hands of an earlier incarnation, by partition (at most 16).

        Raises `Refusal` (FENCED, INVALID, and the common codes).
        """
        keys = self._keys_with(claims)
        request = [*self._common(), self.attachment, [[p, list(some)] for p, some in claims.items()]]
        reply = self._coordinator.call("reclaim", keys, request)
        found = zip(claims, reply[4], strict=True)
        return {partition: [Claimed(*one) for one in granted] for partition, granted in found}

    def truncate(self, cuts: Mapping[int, int], *, incarnation: int) -> dict[int, int]:
        """Forget what lies at or beyond these offsets of partitions (at most 16): Kafka lost it.

        Every member has to attach again. Returns how many known offsets were lost, by partition; raises
        `Refusal`, INCARNATION also when another member was faster.
        """
        keys = self._keys_with(cuts)
        reply = self._coordinator.call("truncate", keys, [*self._common(), list(cuts.items()), incarnation])
        self.incarnation = reply[2]
        return dict(zip(cuts, reply[4], strict=True))

    def detach(self, partitions: Sequence[int]) -> None:
        """Leave in order; what is still held goes back uncounted, at once on these (at most 16)."""
        keys = self._keys_with(partitions)
        self._coordinator.call("detach", keys, [*self._common(), list(partitions)])


def inspection(reply: Sequence[Any]) -> Inspection:
    """Read the reply to `RedisCoordinator.inspecting`."""
    return Inspection(
        now=reply[3],
        sequence=reply[1],
        incarnation=reply[2],
        epoch=reply[6],
        partitions=tuple(
            PartitionView(
                partition=p[0],
                base=p[1],
                next=p[2],
                avail=p[3],
                origin=p[4],
                decided=p[5],
                runs=parse_runs(p[6]),
                seen=p[7],
                bits=p[8],
                expired=p[9],
                epoch=p[10],
                truncated=p[11],
            )
            for p in reply[4]
            if p[1] >= 0
        ),
        leases=tuple(
            LeaseView(
                token=v[0],
                partition=v[1],
                start=v[2],
                horizon=v[3],
                member=_text(v[4]),
                marks=v[5],
                kind=_text(v[6]),
            )
            for v in reply[5]
        ),
    )


def _role(value: Sequence[Any]) -> Role:
    return Role(rank=value[0], members=value[1], neighbour=_text(value[2]))


def state_lost(display: str, detail: str) -> StateLost:
    """The error for state that could not be rebuilt in time."""
    return StateLost(
        state=detail,
        owner=f"subscription {display}",
        remedy="open the subscription again; delivery goes on from the mirrored floor",
    )
