"""Looks again and again at everything the coordinator keeps of each subscription, and records it. A thread.

It asks Redis alone, over a connection of its own that no fault of the network touches: so it goes on while
Kafka is away. What must hold of what it saw is `checks/conservation.py`.
"""

from __future__ import annotations

import threading
from pathlib import Path

from kafkadur.admin.changes import Admin
from kafkadur.settings import Settings
from kafkadur_coordinators.changes import state_in_force
from kafkadur_coordinators.redis.coordinator import RedisCoordinator, Refusal, SubscriptionAddress
from kafkadur_sharing.errors import KafkadurError
from tests.end_to_end.histories.plan import Plan
from tests.end_to_end.histories.recording import FAIL, OK, Recorder

_EVERY_S = 1.0
_TIMEOUT_S = 2.0


class Inspector:
    """Inspects every subscription about once a second."""

    def __init__(self, plan: Plan, chosen: Settings, path: Path) -> None:
        """Begin."""
        with Admin(chosen) as admin:
            keys = {name: admin.key(of.full_name) for name, of in plan.subscriptions.items()}
        self._addresses = {
            name: SubscriptionAddress(prefix=chosen.prefix, namespace=key.namespace, tag=key.tag)
            for name, key in keys.items()
        }
        self._coordinator = RedisCoordinator(chosen.redis, timeout=_TIMEOUT_S)
        self._path = path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._main, name="inspector")
        self._thread.start()

    def _main(self) -> None:
        with Recorder(self._path) as recorder:
            while not self._over.is_set():
                for name, address in self._addresses.items():
                    self._inspect(recorder, name, address)
                self._over.wait(_EVERY_S)
        self._coordinator.close()

    def _inspect(self, recorder: Recorder, name: str, address: SubscriptionAddress) -> None:
        number = recorder.call("inspect", subscription=name)
        try:
            known = self._coordinator.peek(address)
            if not known.definition:
                recorder.done(number, FAIL, error="it is just being made")
                return
            wanted = range(known.partitions)  # no more than one call can look at: all is of one moment
            seen = self._coordinator.inspect(address, known.id, state_in_force(known), wanted)
        except (KafkadurError, Refusal) as error:
            recorder.done(number, FAIL, error=type(error).__name__)
            return
        recorder.done(
            number,
            OK,
            incarnation=seen.incarnation,
            sequence=seen.sequence,
            partitions=[
                {
                    "partition": view.partition,
                    "base": view.base,
                    "next": view.next,
                    "readable_end": view.readable_end,
                    "origin": view.origin,
                    "decided": view.decided,
                    "runs": [list(run) for run in view.runs],
                    "seen": view.seen,
                    "bits": view.bits.hex(),
                    "expired": view.expired,
                }
                for view in seen.partitions
            ],
            leases=[list(lease) for lease in seen.leases],
        )

    def close(self) -> None:
        """End."""
        self._over.set()
        self._thread.join()
