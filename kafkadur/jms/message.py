"""A received message with the names of its fields in Jakarta Messaging."""

from __future__ import annotations

from collections.abc import Callable

from kafkadur.message.headers import Property
from kafkadur.sync import Delivery


class Message:
    """A message that a consumer received; `delivery` is the underlying delivery."""

    def __init__(self, delivery: Delivery, acknowledge: Callable[[Delivery], None]) -> None:
        """Made by a consumer."""
        self.delivery = delivery
        self._acknowledge = acknowledge

    @property
    def body(self) -> bytes | None:
        """The value as it is in Kafka; None for a tombstone."""
        return self.delivery.raw_value

    @property
    def text(self) -> str | None:
        """The value as text; raises `UnicodeDecodeError` if it is not UTF-8."""
        body = self.body
        return None if body is None else body.decode()

    @property
    def properties(self) -> dict[str, Property]:
        """The properties of the application, with their types."""
        return self.delivery.properties

    @property
    def jms_message_id(self) -> str | None:
        """JMSMessageID; None if the sender gave none."""
        return self.delivery.fields.message_id

    @property
    def jms_correlation_id(self) -> str | None:
        """JMSCorrelationID."""
        return self.delivery.fields.correlation_id

    @property
    def jms_type(self) -> str | None:
        """JMSType."""
        return self.delivery.fields.type

    @property
    def jms_priority(self) -> int:
        """JMSPriority, 0 to 9."""
        return self.delivery.fields.priority

    @property
    def jms_delivery_mode(self) -> str:
        """JMSDeliveryMode: PERSISTENT or NON_PERSISTENT; Kafka keeps both."""
        return self.delivery.fields.delivery_mode

    @property
    def jms_timestamp(self) -> int:
        """JMSTimestamp: that of the record, ms since 1970."""
        return self.delivery.timestamp

    @property
    def jms_expiration(self) -> int:
        """JMSExpiration, ms since 1970; 0: it never expires."""
        return self.delivery.fields.expiration or 0

    @property
    def jms_delivery_time(self) -> int:
        """JMSDeliveryTime, ms since 1970: it was not delivered before; without a delay JMSTimestamp."""
        return self.delivery.fields.delivery_time or self.jms_timestamp

    @property
    def jms_destination(self) -> str:
        """JMSDestination: the topic."""
        return self.delivery.topic

    @property
    def jms_redelivered(self) -> bool:
        """JMSRedelivered: it may have been delivered before."""
        return self.delivery.redelivered

    @property
    def jmsx_delivery_count(self) -> int:
        """JMSXDeliveryCount: 1 for the first delivery, 2 and more for others (rule K4)."""
        return max(self.delivery.attempt, 2 if self.jms_redelivered else 1)

    def acknowledge(self) -> None:
        """Acknowledge as the session's mode says, and wait for the confirmation (rule K1).

        CLIENT_ACKNOWLEDGE: all messages that the session delivered; INDIVIDUAL_ACKNOWLEDGE: this message; the
        other modes: nothing. Raises `LeaseLost` for messages that are delivered again.
        """
        self._acknowledge(self.delivery)

    def __repr__(self) -> str:
        """Show the position of the message, never its content."""
        return f"<Message {self.delivery!r}>"
