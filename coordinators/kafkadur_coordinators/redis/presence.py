"""Presence: the connections on which a process listens. They show that the process lives, and wake it.

Every member has a sharded channel. Scripts see whether a process listens on it (PUBSUB SHARDNUMSUB) within
milliseconds of a process's death; a message on it wakes the member. In turn the process pings this
connection: a member stops dispatching when no ping sent within `STOP_AFTER` was answered, and others take
over no earlier than 0.5 s after the channel fell silent (lua/include/context.lua). The listener decides what
to do when it is woken.

In a cluster a member's channel is on the node that has the keys of its subscription, so the process listens
on several nodes (`listening.py`). The coordinators tell which nodes those are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kafkadur_coordinators.redis.cluster import Place, SlotMap, slot_of
from kafkadur_coordinators.redis.listening import ListeningConnection
from kafkadur_coordinators.redis.server import Address, is_clustered, shown
from kafkadur_sharing.errors import CoordinatorUnavailable

_NEVER = float("inf")
Wake = Callable[[bytes], None]


class Presence:
    """The listening connections of this process to one server, or to the nodes of a cluster. Thread-safe."""

    def __init__(self, url: str, *, timeout: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Listen on the server; `timeout` in seconds bounds connecting and the first answer to `listen`."""
        self._url = url
        self._timeout = timeout
        self._monotonic = monotonic
        self._lock = threading.Lock()
        #: of a cluster; None: there is one server, or no coordinator has told yet
        self._slots: SlotMap | None = None
        self._connections: dict[Address | None, ListeningConnection] = {}
        #: by channel: what to call, and on which connection the channel is
        self._wakes: dict[str, Wake] = {}
        self._where: dict[str, ListeningConnection] = {}
        if not is_clustered(url):
            self._connection(None)

    def heard_since(self, channel: str) -> float:
        """Return since when others hear this process on `channel` (monotonic seconds); infinity: not now.

        They do while a ping sent within `STOP_AFTER` was answered. After a pause other members may have taken
        over: a lease may be used again only after an exchange that was sent later than this (invariant I5).
        """
        connection = self._where.get(channel)
        return _NEVER if connection is None else connection.heard_since(channel)

    def alive(self, channel: str) -> bool:
        """Whether others hear this process on `channel` now."""
        return self.heard_since(channel) < _NEVER

    def listen(self, channel: str, wake: Wake) -> None:
        """Call `wake` (in a thread of its own; it must not block) with every message on `channel`.

        An empty message says that the node of the cluster does not serve the channel any more. Returns when
        the server has confirmed; raises `CoordinatorUnavailable` if it does not in time, and
        `CoordinatorRefused` if this user may not listen there.
        """
        with self._lock:
            connection = self._connection_of(channel)
            if connection is None:
                raise CoordinatorUnavailable(
                    state="no node of the cluster is known that serves the channel of this member",
                    owner=shown(self._url),
                    remedy="wait until the cluster has elected another node, or repair it; nothing is lost",
                )
            self._wakes[channel], self._where[channel] = wake, connection
        try:
            connection.listen(channel, wake)
        except BaseException:
            self.forget(channel)
            raise

    def forget(self, channel: str) -> None:
        """Stop listening on `channel`."""
        with self._lock:
            self._wakes.pop(channel, None)
            connection = self._where.pop(channel, None)
        if connection is not None:
            connection.forget(channel)

    def be_at(self, place: Place) -> None:
        """Listen on this server: there the scripts of this process run now.

        An old master may go on to answer its connections when another one has taken over.
        """
        with self._lock:
            connection = self._connections.get(place.node)
        if connection is not None:
            connection.be_at(place.run_id)

    def follow(self, slots: SlotMap) -> None:
        """Listen on the nodes of the cluster that serve the channels now."""
        with self._lock:
            self._slots = slots
            for channel, wake in self._wakes.items():
                before, now = self._where[channel], self._connection_of(channel)
                if now is None or (now is before and not now.has_lost(channel)):
                    continue
                if now is not before:
                    before.forget(channel)
                    self._where[channel] = now
                now.begin(channel, wake)
            for node in self._connections.keys() - set(slots.nodes()):
                self._connections.pop(node).stop()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()

    def _connection_of(self, channel: str) -> ListeningConnection | None:
        """Return the connection to the server that has a channel."""
        if self._slots is None:
            return self._connections.get(None)
        node = self._slots.node(slot_of(channel))
        return None if node is None else self._connection(node)

    def _connection(self, node: Address | None) -> ListeningConnection:
        found = self._connections.get(node)
        if found is None:
            found = self._connections[node] = ListeningConnection(
                self._url, timeout=self._timeout, monotonic=self._monotonic, node=node
            )
        return found


_shared: dict[tuple[str, float], tuple[Presence, int]] = {}
_shared_lock = threading.Lock()


def acquire(url: str, timeout: float) -> Presence:
    """The process's presence on these servers, started at its first use. Give it back with `release`.

    `timeout` in seconds as in `Presence`.
    """
    with _shared_lock:
        presence, users = _shared.get((url, timeout), (None, 0))
        if presence is None:
            presence = Presence(url, timeout=timeout)
        _shared[url, timeout] = (presence, users + 1)
        return presence


def release(url: str, timeout: float) -> None:
    """Give the process's presence on these servers back; the last one closes it."""
    with _shared_lock:
        presence, users = _shared[url, timeout]
        if users > 1:
            _shared[url, timeout] = (presence, users - 1)
            return
        del _shared[url, timeout]
    presence.close()
