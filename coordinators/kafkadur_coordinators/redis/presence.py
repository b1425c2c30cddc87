"""Presence: the connection on which a process listens. It shows that the process lives, and wakes it.

Every member has a sharded channel. Scripts see whether a process listens on it (PUBSUB SHARDNUMSUB) within
milliseconds of a process's death; a message on it wakes the member. In turn the process pings this
connection: a member stops dispatching when no ping sent within `STOP_AFTER` was answered, and others take
over no earlier than 0.5 s after the channel fell silent (lua/include/context.lua). The listener decides what
to do when it is woken.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from redis.exceptions import NoPermissionError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kafkadur_coordinators.redis.server import open_server, shown
from kafkadur_sharing.errors import CoordinatorRefused, CoordinatorUnavailable

_log = logging.getLogger("kafkadur.presence")

#: Seconds between pings.
PING_EVERY = 0.1
#: Seconds after sending the last answered ping at which members stop dispatching.
STOP_AFTER = 0.3
_RECONNECT_FIRST, _RECONNECT_MOST = 0.05, 0.5


class Presence:
    """The listening connection of this process to one server, and its thread."""

    def __init__(self, url: str, *, timeout: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start the thread; `timeout` in seconds bounds connecting and the first answer to `listen`."""
        self._redis = open_server(url, timeout=timeout)
        self._where = shown(url)
        self._timeout = timeout
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._connection: Any = None
        self._run_id = b""
        #: the connection is to a server that is not used any more
        self._elsewhere = False
        self._listeners: dict[bytes, Callable[[bytes], None]] = {}
        self._confirmed: dict[bytes, threading.Event] = {}
        self._pings: deque[float] = deque()
        #: when the last answered ping was sent, and since when there was no pause of `STOP_AFTER`
        self._answered, self._heard_since = float("-inf"), float("inf")
        #: Why the server refused to have a channel listened on; empty if it did not.
        self._refusal = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafkadur-presence", daemon=True)
        self._thread.start()

    def heard_since(self) -> float:
        """Return since when other processes hear this one (monotonic seconds); infinity: they may not now.

        They do while a ping sent within `STOP_AFTER` was answered. After a pause other members may have taken
        over: a lease may be used again only after an exchange that was sent later than this (invariant I5).
        """
        answered = self._answered  # before the other: an answer changes that one first
        since = self._heard_since
        return since if self._monotonic() - answered < STOP_AFTER else float("inf")

    def alive(self) -> bool:
        """Whether other processes hear this one now."""
        return self.heard_since() < float("inf")

    def listen(self, channel: str, wake: Callable[[bytes], None]) -> None:
        """Call `wake` (in the presence thread; it must not block) with every message on `channel`.

        Returns when the server has confirmed; raises `CoordinatorUnavailable` if it does not in time, and
        `CoordinatorRefused` if this user may not listen there.
        """
        name = channel.encode()
        confirmed = threading.Event()
        with self._lock:
            self._listeners[name] = wake
            self._confirmed[name] = confirmed
            connection = self._connection
            if connection is not None:
                with contextlib.suppress(RedisError, OSError):  # the thread notices too, and subscribes anew
                    connection.send_command("SSUBSCRIBE", name)
        if not confirmed.wait(self._timeout):
            self.forget(channel)
            if self._refusal:
                raise CoordinatorRefused(
                    "Redis does not let this user listen.",
                    state=self._refusal,
                    owner=self._where,
                    remedy="give the user what `kafkadur acl redis` prints",
                )
            raise CoordinatorUnavailable(
                state="the channel of this member was not confirmed in time",
                owner=self._where,
                remedy="check that Redis runs and can be reached, and that its ACL allows the channel prefix",
            )

    def forget(self, channel: str) -> None:
        """Stop listening on `channel`."""
        name = channel.encode()
        with self._lock:
            if self._listeners.pop(name, None) is not None and self._connection is not None:
                with contextlib.suppress(RedisError, OSError):
                    self._connection.send_command("SUNSUBSCRIBE", name)
            self._confirmed.pop(name, None)

    def be_at(self, run_id: str) -> None:
        """Listen on the server with this run id: there the scripts of this process run now.

        An old master may go on to answer its connections when another one has taken over.
        """
        with self._lock:
            if self._connection is not None and self._run_id != run_id.encode():
                self._elsewhere = True

    def close(self) -> None:
        """Stop the thread and close the connection."""
        self._closing.set()
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(RedisError, OSError):
                    self._connection.send_command("PING")  # wakes the thread at once
        self._thread.join()
        self._redis.close()

    # -- the thread

    def _run(self) -> None:
        pause = _RECONNECT_FIRST
        while not self._closing.is_set():
            try:
                connection = self._redis.connection_pool.get_connection()
            except (RedisError, OSError):
                self._closing.wait(pause)
                pause = min(pause * 2, _RECONNECT_MOST)
                continue
            pause = _RECONNECT_FIRST
            try:
                run_id = _run_id_of(connection)
                with self._lock:
                    self._run_id, self._elsewhere = run_id, False
                    self._pings.clear()
                    for name in self._listeners:
                        connection.send_command("SSUBSCRIBE", name)
                    self._connection = connection
                self._serve(connection)
            except NoPermissionError as error:
                self._refusal = str(error)
                self._closing.wait(_RECONNECT_MOST)
            except (RedisError, OSError):
                pass  # reconnect; until then alive() turns false by itself
            except Exception:  # noqa: BLE001 - a defect: reconnect as above, after a pause
                _log.exception("listening to Redis met a defect")
                self._closing.wait(_RECONNECT_MOST)
            finally:
                with self._lock:
                    self._connection = None
                connection.disconnect()
                self._redis.connection_pool.release(connection)
        self._answered = float("-inf")

    def _serve(self, connection: Any) -> None:  # noqa: ANN401 - redis-py's connection classes share no public base
        next_ping = self._monotonic()
        while not (self._closing.is_set() or self._elsewhere):
            now = self._monotonic()
            if now >= next_ping:
                with self._lock:
                    self._pings.append(now)
                    connection.send_command("PING")
                next_ping = now + PING_EVERY
                if len(self._pings) * PING_EVERY > self._timeout:
                    raise RedisTimeoutError
            try:
                answer = connection.read_response(
                    timeout=max(next_ping - now, 0.001), disconnect_on_error=False
                )
            except RedisTimeoutError:
                continue
            self._handle(answer)

    def _handle(self, answer: Any) -> None:  # noqa: ANN401 - an array, or PONG as text before the first subscription
        kind = answer[0] if isinstance(answer, list) else b"pong"
        if kind == b"smessage":
            wake = self._listeners.get(answer[1])
            if wake is not None:
                try:
                    wake(answer[2])
                except Exception:  # noqa: BLE001 - a defect of one listener must not stop the others
                    _log.exception("waking met a defect")
        elif kind == b"pong":
            if self._pings:
                sent_at = self._pings.popleft()
                if sent_at - self._answered >= STOP_AFTER:
                    self._heard_since = self._monotonic()  # first: see `heard_since`
                self._answered = sent_at
        elif kind == b"ssubscribe":
            confirmed = self._confirmed.get(answer[1])
            if confirmed is not None:
                self._refusal = ""
                confirmed.set()


def _run_id_of(connection: Any) -> bytes:  # noqa: ANN401 - as above
    connection.send_command("INFO", "server")
    info: bytes = connection.read_response()
    lines = info.splitlines()
    return next((line.partition(b":")[2] for line in lines if line.startswith(b"run_id:")), b"")


_shared: dict[tuple[str, float], tuple[Presence, int]] = {}
_shared_lock = threading.Lock()


def acquire(url: str, timeout: float) -> Presence:
    """The process's presence on this server, started at its first use. Give it back with `release`.

    `timeout` in seconds as in `Presence`.
    """
    with _shared_lock:
        presence, users = _shared.get((url, timeout), (None, 0))
        if presence is None:
            presence = Presence(url, timeout=timeout)
        _shared[url, timeout] = (presence, users + 1)
        return presence


def release(url: str, timeout: float) -> None:
    """Give the process's presence on this server back; the last one closes it."""
    with _shared_lock:
        presence, users = _shared[url, timeout]
        if users > 1:
            _shared[url, timeout] = (presence, users - 1)
            return
        del _shared[url, timeout]
    presence.close()
