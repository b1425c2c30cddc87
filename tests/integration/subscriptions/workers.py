"""A consumer in a process of its own, told what to do line by line: for tests that kill, freeze and close it.

Run as a program this file is the worker; imported it is the handle that tests hold. Lines go in as JSON
arrays (`["receive", 3]`, `["ack"]`, `["close"]`) and each is answered by one JSON line.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import kafkadur.sync
from kafkadur.admin.changes import Admin
from kafkadur.settings import settings

#: Seconds within which a child has answered, or ended.
ANSWER_LIMIT_S = 240.0
ROOT = Path(__file__).parents[3]


class Child:
    """A process that is told what to do by lines of JSON, and answers with lines of JSON."""

    def __init__(self, module: str, *, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
        """Start it; `env` comes on top of this process's."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=cwd,
            env=os.environ | (env or {}),
        )

    def kill(self) -> None:
        """Kill it at once."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stop its execution, as a hung host would."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Make sure that it is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def say(self, what: object) -> None:
        """Tell it one thing."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def line(self, timeout: float = ANSWER_LIMIT_S) -> str | None:
        """The next line it says, empty when it has ended; None: it says nothing in time."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:  # select() knows no descriptor beyond the 1,024th
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return self._process.stdout.readline() if selector.select(timeout) else None

    def answer(self) -> Any:
        """The next line it says; raises AssertionError when it says nothing in time."""
        line = self.line()
        assert line is not None, "the worker does not answer"
        assert line, f"the worker ended: {self._process.poll()}"
        return json.loads(line)


class Worker(Child):
    """A worker process, attached when this object is made."""

    def __init__(
        self, settings: Mapping[str, Any], topic: str, options: Mapping[str, Any], *, tree: Path = ROOT
    ) -> None:
        """Start it; `options` go to `subscribe`, but `session_timeout` (seconds) and `mode` to `connect`.

        `tree`: whose code it runs.
        """
        chosen = dict(options)
        connection = dict(settings) | {"session_timeout": chosen.pop("session_timeout", 10.0)}
        if "mode" in chosen:
            connection["mode"] = chosen.pop("mode")
        super().__init__(
            "tests.integration.subscriptions.workers" if tree == ROOT else "tests.subscriptions.workers",
            cwd=tree,
            env={} if tree == ROOT else {"PYTHONPATH": _path_of(tree)},
        )
        self.say({"connect": connection, "topic": topic, "subscribe": chosen})
        assert self.answer() == "attached"

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def receive(self, count: int) -> list[tuple[int, int]]:
        """Receive so many messages and hold them; returns (number, attempt) of each."""
        self.say(["receive", count])
        return [(value, attempt) for value, attempt in self.answer()]

    def ack(self) -> str:
        """Acknowledge all it holds; the name of the error it met, or "acked"."""
        self.say(["ack"])
        return str(self.answer())

    def trouble(self) -> str:
        """Wait for the next message; the name of the error that comes instead, or the message's number."""
        self.say(["trouble"])
        return str(self.answer())

    def work(self) -> None:
        """Begin to acknowledge whatever comes; `answer` gives the numbers, when it has been quiet."""
        self.say(["work"])

    def poison(self, number: int) -> bool:
        """Acknowledge whatever comes, and die of this number; whether it did before all was settled."""
        self.say(["poison", number])
        line = self.line()
        assert line is not None, "the worker does not answer"
        return not line

    def close(self) -> str:
        """Close the subscription in order, which gives back what it holds."""
        self.say(["close"])
        return str(self.answer())


def _path_of(tree: Path) -> str:
    return os.pathsep.join(str(tree / room) for room in ("", "coordinators", "sharing", "spark"))


def _tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _serve(subscription: kafkadur.sync.Subscription, connect: Mapping[str, Any]) -> None:
    held: list[kafkadur.sync.Delivery] = []
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command == "receive":
            new = _receive(subscription, arguments[0])
            held += new
            _tell([(int(delivery.value or b"0"), delivery.attempt) for delivery in new])
        elif command == "ack":
            _tell(_ack(held))
            held.clear()
        elif command == "trouble":
            _tell(_trouble(subscription))
        elif command == "work":
            _work(subscription)
        elif command == "poison":
            _work_until(subscription, arguments[0], connect)
        elif command == "close":
            subscription.close()
            _tell("closed")


def _receive(subscription: kafkadur.sync.Subscription, count: int) -> list[kafkadur.sync.Delivery]:
    received: list[kafkadur.sync.Delivery] = []
    while len(received) < count:
        delivery = subscription.receive(timeout=ANSWER_LIMIT_S)
        if delivery is None:
            break
        received.append(delivery)
    return received


def _ack(held: list[kafkadur.sync.Delivery]) -> str:
    try:
        for delivery in held:
            delivery.ack()
    except kafkadur.KafkadurError as error:
        return type(error).__name__
    return "acked"


def _trouble(subscription: kafkadur.sync.Subscription) -> str:
    try:
        delivery = subscription.receive(timeout=ANSWER_LIMIT_S / 2)
    except kafkadur.KafkadurError as error:
        return type(error).__name__
    return "nothing" if delivery is None else f"message {(delivery.value or b'').decode()}"


def _work(subscription: kafkadur.sync.Subscription) -> None:
    """Acknowledge what comes, every 50th rolled back once, until two seconds pass without a message."""
    acked: list[int] = []
    while (delivery := subscription.receive(timeout=2.0)) is not None:
        number = int(delivery.value or b"0")
        if number % 50 == 0 and delivery.attempt == 1:
            delivery.rollback()
        else:
            acked.append(number)
            delivery.ack_nowait()
    subscription.close()
    _tell(acked)


def _work_until(subscription: kafkadur.sync.Subscription, poison: int, connect: Mapping[str, Any]) -> None:
    """Acknowledge what comes, and end at once when this number comes; or when all messages are settled."""
    with Admin(settings(connect)) as admin:
        while True:
            delivery = subscription.receive(timeout=0.2)
            if delivery is not None:
                if int(delivery.value or b"0") == poison:
                    os._exit(1)
                delivery.ack_nowait()
            elif admin.info(subscription.definition.key).backlog == 0:
                break
    subscription.close()
    _tell("settled")


def main() -> None:
    """Be a worker."""
    plan = json.loads(sys.stdin.readline())
    session = timedelta(seconds=plan["connect"].pop("session_timeout"))
    options = plan["subscribe"]
    if "max_attempts" in options:
        backoff = timedelta(seconds=options.pop("backoff", 0))
        options["redelivery"] = kafkadur.Redelivery(max_attempts=options.pop("max_attempts"), backoff=backoff)
    with (
        kafkadur.sync.connect(**plan["connect"], session_timeout=session) as connection,
        connection.subscribe(plan["topic"], **options) as subscription,
    ):
        _tell("attached")
        _serve(subscription, plan["connect"])


if __name__ == "__main__":
    main()
