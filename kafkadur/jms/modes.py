"""The acknowledgement modes of Jakarta Messaging."""

from __future__ import annotations

from enum import IntEnum


class AcknowledgeMode(IntEnum):
    """How the messages of a session are acknowledged (rules K1, K2)."""

    #: by `Session.commit`: everything received and sent, in one transaction of Kafka
    SESSION_TRANSACTED = 0
    #: when `receive` returns a message, or a listener returns
    AUTO_ACKNOWLEDGE = 1
    #: by `Message.acknowledge`: all messages that the session has delivered
    CLIENT_ACKNOWLEDGE = 2
    #: as AUTO_ACKNOWLEDGE, without waiting for the confirmation: a crash may repeat a few messages
    DUPS_OK_ACKNOWLEDGE = 3
    #: by `Message.acknowledge`: only this message
    INDIVIDUAL_ACKNOWLEDGE = 101


#: Modes in which the session acknowledges by itself.
AUTOMATIC = (AcknowledgeMode.AUTO_ACKNOWLEDGE, AcknowledgeMode.DUPS_OK_ACKNOWLEDGE)
