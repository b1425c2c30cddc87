"""Definitions: sharing follows the type, what counts as details, records that survive versions."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from kafkadur_sharing.definition import RECORD_FORMAT, Definition, HeaderType, Sharing, SubscriptionType
from kafkadur_sharing.errors import IllegalState, InvalidDestination, InvalidProperty
from kafkadur_sharing.redelivery_policy import Redelivery

FULL = Definition(
    type=SubscriptionType.KEY_ORDERED,
    topic="orders",
    selector="amount > 100",
    no_local=True,
    start="earliest",
    header_types={"amount": "int", "raw": "bytes"},
)
PLAIN = Definition(type=SubscriptionType.EXCLUSIVE, topic="orders")


@pytest.mark.parametrize("kind", SubscriptionType)
def test_only_exclusive_is_unshared(kind: SubscriptionType) -> None:
    expected = Sharing.UNSHARED if kind is SubscriptionType.EXCLUSIVE else Sharing.SHARED
    assert Definition(type=kind, topic="t").sharing is expected


@pytest.mark.parametrize("selector", [None, "", "  "])
def test_an_empty_selector_is_none(selector: str | None) -> None:
    assert Definition(type=SubscriptionType.SHARED, topic="t", selector=selector).selector is None


def test_details_are_topic_and_selector() -> None:
    other = Definition(type=SubscriptionType.SERIAL, topic="orders", selector="amount > 100 ", start="latest")
    assert FULL.details == other.details
    assert FULL.details != Definition(type=FULL.type, topic="orders2", selector=FULL.selector).details
    assert FULL.details != Definition(type=FULL.type, topic="orders", selector="amount > 101").details


def test_no_local_is_a_detail_only_when_unshared() -> None:
    def details(kind: SubscriptionType, *, no_local: bool) -> object:
        return Definition(type=kind, topic="t", no_local=no_local).details

    assert details(SubscriptionType.EXCLUSIVE, no_local=True) != details(
        SubscriptionType.EXCLUSIVE, no_local=False
    )
    assert details(SubscriptionType.SHARED, no_local=True) == details(SubscriptionType.SHARED, no_local=False)


@pytest.mark.parametrize("definition", [FULL, PLAIN])
def test_record_round_trip(definition: Definition) -> None:
    record = definition.to_record()
    assert record["format"] == RECORD_FORMAT
    assert Definition.from_record(record) == definition
    assert pickle.loads(pickle.dumps(definition)) == definition


def test_record_of_a_newer_minor_version_is_read() -> None:
    record = {**FULL.to_record(), "colour": "blue", "header_types": {"amount": "decimal"}}
    read = Definition.from_record(record)
    assert read.header_types == {"amount": "str"}
    assert read.topic == FULL.topic


def test_record_with_the_necessary_only_is_read() -> None:
    assert Definition.from_record({"format": 1, "type": "exclusive", "topic": "orders"}) == PLAIN


@pytest.mark.parametrize(
    "change",
    [
        {"format": RECORD_FORMAT + 1},
        {"format": None},
        {"format": 0},
        {"type": "round"},
        {"type": None},
        {"topic": 7},
        {"selector": 7},
        {"header_types": ["amount"]},
    ],
)
def test_record_that_cannot_be_read_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(IllegalState):
        Definition.from_record({**FULL.to_record(), **change})


def test_wrong_parts_are_refused() -> None:
    with pytest.raises(InvalidDestination):
        Definition(type=SubscriptionType.SHARED, topic="")
    with pytest.raises(IllegalState):
        Definition(type=SubscriptionType.SHARED, topic="t", start="middle")  # type: ignore[arg-type]
    with pytest.raises(InvalidProperty):
        Definition(type=SubscriptionType.SHARED, topic="t", header_types={"a": "date"})  # type: ignore[dict-item]
    with pytest.raises(InvalidProperty):
        Definition(type=SubscriptionType.SHARED, topic="t", header_types={"JMSType": "str"})


def test_a_definition_keeps_its_own_copy_of_the_header_types() -> None:
    types: dict[str, HeaderType] = dict(FULL.header_types or {})
    definition = Definition(type=SubscriptionType.SHARED, topic="t", header_types=types)
    types["late"] = "int"
    assert definition.header_types == {"amount": "int", "raw": "bytes"}
    assert hash(definition) == hash(Definition(type=SubscriptionType.SHARED, topic="t", header_types=types))


def test_times_of_a_redelivery_policy_are_those_that_are_stored() -> None:
    """Else a policy would differ for ever from the one that was stored of it."""
    policy = Redelivery(
        backoff=timedelta(microseconds=1_500),
        max_backoff=timedelta(milliseconds=7, microseconds=300),
        max_hold=timedelta(milliseconds=100, microseconds=700),
    )
    assert Redelivery.from_record(policy.to_record()) == policy
