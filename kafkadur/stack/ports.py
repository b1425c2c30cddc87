"""Choose free loopback ports.

A stack holds the UDP port of the same number for each of its servers, as long as it exists: so no other stack
on this machine chooses the port of a server that is stopped for a while.
"""

import contextlib
import random
import socket
from pathlib import Path

from kafkadur.stack.errors import StackError

HOST = "127.0.0.1"

#: Range of the chosen ports. It ends below the range from which kernels take the ports of *outgoing*
#: connections: a client that tries to reach a stopped server could otherwise be given that server's own
#: port, connect to itself and so keep the server from starting again.
LOWEST, HIGHEST = 15_000, 32_767

TRIES = 200


def free_ports(count: int) -> list[int]:
    """Return ``count`` different ports on which no process listens and which no stack holds.

    Raises StackError if there are none.
    """
    rng = random.Random()  # noqa: S311 - spreads stacks over the range, protects nothing
    highest = min(HIGHEST, _first_outgoing() - 1)
    chosen: list[int] = []
    for _ in range(TRIES + count):
        port = rng.randint(LOWEST, highest) if highest > LOWEST else _any_free()
        if port not in chosen and is_free(port) and not is_held(port):
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise StackError(
        f"No {count} free ports on {HOST} between {LOWEST} and {highest}. Stop what listens there."
    )


def is_free(port: int) -> bool:
    """Tell whether a server could listen on a loopback port now."""
    try:
        # Sets SO_REUSEADDR, as servers do: a predecessor's connection in TIME_WAIT does not count.
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def is_held(port: int) -> bool:
    """Tell whether a stack holds a port, or another process uses it for UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def _any_free() -> int:
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _first_outgoing() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 49_152
