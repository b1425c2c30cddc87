"""A producer that sends records with headers of the caller's own: of several connections, for the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from kafkadur.producer.producer import Producer
from kafkadur.producer.receipt import Receipt


class ForwardingProducer(Producer[str | bytes | None, str | bytes | None]):
    """Sends records as they are."""

    def forward(
        self,
        topic: str,
        value: bytes | None,
        *,
        headers: Sequence[tuple[str, bytes | None]],
        key: bytes | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[Receipt]:
        """Put a record into the buffer and return an awaitable for its receipt, as `send` does.

        `headers` are written as they are. Raises as `send`, and awaiting raises `DeliveryFailed`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        outbox = self._outbox(loop)
        report = partial(self._send_report, outbox, future, None)
        self._put(self._outgoing(topic, value, key, partition, None, list(headers), report), future, outbox)
        return future
