"""Kafka brokers (KRaft) of an embedded stack: their files, their settings, their command line."""

import hashlib
import logging
import os
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kafkadur.stack.errors import StackError, file_error
from kafkadur.stack.jars import LOCK_FILE, Progress, kafka_jars, locked_jars
from kafkadur.stack.java import Java, find_java
from kafkadur.stack.ports import HOST, free_ports
from kafkadur.stack.server import START_LIMIT_S, Server
from kafkadur.stack.supervision import Supervisor

logger = logging.getLogger(__name__)

JVM = (
    "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+IgnoreUnrecognizedVMOptions",
    "-Xlog:disable", "-Xlog:all=error:stderr",
)  # fmt: skip

#: Environment variable with more options of the brokers' JVM, separated by spaces, like `KAFKA_OPTS` of
#: Kafka's own scripts. For short-lived brokers `-XX:TieredStopAtLevel=1` halves the cost of their start.
OPTIONS = "KAFKADUR_BROKER_OPTS"

#: Each broker logs to one file, with short lines.
LOG4J = """\
appender.file.type=File
appender.file.name=file
appender.file.fileName=${sys:kafkadur.log}
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %m (%c)%n
rootLogger.level=INFO
rootLogger.appenderRef.file.ref=file
"""

#: For a few topics on one machine: small internal topics, no wait for further members of a group, and a small
#: buffer of the log cleaner (128 MB by default would fill the heap).
SETTINGS: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    # A broker that was killed can register again only when its old session has ended (9 s by default).
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "log.cleaner.dedupe.buffer.size": 32 << 20,
}

#: Replicas of all topics with three or more brokers, and how many of them must have a record.
REPLICAS, IN_SYNC = 3, 2

