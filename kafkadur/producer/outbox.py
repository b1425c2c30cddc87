"""The waiting messages of one event loop, and the delivery reports on their way to it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from kafkadur.message.tracing import Report, Sending
from kafkadur.producer.receipt import Receipt
from kafkadur_sharing.errors import DeliveryFailed

#: A message on its way into librdkafka's buffer: the arguments of confluent-kafka's `produce`, by position,
#: because names cost a tenth more: topic, value, key, partition, report, report of failures alone if there is
#: no other, timestamp (ms), headers. A plain tuple, because one is made for every message; headers are Any
#: because confluent-kafka's type for them admits nothing narrower.
Outgoing = tuple[str, str | bytes | None, str | bytes | None, int, Report | None, Report | None, int, Any]


class Outbox:
    """The waiting messages and the reports of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        #: Messages that found the buffer full, in the order of their `send` calls.
        self.waiting: deque[tuple[Outgoing, asyncio.Future[Receipt]]] = deque()
        self.drainer: asyncio.Task[None] | None = None
        self._reports: deque[tuple[asyncio.Future[Receipt], Receipt | DeliveryFailed]] = deque()
        self._woken = False

    def report(self, future: asyncio.Future[Receipt], result: Receipt | DeliveryFailed) -> None:
        """Hand a result to the loop, from any thread; one wake-up passes on all results so far."""
        self._reports.append((future, result))
        if self._woken:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            # The loop is closed, so no task is waiting.
            self._reports.clear()

    def _resolve(self) -> None:
        # Cleared before the deque is emptied, so that a report in between wakes the loop again.
        self._woken = False
        while self._reports:
            future, result = self._reports.popleft()
            if future.done():
                continue
            if isinstance(result, Receipt):
                future.set_result(result)
            else:
                future.set_exception(result)


def untold(outgoing: Outgoing, error: BaseException) -> None:
    """End the span of a message that was not sent, if there is one."""
    report = outgoing[4]
    if isinstance(report, Sending):
        report.refused(error)
