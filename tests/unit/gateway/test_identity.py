"""Which subscription a receiving link asks for: names as Qpid JMS makes them, and those of other clients."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from kafkadur.gateway.conditions import Refused
from kafkadur.gateway.destinations import Destination, Kind, destination_of, home_of, temporary
from kafkadur.gateway.identity import Asked, ReceivingLink, asked_for, check_name, client_id_of
from kafkadur_sharing.definition import SubscriptionType

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
PLAIN = ReceivingLink(name="n", address="t", capabilities=frozenset({"topic"}), durable=False)
TEMPORARY = "kafkadur.temporary.queue.3.0123456789ab.0123456789abcdef"
#: Capabilities of shared consumers.
OF_CLIENT, GLOBAL = frozenset({"topic", "shared"}), frozenset({"topic", "shared", "global"})


def asked(kind: SubscriptionType = EXCLUSIVE, **given: object) -> Asked:
    usual = Asked(
        destination=Destination("t"),
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
        (replace(PLAIN, copies=True), asked()),  # durable subscribers of Qpid JMS say so
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
        (
            replace(PLAIN, name="dur", address=None, capabilities=frozenset()),
            asked(destination=None, durable="dur"),
        ),
        (
            replace(PLAIN, name="dur|global", address=None, capabilities=frozenset()),
            asked(destination=None, durable="dur", is_global=True),
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
        (replace(PLAIN, address=""), "amqp:invalid-field"),
        (replace(PLAIN, address="queue://t::work"), "amqp:invalid-field"),
        (replace(PLAIN, address="queue://t?type=serial"), "amqp:invalid-field"),
        (replace(PLAIN, address="queue://t", selector="a = 1"), "amqp:not-implemented"),
        (replace(PLAIN, address=TEMPORARY, copies=True), "amqp:not-implemented"),
        (replace(PLAIN, address=TEMPORARY, selector="a = 1"), "amqp:not-implemented"),
        (replace(PLAIN, address=None, dynamic=True, selector="a = 1"), "amqp:not-implemented"),
        (replace(PLAIN, address="__consumer_offsets"), "amqp:not-found"),
        (replace(PLAIN, address="queue://__consumer_offsets"), "amqp:not-found"),
        (replace(PLAIN, address=f"{TEMPORARY}::work"), "amqp:invalid-field"),
    ],
)
def test_what_no_subscription_can_be(link: ReceivingLink, condition: str) -> None:
    with pytest.raises(Refused) as refusal:
        asked_for(link)
    assert refusal.value.condition == condition


@pytest.mark.parametrize(
    ("link", "client_id", "allowed"),
    [
        (replace(PLAIN, address="t::queue.t"), "app", False),
        (replace(PLAIN, name="queue.t|global", durable=True, capabilities=GLOBAL), "app", False),
        (replace(PLAIN, name="queue.t|global", address=None), "app", False),
        (replace(PLAIN, name="queue.t", address=None), None, False),
        (replace(PLAIN, name="queue.t", durable=True, capabilities=OF_CLIENT), None, False),
        (replace(PLAIN, name="queue.t", durable=True), "app", True),
        (replace(PLAIN, name="queue.t"), None, True),
        (replace(PLAIN, address="queue://t"), None, True),
    ],
)
def test_no_client_asks_for_the_subscription_of_a_queue(
    link: ReceivingLink, client_id: str | None, *, allowed: bool
) -> None:
    with nullcontext() if allowed else pytest.raises(Refused, match="belongs to a queue"):
        check_name(asked_for(link), client_id)


def test_a_generated_container_id_is_no_client_id() -> None:
    assert client_id_of("ID:0839ee33-b268:1") is None
    assert client_id_of("") is None
    assert client_id_of("app") == "app"


@pytest.mark.parametrize(
    ("link", "more"),
    [
        (replace(PLAIN, address=None, dynamic=True), {"makes": Kind.TEMPORARY_QUEUE}),
        (
            replace(PLAIN, address=None, dynamic=True, capabilities=frozenset({"temporary-topic"})),
            {"makes": Kind.TEMPORARY_TOPIC},
        ),
        (replace(PLAIN, address=TEMPORARY), {"destination": Destination(TEMPORARY, Kind.TEMPORARY_QUEUE)}),
    ],
)
def test_a_link_of_a_temporary_destination(link: ReceivingLink, more: dict[str, object]) -> None:
    assert asked_for(link) == replace(asked(destination=None), **more)  # type: ignore[arg-type]  # as above


def test_the_address_of_a_temporary_destination_tells_where_it_is() -> None:
    for kind in (Kind.TEMPORARY_QUEUE, Kind.TEMPORARY_TOPIC):
        made = temporary(kind, partition=3, gateway="0123456789ab", secret="0" * 16)
        assert destination_of(made.name) == made
        assert home_of(made) == (3, "0123456789ab")


QUEUE = Destination("q", Kind.QUEUE)


@pytest.mark.parametrize(
    ("link", "more"),
    [
        (replace(PLAIN, address="queue://q"), {}),
        (replace(PLAIN, address="q", capabilities=frozenset({"queue"}), no_local=True), {}),
        (replace(PLAIN, address="q", capabilities=frozenset({"queue"}), copies=True), {"browses": True}),
        (
            replace(PLAIN, address="queue://q", copies=True, selector="a = 1"),
            {"browses": True, "selector": "a = 1"},
        ),
    ],
)
def test_a_link_of_a_queue(link: ReceivingLink, more: dict[str, object]) -> None:
    assert asked_for(link) == asked(SHARED, destination=QUEUE, is_global=True, **more)
    assert QUEUE.subscription == "queue.q"


@pytest.mark.parametrize(
    ("address", "capabilities", "kind", "expected"),
    [
        ("t", frozenset[str](), None, Destination("t")),
        ("topic://t", frozenset({"queue"}), 0, Destination("t")),
        ("q", frozenset({"queue"}), None, QUEUE),
        ("q", frozenset[str](), 0, QUEUE),
        ("q", frozenset[str](), 1, Destination("q")),
        ("queue://q", frozenset({"topic"}), 1, QUEUE),
    ],
)
def test_destinations(
    address: str, capabilities: frozenset[str], kind: object, expected: Destination
) -> None:
    assert destination_of(address, capabilities, kind) == expected


def test_destinations_that_are_refused() -> None:
    for address in (None, ""):
        with pytest.raises(Refused):
            destination_of(address, kind=0)
