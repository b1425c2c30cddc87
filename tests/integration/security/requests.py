"""Requests to scripts in which one value is another one."""

from typing import Any


def changed(request: list[Any], at: int, item: Any) -> list[Any]:
    """Return a request in which `item` replaces one value; `at` chooses the value, at any depth."""
    if not request:
        return [item]
    place = at % len(request)
    inner = request[place]
    if isinstance(inner, (list, tuple)) and inner and at % 3:
        return [*request[:place], changed(list(inner), at // 3, item), *request[place + 1 :]]
    return [*request[:place], item, *request[place + 1 :]]
