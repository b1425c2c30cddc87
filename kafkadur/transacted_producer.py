"""A producer whose messages are part of a transacted session: they are seen when it is committed.

What it does beyond `producer.py` is to begin a transaction with the first message, and never to be made anew
behind one's back. Commit and roll back are the session's (`transactions.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

from kafkadur.producer import K_contra, Producer, V_contra
from kafkadur.serialization import Serializer
from kafkadur_sharing.errors import DeliveryFailed


class TransactedProducer(Producer[V_contra, K_contra]):
    """A producer of a transacted session; `publish` and `send` are those of `Producer`.

    What it sent is seen by readers of committed messages when the session is committed, and never if that is
    rolled back.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        client_id: str | None,
        connection_id: str,
        *,
        timeout: float,
        key_serializer: Serializer[K_contra] | None = None,
        value_serializer: Serializer[V_contra] | None = None,
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
        super().__init__(
            config,
            client_id,
            connection_id,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        self._kafka.init_transactions(timeout)

    @property
    def is_open(self) -> bool:
        """Whether a transaction was begun that has not ended."""
        return self._open

    def begin(self) -> None:
        """Begin a transaction unless one is open. Raises `KafkaException`."""
        with self._beginning:
            if not self._open:
                if self._stale:
                    self.renew()
                self._kafka.begin_transaction()
                self._open = True

    def produce_settled(
        self, topic: str, partition: int, key: bytes, value: bytes, *, timeout: float
    ) -> None:
        """Put a record of what is settled into the transaction, `timeout` seconds at most for room.

        Raises `KafkaException`.
        """
        self.begin()
        deadline = time.monotonic() + timeout
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
        """Commit what is open, in `timeout` seconds. Raises `KafkaException`."""
        self._kafka.commit_transaction(timeout)
        self._open = False

    def abort(self, timeout: float) -> None:
        """Roll back what is open, in `timeout` seconds. Raises `KafkaException`."""
        if self._open:
            self._kafka.abort_transaction(timeout)
            self._begin_anew()

    def renew(self) -> None:
        """Go on with a new client: what was open has ended, one way or the other. Raises `KafkaException`."""
        with self._beginning:
            new = self._make()
            new.init_transactions(self._timeout)
            old, self._kafka = self._kafka, new
            old.purge()
            old.flush(0.1)  # who waits for a receipt is told
            self._stale = False
            self.renewals += 1
            self._begin_anew()

    def taken_over(self) -> None:
        """Others have ended what was open: the next transaction is begun by a new client. Any thread."""
        self._stale = True

    def _begin_anew(self) -> None:
        """What failed was rolled back: `flush` has nothing to say of it."""
        self._failures.clear()
        self._open = False

    def _ready(self) -> None:
        try:
            self.begin()
        except KafkaException as error:
            raise DeliveryFailed(
                "No transaction can be begun.",
                state=error.args[0].str(),
                owner="the transacted session",
                remedy="roll the session back, and receive its messages again",
            ) from error

    def _look_after(self) -> None:
        """A transaction belongs to one client: a new one is made by `renew` alone."""
