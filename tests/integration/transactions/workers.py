"""A transacted consumer and producer in a process of its own, told what to do line by line.

Run as a program this file is the worker; imported it is the handle that tests hold. It publishes each message
it receives, as it is, to a second topic. Lines go in as JSON arrays and each is answered by one JSON line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import kafkadur.sync
from kafkadur.producer.transacted import TransactedProducer
from tests.integration.subscriptions.workers import ANSWER_LIMIT_S, Child


class Transacting(Child):
    """A worker process; `attached` comes first."""

    def __init__(self, settings: Mapping[str, Any], topic: str, out: str, options: Mapping[str, Any]) -> None:
        """Start it; `options` go to `subscribe`, but `session_timeout` (seconds) to `connect`."""
        chosen = {"durable": "d", "start": "earliest"} | dict(options)
        connection = dict(settings) | {"session_timeout": chosen.pop("session_timeout", 10.0)}
        super().__init__("tests.integration.transactions.workers")
        self.say({"connect": connection, "topic": topic, "out": out, "subscribe": chosen})

    def attached(self) -> None:
        """Wait until it is attached."""
        assert self.answer() == "attached"

    def receive(self, count: int) -> list[tuple[int, int]]:
        """Receive so many messages and publish them; returns (number, attempt) of each."""
        return [(value, attempt) for value, attempt in self._ask("receive", count)]

    def commit(self) -> str:
        """Commit; the name of the error it met, or "committed"."""
        return str(self._ask("commit"))

    def die(self, where: str) -> None:
        """Commit and die: `before` Kafka is told, `between` Kafka and Redis."""
        self.say(["die", where])
        self._process.wait(ANSWER_LIMIT_S)
        assert self._process.returncode == -signal.SIGKILL

    def run(self, batch: int) -> None:
        """Receive, publish and commit, in batches, from now on; `heard` gives what was committed."""
        self.say(["run", batch])

    def heard(self, timeout: float) -> int | None:
        """How many one more commit was of; None when nothing was heard in `timeout` seconds."""
        line = self.line(timeout)
        return None if line is None else int(json.loads(line))

    def close(self) -> str:
        """Close the session in order."""
        return str(self._ask("close"))

    def _ask(self, *command: object) -> Any:
        self.say(command)
        return self.answer()


# -- the program


def _tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class _Work:
    def __init__(
        self, session: kafkadur.sync.Session, subscription: kafkadur.sync.Subscription, out: str
    ) -> None:
        self._session = session
        self._subscription = subscription
        self._producer = session.producer()
        self._out = out

    def receive(self, count: int, timeout: float = ANSWER_LIMIT_S) -> list[tuple[int, int]]:
        """Receive and publish; raises what either raises."""
        received: list[tuple[int, int]] = []
        while len(received) < count:
            delivery = self._subscription.receive(timeout=timeout)
            if delivery is None:
                break
            self._producer.publish(self._out, delivery.value)
            received.append((int(delivery.value or b"0"), delivery.attempt))
        return received

    def commit(self) -> str:
        """Commit; the name of the error, or "committed"."""
        try:
            self._session.commit()
        except kafkadur.KafkadurError as error:
            return type(error).__name__
        return "committed"

    def die(self, where: str) -> None:
        """Commit, and die at one point of it."""

        def written(producer: TransactedProducer, timeout: float) -> None:
            assert producer._kafka.flush(timeout) == 0  # noqa: SLF001 - what is settled lies in Kafka then
            dead()

        def dead(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        if where == "before":
            TransactedProducer.commit = written  # type: ignore[method-assign, assignment]  # the point to die at
        else:
            kafkadur.sync.Subscription.acknowledge_taken = dead  # type: ignore[method-assign, assignment]  # as above
        self.commit()

    def run(self, batch: int) -> None:
        """Work until it is killed; what is rolled back comes again."""
        while True:
            try:
                received = self.receive(batch, timeout=0.2)
                if received:
                    self._session.commit()
                    _tell(len(received))
            except kafkadur.TransactionRolledBack:
                pass
            except (kafkadur.DeliveryFailed, kafkadur.StateLost):
                self._session.rollback()


def main() -> None:
    """Be a worker."""
    plan = json.loads(sys.stdin.readline())
    session_timeout = timedelta(seconds=plan["connect"].pop("session_timeout"))
    with (
        kafkadur.sync.connect(**plan["connect"], session_timeout=session_timeout) as connection,
        connection.session(transacted=True) as session,
    ):
        subscription = connection.subscribe(plan["topic"], session=session, **plan["subscribe"])
        work = _Work(session, subscription, plan["out"])
        commands: dict[str, Callable[..., object]] = {
            "receive": work.receive,
            "commit": work.commit,
            "die": work.die,
            "run": work.run,
            "close": session.close,
        }
        _tell("attached")
        for line in sys.stdin:
            command, *arguments = json.loads(line)
            _tell(commands[command](*arguments))


if __name__ == "__main__":
    main()
