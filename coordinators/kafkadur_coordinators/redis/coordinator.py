"""The coordinator on Redis or Valkey: sends scripts, turns replies into values and codes into errors.

One `RedisCoordinator` is one connection to one server, used by one thread at a time. It never repeats a
call by itself: the caller knows which call may be repeated (an exchange under its number) and which state a
broken connection leaves. The rules are in `lua/`; `lifecycle.py` decides which members may attach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NoReturn, cast

import hiredis
import msgpack
from redis.exceptions import (
    AuthenticationError,
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

from kafkadur_coordinators.interface import Inspection, Known
from kafkadur_coordinators.redis import scripts
from kafkadur_coordinators.redis.replies import inspection, known, text_of
from kafkadur_coordinators.redis.server import (
    caused_by,
    is_watched,
    open_server,
    refused_by_tls,
    shown,
    what_to_check,
)
from kafkadur_coordinators.redis.wire import (
    Active,
    DetachRequest,
    Held,
    InspectRequest,
    PauseRequest,
    Reply,
    Request,
    read_reply,
)
from kafkadur_sharing.errors import CoordinatorRefused, CoordinatorUnavailable, KafkadurError, StateLost

#: Version of the shared state of new subscriptions, and that of the version before, which is understood, too.
STATE_VERSION, STATE_VERSION_BEFORE = 3, 1
#: Oldest Redis or Valkey that is used.
OLDEST = (7, 2)

#: One script call: name, keys, request.
Call = tuple[str, Sequence[str], Sequence[object]]
#: Script calls that are sent before the first reply is read.
_AT_ONCE = 200
#: The id of no member.
_NOBODY: Final = "-"

#: Told of every script call: script name, request, reply. For histories and tests; must not raise.
Recorder = Callable[[str, Sequence[object], Reply], None]


class Refusal(KafkadurError):
    """A script refused; `code` says why. Never reaches an application.

    It is a `KafkadurError`: an `except` clause for it must come before one for `KafkadurError`.
    """

    def __init__(self, reply: Reply) -> None:
        """Keep the code and the whole reply."""
        super().__init__(f"The coordinator answered {reply.code}.")
        self.code = reply.code
        self.reply = reply

    @property
    def active(self) -> Active:
        """The attached members; of the code ACTIVE alone."""
        return Active._make(self.reply.body)

    @property
    def held(self) -> Held:
        """The holder of the client id; of the code HELD alone."""
        return Held._make(self.reply.body)


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionAddress:
    """The keys of the state of one subscription: their prefix and hash tag."""

    prefix: str
    namespace: str
    tag: str

    @property
    def root(self) -> str:
        """The beginning of all its keys."""
        return f"{self.prefix}:{self.namespace}:{{{self.tag}}}:"

    def fixed(self) -> list[str]:
        """The seven keys of the subscription, in the order scripts take them (`lua/include/context.lua`)."""
        root = self.root
        names = ("def", "seal", "next", "members", "leases", "hungry", "watchers")
        return [root + name for name in names]

    def partition(self, subscription_id: str, state: str, partition: int) -> list[str]:
        """The three keys of a partition or lane of keys, in the order scripts take them.

        `state` names the state of all of them (`changes.py`): the topic's id, and how many lanes they have.
        """
        root = f"{self.root}{subscription_id}:{state}:{partition}:"
        return [root + "state", root + "bits", root + "runs"]

    def keys(self, subscription_id: str, state: str, partitions: Iterable[int]) -> list[str]:
        """The keys of the subscription and of these partitions, in the order scripts take them."""
        each = (self.partition(subscription_id, state, partition) for partition in partitions)
        return [*self.fixed(), *chain.from_iterable(each)]

    def channel(self, member: str) -> str:
        """The sharded channel on which a member listens."""
        return f"{self.root}c:{member}"

    def progress(self, member: str) -> str:
        """The key under which a holder writes its progress, for people (`holder_progress.py`)."""
        return f"{self.root}progress:{member}"


def pack(request: Sequence[object]) -> bytes:
    """Encode a request the way the scripts' msgpack reads it (no binary type)."""
    return cast("bytes", msgpack.packb(request, use_bin_type=False))


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
        state_version: int = STATE_VERSION,
        on_warning: Callable[[str], None] | None = None,
        on_connect: Callable[[str], None] | None = None,
    ) -> None:
        """Remember the address (`server.py`); connects at the first call.

        `timeout` in seconds bounds connecting and every call. `clock` (ms since the epoch) replaces the
        server's clock in scripts: for tests. `state_version`: of subscriptions that are
        created or rebuilt. `on_connect` is told the run id of a server that can be used.
        """
        self._redis = open_server(url, timeout=timeout)
        self._url = url
        self._where = shown(url)
        self._connection: Any = None
        #: whether a reply was not read: an exception of a signal handler may break a call off, and the reply
        #: must not be taken for that of another call
        self._asking = False
        #: calls whose replies were not read yet, and their connection
        self._sent: tuple[Any, Sequence[Call]] = (None, ())
        #: scripts that the server has, as far as this connection knows
        self._loaded: set[str] = set()
        #: there was a master at this address
        self._used = False
        self._run_id = ""
        self._recorder = recorder
        self._clock = clock
        self.state_version = state_version
        self._on_warning = on_warning
        self._on_connect = on_connect

    # -- the connection

    def connect(self) -> None:
        """Connect and look at the server, unless that was done on this connection.

        Raises `CoordinatorRefused` if the server is too old or may evict state.
        """
        if self._asking:
            self.disconnect()
        if self._connection is not None:
            return
        try:
            connection = self._redis.connection_pool.get_connection()
        except (RedisError, OSError) as error:
            self._unavailable(error)
        except BaseException:  # of a signal handler: the pool may have a connection that has not logged in
            self._redis.connection_pool.disconnect()
            raise
        self._connection = connection
        try:
            self._check_server()
        except BaseException:
            self.disconnect()
            raise
        self._used = True
        if self._on_connect is not None:
            self._on_connect(self._run_id)

    def reach(self) -> None:
        """Raise an error unless the server answers now, also over a connection that was made before."""
        self.command("PING")

    def disconnect(self) -> None:
        """Close the connection; the next call opens a new one."""
        connection, self._connection = self._connection, None
        self._asking = False
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
        text = text_of(self.command("INFO", *sections))
        pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: value for name, _, value in pairs}

    def command(self, *arguments: str | bytes | float) -> Any:  # noqa: ANN401 - a server's answer has any type
        """Send one plain command and return its answer."""
        self.connect()
        self._asking = True
        try:
            self._connection.send_command(*arguments)
            reply = self._connection.read_response()
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            self._unavailable(error)
        except ResponseError as error:
            self._asking = False
            self._explain(error)
        self._asking = False
        return reply

    def _unavailable(self, error: Exception) -> NoReturn:
        self.disconnect()
        if (login := caused_by(error, AuthenticationError)) is not None:
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
                self.disconnect()  # it may not be the master any more: the next connection checks that
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

    def run(self, name: str, keys: Sequence[str], request: Sequence[object]) -> Reply:
        """Run a script and return its reply, whatever its code."""
        connection: Any = self._connection
        if connection is None or self._asking:
            self.connect()
            connection = self._connection
        self._asking = True
        try:
            connection.send_packed_command([self._packed(name, keys, request)])
            try:
                reply = connection.read_response()
            except NoScriptError:
                text = self._script(name).text
                connection.send_command("EVAL", text, len(keys), *keys, pack(request), self._run_id)
                reply = connection.read_response()
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            self._unavailable(error)
        except ResponseError as error:
            self._asking = False
            self._explain(error)
        self._asking = False
        return self._taken(name, request, reply)

    def _script(self, name: str) -> scripts.Script:
        return scripts.load(name, trusts_clock=self._clock is not None)

    def _packed(self, name: str, keys: Sequence[str], request: Sequence[object]) -> bytes:
        # packed here: redis-py converts each argument in Python, which is a fifth of an exchange's cost
        # the number as text: hiredis crashes where a signal handler raises an exception while it makes one
        count = str(len(keys))
        arguments: Any = ("EVALSHA", self._script(name).sha, count, *keys, pack(request), self._run_id)
        return cast("bytes", hiredis.pack_command(arguments))  # the stub says: arguments of length one

    def _taken(self, name: str, request: Sequence[object], raw: list[Any]) -> Reply:
        """A reply as callers get it."""
        reply = read_reply(raw)
        if self._recorder is not None:
            self._recorder(name, request, reply)
        return reply

    def run_many(self, calls: Sequence[Call]) -> list[Reply]:
        """Run scripts one after the other without waiting in between; their replies, whatever the codes.

        Raises as `run`; then some may have run and others not.
        """
        replies: list[Reply] = []
        for first in range(0, len(calls), _AT_ONCE):
            self.begin_many(calls[first : first + _AT_ONCE])
            replies += self.finish_many()
        return replies

    def begin_many(self, calls: Sequence[Call]) -> None:
        """Send script calls; `finish_many` reads the replies. Calls in between use another connection."""
        self.connect()
        for name in {call[0] for call in calls} - self._loaded:
            self.command("SCRIPT", "LOAD", self._script(name).text)
            self._loaded.add(name)
        try:
            self._connection.send_packed_command([self._packed(*call) for call in calls])
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            self._unavailable(error)
        self._sent, self._connection = (self._connection, calls), None

    def finish_many(self) -> list[Reply]:
        """Wait for the replies to the calls sent last, whatever the codes; raises as `run`."""
        connection, calls = self._sent
        if self._connection is not None:
            self.disconnect()
        self._sent, self._connection = (None, ()), connection
        try:
            replies = [connection.read_response() for _ in calls]
        except (RedisConnectionError, RedisTimeoutError, NoScriptError, OSError) as error:
            self._unavailable(error)  # of scripts: they were removed
        except ResponseError as error:
            self.disconnect()  # replies that were not read must not be taken for others
            self._explain(error)
        return [
            self._taken(name, request, reply)
            for (name, _, request), reply in zip(calls, replies, strict=True)
        ]

    def call(self, name: str, keys: Sequence[str], request: Sequence[object]) -> Reply:
        """Run a script; raise `Refusal` unless it answers OK."""
        reply = self.run(name, keys, request)
        if reply.code != "OK":
            raise Refusal(reply)
        return reply

    def common(self, *, subscription_id: str = "", incarnation: int = 0, member: str = "") -> Request:
        """The beginning of every request."""
        clock = self._clock() if self._clock else 0
        return Request(self.state_version, clock, subscription_id, incarnation, member)

    # -- reading

    def peek(self, address: SubscriptionAddress, *, seen: int = 0) -> Known:
        """Return the state of a subscription; raises `Refusal` with MISSING, RESTARTED or VERSION.

        RESTARTED also if its incarnation is before `seen`: then this server holds an old copy.
        """
        reply = self.run("peek", address.fixed(), self.common(incarnation=-seen))
        if reply.code not in ("OK", "MISSING") or not reply.body:  # without a body: it is damaged
            raise Refusal(reply)
        found = known(reply)
        if reply.code == "MISSING" and found.changing_ms is None:
            raise Refusal(reply)
        return found

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
        keys = address.keys(subscription_id, state, wanted)
        common = self.common(subscription_id=subscription_id)
        return ("inspect", keys, [*common, *InspectRequest(wanted, int(leases), token)])

    def pause(self, address: SubscriptionAddress, subscription_id: str, *, paused: bool) -> None:
        """Pause a subscription, or let it go on; raises `Refusal` with the common codes."""
        common = self.common(subscription_id=subscription_id)
        self.call("pause", address.fixed(), [*common, *PauseRequest(int(paused))])

    def evict(self, address: SubscriptionAddress, subscription_id: str, member: str) -> None:
        """End the session of a member as if it had died; raises `Refusal` with the common codes."""
        common = self.common(subscription_id=subscription_id, member=member)
        self.call("detach", address.fixed(), [*common, *DetachRequest([], 1)])

    def sweep(self, address: SubscriptionAddress, subscription_id: str) -> None:
        """Look for members that died, as each member does; raises `Refusal` with the common codes.

        A member ends if its session has ended, or if it was silent at an earlier look, half a second ago.
        """
        common = self.common(subscription_id=subscription_id, member=_NOBODY)
        self.call("detach", address.fixed(), [*common, *DetachRequest([], 1)])

    def heard(self, channels: Sequence[str]) -> dict[str, bool]:
        """Return for each of these channels of one subscription whether a process listens on it."""
        reply = self.command("PUBSUB", "SHARDNUMSUB", *channels)
        return {text_of(reply[i]): reply[i + 1] > 0 for i in range(0, len(reply), 2)}


def state_lost(display: str, detail: str) -> StateLost:
    """The error for state that could not be rebuilt in time."""
    return StateLost(
        state=detail,
        owner=f"subscription {display}",
        remedy="open the subscription again; delivery goes on from the mirrored floor",
    )
