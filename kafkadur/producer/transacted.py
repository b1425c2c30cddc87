"""A producer whose messages are part of a transacted session: they become visible at its commit.

It begins a transaction with the first message, and never replaces its client by itself. The session commits
and rolls back (`transactions.py`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

from kafkadur.message.tracing import Tracing
from kafkadur.producer.client import confluent_client, release
from kafkadur.producer.forwarding import ForwardingProducer
from kafkadur.producer.outbox import Outgoing
from kafkadur_sharing.errors import DeliveryFailed

#: Seconds to wait for the reports of messages that were given up.
_REPORTS_S = 0.1
#: Seconds to wait until Kafka has the messages of a transaction that is rolled back.
_SENT_S = 5.0


class TransactedProducer(ForwardingProducer):
    """A producer of a transacted session, with the `publish`, `send` and `flush` of `Producer`.

    Readers of committed messages see its messages when the session is committed, and never if it is rolled
    back. The other methods are parts of the session. After another process has taken over, the first message
    may wait until Kafka has answered a new client.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        client_id: str | None,
        connection_id: str,
        *,
        timeout: float,
        tracing: Tracing | None = None,
    ) -> None:
        """Connect, and end the open transaction of another producer with the same transactional id.

        `timeout`: seconds for the first request to Kafka; `tracing` as in `Producer`. Raises
        `KafkaException`.
        """
        self._timeout = timeout
        #: whether a transaction was begun that has not ended
        self.is_open = False
        #: whether another process may have ended the transactions of this client
        self._stale = False
        #: how often the client was replaced
        self.renewals = 0
        self._beginning = threading.RLock()
        super().__init__(config, client_id, connection_id, tracing=tracing, client=confluent_client)
        try:
            self._kafka.init_transactions(timeout)
        except BaseException:
            self.end()
            raise

    def close(self, timeout: float | None = None) -> None:
        """Flush; the producer ends with its session."""
        self.flush(timeout)

    def end(self) -> None:
        """Part of closing the session: release everything; messages without a report are given up."""
        with contextlib.suppress(DeliveryFailed):
            super().close(0)

    def begin(self) -> None:
        """Part of the session: begin a transaction unless one is open. Raises `KafkaException`."""
        with self._beginning:
            if not self.is_open:
                if self._stale:
                    self.renew()
                self._kafka.begin_transaction()
                self.is_open = True

    def produce_settled(
        self, topic: str, partition: int, key: bytes, value: bytes, *, deadline: float
    ) -> None:
        """Part of committing: put a record of settled offsets into the transaction.

        Waits for room in the buffer until `deadline` (monotonic seconds). Raises `KafkaException`.
        """
        while True:
            try:
                self._kafka.produce(topic, value=value, key=key, partition=partition)
            except BufferError as error:
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from error  # noqa: SLF001 - its name
                self._kafka.poll(0.05)
            else:
                return

    def commit(self, timeout: float) -> None:
        """Part of the session: commit the transaction, in `timeout` seconds. Raises `KafkaException`."""
        self._kafka.commit_transaction(timeout)
        self.is_open = False

    def abort(self, timeout: float) -> None:
        """Part of the session: roll back the transaction, in `timeout` seconds. Raises `KafkaException`."""
        if self.is_open:
            # else unsent messages are purged, and Kafka refuses to end a transaction without messages
            self._kafka.flush(min(timeout, _SENT_S))
            self._kafka.abort_transaction(timeout)
            self._begin_anew()

    def renew(self) -> None:
        """Part of the session: replace the client, which ends the open transaction.

        Raises `KafkaException`.
        """
        with self._beginning:
            self._stale = False
            new = self._make()
            try:
                new.init_transactions(self._timeout)
            except BaseException:
                self._stale = True
                release(new)
                raise
            old, self._kafka = self._kafka, new
            self.renewals += 1
            old.purge()
            with contextlib.suppress(KafkaException):  # a fatal error, such as a takeover
                old.flush(_REPORTS_S)  # callers that wait for a receipt get an error
            self._begin_anew()
            self._retired = old

    def renew_if_stale(self) -> None:
        """Part of the session: replace a stale client now, unless a transaction is open."""
        with self._beginning, contextlib.suppress(KafkaException):  # the next message tries it again
            if self._stale and not self.is_open:
                self.renew()

    def taken_over(self) -> None:
        """Part of the session: note that the client has to be replaced after a takeover. Any thread."""
        self._stale = True

    def _begin_anew(self) -> None:
        """Begin anew after a rollback: `flush` does not report failures of messages that were rolled back."""
        self._failures.clear()
        self.is_open = False

    def _enqueue(self, outgoing: Outgoing) -> bool:
        """Begin a transaction with the first message; raises `DeliveryFailed` also if that fails."""
        self._check_usable()
        try:
            self.begin()
        except KafkaException as error:
            raise DeliveryFailed(
                "No transaction can be begun.",
                state=error.args[0].str(),
                owner="the transacted session",
                remedy="roll the session back, and receive its messages again",
            ) from error
        return super()._enqueue(outgoing)

    def _look_after(self) -> None:
        """Do nothing: a transaction belongs to one client, which only `renew` replaces."""
