"""Settings of confluent-kafka, as Kafka's Java client understands them."""

from pathlib import Path

import pytest

from kafkadur_sharing.errors import IllegalState
from kafkadur_spark.java_settings import java_settings


def test_only_where_and_how_to_connect_is_translated() -> None:
    given = {"bootstrap.servers": "a:1,b:2", "linger.ms": 5, "error_cb": print, "client.id": "c"}
    assert java_settings(given) == {"kafka.bootstrap.servers": "a:1,b:2"}
    assert java_settings({"metadata.broker.list": "a:1"}) == {"kafka.bootstrap.servers": "a:1"}


def test_a_password_is_quoted() -> None:
    given = {
        "bootstrap.servers": "a:1", "security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me", "sasl.password": 'a"b\\c',
    }  # fmt: skip
    assert java_settings(given) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="a\\"b\\\\c";',
    }


def test_certificates_are_read(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"-- {name}")
    given = {f"ssl.{name}.location": str(tmp_path / name) for name in ("ca", "certificate", "key")}
    found = java_settings(
        {"bootstrap.servers": "a:1", "ssl.endpoint.identification.algorithm": "none", **given}
    )
    assert found == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "-- ca",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "-- certificate",
        "kafka.ssl.keystore.key": "-- key",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("sasl.oauthbearer.config", "x", "sasl.oauthbearer.config"),
        ("sasl.mechanism", "GSSAPI", "sasl.mechanism GSSAPI"),
        ("enable.ssl.certificate.verification", False, "enable.ssl.certificate.verification"),
        ("ssl.ca.location", "/nowhere/ca.pem", "/nowhere/ca.pem"),
    ],
)
def test_what_has_no_translation_is_refused(setting: str, value: object, said: str) -> None:
    with pytest.raises(IllegalState) as caught:
        java_settings({"bootstrap.servers": "a:1", setting: value})
    assert said in str(caught.value)
    assert "Remedy" in str(caught.value)
