"""kafkadur under measurement: what an application of it does, in the shapes of the four workloads.

What the harness measures with it lies in the other files of this package.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any, ClassVar

import kafkadur.sync
from benchmarks.recorder import TURN
from benchmarks.systems.base import Env, Store, System, Variant, Workload
from kafkadur_sharing.definition import SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.recorder import Recorder

#: Window of the drain, records; a shared member may have as many acknowledgements unconfirmed.
_DRAIN_WINDOW = 10_000


class Kafkadur(System):
    """A member of a kafkadur subscription."""

    name: ClassVar[str] = "kafkadur"
    store: ClassVar[Store] = Store.KAFKA

    @classmethod
    def variants(cls, workload: Workload) -> tuple[Variant, ...]:
        """One message at a time, whole batches, and lanes."""
        if workload is Workload.DRAIN:
            return (
                Variant(name="ack-nowait", confirmed="ack_nowait() of every message, within the window"),
                Variant(name="batch", confirmed="receive_batch(), one verdict byte a message"),
            )
        if workload is Workload.WINDOW1:
            return (
                Variant(
                    name="lane-budget-100", confirmed="ack_nowait(), at most 100 unconfirmed", members=(1,)
                ),
                Variant(
                    name="lane-each", confirmed="every ack confirmed by Redis", fraction=0.1, members=(1,)
                ),
                Variant(
                    name="shared-each", confirmed="every ack confirmed by Redis", fraction=0.1, members=(1,)
                ),
            )
        shared = Variant(name="shared", confirmed="ack_nowait(), confirmed within 50 ms")
        if workload is Workload.FANOUT:  # few exchanges, at the price of an even spread
            wide = Variant(name="shared-window-100", confirmed="ack_nowait(), confirmed within 50 ms")
            return (shared, wide)
        return (shared,)

    @classmethod
    def prepare(cls, env: Env, variant: str) -> None:
        """Create the subscription at the beginning of the topic."""
        with cls._connect(env) as connection:
            cls._subscribe(connection, env, variant).close()

    @staticmethod
    def _connect(env: Env) -> kafkadur.sync.Connection:
        return kafkadur.sync.connect(
            kafka=env.kafka,
            redis=env.redis,
            client_id="bench",
            client_id_policy="unrestricted",
            namespace="bench",
            journal_partitions=4,
        )

    @staticmethod
    def _subscribe(
        connection: kafkadur.sync.Connection, env: Env, variant: str
    ) -> kafkadur.sync.Subscription:
        kind = SubscriptionType.EXCLUSIVE if variant.startswith("lane") else SubscriptionType.SHARED
        window = {
            Workload.DRAIN: _DRAIN_WINDOW,
            Workload.WINDOW1: 1,
            Workload.FANOUT: 100 if variant == "shared-window-100" else 2,
            Workload.LATENCY: 100,
        }
        return connection.subscribe(
            env.topic,
            durable=env.group,
            type=kind,
            start="earliest" if env.workload is not Workload.LATENCY else "latest",
            window=window[env.workload],
        )

    def __init__(self, env: Env, variant: str) -> None:
        """Connect."""
        self._env = env
        self._variant = variant
        self._calls = 0
        self._connection = kafkadur.sync.connect(
            kafka=env.kafka,
            redis=env.redis,
            client_id="bench",
            client_id_policy="unrestricted",
            namespace="bench",
            journal_partitions=4,
            recorder=self._count,
        )
        self._connection.open()
        self._subscription: Any = None

    def _count(self, _name: str, _request: Sequence[object], _reply: Sequence[object]) -> None:
        self._calls += 1

    def join(self) -> None:
        """Attach; nothing is received before the loop."""
        self._subscription = self._subscribe(self._connection, self._env, self._variant)
        self._calls = 0

    def drain(self, recorder: Recorder) -> None:
        """Settle every message, by itself or by the batch."""
        if self._variant == "batch":
            while recorder.more():
                batch = self._subscription.receive_batch(recorder.room(1_000), timeout=0.1)
                if batch is not None:
                    recorder.batch(batch.values())
                    batch.ack_nowait()
            return
        self._each(recorder)

    def _each(self, recorder: Recorder) -> None:
        if self._env.members > 1:
            self._each_of_several(recorder)
            return
        for delivery in self._subscription:
            going = recorder.one(delivery.value)
            delivery.ack_nowait()
            if not going and not recorder.more():
                break

    def _each_of_several(self, recorder: Recorder) -> None:
        """As `_each`, for a member that must notice when the others have got the rest."""
        values: list[bytes] = []
        while True:
            delivery = self._subscription.receive(timeout=0.0)
            if delivery is not None:
                values.append(delivery.value)
                delivery.ack_nowait()
            if delivery is None or len(values) >= TURN:
                recorder.batch(values)
                values.clear()
                if not recorder.more():
                    return
                delivery = self._subscription.receive(timeout=0.1)
                if delivery is not None:
                    values.append(delivery.value)
                    delivery.ack_nowait()

    def window1(self, recorder: Recorder) -> None:
        """One message in hand; the acknowledgement is confirmed, or within the budget."""
        if self._variant == "lane-budget-100":
            self._each(recorder)
            return
        for delivery in self._subscription:
            going = recorder.one(delivery.value)
            delivery.ack()
            if not going and not recorder.more():
                break

    def serve(self, recorder: Recorder) -> None:
        """Handle, then settle."""
        while recorder.more():
            delivery = self._subscription.receive(timeout=0.1)
            if delivery is not None:
                recorder.handle(delivery.value)
                delivery.ack_nowait()

    def settle(self) -> None:
        """Wait until everything acknowledged is confirmed."""
        deadline = time.monotonic() + 10
        while self._subscription.statistics()["in_hands"] and time.monotonic() < deadline:
            time.sleep(0.001)

    def figures(self) -> Mapping[str, float]:
        """Script calls made, and collections of the oldest generation."""
        return {"script_calls": float(self._calls), "gc2": float(gc.get_stats()[2]["collections"])}

    def close(self) -> None:
        """Leave."""
        self._connection.close()
