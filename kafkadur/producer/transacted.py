"""A producer whose messages are part of a transacted session: they are seen when it is committed.

What it does beyond `producer.py` is to begin a transaction with the first message, and never to be made anew
behind one's back. Commit and roll back are the session's (`transactions.py`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

from kafkadur.producer.outbox import Outgoing
from kafkadur.producer.producer import Producer, release
from kafkadur_sharing.errors import DeliveryFailed

#: So long it is waited for reports of what was given up, seconds.
_REPORTS_S = 0.1
#: So long it is waited until Kafka has what is rolled back, seconds.
_SENT_S = 5.0


class TransactedProducer(Producer[str | bytes | None, str | bytes | None]):
    """A producer of a transacted session: `publish`, `send` and `flush` as those of `Producer`.

    What it sent is seen by readers of committed messages when the session is committed, and never if that is
    rolled back. All else is the session's. After others took over from it the first message may wait until
    Kafka has answered a new client.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        client_id: str | None,
        connection_id: str,
        *,
        timeout: float,
    ) -> None:
        """`timeout` in seconds bounds the first question to Kafka.

        Connects, and ends what another producer of the same transactional id has open. Raises
        `KafkaException`.
        """
        self._timeout = timeout
        self._open = False
        #: others may have ended the transactions of this client
        self._stale = False
        #: how often the client was made anew
        self.renewals = 0
        self._beginning = threading.RLock()
        super().__init__(config, client_id, connection_id)
        try:
            self._kafka.init_transactions(timeout)
        except BaseException:
            self.end()
            raise

    def close(self, timeout: float | None = None) -> None:
        """As `flush`: it ends with its session."""
        self.flush(timeout)

    def end(self) -> None:
        """Part of closing the session: release everything; what has no report is given up."""
        with contextlib.suppress(DeliveryFailed):
            super().close(0)

    @property
    def is_open(self) -> bool:
        """Whether a transaction was begun that has not ended."""
        return self._open

    def begin(self) -> None:
        """Part of the session: begin a transaction unless one is open. Raises `KafkaException`."""
        with self._beginning:
            if not self._open:
                if self._stale:
                    self.renew()
                self._kafka.begin_transaction()
                self._open = True

    def produce_settled(
        self, topic: str, partition: int, key: bytes, value: bytes, *, deadline: float
    ) -> None:
        """Part of committing: put a record of what is settled into the transaction.

        It waits for room until `deadline` (monotonic seconds). Raises `KafkaException`.
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
        """Part of the session: commit what is open, in `timeout` seconds. Raises `KafkaException`."""
        self._kafka.commit_transaction(timeout)
        self._open = False

    def abort(self, timeout: float) -> None:
        """Part of the session: roll back what is open, in `timeout` seconds. Raises `KafkaException`."""
        if self._open:
            # what was not sent yet would be purged, and Kafka refuse to end a transaction it never heard of
            self._kafka.flush(min(timeout, _SENT_S))
            self._kafka.abort_transaction(timeout)
            self._begin_anew()

    def renew(self) -> None:
        """Part of the session: go on with a new client; what was open has ended, one way or the other.

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
            with contextlib.suppress(KafkaException):  # a fatal one, such as that it was taken over
                old.flush(_REPORTS_S)  # callers that wait for a receipt are told
            self._begin_anew()
            self._retired = old

    def renew_if_stale(self) -> None:
        """Part of the session: make the client anew now if that has to be done, and nothing is open."""
        with self._beginning, contextlib.suppress(KafkaException):  # then it is done with the next message
            if self._stale and not self._open:
                self.renew()

    def taken_over(self) -> None:
        """Part of the session: others have ended what was open; a new client is needed. Any thread."""
        self._stale = True

    def _begin_anew(self) -> None:
        """What failed was rolled back: `flush` has nothing to say of it."""
        self._failures.clear()
        self._open = False

    def _enqueue(self, outgoing: Outgoing) -> bool:
        """Begin a transaction with the first message; raises `DeliveryFailed`, also if none can be begun."""
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
        """A transaction belongs to one client: a new one is made by `renew` alone."""
