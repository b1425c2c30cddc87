"""Clients of Kafka that are made for the first question, and end when they are not needed for a while.

Each has several threads, and a connection to each broker that it asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

Client = TypeVar("Client", bound=AdminClient | Consumer)

#: Seconds after its last use at which a client ends. The next one needs some 10 ms until it is connected.
REST_S: Final = 10.0


class KeptClient(Generic[Client]):
    """Keeps one client for several threads.

    A thread that asks holds a reference to its client, so another thread may replace the client meanwhile.
    """

    def __init__(
        self, make: Callable[[], Client], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`make` returns a new client."""
        self._make = make
        self._monotonic = monotonic
        self._client: Client | None = None
        self._used_at = monotonic()

    def get(self) -> Client:
        """Return the client; raises what making one raises."""
        self._used_at = self._monotonic()
        client = self._client
        if client is None:
            client = self._client = self._make()
        return client

    def renew(self, lost: Client) -> None:
        """Make another client for the next question, unless another thread has replaced `lost` already."""
        if self._client is lost:
            self._client = None

    def rest(self) -> None:
        """Release a client that was not asked for `REST_S` seconds; a later question makes another one."""
        if self._client is not None and self._monotonic() - self._used_at > REST_S:
            last = [self._client]
            self._client = None
            end(last)

    def close(self) -> None:
        """Release the client, its threads and connections; a later question makes another one."""
        if self._client is not None:
            last = [self._client]
            self._client = None
            end(last, wait=True)


def end(clients: list[Any], *, close: bool = False, wait: bool = False) -> None:
    """Destroy clients that only this list refers to, in another thread; `wait` for its end.

    `close`: end Consumers also where something still refers to them. No thread may be using one.

    Most clients have no other end than their destruction, which would wait for the garbage collector. It
    takes as long as the client's threads need to end. In the main thread, what a signal handler raises
    meanwhile would be lost, and Python would raise `SystemError` in its place.
    """

    def destroy() -> None:
        for client in clients if close else ():
            if isinstance(client, Consumer):
                client.close()
        clients.clear()

    try:
        destroying = threading.Thread(target=destroy, name="kafkadur-client-end", daemon=True)
        destroying.start()
        if wait:
            destroying.join()
    except RuntimeError:  # the system allows no further thread
        destroy()
