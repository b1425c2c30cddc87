"""Which subscription a receiving link asks for: names as Qpid JMS makes them, and those of other clients."""

from dataclasses import replace

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from kafkadur.gateway.conditions import Refused
from kafkadur.gateway.identity import Asked, ReceivingLink, asked_for, client_id_of, topic_of
from kafkadur_sharing.definition import SubscriptionType

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
PLAIN = ReceivingLink(name="n", address="t", capabilities=frozenset({"topic"}), durable=False)
#: Capabilities of shared consumers.
OF_CLIENT, GLOBAL = frozenset({"topic", "shared"}), frozenset({"topic", "shared", "global"})


def asked(kind: SubscriptionType = EXCLUSIVE, **given: object) -> Asked:
    usual = Asked(
        topic="t",
        durable=None,
        shared=None,
        type=kind,
        is_global=False,
        replaces=False,
        selector=None,
        no_local=False,
    )
    return replace(usual, **given)  # type: ignore[arg-type]  # of a field each


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (replace(PLAIN, name="qpid-jms:receiver:ID:1:1"), asked()),
        (replace(PLAIN, name="dur", durable=True), asked(durable="dur", replaces=True)),
        (replace(PLAIN, name="a|b", durable=True), asked(durable="a|b", replaces=True)),
        (
            replace(PLAIN, name="dur", durable=True, capabilities=OF_CLIENT),
            asked(SHARED, durable="dur", replaces=True),
        ),
        (
            replace(PLAIN, name="dur|2", durable=True, capabilities=OF_CLIENT),
            asked(SHARED, durable="dur", replaces=True),
        ),
        (replace(PLAIN, name="s|volatile1", capabilities=OF_CLIENT), asked(SHARED, shared="s")),
        (
            replace(PLAIN, name="dur|global", durable=True, capabilities=GLOBAL),
            asked(SHARED, durable="dur", is_global=True, replaces=True),
        ),
        (
            replace(PLAIN, name="dur|global12", durable=True, capabilities=GLOBAL),
            asked(SHARED, durable="dur", is_global=True, replaces=True),
        ),
        (
            replace(PLAIN, name="s|global-volatile3", capabilities=GLOBAL),
            asked(SHARED, shared="s", is_global=True),
        ),
        (replace(PLAIN, address="t::work"), asked(SHARED, durable="work", is_global=True)),
        (replace(PLAIN, address="topic://t"), asked()),
        (replace(PLAIN, address="t?type=serial"), asked(SubscriptionType.SERIAL, shared="n")),
        (
            replace(PLAIN, address="t::work?type=key-ordered"),
            asked(SubscriptionType.KEY_ORDERED, durable="work", is_global=True),
        ),
        (replace(PLAIN, selector="a = 1", no_local=True), asked(selector="a = 1", no_local=True)),
        (
            replace(PLAIN, name="s|volatile1", capabilities=OF_CLIENT, no_local=True),
            asked(SHARED, shared="s"),
        ),
        (replace(PLAIN, name="dur", address=None, capabilities=frozenset()), asked(topic="", durable="dur")),
        (
            replace(PLAIN, name="dur|global", address=None, capabilities=frozenset()),
            asked(topic="", durable="dur", is_global=True),
        ),
    ],
)
def test_the_subscription_of_a_link(link: ReceivingLink, expected: Asked) -> None:
    assert asked_for(link) == expected


@pytest.mark.parametrize(
    ("link", "condition"),
    [
        (replace(PLAIN, address="t::"), "amqp:invalid-field"),
        (replace(PLAIN, address="t?type=queue"), "amqp:invalid-field"),
        (replace(PLAIN, address="t?priority=1"), "amqp:invalid-field"),
        (replace(PLAIN, address="queue://t"), "amqp:not-implemented"),
        (replace(PLAIN, capabilities=frozenset({"queue"})), "amqp:not-implemented"),
        (replace(PLAIN, dynamic=True), "amqp:not-implemented"),
    ],
)
def test_what_no_subscription_can_be(link: ReceivingLink, condition: str) -> None:
    with pytest.raises(Refused) as refusal:
        asked_for(link)
    assert refusal.value.condition == condition


def test_a_generated_container_id_is_no_client_id() -> None:
    assert client_id_of("ID:0839ee33-b268:1") is None
    assert client_id_of("") is None
    assert client_id_of("app") == "app"


def test_a_topic_may_have_a_scheme() -> None:
    assert topic_of("topic://t", frozenset()) == topic_of("t", frozenset({"topic"})) == "t"
    assert topic_of(None, frozenset()) == ""
