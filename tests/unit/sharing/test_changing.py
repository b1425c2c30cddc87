"""Which parts a type has, and how a definition changes part by part (`changing.py`)."""

from datetime import timedelta
from typing import Any

import pytest

from kafkadur_sharing.changing import Changes, changed, check_parts
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import IllegalState, InvalidDestination, InvalidProperty
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.redelivery_policy import Redelivery

KEY = SubscriptionKey(namespace="n", client_id="shop", name="d")
NOBODY = SubscriptionKey(namespace="n", client_id=None, name="d")
SHARED = Definition(type=SubscriptionType.SHARED, topic="t", redelivery=Redelivery(max_attempts=3, backoff=1))


def test_single_parts_of_the_redelivery_policy_change() -> None:
    after = changed(KEY, SHARED, {"max_attempts": 5, "max_hold": 2})
    assert after.redelivery == Redelivery(max_attempts=5, backoff=1, max_hold=timedelta(seconds=2))
    assert changed(KEY, SHARED, {"redelivery": Redelivery(rescue=True)}).redelivery == Redelivery(rescue=True)
    both: Changes = {"redelivery": Redelivery(rescue=True), "backoff": 3}
    assert changed(KEY, SHARED, both).redelivery == Redelivery(rescue=True, backoff=3)


def test_each_part_changes_and_the_others_stay() -> None:
    changes: Changes = {
        "selector": "n > 1",
        "header_types": {"n": "int"},
        "ack_level": "journal",
        "max_consumers": 4,
        "dead_letter_topic": "graves",
    }
    after = changed(KEY, SHARED, changes)
    assert (after.selector, after.header_types, after.ack_level, after.max_consumers) == (
        "n > 1",
        {"n": "int"},
        "journal",
        4,
    )
    assert after.dead_letter_topic == "graves"
    assert (after.type, after.topic, after.start, after.redelivery.max_attempts) == (
        SHARED.type,
        "t",
        "latest",
        3,
    )
    assert changed(KEY, after, {"selector": None, "max_consumers": None}).selector is None
    recorded = changed(KEY, after, {"history": 86_400})
    assert recorded.history == timedelta(days=1)
    assert changed(KEY, recorded, {"history": None}).history is None


@pytest.mark.parametrize(
    ("before", "changes", "expected"),
    [
        ({"type": "key-ordered", "key_lanes": 4}, {"type": "shared"}, {"key_lanes": None}),
        ({"type": "serial", "scope": "partition"}, {"type": "priority"}, {"scope": "subscription"}),
        ({"type": "serial", "strict_order": True}, {"type": "shared"}, {"strict_order": False}),
        ({"type": "serial", "strict_order": True}, {"type": "key-ordered"}, {"strict_order": True}),
        ({"type": "shared", "max_consumers": 2}, {"type": "exclusive"}, {"max_consumers": None}),
        ({"type": "exclusive", "no_local": True}, {"type": "shared"}, {"no_local": False}),
        ({"type": "key-ordered", "key_lanes": 4}, {"type": "key-ordered"}, {"key_lanes": 4}),
        ({"type": "key-ordered", "key_lanes": 4}, {"selector": "n = 1"}, {"key_lanes": 4}),
        ({"type": "shared"}, {"type": "key-ordered", "key_lanes": 4}, {"key_lanes": 4}),
    ],
)
def test_parts_that_only_the_old_type_has_are_reset(
    before: dict[str, Any], changes: Changes, expected: dict[str, Any]
) -> None:
    after = changed(KEY, Definition(topic="t", **before), changes)
    assert {name: getattr(after, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("key", "changes", "words"),
    [
        (KEY, {"selektor": "n > 1"}, ["no part 'selektor'", "ack_level"]),
        (KEY, {"topic": "u"}, ["no part 'topic'"]),
        (KEY, {"type": "turnwise"}, ["no subscription type 'turnwise'"]),
        (KEY, {"key_lanes": 3}, ["shared has no key_lanes", "type='key-ordered'"]),
        (KEY, {"type": "exclusive", "max_consumers": 3}, ["exclusive has no max_consumers"]),
        (KEY, {"scope": "partition"}, ["shared has no scope", "type='serial'"]),
        (KEY, {"strict_order": True}, ["shared has no strict_order"]),
        (KEY, {"no_local": True}, ["shared has no no_local"]),
        (KEY, {"max_attempts": 0}, ["max_attempts cannot be 0"]),
        (KEY, {"backoff": "soon"}, ["backoff cannot be 'soon'"]),
        (KEY, {"rescue": 1}, ["rescue cannot be 1"]),
        (KEY, {"type": "serial", "strict_order": 1}, ["strict_order cannot be 1"]),
        (KEY, {"dead_letter_topic": "t"}, ["cannot be sent to its own topic"]),
        (NOBODY, {"type": "exclusive"}, ["d cannot be exclusive", "U1", "kafkadur sub fork d CLIENT_ID/d"]),
    ],
)
def test_impossible_changes_are_refused(key: SubscriptionKey, changes: Any, words: list[str]) -> None:
    with pytest.raises(IllegalState) as refused:
        changed(key, SHARED, changes)
    assert all(word in str(refused.value) for word in words), refused.value


def test_none_says_that_a_part_stays_unless_it_may_be_none() -> None:
    stay: Any = {"redelivery": None, "rescue": None, "strict_order": None, "scope": None, "type": None}
    assert changed(KEY, SHARED, stay) == SHARED
    assert changed(KEY, SHARED, {"max_attempts": None}).redelivery.max_attempts is None


def test_a_topic_of_dead_letters_has_a_valid_name() -> None:
    with pytest.raises(InvalidDestination):
        changed(KEY, SHARED, {"dead_letter_topic": "a b!"})


def test_in_the_mode_weblogic_no_local_stays_with_another_type() -> None:
    before = Definition(type=SubscriptionType.EXCLUSIVE, topic="t", no_local=True)
    assert changed(KEY, before, {"type": "shared"}, mode="weblogic").no_local
    assert not changed(KEY, before, {"type": "shared"}).no_local


def test_wrong_header_types_are_refused() -> None:
    wrong: Any = {"header_types": {"n": "number"}}
    with pytest.raises(InvalidProperty):
        changed(KEY, SHARED, wrong)


#: For each part, the types that have it.
HAVE = {
    "key_lanes": {"key-ordered"},
    "scope": {"serial"},
    "strict_order": {"exclusive", "priority", "serial", "key-ordered"},
    "no_local": {"exclusive"},
    "max_consumers": {"priority", "serial", "shared", "key-ordered"},
    "priority": {"priority"},
    "preempt": {"priority"},
}
VALUES = {"key_lanes": 2, "scope": "partition", "max_consumers": 2, "priority": 1}


@pytest.mark.parametrize("part", HAVE)
@pytest.mark.parametrize("kind", SubscriptionType)
def test_a_type_refuses_parts_that_it_does_not_have(kind: SubscriptionType, part: str) -> None:
    value = VALUES.get(part, True)
    if kind.value in HAVE[part]:
        check_parts(kind, {part: value})
    else:
        with pytest.raises(IllegalState, match=f"the type {kind} has no {part}"):
            check_parts(kind, {part: value})
    unused = {"scope": "subscription", "priority": 0, "strict_order": False}
    check_parts(kind, {part: unused.get(part)})


def test_no_local_of_a_shared_subscription_counts_in_the_mode_weblogic() -> None:
    check_parts(SubscriptionType.SHARED, {"no_local": True}, mode="weblogic")
