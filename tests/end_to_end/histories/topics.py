"""Changes of a topic under its members: a partition is added; the topic is deleted and created anew."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions, NewTopic

from kafkadur.admin.changes import Admin
from kafkadur.settings import Settings
from kafkadur.stack import Stack
from kafkadur.stack.kafka import quiet_admin
from kafkadur.testing.pytest_plugin import takes_messages
from kafkadur_coordinators.topics import Topics as KafkaTopics
from kafkadur_sharing.errors import KafkadurError
from tests.end_to_end.histories.crew import Crew
from tests.end_to_end.histories.plan import Plan
from tests.end_to_end.histories.producing import HELD, HOLD, WRITE
from tests.end_to_end.histories.truth import write_truth
from tests.integration.subscriptions.helpers import topic_id, wait_until

_LIMIT_S = 60.0
#: Records by which a new topic becomes longer than the old one was.
_BEYOND = 20


class Topics:
    """The topics of a run, as an administrator changes them. Used by one thread."""

    def __init__(self, plan: Plan, stack: Stack, crew: Crew, folder: Path, settings: Settings) -> None:
        """All topics have the partitions of the plan."""
        self._plan = plan
        self._stack = stack
        self._crew = crew
        self._folder = folder
        self._settings = settings
        self._partitions = {name: of.partitions for name, of in plan.subscriptions.items()}
        self._admin: Any = quiet_admin(stack.kafka)
        self._deleted = 0

    def add_partition(self, name: str) -> None:
        """Add a partition to a topic, and have messages written to it."""
        self._partitions[name] += 1
        wanted = NewPartitions(name, self._partitions[name])
        self._admin.create_partitions([wanted])[name].result(_LIMIT_S)
        self._have_written(name)

    def create_anew(self, name: str, *, unseen: bool) -> int:
        """Delete a topic, create it again, and unsubscribe the members of the old one.

        The new topic soon has more records than the old one had: a reader that goes on at its old offset
        would find some, and skip those before. `unseen`: the members are stopped until then. Returns the time
        (ns) from which on a member can be attached to a subscription of the new topic. Raises KafkadurError
        if the members of the old one do not leave.
        """
        self._hold(name)
        self._deleted += 1
        write_truth(self._stack.kafka, [name], self._folder / f"truth-{name}-{self._deleted}.jsonl")
        ends = self._ends(name)
        members = [slot.alive for slot in self._crew.slots if slot.subscription.name == name]
        stopped = [member for member in members if member is not None and unseen]
        for member in stopped:
            member.stop()
        self._replace(name, max(ends.values()) + _BEYOND)
        for member in stopped:
            member.go_on()
        return self._unsubscribe(name)

    def _replace(self, name: str, length: int) -> None:
        old = topic_id(self._admin, name)
        self._admin.delete_topics([name])[name].result(_LIMIT_S)
        self._partitions[name] = self._plan.subscriptions[name].partitions
        wait_until(lambda: self._is_created(name), f"topic {name} created again")
        wait_until(lambda: topic_id(self._admin, name) not in ("", old), f"the new topic {name} known")
        self._have_written(name)
        wait_until(lambda: sum(self._ends(name).values()) > 0, f"messages in the new topic {name}")
        self._fill(name, length)

    def _is_created(self, name: str) -> bool:
        topic = NewTopic(name, self._partitions[name], 1)
        created: bool = self._admin.create_topics([topic])[name].exception(_LIMIT_S) is None
        return created

    def _have_written(self, name: str) -> None:
        wait_until(
            lambda: takes_messages(self._admin, name, self._partitions[name]), f"leaders of topic {name}"
        )
        assert self._crew.producer is not None
        self._crew.producer.order(f"{WRITE}:{name}:{self._partitions[name]}")

    def _hold(self, name: str) -> None:
        """Have nothing more written to a topic; returns when all that was has its outcome."""
        producer = self._crew.producer
        assert producer is not None
        seen = self._crew.published.stat().st_size
        producer.order(f"{HOLD}:{name}")

        def is_held() -> bool:
            with self._crew.published.open("rb") as published:
                published.seek(seen)
                return f'"op":"{HELD}"'.encode() in published.read()

        wait_until(is_held, f"nothing on its way to topic {name}")

    def _ends(self, name: str) -> dict[int, int]:
        """The end of each partition's log; the leader may be changing."""
        topics = KafkaTopics({"bootstrap.servers": self._stack.kafka}, timeout=_LIMIT_S)
        try:
            return topics.offsets(name, self._partitions[name], "latest", stable=False)
        finally:
            topics.close()

    def _fill(self, name: str, length: int) -> None:
        """Lengthen each partition by records of an aborted transaction, which nobody reads."""
        producer = Producer(
            {"bootstrap.servers": self._stack.kafka, "transactional.id": f"filler-{name}"}, logger=None
        )
        producer.init_transactions(_LIMIT_S)
        producer.begin_transaction()
        for partition, end in self._ends(name).items():
            for _ in range(end, length):
                producer.produce(name, b"aborted", partition=partition)
        producer.flush(_LIMIT_S)
        producer.abort_transaction(_LIMIT_S)

    def _unsubscribe(self, name: str) -> int:
        with Admin(self._settings) as admin:
            key = admin.key(self._plan.subscriptions[name].full_name)
            deadline = time.monotonic() + _LIMIT_S
            while True:
                at = time.monotonic_ns()
                try:
                    admin.unsubscribe(key)
                except KafkadurError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)  # polls for a condition, with a deadline
                else:
                    return at
