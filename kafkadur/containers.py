"""Kafka and Valkey in containers, for tests with a container engine: fixture `kafkadur_containers`.

Without an engine use the embedded stack, which also runs a real Kafka and a real Valkey.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from kafkadur.settings import settings
from kafkadur.stack.errors import StackError
from kafkadur.stack.kafka import quiet_admin
from kafkadur.stack.ports import free_ports
from kafkadur_coordinators.redis.server import open_server

KAFKA_IMAGE: Final = "apache/kafka:4.3.1"
VALKEY_IMAGE: Final = "valkey/valkey:8.1"
#: Seconds until each must answer, not counting the pull of its image.
_START_S: Final = 90.0
_POLL_S: Final = 0.1
_SOCKET: Final = "unix:///var/run/docker.sock"
_ASK_S: Final = 5.0
_KAFKA_PORT, _VALKEY_PORT = 9092, 6379


@dataclass(frozen=True, kw_only=True)
class Containers:
    """The addresses of running containers."""

    #: bootstrap servers
    kafka: str
    #: URL
    redis: str


def has_engine() -> bool:
    """Whether an engine answers where `DOCKER_HOST` says, or at Docker's usual socket."""
    where = urlsplit(os.environ.get("DOCKER_HOST") or _SOCKET)
    try:
        if where.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as asked:
                asked.settimeout(_ASK_S)
                asked.connect(where.path)
        else:
            socket.create_connection((where.hostname or "", where.port or 0), timeout=_ASK_S).close()
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def containers(*, kafka_image: str = KAFKA_IMAGE, valkey_image: str = VALKEY_IMAGE) -> Generator[Containers]:
    """Run Kafka and Valkey for the length of the `with` block.

    Raises `StackError` without an engine, and if one of them does not start.
    """
    try:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - of the extra
    except ImportError as error:
        raise StackError(
            "Containers need testcontainers, which is not installed. Remedy: pip install 'kafkadur[test]'."
        ) from error
    if not has_engine():
        raise StackError(
            "No container engine answers. Remedy: start Docker, or take the embedded stack (kafkadur_stack)."
        )
    (port,) = free_ports(1)
    untyped: Any = DockerContainer
    kafka = untyped(kafka_image).with_bind_ports(_KAFKA_PORT, port)
    valkey = untyped(valkey_image).with_exposed_ports(_VALKEY_PORT)
    # An engine publishes ports on all addresses: the password keeps other hosts out. Without one, images with
    # stricter defaults than Valkey's own accept no connection from outside the container.
    password = secrets.token_hex(16)
    valkey = valkey.with_command(
        f"valkey-server --appendonly yes --maxmemory-policy noeviction --requirepass {password}"
    )
    with valkey:
        host = valkey.get_container_host_ip()
        for name, value in _kafka_environment(host, port).items():
            kafka = kafka.with_env(name, value)
        with kafka:
            where = Containers(
                kafka=f"{host}:{port}",
                redis=f"redis://:{password}@{host}:{valkey.get_exposed_port(_VALKEY_PORT)}/0",
            )
            _wait(lambda: _kafka_answers(where.kafka), f"Kafka ({kafka_image})", kafka)
            _wait(lambda: _redis_answers(where.redis), f"Valkey ({valkey_image})", valkey)
            yield where


def _kafka_environment(host: str, port: int) -> dict[str, str]:
    """Configure one broker that is its own controller; clients reach it by the port of the host."""
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{_KAFKA_PORT},CONTROLLER://localhost:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{host}:{port}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }


def _kafka_answers(address: str) -> bool:
    return bool(quiet_admin(address).list_topics(timeout=2.0).brokers)


def _redis_answers(address: str) -> bool:
    with open_server(settings({"kafka": "unused", "redis": address}).redis, timeout=2.0) as client:
        return bool(client.ping())


def _wait(answers: Callable[[], bool], what: str, container: Any) -> None:  # noqa: ANN401 - testcontainers has no types
    until, reason = time.monotonic() + _START_S, Exception("no answer")
    while time.monotonic() < until:
        try:
            if answers():
                return
        except Exception as error:  # noqa: BLE001 - it has not started yet, or never will
            reason = error
        time.sleep(_POLL_S)  # polls for a condition, with a deadline
    log = b"".join(container.get_logs()).decode(errors="replace")[-2_000:]
    raise StackError(f"{what} does not answer after {_START_S:g} s: {reason} Its log: {log}") from reason
