"""Settings of a connection: addresses of Kafka and Redis, client id, time-outs. They are checked here, once.

Each setting can come from the environment as `KAFKADUR_<NAME>`; a value given in code wins.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kafkadur_coordinators.redis.coordinator import STATE_VERSION, STATE_VERSION_BEFORE
from kafkadur_coordinators.redis.server import check_url, shown
from kafkadur_sharing.decisions import Mode
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.keys import ClientIdPolicy
from kafkadur_sharing.names import validate_client_id, validate_namespace
from kafkadur_sharing.readable_text import meant, without_prefix

_log = logging.getLogger("kafkadur")

_PREFIX = "KAFKADUR_"
#: How near the name of a variable is to that of a setting if it was meant, 0 to 1 (`difflib`).
_MEANT: Final = 0.8
#: Variables of which a warning was logged: each connection reads the environment.
_misspelt: set[str] = set()
#: Names of Kafka settings whose values are secret and not printed.
_SECRET: Final = re.compile(
    r"password|passphrase|secret|token|\.pem$|jaas|oauthbearer\.config", re.IGNORECASE
)
_HIDDEN: Final = "***"
_Name = Annotated[str, AfterValidator(validate_namespace)]


def _bootstrap(kafka: object) -> object:
    return {"bootstrap.servers": kafka} if isinstance(kafka, str) else kafka


def _checked(url: str) -> str:
    check_url(url)  # raises ValueError
    return url


def _known_version(version: int) -> int:
    if version not in (STATE_VERSION, STATE_VERSION_BEFORE):
        text = f"this version knows {STATE_VERSION_BEFORE} and {STATE_VERSION}"
        raise ValueError(text)
    return version


class Settings(BaseModel):
    """Settings of a connection; immutable. Printed, they show no secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    #: Bootstrap servers, or a configuration of confluent-kafka.
    kafka: Annotated[dict[str, Any], BeforeValidator(_bootstrap)]
    #: URL of Redis or Valkey: `redis://`, `rediss://` or `unix://`; or of the Sentinels that watch it:
    #: `redis+sentinel://host:port,host:port/service/db`; or of nodes of a cluster:
    #: `redis+cluster://host:port,host:port`.
    redis: Annotated[str, AfterValidator(_checked)] = "redis://127.0.0.1:6379/0"
    #: Client id of the connection (rules C1 to C4). Exclusive subscriptions need one (rule U1).
    client_id: Annotated[str, AfterValidator(validate_client_id)] | None = None
    #: Whether one live connection at a time may have the client id, or any number (rules C1, X7).
    client_id_policy: ClientIdPolicy = ClientIdPolicy.RESTRICTED
    #: The rules that apply where Jakarta Messaging and WebLogic differ (rules P1 to P8).
    mode: Mode = "jms"
    #: Separates deployments that share Kafka and Redis. It is the boundary of trust.
    namespace: _Name = "default"
    #: Prefix of all Redis keys.
    prefix: _Name = "kafkadur"
    #: A member that makes no call for this time loses its leases; 1 s to 10 minutes.
    session_timeout: timedelta = Field(
        default=timedelta(seconds=10), ge=timedelta(seconds=1), le=timedelta(minutes=10)
    )
    #: Time-out of one call to Redis.
    redis_timeout: timedelta = timedelta(seconds=5)
    #: Time-out of one request to Kafka, except reading and writing messages.
    kafka_timeout: timedelta = timedelta(seconds=15)
    #: How often a member checks whether Kafka is about to remove unsettled messages.
    retention_check: timedelta = timedelta(minutes=1)
    #: Number of replicas of Redis that must have an acknowledgement of the level `replicated`.
    replicas: int = Field(default=1, ge=1, le=100)
    #: How long an acknowledgement above the level `redis` waits for its level.
    level_timeout: timedelta = timedelta(seconds=15)
    #: Whether spans of OpenTelemetry are created (extra `tracing`).
    tracing: bool = False
    #: Version of the state in Redis that new and rebuilt subscriptions get. Set 1 while processes of the
    #: version before use the same subscriptions.
    state_version: Annotated[int, AfterValidator(_known_version)] = STATE_VERSION
    #: Partitions of the journal topic when it is created.
    journal_partitions: int = Field(default=64, ge=1, le=1024)
    #: Replication factor of the journal topic when it is created; -1: the broker's default.
    journal_replication: int = Field(default=-1, ge=-1)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Return the settings for `repr`, without secrets."""
        safe = {"kafka": visible(self.kafka), "redis": shown(self.redis)}
        return [(name, safe.get(name or "", value)) for name, value in super().__repr_args__()]

    @property
    def session_ms(self) -> int:
        """Session time-out, ms."""
        return round(self.session_timeout.total_seconds() * 1000)


class MoreSettings(TypedDict, total=False):
    """The settings that have no parameter of their own in `kafkadur.connect`.

    Times are timedeltas or numbers of seconds. `kafka_config` is a file with settings of Kafka.
    """

    kafka_config: str | Path | None
    mode: Mode
    prefix: str
    redis_timeout: timedelta | float
    kafka_timeout: timedelta | float
    retention_check: timedelta | float
    replicas: int
    level_timeout: timedelta | float
    tracing: bool
    state_version: int
    journal_partitions: int
    journal_replication: int


def visible(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of Kafka to show: secret values are hidden."""
    return {name: _HIDDEN if _SECRET.search(name) else value for name, value in kafka.items()}


