"""One stack for all pytest workers of a run: the first worker that needs it starts it, the others borrow it.

A borrowed stack is an ordinary `Stack` whose servers know their addresses; only the worker that started the
servers may stop or kill them. The owner ends the stack when every borrower has ended.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from kafkadur.stack import Stack, StackError, embedded
from kafkadur.stack.kafka import Broker, distribution
from kafkadur.stack.stack import silent
from kafkadur.stack.supervision import Supervisor
from kafkadur.stack.valkey import Valkey

#: The controller counts a broker as dead when it was not heard for this time: usually 3 s, so that a broker
#: that was killed can come back soon. This one may not be killed, and a busy machine must not make it refuse
#: topics.
PATIENT = {"broker.session.timeout.ms": "60000"}


class Elsewhere(Supervisor):
    """Stands for the supervisor of a stack in another process: it starts and signals no server."""

    def __init__(self) -> None:
        """Start nothing."""

    def __getattribute__(self, name: str) -> Any:
        """Raise StackError: nothing of a supervisor can be used from here."""
        raise StackError(
            f"Supervisor.{name}: another pytest worker started this stack and alone may stop or kill its "
            "servers. Start a stack of the test's own with embedded()."
        )


@contextlib.contextmanager
def shared_stack(folder: Path) -> Generator[Stack]:
    """Run the stack of a test run, or borrow it from the worker that runs it.

    `folder` is the same for all workers of the run.
    """
    addresses = folder / "stack.json"
    with contextlib.ExitStack() as undo:
        with locked(folder / "stack.lock"):
            if addresses.exists():
                known = json.loads(addresses.read_text())
                undo.enter_context(locked(folder / f"stack-{known['owner']}.users", fcntl.LOCK_SH))
                stack = borrowed(known)
            else:
                stack = undo.enter_context(embedded(users=True, kafka_settings=PATIENT))
                addresses.write_text(json.dumps(described(stack)))
                undo.callback(end, addresses)
        yield stack


def end(addresses: Path) -> None:
    """Have no other worker borrow the stack of this process any more, and wait for those that have."""
    with locked(addresses.with_name("stack.lock")):
        addresses.unlink()
    with locked(addresses.with_name(f"stack-{os.getpid()}.users")):
        pass


@contextlib.contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Generator[None]:
    """Hold a lock on a file; the kernel releases it when the process ends, however it ends."""
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield


def described(stack: Stack) -> dict[str, Any]:
    """Return what another process needs to know of a stack."""
    assert stack.valkey is not None
    return {
        "owner": os.getpid(),
        "kafka": stack.brokers[0].port,
        "valkey": stack.valkey.port,
        "data": str(stack.data),
        "logs": str(stack.logs),
    }


def borrowed(known: dict[str, Any]) -> Stack:
    """Return the stack that `described` described."""
    data, logs = Path(known["data"]), Path(known["logs"])
    broker = Broker(
        Elsewhere(), distribution(silent), node=1, voters={1: 0}, ports=(known["kafka"], 0, 0),
        advertised=None, cluster="", logs=logs, data=data / "broker-1", settings={},
    )  # fmt: skip
    valkey = Valkey(
        Elsewhere(), name="valkey", port=known["valkey"], logs=logs, data=data / "valkey", settings={},
        users=True,
    )  # fmt: skip
    return Stack(
        data=data,
        logs=logs,
        brokers=(broker,),
        valkey=valkey,
        replica=None,
        sentinels=(),
        kafka_proxies=(),
        redis_proxy=None,
        replication_proxy=None,
        valkey_cluster=None,
    )
