"""The configuration of a producer's Kafka client, and the headers that identify the sender."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kafkadur.message.headers import (
    CLIENT_ID_HEADER,
    CONNECTION_ID_HEADER,
    MESSAGE_ID_HEADER,
    message_id_prefix,
    sending_connection,
)
from kafkadur_coordinators.client_log import client_log
from kafkadur_sharing.errors import IllegalState

#: Defaults below the user's configuration. `murmur2_random` puts a key on the same partition as the default
#: partitioner of Java, and distributes messages without a key.
DEFAULTS: Final[Mapping[str, object]] = {
    "acks": "all",
    "enable.idempotence": True,
    # With more, the first message to a new topic can be lost and reported as sent: docs/decisions/0032.
    "max.in.flight.requests.per.connection": 1,
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "compression.type": "none",
}


def producer_settings(config: Mapping[str, object], connection_id: str) -> dict[str, Any]:
    """Return `DEFAULTS` with the user's configuration over them."""
    if config.get("delivery.report.only.error"):
        raise IllegalState(
            "The setting delivery.report.only.error is not possible here.",
            state="receipts are made of the delivery reports it switches off",
            remedy="remove it from the producer's configuration",
        )
    defaults: dict[str, Any] = {**DEFAULTS, "client.id": f"kafkadur-{connection_id}"}
    acks = config.get("acks", config.get("request.required.acks", "all"))
    if str(acks) not in {"all", "-1"}:
        # librdkafka refuses idempotence with fewer acknowledgements.
        del defaults["enable.idempotence"]
    # librdkafka logs to the loggers of this library, not to stderr.
    defaults["logger"] = client_log
    return {**defaults, **config}


class SenderHeaders(NamedTuple):
    """The headers that identify the sender: the same for every message of a producer."""

    #: of a message with properties
    full: list[tuple[str, bytes | None]]
    #: of a message that has nothing else but its id, which may begin with that of the connection
    brief: list[tuple[str, bytes | None]]


def sender_headers(client_id: str | None, connection_id: str, *, alone: bool) -> SenderHeaders:
    """Return the headers that identify the sender of a message.

    Not `alone`: others, such as a serializer, may add headers to any message.
    """
    headers: list[tuple[str, bytes | None]] = []
    if client_id is not None:
        headers.append((CLIENT_ID_HEADER, client_id.encode()))
    full = [*headers, (CONNECTION_ID_HEADER, connection_id.encode())]
    example = f"{message_id_prefix(connection_id, '0' * 8)}1".encode()
    is_in_id = sending_connection({MESSAGE_ID_HEADER: example}) == connection_id.encode()
    return SenderHeaders(full, headers if alone and is_in_id else full)
