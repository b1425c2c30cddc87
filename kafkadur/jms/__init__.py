"""The synchronous API of kafkadur under the names of Jakarta Messaging.

A connection uses a `kafkadur.sync.Connection`, and a consumer one of its subscriptions: their documentation
applies. This package adds acknowledgement modes, connections that are stopped at first, listeners that a
session calls one at a time, and messages with the names of the JMS fields. Times are in seconds.
"""

from kafkadur.jms.connection import Connection, ConnectionFactory
from kafkadur.jms.consumer import MessageConsumer
from kafkadur.jms.message import Message
from kafkadur.jms.modes import AcknowledgeMode
from kafkadur.jms.producer import MessageProducer
from kafkadur.jms.session import Session

__all__ = [
    "AcknowledgeMode",
    "Connection",
    "ConnectionFactory",
    "Message",
    "MessageConsumer",
    "MessageProducer",
    "Session",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules that they are in."""
    return __all__