#: Seconds one question to a starting broker may take.
ASK_S = 0.3


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Everything needed to start brokers: a Java, the jars, and files computed from them once."""

    java: Java
    #: Folder of the jars.
    jars: Path
    #: ``bootstrap.checkpoint`` as the formatting tool writes it: the feature levels of a new cluster, share
    #: groups among them. It names neither cluster nor node, so one copy serves all.
    checkpoint: Path
    #: Archive of loaded classes, which takes the start from 3 s to 1.3 s; None where it could not be made.
    classes: Path | None

    def command(self, *options: str) -> list[str]:
        """Return the start of a command line, up to the main class."""
        archive = [f"-XX:SharedArchiveFile={self.classes}"] if self.classes else []
        # Explicit names in a fixed order: the archive is valid for exactly one class path.
        path = os.pathsep.join(str(self.jars / jar.file) for jar in locked_jars())
        return [self.java.command, *JVM, *archive, *options, "-cp", path]


class Broker(Server):
    """One Kafka broker, which is a controller as well."""

    def __init__(
        self,
        supervisor: Supervisor,
        distribution: Distribution,
        *,
        node: int,
        voters: Mapping[int, int],
        ports: tuple[int, int, int],
        advertised: int | None,
        cluster: str,
        logs: Path,
        data: Path,
        settings: Mapping[str, str],
        options: Sequence[str] = (),
    ) -> None:
        """Describe node number ``node`` of the cluster ``cluster``.

        ``voters`` is the controller port by node, ``ports`` are those for clients, brokers and controllers,
        ``advertised`` is advertised to clients instead of the first (the port of a proxy). ``settings``
        override the usual ones, ``options`` are more options of the JVM.
        """
        super().__init__(supervisor, name=f"broker-{node}", ports=ports, logs=logs, data=data)
        #: Node id, from 1.
        self.node = node
        self._distribution = distribution
        self._cluster = cluster
        self._options = options
        self._ask: AdminClient | None = None
        count = len(voters)
        replicas, in_sync = min(count, REPLICAS), IN_SYNC if count >= REPLICAS else 1
        client, internal, controller = ports
        self._settings: dict[str, object] = {
            **SETTINGS,
            "node.id": node,
            "controller.quorum.voters": ",".join(f"{voter}@{HOST}:{port}" for voter, port in voters.items()),
            "listeners": (
                f"CLIENT://{HOST}:{client},INTERNAL://{HOST}:{internal},CONTROLLER://{HOST}:{controller}"
            ),
            "advertised.listeners": f"CLIENT://{HOST}:{advertised or client},INTERNAL://{HOST}:{internal}",
            "log.dirs": data / "log",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            **settings,
        }

    @property
    def internal_address(self) -> str:
        """``host:port`` of the listener that never goes through a proxy."""
        return f"{HOST}:{self._ports[1]}"

    def launch(self) -> None:
        """Start the process without waiting for it."""
        # A client caches metadata of the broker's earlier run; a new one asks whether the broker is ready.
        self._ask = None
        super().launch()

    def write_settings(self, file: Path, **instead: object) -> None:
        """Write ``server.properties``; ``instead`` (underscores for dots) overrides settings."""
        settings = self._settings | {name.replace("_", "."): value for name, value in instead.items()}
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _command(self) -> list[str]:
        logs, temporary = self._folder / "log", self._folder / "tmp"
        for folder in (logs, temporary):
            folder.mkdir(parents=True, exist_ok=True)
        self._format(logs)
        properties, log4j = self._folder / "server.properties", self._folder / "log4j2.properties"
        self.write_settings(properties)
        log4j.write_text(LOG4J)
        return [
            *self._distribution.command(
                *self._options,
                *os.environ.get(OPTIONS, "").split(),
                # Compression libraries unpack files there; in /tmp they would stay after a kill.
                f"-Djava.io.tmpdir={temporary}",
                f"-Dkafkadur.log={self.log}",
                f"-Dlog4j2.configurationFile={log4j}",
            ),
            "kafka.Kafka",
            str(properties),
        ]

    def _format(self, logs: Path) -> None:
        """Do what ``kafka.tools.StorageTool format`` does, without the second that its JVM takes."""
        properties = logs / "meta.properties"
        if properties.exists():
            return
        (logs / "bootstrap.checkpoint").write_bytes(self._distribution.checkpoint.read_bytes())
        lines = f"version=1\ncluster.id={self._cluster}\nnode.id={self.node}\ndirectory.id={kafka_uuid()}\n"
        # Written last and atomically: if it exists, the folder is formatted.
        unfinished = properties.with_suffix(".new")
        unfinished.write_text(lines)
        unfinished.replace(properties)

    def _answers(self) -> bool:
        self._ask = self._ask or quiet_admin(self.internal_address)
        try:
            ready = self.node in self._ask.list_topics(timeout=ASK_S).brokers
        except KafkaException:
            return False
        if ready:
            self._ask = None
        return ready


def quiet_admin(bootstrap: str) -> AdminClient:
    """Return an admin client that reconnects fast and writes nothing to standard error."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "log_level": 0,
        "error_cb": lambda _error: None,
    }
    return AdminClient(settings)


def create_topics(bootstrap: str, topics: Mapping[str, int]) -> None:
    """Create the missing topics, each with so many partitions.

    Raises `StackError` if Kafka does not create one.
    """
    if not topics:
        return
    admin: Any = quiet_admin(bootstrap)
    for name, future in admin.create_topics([NewTopic(*each) for each in topics.items()]).items():
        try:
            future.result(START_LIMIT_S)
        except KafkaException as error:
            told: KafkaError = error.args[0]
            if told.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise StackError(f"The topic {name} was not created: {told.str()}.") from error


