"""Which messages a subscription takes, by selector and noLocal, and how many are read to find some.

`kafkadur_sharing/selector.py` evaluates selectors. The member that leases a record that is not taken settles
it as filtered; no application gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import Message

from kafkadur.fetch.buffer import Piece
from kafkadur.message.headers import CLIENT_ID_HEADER, decode, decode_properties, sending_connection
from kafkadur_sharing.definition import Definition, HeaderType, Sharing
from kafkadur_sharing.selector import JMS_HEADERS, Value, parse_selector

#: Offsets that are read ahead at most because of a selector.
MOST_SCANNED = 50_000
#: Records over which the part that a selector takes is averaged.
_LATELY = 100_000

#: Says whether a record is taken.
Takes = Callable[[Message], bool]


class Selection:
    """The selector of one member, and the share of the records that it takes."""

    def __init__(self, takes: Takes | None) -> None:
        """`takes` says which records the subscription takes; None: all of them."""
        self._takes = takes
        #: records read lately, and how many of them the subscription takes
        self._seen = 0
        self._taken = 0

    @property
    def is_all(self) -> bool:
        """Whether every record is taken."""
        return self._takes is None

    def filtered(self, pieces: Iterable[Piece]) -> Iterable[Piece]:
        """Yield the records that the subscription takes; the offsets between them become gaps."""
        takes = self._takes
        if takes is None:
            yield from pieces
            return
        for messages, first, offsets in pieces:
            kept = [index for index, message in enumerate(messages) if takes(message)]
            self._seen += len(messages)
            self._taken += len(kept)
            if self._seen > _LATELY:
                self._seen, self._taken = self._seen // 2, self._taken // 2
            if len(kept) == len(messages):
                yield messages, first, offsets
            elif kept:
                where = [first + index if offsets is None else offsets[index] for index in kept]
                yield [messages[index] for index in kept], where[0], where

    def scan(self, records: int) -> int:
        """Offsets to be read to find so many records that are taken."""
        if self._takes is None or self._seen == 0:
            return records
        density = max(self._taken, 0.5) / self._seen
        return max(records, min(int(records / density), MOST_SCANNED))


def taking(definition: Definition, *, client_id: str | None, connection_id: str) -> Takes | None:
    """Which records a subscription takes, for a member on this connection; None: all of them.

    Raises `InvalidSelector`. noLocal leaves out messages that were sent with the same client id, or over the
    same connection (rule U7); a non-durable subscription has no `client_id`, only the connection (rule V2).
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
    """All names that a selector can use of a record: its properties, and the JMS fields.

    `timestamp` is the record's, in ms. Never raises because of the contents of headers.
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
        if sending_connection(headers) == own_connection:
            return False
        return own_client is None or headers.get(CLIENT_ID_HEADER) != own_client

    return remote
