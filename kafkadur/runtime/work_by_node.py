"""Work for the nodes of a cluster: a node that does not answer does not stop the work for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_coordinators.redis.server import Address
from kafkadur_sharing.errors import CoordinatorRefused, CoordinatorUnavailable

T = TypeVar("T")


class WorkByNode:
    """Does work for all nodes together, and for each node alone after it failed, until it succeeds again."""

    def __init__(self) -> None:
        """All nodes are taken to answer."""
        #: nodes whose last work failed
        self._failed: set[Address | None] = set()

    def work(
        self,
        coordinator: RedisCoordinator,
        items: Iterable[T],
        key: Callable[[T], str],
        work: Callable[[list[T]], None],
    ) -> None:
        """Call `work` with all items whose nodes did not fail last time, then with those of each other node.

        `key` returns a key of Redis that belongs to an item. Raises the first error of a node, at the end;
        other errors at once.
        """
        groups: dict[Address | None, list[T]] = {}
        together: list[T] = []
        nodes: set[Address | None] = set()
        for item in items:
            node = coordinator.node_of(key(item))
            if node in self._failed:
                groups.setdefault(node, []).append(item)
            else:
                together.append(item)
                nodes.add(node)
        failure: CoordinatorUnavailable | CoordinatorRefused | None = None
        for concerned, some in [(nodes, together), *(({node}, group) for node, group in groups.items())]:
            try:
                if some:
                    work(some)
            except (CoordinatorUnavailable, CoordinatorRefused) as error:
                failure = failure or error
                self._failed |= concerned
            else:
                self._failed -= concerned
        if failure is not None:
            raise failure