def kafka_uuid() -> str:
    """Return a new id in Kafka's form: 22 characters of URL-safe base64.

    It does not start with a dash, which Kafka's tools would take for an option.
    """
    while (text := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def cluster_of(broker_data: Path) -> str | None:
    """Return the cluster id of a broker's data folder, None if the folder is not formatted."""
    try:
        text = (broker_data / "log" / "meta.properties").read_text()
    except FileNotFoundError:
        return None
    return next(
        (line.partition("=")[2] for line in text.splitlines() if line.startswith("cluster.id=")), None
    )


def distribution(progress: Progress) -> Distribution:
    """Return everything needed to start brokers; fetch and compute missing files. Raises StackError."""
    java = find_java()
    jars = kafka_jars(java, progress)
    home = jars.parent
    checkpoint = home / "bootstrap.checkpoint"
    # The archive is valid for these jars and this Java only.
    key = hashlib.sha256("\n".join((java.command, java.version, str(jars), LOCK_FILE.read_text())).encode())
    classes = home / f"classes-{key.hexdigest()[:16]}.jsa"
    plain = Distribution(java=java, jars=jars, checkpoint=checkpoint, classes=None)
    try:
        if not checkpoint.exists() or not classes.exists():
            prepare(plain, classes, progress)
    except OSError as error:
        raise file_error(error, home) from error
    return replace(plain, classes=classes if classes.stat().st_size else None)


def prepare(plain: Distribution, classes: Path, progress: Progress) -> None:
    """Run the formatting tool and a first broker in a temporary folder, and keep files for later starts."""
    steps, text = 3, "preparing the broker for fast starts (once)"
    progress(0, steps, text)
    with (
        Supervisor(temporary=True) as supervisor,
        tempfile.TemporaryDirectory(prefix="prepare-", dir=classes.parent) as kept,
    ):
        assert supervisor.temporary is not None  # noqa: S101 - it was asked for
        client, internal, controller = free_ports(3)
        archive = Path(kept) / classes.name
        broker = Broker(
            supervisor,
            plain,
            node=1,
            voters={1: controller},
            ports=(client, internal, controller),
            advertised=None,
            cluster=kafka_uuid(),
            logs=supervisor.temporary,
            data=supervisor.temporary / "broker-1",
            settings={},
            options=[f"-XX:ArchiveClassesAtExit={archive}"],
        )
        if not plain.checkpoint.exists():
            made = _format_by_tool(plain, broker, supervisor.temporary / "format")
            made.replace(plain.checkpoint)
        progress(1, steps, text)
        broker.start()
        try:
            _exercise(broker.address)
        except KafkaException as error:
            logger.warning("the broker's first use for its class archive failed: %s", error)
        progress(2, steps, text)
        broker.stop()
        if not archive.exists():
            logger.warning(
                "this Java makes no class archive: every start of the embedded broker takes 2 s longer"
            )
            # The empty file prevents another attempt at every start.
            archive.touch()
        archive.replace(classes)
    progress(steps, steps, text)


def _format_by_tool(plain: Distribution, broker: Broker, folder: Path) -> Path:
    """Have Kafka's own tool format ``folder`` and return the checkpoint file with the feature levels."""
    folder.mkdir()
    properties = folder / "server.properties"
    broker.write_settings(properties, log_dirs=folder / "log")
    done = subprocess.run(  # noqa: S603 - the Java that was found and the jars that were verified
        [
            *plain.command(), "kafka.tools.StorageTool", "format",
            "--cluster-id", kafka_uuid(), "--config", properties,
        ],
        check=False, capture_output=True, text=True, timeout=START_LIMIT_S,
    )  # fmt: skip
    made = folder / "log" / "bootstrap.checkpoint"
    if done.returncode or not made.exists():
        said = " ".join((done.stdout + done.stderr).split())[-300:]
        raise StackError(f"Kafka's formatting tool failed: {said}. Remove {plain.jars.parent} and try again.")
    return made


def _exercise(bootstrap: str) -> None:
    """Send and receive one record through a group, so that the archive contains the classes for that."""
    topic = "exercise"
    admin: Any = quiet_admin(bootstrap)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(START_LIMIT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, b"record")
    producer.flush(START_LIMIT_S)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + START_LIMIT_S
    while consumer.poll(1.0) is None and time.monotonic() < deadline:
        pass
    consumer.close()
