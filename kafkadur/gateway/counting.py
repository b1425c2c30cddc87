"""Counters of what clients do; written in the event loop, read by any thread."""

from __future__ import annotations

from collections import Counter
from typing import Final

#: Outcomes of messages that clients publish.
ACCEPTED: Final = "accepted"
REJECTED: Final = "rejected"
TRANSACTED: Final = "transacted"
#: Outcomes of transactions.
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"


class Counts:
    """Counters; they only grow."""

    def __init__(self) -> None:
        """Nothing has happened."""
        #: connections that were refused: by their credentials, their client id, or because there are too many
        self.refused_connections = 0
        #: links that were refused, or ended by the gateway, by the condition of AMQP
        self.refused_links: Counter[str] = Counter()
        #: messages from clients, by their outcome
        self.published: Counter[str] = Counter()
        #: messages to clients, each time that one was sent
        self.delivered = 0
        #: messages that clients have settled, by their outcome
        self.settled: Counter[str] = Counter()
        self.transactions: Counter[str] = Counter()