def kafka_file(path: str | Path) -> dict[str, str]:
    """Read Kafka settings from a file: lines of `name=value`; `#` begins a comment line.

    Raises `IllegalState` for a file that cannot be read, or a line without `=`.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError)
            else "it is not a text file, or its name is not valid"
        )
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
    """Join the settings given in code (None: not given) with the environment.

    `kafka_config` (KAFKADUR_KAFKA_CONFIG) is a file with settings of Kafka; those in `kafka` win. Raises
    `IllegalState` that names the wrong setting.
    """
    environment = os.environ if environment is None else environment
    names = Settings.model_fields
    values: dict[str, Any] = {
        name: environment[_PREFIX + name.upper()] for name in names if _PREFIX + name.upper() in environment
    }
    _warn_of_misspelt(environment, [*names, "kafka_config"])
    values |= {name: value for name, value in given.items() if value is not None}
    if unknown := sorted(values.keys() - names.keys() - {"kafka_config"}):
        raise IllegalState(
            f"There is no setting {unknown[0]!r}.",
            owner="the caller",
            remedy=meant(unknown[0], names),
        )
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
        kafka = _bootstrap(values.get("kafka", {}))
        if isinstance(kafka, Mapping):
            values["kafka"] = {**kafka_file(file), **kafka}
    if "kafka" not in values:
        raise IllegalState(
            "It is not said where Kafka is.",
            remedy=f"pass kafka='host:port' or set {_PREFIX}KAFKA; `kafkadur up` starts one on this machine, "
            'and `eval "$(kafkadur up)"` sets it',
        )
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise IllegalState(
            f"The setting {'.'.join(map(str, first['loc']))} is wrong.",
            state=without_prefix(str(first["msg"])),
            remedy="correct it",
        ) from error


def _warn_of_misspelt(environment: Iterable[str], names: Iterable[str]) -> None:
    """Log a warning, once, for each variable that is no setting and whose name is nearly that of one."""
    known = [name.upper() for name in names]
    for variable in sorted(environment):
        name = variable.removeprefix(_PREFIX)
        if variable.startswith(_PREFIX) and name not in known and variable not in _misspelt:
            for meant in get_close_matches(name, known, n=1, cutoff=_MEANT):
                text = "The variable %s is ignored: there is no such setting. Remedy: set %s%s, or unset it."
                _log.warning(text, variable, _PREFIX, meant)
                _misspelt.add(variable)
