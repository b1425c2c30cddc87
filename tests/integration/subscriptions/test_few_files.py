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
from tests.integration.subscriptions.helpers import LIMIT_S, Place

#: How many subscriptions are attached, and for how many descriptors there is room besides those in use.
SUBSCRIPTIONS, LEFT = 12, 60
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
