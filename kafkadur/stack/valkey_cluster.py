"""A cluster of Valkey servers in an embedded stack: half of them primaries, each with one replica."""

import time
from collections.abc import Callable, Sequence
from typing import Final, cast

from kafkadur.stack.errors import StackError
from kafkadur.stack.ports import HOST
from kafkadur.stack.server import POLL_S, START_LIMIT_S
from kafkadur.stack.valkey import Valkey

#: Number of slots of every cluster.
SLOTS: Final = 16_384

#: A node that cannot be reached soon counts as failed, and the slots of other primaries are served meanwhile.
CLUSTER_SETTINGS: Final = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "1000",
    "cluster-require-full-coverage": "no",
}


class ValkeyCluster:
    """The nodes of one cluster. The methods wait for the result; not thread-safe."""

    def __init__(self, nodes: Sequence[Valkey]) -> None:
        """``nodes``: the primaries of a new cluster, followed by one replica for each of them."""
        #: All nodes; which of them are primaries may change.
        self.nodes = tuple(nodes)

    @property
    def url(self) -> str:
        """The URL of the cluster for applications."""
        return self.nodes[0].url_of_cluster(node.address for node in self.nodes)

    def form(self) -> None:
        """Make the running nodes a cluster, unless they are one already. Raises StackError."""
        size = len(self.nodes)
        if self._known(self.nodes[0]) < size:
            half = size // 2
            for number, node in enumerate(self.nodes[:half]):
                first, after = number * SLOTS // half, (number + 1) * SLOTS // half
                _tell(node, "CLUSTER ADDSLOTSRANGE", str(first), str(after - 1))
            for number, node in enumerate(self.nodes):  # else two could claim the same epoch
                _tell(node, "CLUSTER SET-CONFIG-EPOCH", str(number + 1))
            for node in self.nodes[1:]:
                _tell(node, "CLUSTER MEET", HOST, str(self.nodes[0].port), str(self.nodes[0].bus))
            _wait(lambda: all(self._known(node) == size for node in self.nodes), "know each other")
            for primary, replica in zip(self.nodes[:half], self.nodes[half:], strict=True):
                _tell(replica, "CLUSTER REPLICATE", self.id(primary))
        self.settle()

    def settle(self) -> None:
        """Wait until every slot is served, and every running replica has a copy. Raises StackError."""
        _wait(self._is_whole, "become a cluster")

    def id(self, node: Valkey) -> str:
        """Return the cluster's id of a node."""
        return str(_text(node.ask("CLUSTER MYID")))

    def primaries(self) -> tuple[Valkey, ...]:
        """Return the nodes that serve slots now, by their lowest slot."""
        owners = self._owners()
        return tuple(node for _, _, node in sorted(owners, key=lambda owner: owner[0]))

    def replica_of(self, primary: Valkey) -> Valkey:
        """Return the running replica of a primary. Raises StackError if there is none."""
        for node in self.nodes:
            state = node.ask("INFO", "replication") if node.running else None
            if isinstance(state, dict):
                known = cast("dict[str, object]", state)
                if known.get("role") == "slave" and known.get("master_port") == primary.port:
                    return node
        raise StackError(f"{primary.name} has no running replica.")

    def owner(self, slot: int) -> Valkey:
        """Return the node that serves a slot now. Raises StackError if there is none."""
        for first, last, node in self._owners():
            if first <= slot <= last:
                return node
        raise StackError(f"No running node serves slot {slot}.")

    def move(self, slot: int, target: Valkey) -> None:
        """Move a slot with its keys to another primary, as the command-line tool does. Raises StackError."""
        self.migrate(slot, target)
        self.assign(slot, target)

    def migrate(self, slot: int, target: Valkey) -> None:
        """Move the keys of a slot to another primary; until `assign` the slot is between both.

        Raises StackError.
        """
        source = self.owner(slot)
        _tell(target, "CLUSTER SETSLOT", str(slot), "IMPORTING", self.id(source))
        _tell(source, "CLUSTER SETSLOT", str(slot), "MIGRATING", self.id(target))
        while keys := source.ask("CLUSTER GETKEYSINSLOT", str(slot), "100"):
            names = [_text(key) for key in cast("list[bytes]", keys)]
            login = ["AUTH2", "default", target.password] if target.password is not None else []
            _tell(source, "MIGRATE", HOST, str(target.port), "", "0", "5000", *login, "KEYS", *names)

    def assign(self, slot: int, target: Valkey) -> None:
        """Have a primary serve a slot from now on. Raises StackError."""
        for node in (target, *(each for each in self.primaries() if each is not target)):
            _tell(node, "CLUSTER SETSLOT", str(slot), "NODE", self.id(target))

    def _owners(self) -> list[tuple[int, int, Valkey]]:
        """Return the ranges of slots as the primaries themselves say: first, last, node."""
        found: list[tuple[int, int, Valkey]] = []
        for node in self.nodes:
            if not (node.running and node.is_master):
                continue
            for row in cast("list[list[object]]", node.ask("CLUSTER SLOTS") or []):
                first, last, served_by = row[:3]
                if cast("list[object]", served_by)[1] == node.port:
                    found.append((cast("int", first), cast("int", last), node))
        return found

    def _known(self, node: Valkey) -> int:
        return len(self._ids(node))

    @staticmethod
    def _ids(node: Valkey) -> set[str]:
        """Return the ids of the nodes that a node has met."""
        told = node.ask("CLUSTER NODES")
        lines = cast("dict[str, dict[str, object]]", told) if isinstance(told, dict) else {}
        return {str(line["node_id"]) for line in lines.values() if "handshake" not in str(line["flags"])}

    def _is_whole(self) -> bool:
        running = [node for node in self.nodes if node.running]
        if sum(last - first + 1 for first, last, _ in self._owners()) != SLOTS:
            return False
        for node in running:
            told = cast("dict[str, object]", node.ask("CLUSTER INFO") or {})
            if told.get("cluster_state") != "ok" or told.get("cluster_slots_ok") != str(SLOTS):
                return False
            state = cast("dict[str, object]", node.ask("INFO", "replication") or {})
            if state.get("role") == "slave" and state.get("master_link_status") != "up":
                return False
        return True


def _tell(node: Valkey, *command: str) -> None:
    """Send a command that has to succeed. Raises StackError."""
    if node.ask(*command) is None:
        raise StackError(f"{node.name} refused {command[0]}; its log, {node.log}, tells more.")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not done():
        if time.monotonic() > deadline:
            raise StackError(f"The nodes of the Valkey cluster did not {what} in {START_LIMIT_S:.0f} s.")
        time.sleep(POLL_S)
