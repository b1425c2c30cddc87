"""Settings: code before environment, and a clear word about what is wrong."""

import inspect
from datetime import timedelta

import pytest

import kafkadur
from kafkadur.settings import MoreSettings, Settings, settings
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
    ],
)
def test_what_is_wrong_is_named(name: str, value: object) -> None:
    with pytest.raises(IllegalState, match=f"The setting {name} is wrong") as found:
        settings({"kafka": "broker:9092", name: value}, {})
    assert "Value error" not in str(found.value)


def test_a_typing_error_in_the_name_of_a_setting_is_named() -> None:
    with pytest.raises(IllegalState, match=r"no setting 'kafka_timout'.*use kafka_timeout"):
        settings({"kafka": "broker:9092", "kafka_timout": 5}, {})
    with pytest.raises(IllegalState, match=r"no setting 'colour'.*session_timeout"):
        settings({"kafka": "broker:9092", "colour": "blue"}, {})


def test_a_variable_that_is_nearly_a_setting_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    environment = {
        "KAFKADUR_KAFKA": "broker:9092",
        "KAFKADUR_NAMSPACE": "orders",
        "KAFKADUR_PURE": "1",
        "KAFKADUR_REDIS_PASSWORD": "secret",
        "NAMESPACE": "of another program",
    }
    assert settings({}, environment).namespace == "default"
    (told,) = caplog.messages
    assert told.startswith("The variable KAFKADUR_NAMSPACE is ignored: there is no such setting.")
    assert told.endswith("Remedy: set KAFKADUR_NAMESPACE, or unset it.")


def test_type_checkers_know_every_setting() -> None:
    """Else they would take a typing error for one of the others."""
    own = set(inspect.signature(kafkadur.connect).parameters) - {"recorder", "probe", "more"}
    assert own | set(MoreSettings.__annotations__) == {*Settings.model_fields, "kafka_config"}


@pytest.mark.parametrize(
    "name", ["session_timeout", "redis_timeout", "kafka_timeout", "retention_check", "level_timeout"]
)
def test_a_time_is_a_timedelta_or_a_number_of_seconds(name: str) -> None:
    for value in (2, 2.0, timedelta(seconds=2)):
        found = settings({"kafka": "broker:9092", name: value}, {})
        assert getattr(found, name) == timedelta(seconds=2)


@pytest.mark.parametrize("name", ["client_id", "namespace"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="with space"):
        settings({"kafka": "broker:9092", name: "with space"}, {})


def test_an_unknown_setting_in_the_environment_is_not_ours() -> None:
    assert settings({}, {"KAFKADUR_KAFKA": "b:1", "KAFKADUR_COLOUR": "blue"}).kafka == {
        "bootstrap.servers": "b:1"
    }
