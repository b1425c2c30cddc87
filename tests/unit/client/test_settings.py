"""Settings: code before environment, and a clear word about what is wrong."""

from datetime import timedelta

import pytest

from kafkadur.settings import settings
from kafkadur_sharing.errors import IllegalState, InvalidName


def test_code_comes_before_the_environment() -> None:
    environment = {
        "KAFKADUR_KAFKA": "broker:9092",
        "KAFKADUR_NAMESPACE": "from-outside",
        "KAFKADUR_SESSION_TIMEOUT": "2.5",
    }
    found = settings({"namespace": "from-code", "client_id": None}, environment)
    assert found.kafka == {"bootstrap.servers": "broker:9092"}
    assert found.namespace == "from-code"
    assert found.session_timeout == timedelta(seconds=2.5)
    assert found.session_ms == 2500


def test_kafka_must_be_said() -> None:
    with pytest.raises(IllegalState, match=r"where Kafka is.*KAFKADUR_KAFKA"):
        settings({}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("redis", "http://somewhere"),
        ("session_timeout", timedelta(milliseconds=999)),
        ("session_timeout", timedelta(minutes=11)),
        ("redis_timeout", "soon"),
        ("journal_partitions", 0),
        ("colour", "blue"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: object) -> None:
    with pytest.raises(IllegalState, match=f"The setting {name} is wrong"):
        settings({"kafka": "broker:9092", name: value}, {})


@pytest.mark.parametrize("name", ["client_id", "namespace"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="with space"):
        settings({"kafka": "broker:9092", name: "with space"}, {})


def test_an_unknown_setting_in_the_environment_is_not_ours() -> None:
    assert settings({}, {"KAFKADUR_KAFKA": "b:1", "KAFKADUR_COLOUR": "blue"}).kafka == {
        "bootstrap.servers": "b:1"
    }
