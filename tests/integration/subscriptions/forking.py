"""A child of this process that makes calls, and what became of them."""

import os
from collections.abc import Callable
from typing import Any

from kafkadur_sharing.errors import ForkedConnection


def in_child(calls: dict[str, Callable[[], Any]]) -> str:
    """Fork, make the calls in the child, and return a line for each that did not raise `ForkedConnection`."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            for name, call in calls.items():
                try:
                    call()
                    os.write(tell, f"{name}: no error\n".encode())
                except ForkedConnection:
                    pass
                except BaseException as error:  # noqa: BLE001 - whatever it is, the parent tells it
                    os.write(tell, f"{name}: {error!r}\n".encode())
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(told) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text
