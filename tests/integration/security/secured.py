"""Kafka and Valkey as a careful operator has them: certificates, users, and nobody may do what was not said.

The certificates are real, of an authority made for the run. Valkey of the wheel knows no TLS: the kit's proxy
ends it before the server. Nothing is asserted here.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import trustme
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from kafkadur.admin.kafka_access import Rule, apply_rules
from kafkadur.stack import Stack, TcpProxy, embedded
from kafkadur.stack.kafka import quiet_admin

#: Seconds that one request to Kafka may take.
LIMIT_S = 180.0
#: The password of everybody: it must never be seen in what a program says.
SECRET = "Geheim-7f3a?&%/#@:x"
HOST = "127.0.0.1"

#: Listeners of brokers and controllers among themselves have no TLS: they are the super user.
INNER = "INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
_JAAS = "org.apache.kafka.common.security"


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """Files of one authority."""

    #: Certificate of the authority.
    ca: Path
    #: Certificate and key of a server on 127.0.0.1, and nowhere else.
    server: Path
    #: The same for the name `elsewhere.example`.
    elsewhere: Path
    #: Certificate and key of a client.
    client: Path
    client_key: Path
    #: Certificate of an authority that signed nothing of this.
    other_ca: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and what it signs."""
    ca, other = trustme.CA(), trustme.CA()
    made = Certificates(
        ca=folder / "ca.pem",
        server=folder / "server.pem",
        elsewhere=folder / "elsewhere.pem",
        client=folder / "client.pem",
        client_key=folder / "client-key.pem",
        other_ca=folder / "other-ca.pem",
    )
    ca.cert_pem.write_to_path(made.ca)
    other.cert_pem.write_to_path(made.other_ca)
    for file, name in ((made.server, HOST), (made.elsewhere, "elsewhere.example")):
        issued = ca.issue_cert(name)
        file.write_bytes(_pkcs8(issued) + b"".join(part.bytes() for part in issued.cert_chain_pems))
    client = ca.issue_cert("app@shop.example", common_name="app")
    made.client.write_bytes(b"".join(part.bytes() for part in client.cert_chain_pems))
    made.client_key.write_bytes(_pkcs8(client))
    return made


def _pkcs8(issued: trustme.LeafCert) -> bytes:
    """The only form of a private key that Kafka reads."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


# -- Kafka


def keystore(certificates: Certificates, server: Path | None = None) -> dict[str, str]:
    """Settings of a broker's listener for clients: its certificate, and whose clients it knows."""
    name = "listener.name.client.ssl"
    return {
        f"{name}.keystore.type": "PEM",
        f"{name}.keystore.location": str(server or certificates.server),
        f"{name}.truststore.type": "PEM",
        f"{name}.truststore.location": str(certificates.ca),
    }


