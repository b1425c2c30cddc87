"""Which server has a key: the one server of a URL, or a node of a cluster.

All keys of a subscription have one hash tag, so one node of a cluster serves them all, with the channels of
its members. Servers say which node serves which slots, and name another node when they are asked for a key
that it serves. A node that took over has another run id, so that the scripts treat its state as that of a
server that replaced another.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError

from kafkadur_coordinators.redis.link import Link, Told
from kafkadur_coordinators.redis.replies import text_of
from kafkadur_coordinators.redis.server import Address, address_of, first_nodes, shown
from kafkadur_sharing.errors import CoordinatorUnavailable, KafkadurError

#: Least time between two questions which node serves which slots, seconds.
_ASK_EVERY: Final = 0.1

#: Number of slots of every cluster.
SLOTS: Final = 16_384


def slot_of(key: str) -> int:
    """Return the slot of a key or a sharded channel."""
    return int(key_slot(key.encode()))


class SlotMap:
    """Which node serves which slots."""

    def __init__(self, ranges: Iterable[tuple[int, int, Address]]) -> None:
        """`ranges`: first slot, last slot, node."""
        self._ranges = sorted(ranges)
        self._firsts = [first for first, _, _ in self._ranges]
        #: single slots that are served by another node than the ranges say
        self._moved: dict[int, Address] = {}

    @classmethod
    def of_reply(cls, rows: Sequence[Any], asked: Address) -> SlotMap:
        """Read the reply to CLUSTER SLOTS of the node `asked`, which may not know its own host."""
        return cls(
            (int(first), int(last), (text_of(node[0] or b"") or asked[0], int(node[1])))
            for first, last, node, *_ in rows
        )

    def moved(self, slot: int, node: Address) -> SlotMap:
        """Return a map in which another node serves a slot, until it is asked for anew."""
        changed = SlotMap(self._ranges)
        changed._moved = {**self._moved, slot: node}
        return changed

    def node(self, slot: int) -> Address | None:
        """Return the node that serves a slot; None: none does."""
        if slot in self._moved:
            return self._moved[slot]
        at = bisect_right(self._firsts, slot) - 1
        if at < 0:
            return None
        _, last, node = self._ranges[at]
        return node if slot <= last else None

    def nodes(self) -> list[Address]:
        """Return the nodes that serve slots, sorted."""
        return sorted({node for _, _, node in self._ranges} | set(self._moved.values()))

    def served(self) -> int:
        """Return how many slots are served."""
        return sum(last - first + 1 for first, last, _ in self._ranges)


class Place(NamedTuple):
    """A server that scripts run on."""

    #: None: the only server of the URL
    node: Address | None
    run_id: str


class Listener(Protocol):
    """Is told of the servers that run scripts, in the thread that calls them."""

    def be_at(self, place: Place) -> None:
        """A server can be used: scripts run there from now on."""

    def follow(self, slots: SlotMap) -> None:
        """The nodes of the cluster serve these slots."""


class Servers:
    """The servers of a URL: connections to them, and which of them has a key. Not thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        on_warning: Callable[[str], None] = lambda _: None,
        listener: Listener | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`url` and `timeout` as in `open_server`; connects at the first call."""
        self._url = url
        self._timeout = timeout
        self._listener = listener
        self._monotonic = monotonic
        self._told = Told(warning=on_warning, connected=self._connected, failed=self._failed)
        self._links: dict[Address, Link] = {}
        #: the nodes of a cluster that the URL names
        self._named = [self._link(node) for node in first_nodes(url)]
        #: the server that the URL names, or the first of these nodes
        self._first = self._named[0] if self._named else self._new_link(None)
        #: of a cluster; None: there is one server, or it was not asked yet
        self._slots: SlotMap | None = None
        #: whether another node may serve a slot by now, and the link that failed
        self._stale = False
        self._suspect: Link | None = None
        self._asked_at = float("-inf")

    def connect(self) -> None:
        """Connect to the server, or to one node of a cluster; raises as `of`."""
        if self._slots is None and not self._named:
            self._first.connect()
            if not self._first.in_cluster:
                return
        if self._slots is None or self._stale:
            self._ask()

    def of(self, key: str) -> Link:
        """Return the connected link to the server that has a key.

        Raises as `Link.connect`, and `CoordinatorUnavailable` if no node of the cluster serves the key.
        """
        if self._slots is None:
            first = self._first
            if first.is_open and not first.in_cluster:
                return first
            self.connect()
            if self._slots is None:
                return first
        elif self._stale:
            self._ask()
        node = self._slots.node(slot_of(key))
        if node is None:
            self._stale = True
            raise self._none(f"no node serves slot {slot_of(key)}")
        link = self._link(node)
        link.connect()
        return link

    def node_of(self, key: str) -> Address | None:
        """Return the node that has a key; None: there is one server, or no node is known."""
        return None if self._slots is None else self._slots.node(slot_of(key))

    def slots(self) -> SlotMap | None:
        """Return which node serves which slots; None: there is one server. Raises as `of`."""
        self.connect()
        return self._slots

    def everyone(self) -> list[Link]:
        """Return the connected links to all servers that have keys; raises as `of`."""
        self.connect()
        links = [self._first] if self._slots is None else [self._link(node) for node in self._slots.nodes()]
        for link in links:
            link.connect()
        return links

    def follow(self, error: AskError, link: Link) -> Link:
        """Return the connected link to the node that `link` named instead of answering; raises as `of`."""
        node = (error.host or self._address(link)[0], error.port)
        if isinstance(error, MovedError) and self._slots is not None:
            self._slots = self._slots.moved(error.slot_id, node)
            self._stale = True  # more may have moved
            self._suspect = link
            if self._listener is not None:
                self._listener.follow(self._slots)
        found = self._link(node)
        found.connect()
        if not isinstance(error, MovedError):
            found.command("ASKING")
        return found

    def close(self) -> None:
        """Close all connections for good."""
        for link in {id(link): link for link in (self._first, *self._links.values())}.values():
            link.close()

    # -- the slots of a cluster

    def _ask(self) -> None:
        """Ask a node which nodes serve which slots; raises `CoordinatorUnavailable` if none answers."""
        now = self._monotonic()
        if self._slots is not None and now - self._asked_at < _ASK_EVERY:
            return
        self._asked_at = now
        failure: KafkadurError | None = None
        for link in self._in_turn():
            try:
                link.connect()
                rows = link.command("CLUSTER", "SLOTS")
            except KafkadurError as error:
                failure = error
                continue
            self._slots = SlotMap.of_reply(rows, self._address(link))
            self._stale = False
            self._suspect = None
            if self._listener is not None:
                self._listener.follow(self._slots)
            return
        raise failure or self._none("no node answered")

    def _address(self, link: Link) -> Address:
        return link.node or address_of(self._url) or ("", 0)

    def _in_turn(self) -> list[Link]:
        """Return the links in the order in which they are asked: one that failed comes last."""
        known = [] if self._slots is None else [self._link(node) for node in self._slots.nodes()]
        random.shuffle(known)  # so that not all processes ask the same node
        links = list({id(link): link for link in (*known, *(self._named or [self._first]))}.values())
        return sorted(links, key=lambda link: link is self._suspect)

    def _none(self, state: str) -> CoordinatorUnavailable:
        return CoordinatorUnavailable(
            state=state,
            owner=shown(self._url),
            remedy="wait until the cluster has elected another node, or repair it; nothing is lost",
        )

    # -- links

    def _link(self, node: Address) -> Link:
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = self._new_link(node)
        return link

    def _new_link(self, node: Address | None) -> Link:
        return Link(self._url, timeout=self._timeout, told=self._told, node=node, monotonic=self._monotonic)

    def _connected(self, link: Link) -> None:
        if self._listener is not None:
            self._listener.be_at(Place(link.node, link.run_id))

    def _failed(self, link: Link) -> None:
        if self._slots is not None:
            self._stale = True
            self._suspect = link
