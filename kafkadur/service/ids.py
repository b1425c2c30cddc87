"""How the API names a subscription in a path: `[CLIENT_ID~]NAME[~unrestricted][@MEMBER]`.

Names contain neither `~` nor `@`, so two subscriptions never have one id.
"""

from __future__ import annotations

from kafkadur_sharing.errors import InvalidName
from kafkadur_sharing.keys import ClientIdPolicy, SubscriptionKey

_PART = r"[A-Za-z0-9_.-]{1,200}"
#: What ids look like, as a regular expression of JSON Schema.
ID_PATTERN = rf"^{_PART}(~{_PART}(~unrestricted)?)?(@{_PART})?$"

_UNRESTRICTED = ClientIdPolicy.UNRESTRICTED.value
#: Parts of an id: the name; with the client id; with the client id and its policy.
_NAME, _WITH_CLIENT, _WITH_POLICY = 1, 2, 3


def id_of(key: SubscriptionKey) -> str:
    """Return the id of a durable subscription."""
    parts = [key.name] if key.client_id is None else [key.client_id, key.name]
    if key.policy is ClientIdPolicy.UNRESTRICTED:
        parts.append(_UNRESTRICTED)
    text = "~".join(parts)
    return text if key.topic_member is None else f"{text}@{key.topic_member}"


def key_of(id: str, namespace: str) -> SubscriptionKey:  # noqa: A002 - the word of the API
    """Return the key that an id names. Raises `InvalidName`."""
    text, at, member = id.partition("@")
    parts = text.split("~")
    if len(parts) > _WITH_POLICY or (len(parts) == _WITH_POLICY and parts[2] != _UNRESTRICTED):
        raise InvalidName(
            f"{id!r} is no id of a subscription.",
            remedy="write NAME, CLIENT_ID~NAME, or CLIENT_ID~NAME~unrestricted",
        )
    return SubscriptionKey(
        namespace=namespace,
        client_id=None if len(parts) == _NAME else parts[0],
        policy=ClientIdPolicy.UNRESTRICTED if len(parts) == _WITH_POLICY else ClientIdPolicy.RESTRICTED,
        name=parts[min(len(parts), _WITH_CLIENT) - 1],
        topic_member=member if at else None,
    )
