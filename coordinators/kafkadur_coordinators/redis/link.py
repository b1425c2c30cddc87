"""One connection to one Redis server: looks at the server, sends commands, turns failures into errors.

It never repeats a call by itself. In a cluster a server refuses calls for keys that it does not serve:
`cluster.py` knows which server to ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from redis.exceptions import (
    AskError,
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

from kafkadur_coordinators.redis.replies import text_of
from kafkadur_coordinators.redis.server import (
    Address,
    address_of,
    caused_by,
    is_clustered,
    is_watched,
    open_server,
    refused_by_tls,
    shown,
    what_to_check,
)
from kafkadur_sharing.errors import CoordinatorRefused, CoordinatorUnavailable

#: Oldest Redis or Valkey that is used.
OLDEST = (7, 2)
#: What no server answered at all: it may have run, or not.
_BROKEN: Final = (RedisConnectionError, RedisTimeoutError, OSError)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a link calls."""

    #: with the text of a warning for people
    warning: Callable[[str], None]
    #: with the link that has connected to a server that can be used
    connected: Callable[[Link], None]
    #: with the link whose server did not answer
    failed: Callable[[Link], None]


class Link:
    """One connection to one server. Not thread-safe.

    Every method that talks to the server raises `CoordinatorUnavailable` when it does not answer within the
    time-out, and `CoordinatorRefused` when it cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        told: Told,
        node: Address | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember the server; connects at the first call. `url` and `timeout` as in `open_server`.

        `node`: the node of a cluster; None: the server that the URL names.
        """
        self._redis = open_server(url, timeout=timeout, node=node)
        self._url = url
        self._where = shown(url) if node is None else f"{shown(url)}, node {node[0]}:{node[1]}"
        self._told = told
        self._monotonic = monotonic
        self._connection: Any = None
        #: whether a reply was not read: an exception of a signal handler may break a call off, and the reply
        #: must not be taken for that of another call
        self._asking = False
        #: there was a master at this address
        self._used = False
        #: when the last call or connection began, and until when a node is not tried again
        self._begun = self._rest_until = 0.0
        self._last_failure = ""
        #: None: the server that the URL names
        self.node = node
        #: of the process at the other end, which is the same as long as the connection
        self.run_id = ""
        #: whether it is a node of a cluster
        self.in_cluster = False
        #: scripts that the server has, as far as this connection knows
        self.loaded: set[str] = set()

    # -- the connection

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, and every reply was read."""
        return self._connection is not None and not self._asking

    def connect(self) -> None:
        """Connect and look at the server, unless that was done on this connection.

        Raises `CoordinatorRefused` if the server is too old or may evict state.
        """
        if self._asking:
            self.disconnect()
        if self._connection is not None:
            return
        self._begun = self._monotonic()
        if self._begun < self._rest_until:
            raise self._unavailable_error(self._last_failure)
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
        self._told.connected(self)

    def disconnect(self) -> None:
        """Close the connection; the next call opens a new one."""
        connection, self._connection = self._connection, None
        self._asking = False
        self.loaded.clear()
        if connection is not None:
            connection.disconnect()
            self._redis.connection_pool.release(connection)

    def close(self) -> None:
        """Close the connection for good."""
        self.disconnect()
        self._redis.close()

    def _check_server(self) -> None:
        info = self._info("server", "memory", "persistence", "replication", "cluster")
        self.run_id = info.get("run_id", "")
        self.in_cluster = info.get("cluster_enabled", "0") == "1"
        version = tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2])
        if version < OLDEST:
            raise CoordinatorRefused(
                "This Redis is too old.",
                state=f"version {info.get('redis_version')}",
                owner=self._where,
                remedy="use Redis or Valkey 7.2 or newer",
            )
        if is_clustered(self._url) and not self.in_cluster:
            raise CoordinatorRefused(
                "This Redis is no node of a cluster.",
                state="cluster-enabled no",
                owner=self._where,
                remedy="write redis:// or redis+sentinel:// in its URL",
            )
        if self.in_cluster and not is_clustered(self._url) and address_of(self._url) is None:
            raise CoordinatorRefused(
                "This Redis is a node of a cluster.",
                state="cluster-enabled yes",
                owner=self._where,
                remedy="write redis+cluster:// in its URL",
            )
        # a replica in a cluster names the server to be asked
        if info.get("role", "master") != "master" and not self.in_cluster:
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
        if info.get("aof_enabled", "0") == "0" and not loading:
            self._told.warning(
                f"Redis at {self._where} keeps no append-only file: after its restart messages since the "
                "mirrored floor are delivered again. Set appendonly yes to avoid that."
            )

    def _info(self, *sections: str) -> dict[str, str]:
        text = text_of(self.command("INFO", *sections))
        pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: value for name, _, value in pairs}

    # -- calls

    def command(self, *arguments: str | bytes | float) -> Any:  # noqa: ANN401 - a server's answer has any type
        """Send one command and return its answer.

        Raises redis-py's `AskError` and `MovedError` where another node of the cluster is to be asked.
        """
        self.connect()
        self._begun = self._monotonic()
        self._asking = True
        try:
            self._connection.send_command(*arguments)
            reply = self._connection.read_response()
        except _BROKEN as error:
            self._unavailable(error)
        except ResponseError as error:
            self._asking = False
            self._explain(error)
        self._asking = False
        return reply

    def call(self, packed: bytes) -> Any:  # noqa: ANN401 - as above
        """Send one packed script call over the open connection and return its answer.

        Raises redis-py's `NoScriptError` besides what `command` raises.
        """
        self._begun = self._monotonic()
        self._asking = True
        try:
            self._connection.send_packed_command([packed])
            reply = self._connection.read_response()
        except _BROKEN as error:
            self._unavailable(error)
        except NoScriptError:
            self._asking = False
            raise
        except ResponseError as error:
            self._asking = False
            self._explain(error)
        self._asking = False
        return reply

    def send(self, packed: Sequence[bytes]) -> Any:  # noqa: ANN401 - redis-py's connection classes share no public base
        """Send packed script calls over the open connection, and return that; `receive` reads the replies.

        Calls in between use another connection.
        """
        self._begun = self._monotonic()
        try:
            self._connection.send_packed_command(list(packed))
        except _BROKEN as error:
            self._unavailable(error)
        sent, self._connection = self._connection, None
        return sent

    def receive(self, sent: Any, count: int) -> list[Any]:  # noqa: ANN401 - as above
        """Read the replies to `count` calls that were sent over the connection `sent`.

        In place of a reply that names another node of the cluster is the error.
        """
        if self._connection is not None:
            self.disconnect()
        self._connection = sent
        self._asking = True
        try:
            replies = [self._reply_or_redirection() for _ in range(count)]
        except (*_BROKEN, NoScriptError) as error:
            self._unavailable(error)  # of scripts: they were removed
        except ResponseError as error:
            self.disconnect()  # replies that were not read must not be taken for others
            self._explain(error)
        self._asking = False
        return replies

    def drop(self, sent: Any) -> None:  # noqa: ANN401 - as above
        """Close the connection `sent`, whose replies nobody reads any more."""
        sent.disconnect()
        self._redis.connection_pool.release(sent)

    def _reply_or_redirection(self) -> Any:  # noqa: ANN401 - as above
        try:
            return self._connection.read_response()
        except AskError as error:  # MovedError is one, too
            return error

    # -- failures

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
        self._last_failure = f"{type(error).__name__}: {error}"
        if self.node is not None:
            # one that lets its callers wait must not keep them from the other nodes for most of the time
            now = self._monotonic()
            self._rest_until = now + (now - self._begun)
        self._told.failed(self)
        raise self._unavailable_error(self._last_failure) from error

    def _unavailable_error(self, state: str) -> CoordinatorUnavailable:
        return CoordinatorUnavailable(
            state=state,
            owner=self._where,
            remedy=f"{what_to_check(self._url)}; what was not confirmed is delivered again",
        )

    def _explain(self, error: ResponseError) -> NoReturn:
        if isinstance(error, AskError):  # MovedError is one, too
            raise error
        text = str(error)
        # redis-py takes the code off the text of those errors that it has a class for
        passing = isinstance(error, (OutOfMemoryError, ReadOnlyError, ClusterDownError, TryAgainError))
        if passing or text.startswith(("MISCONF", "NOREPLICAS", "BUSY")):
            if isinstance(error, ReadOnlyError) or text.startswith("NOREPLICAS"):
                self.disconnect()  # it may not be the master any more: the next connection checks that
            if isinstance(error, ClusterDownError):
                self._told.failed(self)
            raise CoordinatorUnavailable(
                state=f"{type(error).__name__}: {text}" if passing else text,
                owner=self._where,
                remedy="wait until the slot has moved to another node; nothing is lost"
                if isinstance(error, TryAgainError)
                else "wait until the server has recovered, or give it memory or disk; nothing is lost",
            ) from error
        raise CoordinatorRefused(
            "Redis refused a command.",
            state=text,
            owner=self._where,
            remedy="give the user what `kafkadur acl redis` prints, if it is said to lack permission",
        ) from error
