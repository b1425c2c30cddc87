"""A stack that runs as long as its owner: brokers, Valkey, proxies, and their common start and end."""

import contextlib
import os
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kafkadur.stack.errors import PortTakenError, StackError, file_error
from kafkadur.stack.jars import Progress, cache_folder
from kafkadur.stack.kafka import Broker, Distribution, cluster_of, distribution, kafka_uuid
from kafkadur.stack.ports import HOST, free_ports
from kafkadur.stack.proxy import TcpProxy
from kafkadur.stack.server import Server
from kafkadur.stack.supervision import Supervisor
from kafkadur.stack.valkey import Sentinel, Valkey, as_administrator
from kafkadur.stack.valkey_cluster import CLUSTER_SETTINGS, ValkeyCluster

#: How often a start is tried if other processes take ports that were free a moment before.
PORT_TRIES = 4

#: Folders of logs of finished temporary stacks that stay in the cache folder.
KEPT_LOGS = 10
#: Seconds without a line in its logs after which a stack counts as ended.
IN_USE_S = 3_600.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parts of a stack. See :func:`embedded` for the meaning of the fields."""

    brokers: int = 1
    replica: bool = False
    sentinels: int = 0
    valkey_primaries: int = 0
    proxy: bool = False
    kafka: bool = True
    valkey: bool = True
    users: bool = False
    kafka_port: int | None = None
    valkey_port: int | None = None
    kafka_settings: Mapping[str, str] = field(default_factory=dict[str, str])
    valkey_settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        """Raise StackError for an impossible combination."""
        if self.brokers < 1:
            raise StackError(f"brokers is {self.brokers}: give 1 or more, or kafka=False to omit Kafka.")
        if not (self.kafka or self.valkey):
            raise StackError("A stack without Kafka and without Valkey is empty: leave one of them on.")
        if self.replica and not self.valkey:
            raise StackError("replica=True needs valkey=True: a replica copies the stack's own Valkey.")
        if self.sentinels and not self.replica:
            raise StackError("sentinels need replica=True: without a replica no server can take over.")
        if self.valkey_primaries and (self.replica or self.valkey_port or not self.valkey):
            raise StackError(
                "valkey_primaries excludes replica, sentinels, valkey_port and valkey=False: "
                "the nodes of a cluster have replicas and ports of their own."
            )
        if self.sentinels and self.proxy:
            raise StackError("sentinels and proxy=True exclude each other: Sentinels lead past a proxy.")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A running stack: addresses for clients, and handles with which tests break it."""

    #: Folder of the servers' data; a temporary one is removed at the end.
    data: Path
    #: Folder of the servers' logs, which stay.
    logs: Path
    #: The brokers, node ids rising from 1; empty without Kafka.
    brokers: tuple[Broker, ...]
    #: The Valkey server, None without Valkey.
    valkey: Valkey | None
    #: Its replica, None unless asked for.
    replica: Valkey | None
    #: The Sentinels that watch Valkey and its replica; empty unless asked for.
    sentinels: tuple[Sentinel, ...]
    #: The cluster of Valkey servers, None unless asked for; then `valkey` is None.
    valkey_cluster: ValkeyCluster | None
    #: The proxies before the brokers, in the same order; empty unless asked for.
    kafka_proxies: tuple[TcpProxy, ...]
    #: The proxy before Valkey, None unless asked for.
    redis_proxy: TcpProxy | None
    #: The proxy through which the replica copies, None unless both were asked for.
    replication_proxy: TcpProxy | None

    @property
    def kafka(self) -> str:
        """Bootstrap servers, ``host:port,...``. Raises StackError for a stack without Kafka."""
        if not self.brokers:
            raise StackError("This stack was started without Kafka; start one with kafka=True.")
        return ",".join(server.address for server in self.kafka_proxies or self.brokers)

    @property
    def redis(self) -> str:
        """URL of Valkey, its Sentinels or its cluster, for applications. Raises StackError without Valkey."""
        if self.valkey_cluster is not None:
            return self.valkey_cluster.url
        if self.valkey is None:
            raise StackError("This stack was started without Valkey; start one with valkey=True.")
        if self.sentinels:
            return self.valkey.url_through(sentinel.address for sentinel in self.sentinels)
        return self.valkey.url_at(self.redis_proxy.address if self.redis_proxy else self.valkey.address)

    @property
    def admin_redis(self) -> str:
        """URL of Valkey for the administrator; without users the one for applications."""
        return as_administrator(self.redis)

    @property
    def replica_redis(self) -> str:
        """URL of the replica. Raises StackError for a stack without one."""
        if self.replica is None:
            raise StackError("This stack was started without a replica; start one with replica=True.")
        return self.replica.url

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers."""
        return (
            *self.brokers,
            *(server for server in (self.valkey, self.replica) if server),
            *(self.valkey_cluster.nodes if self.valkey_cluster else ()),
            *self.sentinels,
        )


@contextlib.contextmanager
def embedded(
    *,
    brokers: int = 1,
    replica: bool = False,
    sentinels: int = 0,
    valkey_primaries: int = 0,
    data: Path | None = None,
    proxy: bool = False,
    kafka: bool = True,
    valkey: bool = True,
    users: bool = False,
    kafka_port: int | None = None,
    valkey_port: int | None = None,
    kafka_settings: Mapping[str, str] | None = None,
    valkey_settings: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Generator[Stack, None, None]:
    """Run Kafka and Valkey on loopback for the length of the ``with`` block.

    They end with the block, and with the process however it ends, SIGKILL included.

    ``brokers``: how many, each a JVM of at most 512 MB heap. ``replica``: a second Valkey that copies the
    first. ``sentinels``: how many watch the two; :attr:`Stack.redis` is their URL then.
    ``valkey_primaries``: run a cluster of so many Valkey servers, 3 or more, with a replica each, instead of
    one. ``data``: folder that keeps the data (and ``logs``) for a later start with as many brokers; None: a
    temporary folder, and logs in the user's cache folder, which keeps those of the last 10 stacks.
    ``proxy``: put a :class:`TcpProxy` before each broker, before Valkey and between it and its replica (not
    before nodes of a cluster). ``kafka``, ``valkey``: False omits the server. ``users``: the user in the URL
    ``redis`` may do no more than kafkadur needs (``kafkadur acl redis``), the one in ``admin_redis``
    everything. ``kafka_port``, ``valkey_port``: fixed ports for the first broker and for Valkey; None: free
    ones. ``kafka_settings``, ``valkey_settings``: settings of the servers that override the usual ones.
    ``progress`` is called with (steps done, steps in all, text) while starting, from the calling thread.

    Raises StackError: Java missing or too old, no network for the first download, busy port, full disk, or
    a server that does not start.
    """
    plan = Plan(
        brokers=brokers,
        replica=replica,
        sentinels=sentinels,
        valkey_primaries=valkey_primaries,
        proxy=proxy,
        kafka=kafka,
        valkey=valkey,
        users=users,
        kafka_port=kafka_port,
        valkey_port=valkey_port,
        kafka_settings=kafka_settings or {},
        valkey_settings=valkey_settings or {},
    )
    report = progress or silent
    # First of all: this fails without Java or network, and it takes long the first time.
    parts = distribution(report) if kafka else None
    with ExitStack() as running:
        logs = prepare_logs(data)
        supervisor = running.enter_context(
            Supervisor(temporary=data is None, output=logs / "supervisor.log"),
        )
        folder = supervisor.temporary or data
        assert folder is not None  # noqa: S101 - one of them is given
        yield launch(plan, supervisor, parts, data=folder, logs=logs, progress=report, running=running)


def prepare_logs(data: Path | None) -> Path:
    """Return the folder for the logs of a stack, and create it if needed. Raises StackError."""
    if data is not None:
        logs = data.absolute() / "logs"
    else:
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 1_000_000:06}"
        logs = cache_folder() / "logs" / name
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error(error, logs) from error
    if data is None:
        _remove_old_logs(logs.parent)
    return logs


def launch(
    plan: Plan,
    supervisor: Supervisor,
    parts: Distribution | None,
    *,
    data: Path,
    logs: Path,
    progress: Progress,
    running: ExitStack,
) -> Stack:
    """Start all servers of ``plan``; ``running`` closes the proxies. Raises StackError."""
    data, logs = data.absolute(), logs.absolute()
    kafka = f"Kafka ({plan.brokers} brokers)" if plan.brokers > 1 else "Kafka"
    text = f"starting {' and '.join([kafka] * plan.kafka + ['Valkey'] * plan.valkey)}"
    valkeys = 2 * plan.valkey_primaries or plan.valkey + plan.replica
    steps = plan.brokers * plan.kafka + valkeys + plan.sentinels
    done = 0
    progress(done, steps, text)
    try:
        for tries_left in reversed(range(PORT_TRIES)):
            with ExitStack() as attempt:
                stack = _assemble(plan, supervisor, parts, data=data, logs=logs, running=attempt)
                try:
                    # All at once: the JVMs start in parallel, and brokers need a majority to become ready.
                    # Sentinels start last: a server that they miss at first they would find 10 s later.
                    for group in ([s for s in stack.servers if s not in stack.sentinels], stack.sentinels):
                        for server in group:
                            server.launch()
                        for server in group:
                            server.wait_ready()
                            done += 1
                            progress(done, steps, text)
                    if stack.valkey_cluster is not None:
                        stack.valkey_cluster.form()
                except PortTakenError:
                    for server in stack.servers:
                        server.kill()
                    done = 0
                    if not tries_left or plan.kafka_port or plan.valkey_port:
                        raise
                    continue
                running.push(attempt.pop_all())
                return stack
    except OSError as error:
        raise file_error(error, data) from error
    raise AssertionError("unreachable: the last try returns or raises")


def _assemble(
    plan: Plan,
    supervisor: Supervisor,
    parts: Distribution | None,
    *,
    data: Path,
    logs: Path,
    running: ExitStack,
) -> Stack:
    """Choose the ports, start the proxies (brokers advertise their ports), and describe the servers."""

    def proxy_to(port: int) -> TcpProxy | None:
        return running.enter_context(TcpProxy((HOST, port))) if plan.proxy else None

    brokers, kafka_proxies = [], []
    if parts is not None:
        ports = free_ports(3 * plan.brokers)
        if plan.kafka_port:
            ports[0] = plan.kafka_port
        kafka_proxies = [proxy for port in ports[::3] if (proxy := proxy_to(port)) is not None]
        brokers = _brokers(plan, supervisor, parts, ports, kafka_proxies, data=data, logs=logs)
    valkey = replica = redis_proxy = replication_proxy = None
    sentinels: list[Sentinel] = []
    cluster: ValkeyCluster | None = None
    if plan.valkey_primaries:
        cluster = _valkey_cluster(plan, supervisor, data=data, logs=logs)
    elif plan.valkey:
        first, second, *others = free_ports(2 + plan.sentinels)
        valkey = Valkey(
            supervisor, name="valkey", port=plan.valkey_port or first, logs=logs, data=data / "valkey",
            settings=plan.valkey_settings, users=plan.users,
        )  # fmt: skip
        redis_proxy = proxy_to(valkey.port)
        if plan.replica:
            replication_proxy = proxy_to(valkey.port)
            replica = Valkey(
                supervisor, name="valkey-replica", port=second, logs=logs, data=data / "valkey-replica",
                settings=plan.valkey_settings, primary=replication_proxy or valkey, users=plan.users,
            )  # fmt: skip
        sentinels += [
            Sentinel(
                supervisor, name=f"sentinel-{number}", port=port, logs=logs, data=data / f"sentinel-{number}",
                primary=valkey, quorum=plan.sentinels // 2 + 1,
            )
            for number, port in enumerate(others, 1)
        ]  # fmt: skip
    return Stack(
        data=data,
        logs=logs,
        brokers=tuple(brokers),
        valkey=valkey,
        replica=replica,
        sentinels=tuple(sentinels),
        valkey_cluster=cluster,
        kafka_proxies=tuple(kafka_proxies),
        redis_proxy=redis_proxy,
        replication_proxy=replication_proxy,
    )


def _brokers(
    plan: Plan,
    supervisor: Supervisor,
    parts: Distribution,
    ports: Sequence[int],
    proxies: Sequence[TcpProxy],
    *,
    data: Path,
    logs: Path,
) -> list[Broker]:
    """Describe the brokers of one cluster; each takes three of the ports and advertises that of its proxy."""
    cluster = _cluster(data, plan.brokers)
    voters = {node: ports[3 * node - 1] for node in range(1, plan.brokers + 1)}
    return [
        Broker(
            supervisor,
            parts,
            node=node,
            voters=voters,
            ports=(ports[3 * node - 3], ports[3 * node - 2], ports[3 * node - 1]),
            advertised=proxies[node - 1].port if proxies else None,
            cluster=cluster,
            logs=logs,
            data=data / f"broker-{node}",
            settings=plan.kafka_settings,
        )
        for node in voters
    ]


def _valkey_cluster(plan: Plan, supervisor: Supervisor, *, data: Path, logs: Path) -> ValkeyCluster:
    """Describe the nodes of a cluster; each takes two ports."""
    size = 2 * plan.valkey_primaries
    ports = free_ports(2 * size)
    return ValkeyCluster(
        [
            Valkey(
                supervisor,
                name=f"valkey-{number + 1}",
                port=ports[2 * number],
                bus=ports[2 * number + 1],
                logs=logs,
                data=data / f"valkey-{number + 1}",
                settings={**CLUSTER_SETTINGS, **plan.valkey_settings},
                users=plan.users,
            )
            for number in range(size)
        ]
    )


def _cluster(data: Path, brokers: int) -> str:
    """Return the cluster id of the existing data, or a new one. Raises StackError on mismatch."""
    found = [cluster for folder in data.glob("broker-*") if (cluster := cluster_of(folder))]
    if found and len(found) != brokers:
        raise StackError(
            f"{data} holds the data of {len(found)} brokers, but {brokers} were asked for. "
            "Ask for as many as there were, or give another folder."
        )
    return found[0] if found else kafka_uuid()


def _remove_old_logs(folder: Path) -> None:
    newest_first = sorted(folder.iterdir(), reverse=True)
    for old in newest_first[KEPT_LOGS:]:
        with contextlib.suppress(OSError):  # another process removes it
            last_written = max(file.stat().st_mtime for file in (old, *old.iterdir()))
            if time.time() - last_written > IN_USE_S:
                shutil.rmtree(old, ignore_errors=True)


def silent(_done: int, _all: int, _text: str) -> None:
    """Report nothing."""
