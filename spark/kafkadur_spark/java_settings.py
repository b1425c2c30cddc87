"""The settings of confluent-kafka as options of Spark's Kafka source, which uses Kafka's Java client.

Only the settings for connecting are translated; all others have other names and defaults in the Java client,
and can be given as options `kafka.<name>`. The functions are pure, except that they read certificates.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafkadur_sharing.errors import IllegalState

#: Settings that have the same name in both clients.
_SAME = ("bootstrap.servers", "security.protocol", "ssl.key.password", "client.dns.lookup")
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
#: Settings that are translated below, or concern only confluent-kafka.
_KNOWN = {
    "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.location", "ssl.ca.pem",
    "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem",
    "enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm",
}  # fmt: skip


def java_settings(kafka: Mapping[str, Any]) -> dict[str, str]:
    """Return the options `kafka.<name>` for a confluent-kafka configuration.

    Raises `IllegalState` for a security setting that has no translation.
    """
    given = {name: value for name, value in kafka.items() if not callable(value)}
    given["bootstrap.servers"] = given.get("bootstrap.servers") or given.pop("metadata.broker.list", "")
    secure = [name for name in given if name.startswith(("sasl.", "ssl.", "security.", "enable.ssl."))]
    unknown = [name for name in secure if name not in _KNOWN and name not in _SAME]
    if unknown or given.get("enable.ssl.certificate.verification") in {False, "false"}:
        raise IllegalState(
            "A setting of Kafka has no translation for Spark.",
            state=", ".join(unknown) or "enable.ssl.certificate.verification=false",
            owner="the connection",
            remedy="connect without it, and give Spark what Kafka's Java client needs: options kafka.<name>",
        )
    found = {name: str(given[name]) for name in _SAME if given.get(name)}
    if "security.protocol" in found:
        found["security.protocol"] = found["security.protocol"].upper()
    found |= _sasl(given) | _ssl(given)
    return {f"kafka.{name}": value for name, value in found.items()}


def _sasl(given: Mapping[str, Any]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms")
    if not mechanism:
        return {}
    module = _MODULES.get(str(mechanism))
    if module is None:
        raise IllegalState(
            "A way of logging in to Kafka has no translation for Spark.",
            state=f"sasl.mechanism {mechanism}",
            owner="the connection",
            remedy=f"use one of {', '.join(_MODULES)}, or give Spark kafka.sasl.mechanism and "
            "kafka.sasl.jaas.config as options and leave it out of the connection",
        )
    user, password = (_quoted(str(given.get(f"sasl.{name}", ""))) for name in ("username", "password"))
    return {
        "sasl.mechanism": str(mechanism),
        "sasl.jaas.config": f"{module} required username={user} password={password};",
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _ssl(given: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    ca, chain, key = (_pem(given, name) for name in ("ca", "certificate", "key"))
    if ca:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": ca}
    if chain and key:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": chain,
            "ssl.keystore.key": key,
        }
    algorithm = given.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        found["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else str(algorithm)
    return found


def _pem(given: Mapping[str, Any], name: str) -> str:
    if given.get(f"ssl.{name}.pem"):
        return str(given[f"ssl.{name}.pem"])
    location = given.get(f"ssl.{name}.location")
    if not location:
        return ""
    try:
        return Path(str(location)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise IllegalState(
            f"The file of ssl.{name}.location cannot be read.",
            state=str(error),
            owner="the connection",
            remedy="name a PEM file that this process may read",
        ) from error
