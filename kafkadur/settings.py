"""Settings of a connection: where Kafka and Redis are, who connects, time-outs. Checked once, at the edge.

Each setting can come from the environment as `KAFKADUR_<NAME>`; what is given in code wins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kafkadur_coordinators.redis.server import check_url, shown
from kafkadur_sharing.decisions import Mode
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.keys import ClientIdPolicy
from kafkadur_sharing.names import validate_client_id, validate_namespace

_PREFIX = "KAFKADUR_"
#: Names of Kafka settings whose values are secret and not printed.
_SECRET: Final = re.compile(
    r"password|passphrase|secret|token|\.pem$|jaas|oauthbearer\.config", re.IGNORECASE
)
_HIDDEN: Final = "***"


class Settings(BaseModel):
    """Settings of a connection; immutable. Printed, they show no secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    #: confluent-kafka configuration; a text is taken as bootstrap.servers
    kafka: dict[str, Any]
    #: URL of Redis or Valkey: redis://, rediss:// or unix://; or of the Sentinels that know it:
    #: redis+sentinel://host:port,host:port/service/db (kafkadur_coordinators/redis/server.py)
    redis: str = "redis://127.0.0.1:6379/0"
    #: client id of the connection (rules C1-C4); needed by exclusive subscriptions (rule U1)
    client_id: str | None = None
    client_id_policy: ClientIdPolicy = ClientIdPolicy.RESTRICTED
    #: whose rules hold where the sources disagree: Jakarta Messaging's, or WebLogic's (rules P1-P8)
    mode: Mode = "jms"
    #: separates deployments that share Kafka and Redis; the boundary of trust
    namespace: str = "default"
    #: prefix of all Redis keys
    prefix: str = "kafkadur"
    #: a member that is not heard of for so long has lost its leases
    session_timeout: timedelta = timedelta(seconds=10)
    #: time-out of one call to Redis
    redis_timeout: timedelta = timedelta(seconds=5)
    #: time-out of one request to Kafka outside reading and writing
    kafka_timeout: timedelta = timedelta(seconds=15)
    #: how often it is looked whether retention is about to remove unsettled messages
    retention_check: timedelta = timedelta(minutes=1)
    #: replicas that must have an acknowledgement of the level `replicated`
    replicas: int = Field(default=1, ge=1, le=100)
    #: how long an acknowledgement above the level `redis` waits for its level
    level_timeout: timedelta = timedelta(seconds=15)
    #: whether spans of OpenTelemetry are made (extra `tracing`)
    tracing: bool = False
    #: partitions of the journal topic when it is created
    journal_partitions: int = Field(default=64, ge=1, le=1024)
    #: replication factor of the journal topic when it is created; -1: the broker's default
    journal_replication: int = Field(default=-1, ge=-1)

    @field_validator("kafka", mode="before")
    @classmethod
    def _bootstrap(cls, value: object) -> object:
        return {"bootstrap.servers": value} if isinstance(value, str) else value

    @field_validator("redis")
    @classmethod
    def _redis(cls, value: str) -> str:
        check_url(value)  # raises ValueError
        return value

    @field_validator("prefix")
    @classmethod
    def _prefix(cls, value: str) -> str:
        return validate_namespace(value)

    @field_validator("client_id")
    @classmethod
    def _client_id(cls, value: str | None) -> str | None:
        return None if value is None else validate_client_id(value)

    @field_validator("namespace")
    @classmethod
    def _namespace(cls, value: str) -> str:
        return validate_namespace(value)

    @field_validator("session_timeout")
    @classmethod
    def _session(cls, value: timedelta) -> timedelta:
        if not timedelta(seconds=1) <= value <= timedelta(minutes=10):
            msg = "must be between 1 second and 10 minutes"
            raise ValueError(msg)
        return value

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """What `repr` shows."""
        for name, value in super().__repr_args__():
            if name == "kafka":
                yield name, visible(self.kafka)
            else:
                yield name, shown(self.redis) if name == "redis" else value

    @property
    def session_ms(self) -> int:
        """Session time-out, ms."""
        return round(self.session_timeout.total_seconds() * 1000)


def visible(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Kafka's settings as they may be shown: what is secret is hidden."""
    return {name: _HIDDEN if _SECRET.search(name) else value for name, value in kafka.items()}


def kafka_file(path: str | Path) -> dict[str, str]:
    """Read Kafka settings from a file: `name=value` a line, `#` begins a comment line.

    Raises `IllegalState` for a file that can't be read.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text, or that is no name"
        raise IllegalState(
            "The file of Kafka settings cannot be read.",
            state=str(reason),
            owner=f"file {path}",
            remedy="name a file that is there, or unset KAFKADUR_KAFKA_CONFIG",
        ) from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise IllegalState(
                f"Line {number} of the file of Kafka settings has no '='.",
                owner=f"file {path}",
                remedy="write name=value, as in sasl.mechanism=SCRAM-SHA-512",
            )
        found[name.strip()] = value.strip()
    return found


def settings(given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """Join what is given in code (None: it is not) with the environment.

    `kafka_config` (KAFKADUR_KAFKA_CONFIG) is a file with settings of Kafka; those in `kafka` go before them.
    Raises `IllegalState` naming what is wrong.
    """
    environment = os.environ if environment is None else environment
    names = Settings.model_fields
    values: dict[str, Any] = {
        name: environment[_PREFIX + name.upper()] for name in names if _PREFIX + name.upper() in environment
    }
    values |= {name: value for name, value in given.items() if value is not None}
    for name in ("session_timeout", "redis_timeout", "kafka_timeout", "retention_check", "level_timeout"):
        if isinstance(values.get(name), str):
            try:
                values[name] = float(values[name])
            except ValueError as error:
                raise IllegalState(
                    f"The setting {name} is wrong.",
                    state=f"{values[name]!r}",
                    remedy="give a number of seconds",
                ) from error
    file = values.pop("kafka_config", None) or environment.get(f"{_PREFIX}KAFKA_CONFIG")
    if file is not None:
        if not isinstance(file, str | Path):
            raise IllegalState("The setting kafka_config is wrong.", remedy="give the path of a file")
        kafka = values.get("kafka", {})
        kafka = {"bootstrap.servers": kafka} if isinstance(kafka, str) else kafka
        if isinstance(kafka, Mapping):
            values["kafka"] = {**kafka_file(file), **kafka}
    if "kafka" not in values:
        raise IllegalState(
            "It is not said where Kafka is.",
            remedy=f"pass kafka='host:port' or set {_PREFIX}KAFKA; `kafkadur up` starts one on this machine",
        )
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise IllegalState(
            f"The setting {'.'.join(map(str, first['loc']))} is wrong.",
            state=str(first["msg"]),
            remedy="correct it",
        ) from error
