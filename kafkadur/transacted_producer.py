"""A producer whose messages are part of a transacted session: they are seen when it is committed.

What it does beyond `producer.py` is to begin a transaction with the first message, and never to be made anew
behind one's back. Commit and roll back are the session's (`transactions.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import confluent_kafka

from kafkadur.producer import K_contra, Producer, V_contra
from kafkadur.serialization import Serializer


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
        self._beginning = threading.Lock()
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
                self._kafka.begin_transaction()
                self._open = True

    def produce_settled(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """Put a record of what is settled into the transaction. Raises `KafkaException`, `BufferError`."""
        self.begin()
        self._kafka.produce(topic, value=value, key=key, partition=partition)

    def commit(self, timeout: float) -> None:
        """Commit what is open, in `timeout` seconds. Raises `KafkaException`."""
        self._kafka.commit_transaction(timeout)
        self._open = False

    def abort(self, timeout: float) -> None:
        """Roll back what is open, in `timeout` seconds. Raises `KafkaException`."""
        if self._open:
            self._kafka.purge()
            self._kafka.abort_transaction(timeout)
            self._open = False

    def renew(self) -> None:
        """Go on with a new client: what was open has ended, one way or the other. Raises `KafkaException`."""
        new = confluent_kafka.Producer(self._settings)
        new.init_transactions(self._timeout)
        old, self._kafka = self._kafka, new
        self._open = False
        old.purge()

    def _ready(self) -> None:
        self.begin()

    def _look_after(self) -> None:
        """A transaction belongs to one client: a new one is made by `renew` alone."""
