"""The audit of the service: a Kafka topic with the caller, parameters and effect of each change."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final, Literal, cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from typing_extensions import TypedDict

from kafkadur.admin.browse import bounds_if_any, records_of
from kafkadur.admin.documents import iso
from kafkadur.admin.topics import TopicAdmin
from kafkadur.service.access import Caller
from kafkadur.settings import Settings
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.client_settings import for_own_messages
from kafkadur_coordinators.topics import asking_group
from kafkadur_sharing.errors import KafkadurError, KafkaUnavailable

_log = logging.getLogger("kafkadur.service")

#: The namespace follows.
PREFIX: Final = "kafkadur.audit."
#: Records are kept for a year.
_CONFIG: Final = {"retention.ms": str(366 * 86_400_000), "cleanup.policy": "delete"}

Phase = Literal["begun", "done", "failed"]


class Act(TypedDict):
    """A record: an act that is begun, and then that it is done or has failed, with the same id."""

    id: str
    at: str
    who: str
    role: str
    #: name of the route, such as pause
    action: str
    subscription: str
    parameters: dict[str, Any]
    phase: Phase
    #: the state that the act found, and its effect; null where there is none
    before: Any
    after: Any
    #: why it failed
    error: str | None


class Audit:
    """Writes and reads the records of one namespace. Used by several threads."""

    def __init__(self, settings: Settings) -> None:
        """Create the topic when the first act is recorded."""
        self._settings = settings
        self.topic: Final = f"{PREFIX}{settings.namespace}"
        self._timeout = settings.kafka_timeout.total_seconds()
        group = asking_group(settings.namespace)
        self._topics = TopicAdmin(settings.kafka, timeout=self._timeout, group=group)
        self._producer = self._connect()
        self._there = False
        self._lock = threading.Lock()

    def _connect(self) -> Producer:
        safe = {"acks": "all", "enable.idempotence": True, "message.timeout.ms": round(self._timeout * 1000)}
        return Producer({**for_own_messages(self._settings.kafka), **safe}, logger=client_log)

    def close(self) -> None:
        """Close the connections; all records were written before."""
        self._producer.flush(self._timeout)
        self._topics.close()

    def begin(
        self,
        caller: Caller,
        action: str,
        subscription: str,
        parameters: Mapping[str, Any],
        *,
        before: object,
    ) -> Act:
        """Record that an act begins, and return when Kafka has the record.

        Raises `KafkaUnavailable` if Kafka does not take it: then nothing must be done.
        """
        act: Act = {
            "id": uuid.uuid4().hex,
            "at": iso(time.time_ns() // 1_000_000) or "",
            "who": caller.name,
            "role": caller.role.word,
            "action": action,
            "subscription": subscription,
            "parameters": dict(parameters),
            "phase": "begun",
            "before": before,
            "after": None,
            "error": None,
        }
        self._write(act)
        return act

    def end(self, act: Act, *, after: object = None, error: str | None = None) -> None:
        """Record what became of an act. If the record cannot be written, the log says so: the act is done."""
        phase: Phase = "done" if error is None else "failed"
        at = iso(time.time_ns() // 1_000_000) or ""
        try:
            self._write({**act, "at": at, "phase": phase, "after": after, "error": error})
        except KafkadurError as failed:
            _log.error("the end of act %s (%s) is not recorded: %s", act["id"], phase, failed)

    def _write(self, act: Act) -> None:
        with self._lock:
            self._create()
            try:
                self._send(act)
            except KafkadurError:
                self._there = False  # it may have been deleted
                self._producer = self._connect()  # after some errors an idempotent one is of no use
                raise

    def _send(self, act: Act) -> None:
        failed: list[KafkaError] = []
        written: list[Message] = []

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                written.append(message)
            else:
                failed.append(error)

        try:
            self._producer.produce(
                self.topic, json.dumps(act).encode(), act["subscription"].encode(), on_delivery=report
            )
        except (BufferError, KafkaException) as error:
            raise self._unwritten(str(error)) from error
        self._producer.flush(self._timeout)
        if not written:
            raise self._unwritten(failed[0].str() if failed else "no answer in time")

    def _unwritten(self, state: str) -> KafkaUnavailable:
        return KafkaUnavailable(
            "The act cannot be recorded.",
            state=state,
            owner=f"topic {self.topic}",
            remedy="see that Kafka runs, and that the service may write to this topic",
        )

    def _create(self) -> None:
        if self._there:
            return
        self._topics.ensure(self.topic, config=_CONFIG)
        self._there = True

    def last(self, number: int) -> list[Act]:
        """Return the last records, the newest first. Raises `KafkaUnavailable` and `KafkaRefused`."""
        kept = bounds_if_any(self._topics, self.topic)
        stretches = [(p, max(start, end - number), end) for p, (start, end) in kept.items()]
        namespace = self._settings.namespace
        found = records_of(
            self._settings.kafka, self.topic, stretches, namespace=namespace, timeout=self._timeout
        )
        acts = list(chain.from_iterable(map(_acts, found)))
        return sorted(acts, key=lambda act: act["at"], reverse=True)[:number]


def _acts(message: Message) -> list[Act]:
    """Read a record; nothing for one that is damaged."""
    try:
        read = json.loads(message.value() or b"")
    except ValueError:
        return []
    known = isinstance(read, dict) and Act.__required_keys__ <= read.keys()
    return [cast("Act", read)] if known else []
