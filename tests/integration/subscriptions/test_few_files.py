"""A process that runs out of file descriptors: each subscription receives messages, or says why it does not.

Run as a program this file is that process: it lowers its own limit after it has connected.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import kafkadur.sync
from kafkadur import KafkadurError
from kafkadur.fetch.kafka_thread import KafkaThread, consumer_config
from tests.integration.subscriptions.helpers import LIMIT_S, Place

#: How many subscriptions are attached, and for how many descriptors there is room besides those in use.
SUBSCRIPTIONS, LEFT = 12, 40
ROOT = Path(__file__).parents[3]


def test_no_subscription_is_deaf(place: Place) -> None:
    topic = place.topic(range(3))
    plan = {"connect": place.settings(), "topic": topic}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.subscriptions.test_few_files"],
        input=json.dumps(plan),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=2 * LIMIT_S,
        check=True,
    )
    found: list[str] = json.loads(ended.stdout)
    assert "nothing" not in found
    assert found.count("message") > 0, "there is room for some"
    refused = [one for one in found if one != "message"]
    assert len(found) == SUBSCRIPTIONS
    assert refused, "and not for all"
    assert all("open files" in one for one in refused)


class Reader(KafkaThread):
    """A reader that only looks after its client."""

    def shortage_after_looking(self) -> str:
        """Look after the client, when it was short of files before; returns the error that is remembered."""
        self._consumer = self._make()
        try:
            self._reader_log.no_files = "Failed to create socket: Too many open files"
            self._look_after()
            return self._reader_log.no_files
        finally:
            self._consumer.close()


def test_an_earlier_shortage_is_forgotten_when_kafka_answers(place: Place) -> None:
    """Else a later failure of Kafka would end the subscription with the wrong reason."""
    failures: list[KafkadurError] = []
    reader = Reader(
        name="reader",
        config=consumer_config({"bootstrap.servers": place.stack.kafka}, "group"),
        topic=place.topic(),
        topic_id="",
        fail=failures.append,
        monotonic=lambda: 100.0,
    )
    assert reader.shortage_after_looking() == ""
    assert failures == []


def _outcome(subscription: kafkadur.sync.Subscription) -> str:
    try:
        return "nothing" if subscription.receive(timeout=LIMIT_S) is None else "message"
    except KafkadurError as error:
        return str(error)


def main() -> None:
    """Attach more subscriptions than there are descriptors for, and tell what each of them gets."""
    plan: dict[str, Any] = json.loads(sys.stdin.read())
    with kafkadur.sync.connect(**plan["connect"]) as connection:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        next_free = os.open(os.devnull, os.O_RDONLY)
        os.close(next_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_free + LEFT, most))
        found: list[str] = []
        subscriptions: list[kafkadur.sync.Subscription] = []
        for number in range(SUBSCRIPTIONS):
            try:
                subscriptions.append(
                    connection.subscribe(plan["topic"], durable=f"d{number}", start="earliest")
                )
            except KafkadurError as error:
                found.append(str(error))
        found += map(_outcome, subscriptions)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
