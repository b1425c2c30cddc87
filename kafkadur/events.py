"""What a subscription tells an application about itself, beside its messages."""

from enum import StrEnum


class Event(StrEnum):
    """Something that happened to a member."""

    #: it holds the lane of a priority subscription now
    BECAME_ACTIVE = "became-active"
    #: somebody else holds it, or it is not known any more whether this member does
    BECAME_STANDBY = "became-standby"
    #: its handler failed so often that nothing is handed out for a while
    BREAKER_OPENED = "breaker-opened"
    #: after that while one message is tried
    BREAKER_HALF_OPENED = "breaker-half-opened"
    #: that one succeeded, and messages come again
    BREAKER_CLOSED = "breaker-closed"
