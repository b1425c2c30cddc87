"""The names of Jakarta Messaging over kafkadur's synchronous surface, for people who come from there.

Thin: a connection is a `kafkadur.sync.Connection`, a consumer one of its subscriptions, so all that is said
of those holds. What is theirs is in this package: acknowledgement modes, a connection that begins stopped,
listeners one at a time in a session, and messages with the fields' names. Times are in seconds.
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
