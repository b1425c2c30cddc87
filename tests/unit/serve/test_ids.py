"""Ids of subscriptions in paths."""

import pytest

from kafkadur.service.ids import id_of, key_of
from kafkadur_sharing.errors import InvalidName
from kafkadur_sharing.keys import ClientIdPolicy, SubscriptionKey


@pytest.mark.parametrize("member", [None, "east"])
@pytest.mark.parametrize(
    ("client_id", "policy"),
    [
        (None, ClientIdPolicy.RESTRICTED),
        ("billing", ClientIdPolicy.RESTRICTED),
        ("billing", ClientIdPolicy.UNRESTRICTED),
    ],
)
def test_an_id_names_its_key(client_id: str | None, policy: ClientIdPolicy, member: str | None) -> None:
    key = SubscriptionKey(
        namespace="n", client_id=client_id, policy=policy, name="unrestricted", topic_member=member
    )
    assert key_of(id_of(key), "n") == key


def test_how_ids_look() -> None:
    unrestricted = SubscriptionKey(namespace="n", client_id="c", policy=ClientIdPolicy.UNRESTRICTED, name="d")
    assert id_of(unrestricted) == "c~d~unrestricted"
    assert id_of(SubscriptionKey(namespace="n", name="d", topic_member="east")) == "d@east"


@pytest.mark.parametrize("wrong", ["", "~", "a~", "~b", "a~b~c", "a~b~unrestricted~", "a b", "a@", "a@b@c"])
def test_what_is_no_id(wrong: str) -> None:
    with pytest.raises(InvalidName):
        key_of(wrong, "n")
