"""Validation of names: subscriptions, client ids, namespaces (rule U10), topics, and message properties.

`keys.py` makes keys of the names; the grammar of selectors has the same reserved words as below.
"""

from __future__ import annotations

import re

from kafkadur_sharing.errors import InvalidDestination, InvalidName, InvalidProperty

#: Longest name of a subscription, client id or namespace, in characters.
MAX_NAME_LENGTH = 200

#: The words of the selector language, in upper case; in no case can they be names of properties.
SELECTOR_WORDS = frozenset(
    {"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"},
)

#: Prefixes of header names that are reserved for JMS fields and kafkadur itself.
RESERVED_PREFIXES = ("JMS", "kafkadur-")

#: Longest name of a Kafka topic, in characters.
MAX_TOPIC_LENGTH = 249

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
#: Text that librdkafka takes for a pattern, and other signs of more than one topic.
_SEVERAL = re.compile(r"\^.*|.*[*,;|\s].*", re.DOTALL)


def validate_subscription_name(name: str) -> str:
    """Return `name` if it is an allowed subscription name, else raise `InvalidName` (rule U10)."""
    return validate_name("subscription name", name)


def validate_client_id(client_id: str) -> str:
    """Return `client_id` if it is an allowed client id, else raise `InvalidName` (rule U10)."""
    return validate_name("client id", client_id)


def validate_namespace(namespace: str) -> str:
    """Return `namespace` if it is an allowed namespace, else raise `InvalidName` (rule U10)."""
    return validate_name("namespace", namespace)


def validate_topic_member(name: str) -> str:
    """Return `name` if it is an allowed name for a topic member, else raise `InvalidName`."""
    return validate_name("topic member", name)


def validate_name(what: str, name: object) -> str:
    """Return `name` if it is an allowed name, else raise `InvalidName` that says what it is the name of."""
    if not isinstance(name, str):
        raise InvalidName(f"The {what} {name!r} is no text.", remedy=f"give a {what} as a str")
    if not name:
        raise InvalidName(
            f"The {what} is empty.",
            remedy=f"give a {what} of 1 to {MAX_NAME_LENGTH} characters",
        )
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(
            f"The {what} {name[:20]!r}... has {len(name)} characters.",
            remedy=f"use at most {MAX_NAME_LENGTH} characters",
        )
    if _NAME.fullmatch(name) is None:
        wrong = "".join(sorted({char for char in name if _NAME.fullmatch(char) is None}))
        raise InvalidName(
            f"The {what} {name!r} contains {wrong!r}.",
            remedy="use letters A-Z a-z, digits, '_', '.' and '-' only",
        )
    return name


#: Prefixes of kafkadur's own topics (rule U8); the namespace, or a hash of it, follows.
JOURNAL_PREFIX = "kafkadur.journal."
TRANSACTIONS_PREFIX = "kafkadur.transactions."
HISTORY_PREFIX = "kafkadur.history."
WAKING_PREFIX = "kafkadur.waking."
TEMPORARY_PREFIX = "kafkadur.temporary."
_OWN_PREFIXES = (JOURNAL_PREFIX, TRANSACTIONS_PREFIX, HISTORY_PREFIX, WAKING_PREFIX, TEMPORARY_PREFIX)


def validate_subscribed_topic(topic: object) -> str:
    """Return `topic` if a subscription can have it, else raise `InvalidDestination`.

    Several topics and patterns have an error text of their own: a subscription has one topic, because floors,
    order and definitions belong to one. Raises otherwise as `validate_topic` (rule U8).
    """
    if not isinstance(topic, str) or _SEVERAL.fullmatch(topic):
        kind = (
            "a pattern" if isinstance(topic, str) and topic.startswith("^") else "several topics, or no name"
        )
        raise InvalidDestination(
            "A subscription has one topic.",
            state=f"topic={topic!r} is {kind}",
            owner="the caller",
            remedy="make one subscription a topic, each with a name of its own: for topic in topics: "
            "connection.subscribe(topic, durable=f'{name}-{topic}')",
        )
    return validate_topic(topic)


def validate_topic(topic: object) -> str:
    """Return `topic` if it can be the name of a topic of an application, else raise `InvalidDestination`.

    Kafkadur's own topics are refused (rule U8).
    """
    if not isinstance(topic, str) or not topic:
        raise InvalidDestination(
            "The name of a topic is empty." if topic == "" else "The name of a topic is a str.",
            state=f"topic={topic!r}",
            owner="the caller",
            remedy="name a Kafka topic",
        )
    if _NAME.fullmatch(topic) is None or len(topic) > MAX_TOPIC_LENGTH or topic in {".", ".."}:
        raise InvalidDestination(
            "This is not an allowed name for a Kafka topic.",
            state=f"topic={topic[:60]!r}",
            owner="Kafka",
            remedy=f"use 1 to {MAX_TOPIC_LENGTH} letters A-Z a-z, digits, '_', '.' and '-'",
        )
    if topic.startswith(_OWN_PREFIXES):
        raise InvalidDestination(
            "This topic holds state of kafkadur, not messages.",
            state=f"topic={topic!r}",
            owner="kafkadur",
            remedy="name a topic of the application",
        )
    return topic


def validate_property_name(name: str) -> str:
    """Return `name` if it is an allowed name for a message property, else raise `InvalidProperty`.

    It must be an identifier that a selector can use: it starts with a letter, `_` or `$`, continues with
    letters, digits, `_` and `$`, and is not a word of the selector language. Names starting with `JMS` or
    `kafkadur-` are reserved.
    """
    if name.startswith(RESERVED_PREFIXES):
        raise InvalidProperty(
            f"The property name {name!r} is reserved.",
            remedy="choose a name that starts neither with 'JMS' nor with 'kafkadur-'; JMS fields have"
            " parameters of their own",
        )
    if not name.replace("$", "_").isidentifier():
        raise InvalidProperty(
            f"The property name {name!r} is no identifier, so no selector could use it.",
            remedy="start with a letter, '_' or '$' and go on with letters, digits, '_' and '$'",
        )
    if name.upper() in SELECTOR_WORDS:
        raise InvalidProperty(
            f"The property name {name!r} is a word of the selector language.",
            remedy="choose another name",
        )
    return name
