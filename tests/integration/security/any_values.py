"""Parts of tests that attack scripts: values of any kind, requests that contain one, temporary worlds."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings

from kafkadur.stack import Valkey
from tests.integration.coordinators.world import World

INTEGERS = st.integers(-5, 40) | st.sampled_from(
    [-1, 0, 1, 2**31, 2**32, 2**47, 2**48, 2**53, 2**63 - 1, -(2**63), 2**64 - 1]
)
FRACTIONS = st.sampled_from([0.5, 2.5, 9.5, 19.5])
_NESTED: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | INTEGERS
    | st.floats()
    | st.binary(max_size=12)
    | st.text("a}{:*m-", max_size=8),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)
#: Anything that can be in a request. Numbers that are nearly right do more harm than what is far off.
ITEMS: st.SearchStrategy[Any] = st.one_of(FRACTIONS, INTEGERS, _NESTED)


def many(examples: int) -> settings:
    """Settings of a test with so many random examples. A failing one is not made smaller: that takes long."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.explicit, Phase.generate],
    )


@contextmanager
def temporary_world(server: Valkey, client: Any, *, type_: str = "shared") -> Generator[World]:
    """Provide a subscription with two partitions, and remove it afterwards through `client`."""
    world = World(server.url, type_=type_, partitions=2).create()
    try:
        yield world
    finally:
        client.delete(*client.scan_iter(match=f"{world.address.root}*", count=1_000))
        world.close()
