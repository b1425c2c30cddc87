"""A client of Kafka that is made for the first question, and anew after it has lost Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

Client = TypeVar("Client", bound=AdminClient | Consumer)


class KeptClient(Generic[Client]):
    """Keeps one client for several threads.

    A thread that asks holds a reference to its client, so another thread may replace the client meanwhile.
    """

    def __init__(self, make: Callable[[], Client]) -> None:
        """`make` returns a new client."""
        self._make = make
        self._client: Client | None = None

    def get(self) -> Client:
        """Return the client; raises what making one raises."""
        client = self._client
        if client is None:
            client = self._client = self._make()
        return client

    def renew(self, lost: Client) -> None:
        """Make another client for the next question, unless another thread has replaced `lost` already."""
        if self._client is lost:
            self._client = None

    def close(self) -> None:
        """Release the client, its threads and connections; a later question makes another one.

        An admin client has no end but its destruction, which would wait for the garbage collector. Another
        thread destroys it: in the main thread what a signal handler raises meanwhile would be lost, and
        Python raise `SystemError` in its place.
        """
        if self._client is None:
            return
        last = [self._client]
        self._client = None
        try:
            destroying = threading.Thread(target=last.clear, name="kafkadur-client-end", daemon=True)
            destroying.start()
            destroying.join()
        except RuntimeError:  # the system allows no further thread
            last.clear()
