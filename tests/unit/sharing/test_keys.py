"""Keys: what makes two subscriptions the same, and the names derived from a key."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from kafkadur_sharing.errors import InvalidName
from kafkadur_sharing.keys import ClientIdPolicy, SubscriptionKey


def key(
    name: str = "invoices", *, client_id: str | None = None, namespace: str = "ns", **more: object
) -> SubscriptionKey:
    return SubscriptionKey(namespace=namespace, name=name, client_id=client_id, **more)  # type: ignore[arg-type]


DISTINCT = [
    pytest.param(key(), key(client_id="x"), id="S6"),
    pytest.param(key(), key(durable=False), id="N5"),
    pytest.param(key(client_id="x"), key(client_id="x", policy=ClientIdPolicy.UNRESTRICTED), id="C3"),
    pytest.param(key(), key("invoices2"), id="name"),
    pytest.param(key(), key(namespace="other"), id="namespace"),
    pytest.param(key("b", client_id="a"), key("a", client_id="b"), id="swapped"),
    pytest.param(key("c", client_id="a.b"), key("b.c", client_id="a"), id="shifted"),
    pytest.param(key(client_id="null"), key(), id="null-is-a-name"),
]


@pytest.mark.parametrize(("one", "other"), DISTINCT)
def test_different_keys_differ_in_everything_derived(one: SubscriptionKey, other: SubscriptionKey) -> None:
    assert one != other
    assert one.tag != other.tag
    assert one.group != other.group
    assert one.display != other.display or one.namespace != other.namespace


def test_all_derived_names_are_distinct_over_all_combinations() -> None:
    keys = [
        SubscriptionKey(namespace=namespace, durable=durable, client_id=client_id, policy=policy, name=name)
        for namespace, durable, client_id, policy, name in itertools.product(
            ["n", "m"], [True, False], ["a", "b", "unrestricted"], ClientIdPolicy, ["a", "b", "nondurable"]
        )
    ]
    assert len({one.tag for one in keys}) == len(keys)
    assert len({one.group for one in keys}) == len(keys)


def test_tag_is_16_hex_digits_of_the_hash_of_the_json_array() -> None:
    text = b'["ns",true,null,"restricted","invoices"]'
    assert key().tag == hashlib.sha256(text).hexdigest()[:16]
    assert (
        key(client_id="x", policy=ClientIdPolicy.UNRESTRICTED, durable=False).tag
        == (hashlib.sha256(b'["ns",false,"x","unrestricted","invoices"]').hexdigest()[:16])
    )


def test_group_of_the_mirrored_floor() -> None:
    assert key().group == "kafkadur:ns::invoices"
    assert key(client_id="x").group == "kafkadur:ns:x:invoices"


def test_p1_client_id_policy_and_name_make_the_key() -> None:
    """The topic is no part of it; the policies of one client id are two keys."""
    key = SubscriptionKey(namespace="n", client_id="c", policy=ClientIdPolicy.UNRESTRICTED, name="s")
    assert key != SubscriptionKey(namespace="n", client_id="c", name="s")
    assert set(key.to_record()) == {"namespace", "durable", "client_id", "policy", "name"}


def test_policy_has_nothing_to_say_without_a_client_id() -> None:
    assert key(policy=ClientIdPolicy.UNRESTRICTED) == key()


def test_equal_keys_are_one_entry_of_a_dict() -> None:
    assert {key(): 1, key(): 2} == {key(): 2}
    assert key().tag == key().tag


def test_display() -> None:
    assert str(key()) == "invoices"
    assert str(key(client_id="x", policy=ClientIdPolicy.UNRESTRICTED, durable=False)) == (
        "x/invoices (unrestricted, non-durable)"
    )


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"client_id": "a b"}, {"client_id": ""}, {"namespace": "a:b"}]
)
def test_a_part_that_is_no_name_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidName):
        SubscriptionKey(**{"namespace": "ns", "name": "n", **wrong})  # type: ignore[arg-type]
