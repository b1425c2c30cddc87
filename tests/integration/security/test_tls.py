"""TLS and passwords with real certificates, and what is said when one of them is wrong."""

from __future__ import annotations

import ssl
import traceback
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.cimpl import NewTopic

import kafkadur
import kafkadur.sync
from kafkadur.admin.changes import Admin
from kafkadur.admin.kafka_access import Role, kafka_rules
from kafkadur.settings import settings
from kafkadur.stack import Broker, embedded
from kafkadur.stack.kafka import quiet_admin
from kafkadur_sharing.errors import (
    CoordinatorRefused,
    CoordinatorUnavailable,
    IllegalState,
    KafkadurError,
    KafkaRefused,
)
from tests.integration.security.secured import HOST, INNER, LIMIT_S, SECRET, Certificates, Secured, keystore

#: Long enough for a handshake on a busy machine: what is refused is known only when the time is up.
KAFKA_TIMEOUT = timedelta(seconds=5)


@pytest.fixture(scope="module")
def shop(guarded_stack: Secured) -> str:
    """Provide a user, a topic and a namespace of one name; the user may work there."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    guarded_stack.make_topic(name)
    for principal in (guarded_stack.add_user(name), "User:plain"):
        guarded_stack.allow(
            principal, kafka_rules([Role.PRODUCER, Role.CONSUMER], namespace=name, topics=[name])
        )
    return name


def connect(shop: str, kafka: dict[str, Any], redis: str) -> kafkadur.sync.Connection:
    """A connection with short patience."""
    return kafkadur.sync.connect(
        kafka={**kafka, "log_level": 0},
        redis=redis,
        client_id="c",
        namespace=shop,
        journal_partitions=2,
        kafka_timeout=KAFKA_TIMEOUT,
        redis_timeout=timedelta(seconds=3),
    )


def works(shop: str, kafka: dict[str, Any], redis: str) -> None:
    """Publish a message and receive it."""
    with connect(shop, kafka, redis) as connection:
        value = uuid.uuid4().hex
        with (
            connection.subscribe(shop, durable="d", start="earliest") as subscription,
            connection.producer() as producer,
        ):
            producer.publish(shop, value)
            producer.flush(LIMIT_S)
            while (delivery := subscription.receive(timeout=LIMIT_S)) is not None:
                delivery.ack()
                if delivery.value == value.encode():
                    return
    pytest.fail("the message did not come")


def speaks(error: KafkadurError, *words: str) -> None:
    """The error says state, owner and remedy, and no secret, its causes and their frames included."""
    for part in (error.state, error.owner, error.remedy):
        assert part
    for word in words:
        assert word in str(error)
    told = "".join(traceback.format_exception(error))
    assert SECRET not in told
    assert SECRET[:6] not in told


# -- Kafka


@pytest.mark.parametrize(("mechanism", "plain"), [("SCRAM-SHA-512", False), ("PLAIN", True)])
def test_kafka_with_a_password_over_tls(
    guarded_stack: Secured, shop: str, mechanism: str, plain: bool
) -> None:
    works(
        shop,
        guarded_stack.kafka("plain" if plain else shop, mechanism=mechanism),
        guarded_stack.redis(),
    )


def refused_by_kafka(guarded_stack: Secured, shop: str, **wrong: Any) -> KafkadurError:
    """What subscribing raises with a wrong setting."""
    with (
        connect(shop, guarded_stack.kafka(shop, **wrong), guarded_stack.redis()) as connection,
        pytest.raises(KafkadurError) as caught,
    ):
        connection.subscribe(shop, durable="d")
    return caught.value


def test_a_wrong_password_of_kafka_is_said(guarded_stack: Secured, shop: str) -> None:
    error = refused_by_kafka(guarded_stack, shop, sasl_password=f"{SECRET}!")
    assert isinstance(error, KafkaRefused)
    speaks(error, "invalid credentials", "sasl.password")


def test_an_unknown_authority_of_kafka_is_said(guarded_stack: Secured, shop: str) -> None:
    error = refused_by_kafka(guarded_stack, shop, ssl_ca_location=str(guarded_stack.certificates.other_ca))
    assert isinstance(error, KafkaRefused)
    speaks(error, "certificate verify failed", "ssl.ca.location")


def test_another_name_than_kafkas_is_said(guarded_stack: Secured, shop: str) -> None:
    """The certificate is for 127.0.0.1 alone."""
    servers = guarded_stack.stack.kafka.replace(HOST, "localhost")
    error = refused_by_kafka(guarded_stack, shop, bootstrap_servers=servers)
    assert isinstance(error, KafkaRefused)
    speaks(error, "certificate verify failed", "by a name that stands in it")


def test_no_tls_where_kafka_speaks_it_is_said(guarded_stack: Secured, shop: str) -> None:
    speaks(refused_by_kafka(guarded_stack, shop, security_protocol="PLAINTEXT"), "security.protocol")


@pytest.mark.parametrize("missing", ["ssl_ca_location", "ssl_certificate_location"])
def test_a_missing_file_of_kafka_is_said(guarded_stack: Secured, shop: str, missing: str) -> None:
    with pytest.raises(IllegalState) as caught:
        connect(shop, guarded_stack.kafka(shop, **{missing: "/nowhere.pem"}), guarded_stack.redis()).open()
    speaks(caught.value, missing.replace("_", "."))


def test_a_producer_says_why_nothing_is_delivered(guarded_stack: Secured, shop: str) -> None:
    config = guarded_stack.kafka(shop, sasl_password=f"{SECRET}!", message_timeout_ms=3_000)
    with connect(shop, guarded_stack.kafka(shop), guarded_stack.redis()) as connection:
        producer = connection.producer({**config, "log_level": 0})
        producer.publish(shop, "x")
        with pytest.raises(kafkadur.DeliveryFailed) as caught:
            producer.flush(LIMIT_S)
    speaks(caught.value, "invalid credentials", "sasl.password")


@pytest.fixture(scope="module")
def mutual_kafka(certificates: Certificates) -> Iterator[Broker]:
    """Provide a broker that lets in who has a certificate, and maps it to a principal of its name."""
    asks = {
        "listener.security.protocol.map": f"CLIENT:SSL,{INNER}",
        "listener.name.client.ssl.client.auth": "required",
        **keystore(certificates),
    }
    with embedded(valkey=False, kafka_settings=asks) as stack:
        yield stack.brokers[0]


def of_client(certificates: Certificates, broker: Broker) -> dict[str, Any]:
    """Settings of a client with a certificate."""
    return {
        "bootstrap.servers": broker.address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates.ca),
        "ssl.certificate.location": str(certificates.client),
        "ssl.key.location": str(certificates.client_key),
    }


def test_kafka_with_certificates_on_both_sides(
    guarded_stack: Secured, certificates: Certificates, mutual_kafka: Broker
) -> None:
    redis, topic = guarded_stack.redis(), f"mutual-{uuid.uuid4().hex[:8]}"
    admin: Any = quiet_admin(mutual_kafka.internal_address)
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(LIMIT_S)
    kafka = of_client(certificates, mutual_kafka)
    works(topic, kafka, redis)
    del kafka["ssl.certificate.location"], kafka["ssl.key.location"]
    with connect(topic, kafka, redis) as connection, pytest.raises(KafkadurError) as caught:
        connection.subscribe(topic, durable="d")
    speaks(caught.value, "TLS" if isinstance(caught.value, KafkaRefused) else "security.protocol")


# -- Redis


def test_redis_with_certificates_on_both_sides(guarded_stack: Secured, shop: str) -> None:
    files = guarded_stack.certificates
    url = guarded_stack.redis(
        guarded_stack.redis_mutual, ssl_certfile=files.client, ssl_keyfile=files.client_key
    )
    works(shop, guarded_stack.kafka(shop), url)


def test_administrators_connect_by_the_same_settings(guarded_stack: Secured, shop: str) -> None:
    works(shop, guarded_stack.kafka(shop), guarded_stack.redis())
    chosen = settings(
        {
            "kafka": guarded_stack.kafka(shop),
            "redis": guarded_stack.redis(),
            "namespace": shop,
            "client_id": "c",
        }
    )
    with Admin(chosen) as admin:
        assert admin.info(admin.key("d")).definition.topic == shop


def refused_by_redis(guarded_stack: Secured, shop: str, url: str) -> KafkadurError:
    """What connecting raises."""
    with pytest.raises((CoordinatorRefused, CoordinatorUnavailable)) as caught:
        connect(shop, guarded_stack.kafka(shop), url).open()
    return caught.value


def test_an_unknown_authority_of_redis_is_said(guarded_stack: Secured, shop: str) -> None:
    url = guarded_stack.redis(ssl_ca_certs=guarded_stack.certificates.other_ca)
    error = refused_by_redis(guarded_stack, shop, url)
    assert isinstance(error, CoordinatorRefused)
    speaks(error, "certificate is not accepted", "ssl_ca_certs", f"rediss://{HOST}")


def test_an_authority_is_demanded_by_default(guarded_stack: Secured, shop: str) -> None:
    """Without a word on it in the URL, the authorities of the system are those that count."""
    url = guarded_stack.redis().partition("?")[0]
    speaks(refused_by_redis(guarded_stack, shop, url), "certificate is not accepted")


def test_another_name_than_that_of_redis_is_said(guarded_stack: Secured, shop: str) -> None:
    error = refused_by_redis(guarded_stack, shop, guarded_stack.redis(guarded_stack.redis_elsewhere))
    assert isinstance(error, CoordinatorRefused)
    speaks(error, "connect by a name that stands in the certificate")


def test_a_missing_certificate_of_the_client_is_said(guarded_stack: Secured, shop: str) -> None:
    error = refused_by_redis(guarded_stack, shop, guarded_stack.redis(guarded_stack.redis_mutual))
    speaks(error, "ssl_certfile")


def test_a_missing_file_of_redis_is_said(guarded_stack: Secured, shop: str) -> None:
    error = refused_by_redis(guarded_stack, shop, guarded_stack.redis(ssl_ca_certs="/nowhere.pem"))
    assert isinstance(error, CoordinatorRefused)
    speaks(error, "file", "ssl_ca_certs")


def test_no_tls_where_redis_speaks_it_is_said(guarded_stack: Secured, shop: str) -> None:
    url = guarded_stack.redis().partition("?")[0].replace("rediss:", "redis:")
    speaks(refused_by_redis(guarded_stack, shop, url), "rediss://")


def test_tls_where_redis_speaks_none_is_said(guarded_stack: Secured, shop: str) -> None:
    assert guarded_stack.stack.valkey is not None
    plain = guarded_stack.redis().replace(
        f":{guarded_stack.redis_tls.port}", f":{guarded_stack.stack.valkey.port}"
    )
    speaks(refused_by_redis(guarded_stack, shop, plain), "speaks TLS")


def test_a_wrong_password_of_redis_is_said(guarded_stack: Secured, shop: str) -> None:
    url = guarded_stack.redis().replace("Geheim", "Geheimx")
    error = refused_by_redis(guarded_stack, shop, url)
    assert isinstance(error, CoordinatorRefused)
    speaks(error, "user or password", "Redis URL")


def test_the_terminator_really_encrypts(guarded_stack: Secured) -> None:
    """The kit's proxy speaks TLS with the certificate that was given to it, and nothing older than 1.2."""
    pem = ssl.get_server_certificate((HOST, guarded_stack.redis_tls.port))
    assert pem.strip() in guarded_stack.certificates.server.read_text()
