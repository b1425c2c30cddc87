"""Which messages a subscription takes: its selector and noLocal, asked of a record as it was read.

What a selector means is `kafkadur_sharing/selector.py`. A record that is not taken is settled as filtered by
the member with its lease (`consumer/selection.py`); no member gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import Message

from kafkadur.message.headers import CLIENT_ID_HEADER, CONNECTION_ID_HEADER, decode, decode_properties
from kafkadur_sharing.definition import Definition, HeaderType, Sharing
from kafkadur_sharing.selector import JMS_HEADERS, Value, parse_selector

#: Says whether a record is taken.
Takes = Callable[[Message], bool]


def taking(definition: Definition, *, client_id: str | None, connection_id: str) -> Takes | None:
    """What a subscription takes, for a member on this connection; None: everything.

    Raises `InvalidSelector`. noLocal leaves out what was sent with the same client id, or over the same
    connection (rule U7); without durability there is no `client_id` and only the latter (rule V2).
    """
    selector = parse_selector(definition.selector)
    local = definition.no_local and definition.sharing is Sharing.UNSHARED  # elsewhere it means nothing (D4)
    remote = _remote(client_id, connection_id) if local else None
    if selector is None:
        return remote
    matches, types = selector.matches, definition.header_types
    read = _fields_and_properties if selector.names & JMS_HEADERS else _properties

    def takes(message: Message) -> bool:
        return matches(read(message, types)) is True

    if remote is None:
        return takes
    return lambda message: remote(message) and takes(message)


def _headers(message: Message) -> Any:  # noqa: ANN401 - the stub allows texts as values, the wire does not
    return message.headers()


def _properties(message: Message, types: Mapping[str, HeaderType] | None) -> Mapping[str, Value]:
    return decode_properties(_headers(message), types)


def _fields_and_properties(message: Message, types: Mapping[str, HeaderType] | None) -> Mapping[str, Value]:
    return fields_and_properties(_headers(message), message.timestamp()[1], types)


def fields_and_properties(
    headers: Iterable[tuple[str, bytes | None]] | None,
    timestamp: int,
    header_types: Mapping[str, HeaderType] | None,
) -> Mapping[str, Value]:
    """All that a selector can ask of a record: its properties, and the JMS fields under their names.

    `timestamp` is the record's, in ms. Never raises for what headers contain.
    """
    decoded = decode(headers, header_types)
    fields = decoded.fields
    return {
        **decoded.properties,
        "JMSMessageID": fields.message_id,
        "JMSTimestamp": timestamp,
        "JMSCorrelationID": fields.correlation_id,
        "JMSType": fields.type,
        "JMSPriority": fields.priority,
        "JMSDeliveryMode": fields.delivery_mode,
    }


def _remote(client_id: str | None, connection_id: str) -> Takes:
    own_client = None if client_id is None else client_id.encode()
    own_connection = connection_id.encode()

    def remote(message: Message) -> bool:
        headers = dict(_headers(message) or ())
        if headers.get(CONNECTION_ID_HEADER) == own_connection:
            return False
        return own_client is None or headers.get(CLIENT_ID_HEADER) != own_client

    return remote
