"""Names: what rule U10 allows, and which property names a selector can use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkadur_sharing.errors import InvalidDestination, InvalidName, InvalidProperty
from kafkadur_sharing.names import (
    MAX_NAME_LENGTH,
    MAX_TOPIC_LENGTH,
    validate_client_id,
    validate_namespace,
    validate_property_name,
    validate_subscribed_topic,
    validate_subscription_name,
    validate_topic,
)

VALIDATORS = [validate_subscription_name, validate_client_id, validate_namespace]


@pytest.mark.parametrize("validate", VALIDATORS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a", id="U10-shortest"),
        pytest.param("Az09_.-", id="U10-characters"),
        pytest.param("x" * 128, id="U10-128"),
        pytest.param("x" * MAX_NAME_LENGTH, id="U10-longest"),
    ],
)
def test_allowed(validate: Callable[[str], str], name: str) -> None:
    assert validate(name) == name


@pytest.mark.parametrize("validate", VALIDATORS)
@pytest.mark.parametrize("name", [None, 5, b"name", ["name"]])
def test_what_is_no_text_is_refused(validate: Callable[[Any], str], name: object) -> None:
    with pytest.raises(InvalidName, match="is no text"):
        validate(name)


@pytest.mark.parametrize("validate", VALIDATORS)
@pytest.mark.parametrize(
    "name",
    ["", "x" * (MAX_NAME_LENGTH + 1), "a|b", "a:b", "a b", "a\n", "ä", "a/b", "{a}", "a\x00", "\u0661"],
)
def test_refused(validate: Callable[[str], str], name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        validate(name)
    assert caught.value.remedy


def test_refusal_says_which_characters_are_wrong() -> None:
    with pytest.raises(InvalidName, match=r"' \|'"):
        validate_subscription_name("a| b")


@pytest.mark.parametrize(
    "name", ["a", "_foo", "$x", "a$1", "größe", "Amount2", "order", "jms", "kafkadur", "nulls"]
)
def test_property_name_allowed(name: str) -> None:
    assert validate_property_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1a",
        "a-b",
        "a.b",
        "a b",
        "a=b",
        "a;b",
        "null",
        "TRUE",
        "Between",
        "escape",
        "JMSType",
        "JMSXFoo",
        "kafkadur-x",
    ],
)
def test_property_name_refused(name: str) -> None:
    with pytest.raises(InvalidProperty):
        validate_property_name(name)


@pytest.mark.parametrize("topic", ["orders", "a.b-c_D9", "x" * MAX_TOPIC_LENGTH, "..."])
def test_topic(topic: str) -> None:
    assert validate_topic(topic) == topic


@pytest.mark.parametrize(
    "several",
    [["a", "b"], ["a"], ("a", "b"), {"a"}, "^orders.*", "^", "a,b", "orders.*", "a;b", "a b", None, 5, b"a"],
)
def test_several_topics_are_refused_in_words(several: object) -> None:
    with pytest.raises(InvalidDestination) as caught:
        validate_subscribed_topic(several)
    assert "A subscription has one topic." in str(caught.value)
    assert repr(several) in (caught.value.state or "")
    assert "one subscription a topic" in (caught.value.remedy or "")


@pytest.mark.parametrize("validate", [validate_topic, validate_subscribed_topic])
@pytest.mark.parametrize("topic", ["", ".", "..", "x" * (MAX_TOPIC_LENGTH + 1), "a/b", "\u00fc"])
def test_no_topic_is_called_so(validate: Callable[[object], str], topic: str) -> None:
    with pytest.raises(InvalidDestination) as caught:
        validate(topic)
    assert "one topic." not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("topic", ["a b", "a,b", None, 5, b"a"])
def test_a_topic_without_a_subscription_is_refused_without_a_word_about_one(topic: object) -> None:
    with pytest.raises(InvalidDestination) as caught:
        validate_topic(topic)
    assert "subscription" not in str(caught.value)