def guarded(certificates: Certificates) -> dict[str, str]:
    """Settings of a broker that lets nobody do what was not allowed, and asks for a password over TLS."""
    return {
        "listener.security.protocol.map": f"CLIENT:SASL_SSL,{INNER}",
        "listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "listener.name.client.scram-sha-512.sasl.jaas.config": f"{_JAAS}.scram.ScramLoginModule required;",
        "listener.name.client.plain.sasl.jaas.config": (
            f'{_JAAS}.plain.PlainLoginModule required user_plain="{SECRET}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:ANONYMOUS",
        **keystore(certificates),
    }


@dataclass(frozen=True, kw_only=True)
class Secured:
    """A stack of which clients see TLS alone."""

    stack: Stack
    certificates: Certificates
    #: TLS before Valkey, without and with a demand for the client's certificate.
    redis_tls: TcpProxy
    redis_mutual: TcpProxy
    #: TLS with a certificate for another name.
    redis_elsewhere: TcpProxy

    @property
    def admin(self) -> AdminClient:
        """Who may do everything in Kafka."""
        return quiet_admin(self.stack.brokers[0].internal_address)

    def kafka(self, user: str, *, mechanism: str = "SCRAM-SHA-512", **more: Any) -> dict[str, Any]:
        """Settings of a client; `more` with underscores for dots."""
        return {
            "bootstrap.servers": self.stack.kafka,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": SECRET,
            "ssl.ca.location": str(self.certificates.ca),
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def redis(self, proxy: TcpProxy | None = None, *, host: str = HOST, **query: object) -> str:
        """A URL of the application's user over TLS, with the known authority unless `query` names another."""
        files = {"ssl_ca_certs": self.certificates.ca, **query}
        port = (proxy or self.redis_tls).port
        return f"rediss://app:{quote(SECRET, safe='')}@{host}:{port}/0?{urlencode(files)}"

    def add_user(self, user: str) -> str:
        """Let Kafka know a user, who may do nothing yet; returns it as a principal."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, info, SECRET.encode())
        admin = self.admin
        admin.alter_user_scram_credentials([change])[user].result(LIMIT_S)
        return f"User:{user}"

    def allow(self, principal: str, rules: Iterable[Rule]) -> None:
        """Allow these besides what is allowed already; returns when the broker knows."""
        wanted = list(rules)
        apply_rules(
            {"bootstrap.servers": self.stack.brokers[0].internal_address},
            wanted,
            principal=principal,
            timeout=LIMIT_S,
        )
        names = {(rule.name, rule.operation.lower()) for rule in wanted}
        self._wait(principal, lambda known: names <= known)

    def forbid(self, principal: str) -> None:
        """Take back all that was allowed; returns when the broker knows."""
        admin = self.admin
        for done in admin.delete_acls([_everything_of(principal)]).values():
            done.result(LIMIT_S)
        self._wait(principal, lambda known: not known)

    def _wait(self, principal: str, good: Callable[[set[tuple[str, str]]], bool]) -> None:
        """Wait until the broker knows the name and operation of what is allowed."""
        admin: Any = self.admin
        deadline = time.monotonic() + LIMIT_S
        while True:
            found = admin.describe_acls(_everything_of(principal)).result(LIMIT_S)
            known = {(acl.name, acl.operation.name.lower().replace("_", "")) for acl in found}
            if good(known):
                return
            if time.monotonic() > deadline:
                pytest.fail(f"the broker does not know what {principal} may do")
            time.sleep(0.05)

    def make_topic(self, name: str) -> None:
        """Make a topic of one partition."""
        admin: Any = self.admin
        admin.create_topics([NewTopic(name, num_partitions=1)])[name].result(LIMIT_S)


def _everything_of(principal: str) -> AclBindingFilter:
    anything: Any = None  # the stub says: a text
    return AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        principal,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def server_tls(certificates: Certificates, server: Path, *, mutual: bool = False) -> ssl.SSLContext:
    """The context of a server; `mutual`: only clients with a certificate are let in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server)
    if mutual:
        context.load_verify_locations(certificates.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextlib.contextmanager
def secured(
    certificates: Certificates, kafka_settings: Mapping[str, str], redis_user: str
) -> Generator[Secured]:
    """Run a stack with these settings of Kafka and this user of Valkey besides the administrator."""
    users = {"user": redis_user.removeprefix("user "), "requirepass": "administrator"}
    with (
        embedded(users=True, kafka_settings=kafka_settings, valkey_settings=users) as stack,
        contextlib.ExitStack() as proxies,
    ):
        assert stack.valkey is not None
        target = (HOST, stack.valkey.port)

        def proxy(server: Path, *, mutual: bool = False) -> TcpProxy:
            return proxies.enter_context(
                TcpProxy(target, tls=server_tls(certificates, server, mutual=mutual))
            )

        yield Secured(
            stack=stack,
            certificates=certificates,
            redis_tls=proxy(certificates.server),
            redis_mutual=proxy(certificates.server, mutual=True),
            redis_elsewhere=proxy(certificates.elsewhere),
        )
