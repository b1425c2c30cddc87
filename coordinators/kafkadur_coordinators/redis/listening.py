"""One listening connection to one Redis server, and its thread: it pings the server, and wakes listeners."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import MovedError, NoPermissionError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kafkadur_coordinators.redis.cluster import slot_of
from kafkadur_coordinators.redis.server import Address, open_server, shown
from kafkadur_sharing.errors import CoordinatorRefused, CoordinatorUnavailable

_log = logging.getLogger("kafkadur.presence")

#: Seconds between pings.
PING_EVERY = 0.1
#: Seconds after sending the last answered ping at which members stop dispatching.
STOP_AFTER = 0.3
_RECONNECT_FIRST, _RECONNECT_MOST = 0.05, 0.5
_NEVER = float("inf")


@dataclass(kw_only=True, slots=True)
class _Channel:
    """A channel on which the process listens."""

    name: bytes
    wake: Callable[[bytes], None]
    #: set when the server has confirmed, or has said that another node serves the channel
    answered: threading.Event = field(default_factory=threading.Event)
    #: when the server confirmed it first, monotonic seconds
    since: float = _NEVER
    #: whether the server has said that it does not serve the channel any more
    lost: bool = False


class ListeningConnection:
    """The listening connection of this process to one server, and its thread."""

    def __init__(
        self, url: str, *, timeout: float, monotonic: Callable[[], float], node: Address | None = None
    ) -> None:
        """Start the thread; the parameters as in `open_server` and `Presence`."""
        self._redis = open_server(url, timeout=timeout, node=node)
        self._where = shown(url) if node is None else f"{shown(url)}, node {node[0]}:{node[1]}"
        self._timeout = timeout
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._connection: Any = None
        self._run_id = b""
        #: the connection is to a server that is not used any more
        self._elsewhere = False
        self._channels: dict[bytes, _Channel] = {}
        #: channels that were forgotten on this connection, and are not confirmed as such yet
        self._forgotten: Counter[bytes] = Counter()
        self._pings: deque[float] = deque()
        #: when the last answered ping was sent, and since when there was no pause of `STOP_AFTER`
        self._answered, self._heard_since = float("-inf"), _NEVER
        #: Why the server refused to have a channel listened on; empty if it did not.
        self._refusal = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafkadur-presence", daemon=True)
        self._thread.start()

    def heard_since(self, channel: str) -> float:
        """Return what `Presence.heard_since` returns."""
        answered = self._answered  # before the other: an answer changes that one first
        found = self._channels.get(channel.encode())
        if found is None or self._monotonic() - answered >= STOP_AFTER:
            return _NEVER
        return max(self._heard_since, found.since)

    def has_lost(self, channel: str) -> bool:
        """Whether the server has said that it does not serve a channel any more."""
        found = self._channels.get(channel.encode())
        return found is not None and found.lost

    def listen(self, channel: str, wake: Callable[[bytes], None]) -> None:
        """As `Presence.listen`; the caller forgets the channel if this raises an error."""
        found = self.begin(channel, wake)
        if found.answered.wait(self._timeout) and not found.lost:
            return
        if self._refusal:
            raise CoordinatorRefused(
                "Redis does not let this user listen.",
                state=self._refusal,
                owner=self._where,
                remedy="give the user what `kafkadur acl redis` prints",
            )
        raise CoordinatorUnavailable(
            state="another node serves the channel of this member now"
            if found.lost
            else "the channel of this member was not confirmed in time",
            owner=self._where,
            remedy="check that Redis runs and can be reached, and that its ACL allows the channel prefix",
        )

    def begin(self, channel: str, wake: Callable[[bytes], None]) -> _Channel:
        """Begin to listen on a channel, without waiting for the server."""
        found = _Channel(name=channel.encode(), wake=wake)
        with self._lock:
            self._channels[found.name] = found
            if self._connection is not None:
                with contextlib.suppress(RedisError, OSError):  # the thread notices too, and subscribes anew
                    self._connection.send_command("SSUBSCRIBE", found.name)
        return found

    def forget(self, channel: str) -> None:
        """Stop listening on a channel."""
        name = channel.encode()
        with self._lock:
            found = self._channels.pop(name, None)
            if found is not None and not found.lost and self._connection is not None:
                self._forgotten[name] += 1
                with contextlib.suppress(RedisError, OSError):
                    self._connection.send_command("SUNSUBSCRIBE", name)

    def be_at(self, run_id: str) -> None:
        """Connect anew, unless the server at the other end has this run id."""
        with self._lock:
            if self._connection is not None and self._run_id != run_id.encode():
                self._elsewhere = True

    def stop(self) -> None:
        """Have the thread end, and close the connection, without waiting for that."""
        self._closing.set()
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(RedisError, OSError):
                    self._connection.send_command("PING")  # wakes the thread at once

    def close(self) -> None:
        """Stop the thread and close the connection."""
        self.stop()
        self._thread.join()

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
                    self._forgotten.clear()
                    for channel in self._channels.values():
                        if not channel.lost:
                            connection.send_command("SSUBSCRIBE", channel.name)
                    self._connection = connection
                self._serve(connection)
            except NoPermissionError as error:
                self._refusal = str(error)
                self._closing.wait(_RECONNECT_MOST)
            except (RedisError, OSError):
                pass  # reconnect; until then `heard_since` turns to infinity by itself
            except Exception:  # noqa: BLE001 - a defect: reconnect as above, after a pause
                _log.exception("listening to Redis met a defect")
                self._closing.wait(_RECONNECT_MOST)
            finally:
                with self._lock:
                    self._connection = None
                connection.disconnect()
                self._redis.connection_pool.release(connection)
        self._answered = float("-inf")
        self._redis.close()

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
            except MovedError as error:
                self._lose([each for each in self._known() if slot_of(each.name.decode()) == error.slot_id])
                continue
            self._handle(answer)

    def _known(self) -> list[_Channel]:
        with self._lock:
            return list(self._channels.values())

    def _handle(self, answer: Any) -> None:  # noqa: ANN401 - an array, or PONG as text before the first subscription
        kind = answer[0] if isinstance(answer, list) else b"pong"
        if kind == b"pong":
            if self._pings:
                sent_at = self._pings.popleft()
                if sent_at - self._answered >= STOP_AFTER:
                    self._heard_since = self._monotonic()  # first: see `heard_since`
                self._answered = sent_at
            return
        if kind == b"sunsubscribe" and self._forgotten[answer[1]]:
            self._forgotten[answer[1]] -= 1
            return
        channel = self._channels.get(answer[1])
        if channel is None:
            return
        if kind == b"smessage":
            _wake(channel, answer[2])
        elif kind == b"ssubscribe":
            if channel.since == _NEVER:
                channel.since = self._monotonic()
            self._refusal = ""
            channel.answered.set()
        elif kind == b"sunsubscribe":  # the slot has moved
            self._lose([channel])

    def _lose(self, channels: list[_Channel]) -> None:
        """Note that this server does not serve some channels any more, and have their members ask where."""
        for channel in channels:
            channel.lost, channel.since = True, _NEVER
            channel.answered.set()
            _wake(channel, b"")


def _wake(channel: _Channel, message: bytes) -> None:
    try:
        channel.wake(message)
    except Exception:  # noqa: BLE001 - a defect of one listener must not stop the others
        _log.exception("waking met a defect")


def _run_id_of(connection: Any) -> bytes:  # noqa: ANN401 - as above
    connection.send_command("INFO", "server")
    info: bytes = connection.read_response()
    lines = info.splitlines()
    return next((line.partition(b":")[2] for line in lines if line.startswith(b"run_id:")), b"")
