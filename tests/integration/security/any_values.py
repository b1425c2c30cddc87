"""Values of any kind, and requests with one of them in some place, for tests that attack scripts."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st

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


def changed(request: list[Any], at: int, item: Any) -> list[Any]:
    """A request with one thing in it, anywhere inside, put in another's place."""
    if not request:
        return [item]
    place = at % len(request)
    inner = request[place]
    if isinstance(inner, (list, tuple)) and inner and at % 3:
        return [*request[:place], changed(list(inner), at // 3, item), *request[place + 1 :]]
    return [*request[:place], item, *request[place + 1 :]]
