"""kafkadur under measurement: what an application of it does, in the shapes of the workloads.

What the harness measures with it lies in the other files of this package.
"""

from __future__ import annotations

import gc
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import kafkadur.sync
from benchmarks.systems.base import BACKLOG, FAILOVER_SESSION_S, Env, Store, System, Variant, Workload
from benchmarks.systems.traffic import TOLD_S, Traffic
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.errors import SubscriptionActive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.recorder import Recorder
    from kafkadur_coordinators.redis.coordinator import Recorder as Calls

#: Window of the drain, records; a shared member may have as many acknowledgements unconfirmed.
_DRAIN_WINDOW = 40_000
#: The most messages in a batch.
_BATCH = 1_000
#: Seconds to wait for the first message in the workload first.
_FIRST_S = 30.0
_EACH = "every ack confirmed by Redis"
_NOWAIT = "ack_nowait(), confirmed within 50 ms"

_VARIANTS = {
    Workload.DRAIN: (
        Variant(name="ack-nowait", confirmed="ack_nowait() of every message, within the window"),
        Variant(name="batch", confirmed="receive_batch(), one verdict byte a message"),
    ),
    Workload.WINDOW1: (
        Variant(name="lane-budget-100", confirmed="ack_nowait(), at most 100 unconfirmed"),
        Variant(name="lane-each", confirmed=_EACH, fraction=0.1),
        Variant(name="shared-each", confirmed=_EACH, fraction=0.1),
    ),
    Workload.TURNS: (
        Variant(name="serial-each", confirmed=_EACH, fraction=0.2),
        Variant(name="serial-nowait", confirmed="ack_nowait(), all confirmed when the turn passes"),
    ),
    Workload.FANOUT: (
        Variant(name="shared", confirmed=_NOWAIT),
        # few exchanges, at the price of an even spread
        Variant(name="shared-window-100", confirmed=_NOWAIT, case="small, 8 members"),
    ),
    Workload.LATENCY: (Variant(name="shared", confirmed=_NOWAIT),),
    Workload.FIRST: (
        Variant(name="attach", confirmed="a durable subscription that is there; its ack, after the clock"),
        Variant(name="create", confirmed="a new durable subscription a round; its ack, after the clock"),
    ),
    Workload.FAILOVER: tuple(
        Variant(name=kind, confirmed=f"window 1, {_EACH}; session time-out {FAILOVER_SESSION_S:g} s{more}")
        for kind, more in (
            ("exclusive", "; the next one attaches again until it is not refused"),
            ("priority", ""),
            ("serial", ""),
        )
    ),
    Workload.AMPLIFICATION: (
        Variant(name="shared", confirmed=_NOWAIT),
        Variant(name="key-ordered", confirmed=_NOWAIT),
    ),
}


def _type(env: Env, variant: str) -> SubscriptionType:
    """Return the type of subscription that a variant is about."""
    if env.workload is Workload.TURNS:
        return SubscriptionType.SERIAL
    if env.workload in {Workload.FAILOVER, Workload.AMPLIFICATION}:
        return SubscriptionType(variant)
    return SubscriptionType.EXCLUSIVE if variant.startswith("lane") else SubscriptionType.SHARED


def _window(env: Env, variant: str) -> int:
    """Return the records that may be in a member's hands."""
    return {
        Workload.DRAIN: _DRAIN_WINDOW,
        Workload.FANOUT: 100 if variant == "shared-window-100" else 2,
        Workload.LATENCY: 100,
        Workload.AMPLIFICATION: 100,
    }.get(env.workload, env.window)


class Kafkadur(System):
    """A member of a kafkadur subscription."""

    name: ClassVar[str] = "kafkadur"
    store: ClassVar[Store] = Store.KAFKA

    @classmethod
    def variants(cls, workload: Workload) -> tuple[Variant, ...]:
        """Return the variants of a workload."""
        return _VARIANTS[workload]

    @classmethod
    def prepare(cls, env: Env, variant: str) -> None:
        """Create the subscription at the beginning of the topic."""
        if variant == "create":
            return
        with cls._connect(env) as connection:
            cls._subscribe(connection, env, variant).close()

    @staticmethod
    def _connect(
        env: Env, *, traffic: Traffic | None = None, calls: Calls | None = None
    ) -> kafkadur.sync.Connection:
        failing = env.workload is Workload.FAILOVER
        return kafkadur.sync.connect(
            kafka={"bootstrap.servers": env.kafka, **(traffic.settings if traffic else {})},
            redis=env.redis,
            client_id="bench",
            client_id_policy="unrestricted",
            namespace="bench",
            journal_partitions=4,
            session_timeout=timedelta(seconds=FAILOVER_SESSION_S) if failing else None,
            recorder=calls,
        )

    @staticmethod
    def _subscribe(
        connection: kafkadur.sync.Connection, env: Env, variant: str, durable: str | None = None
    ) -> kafkadur.sync.Subscription:
        return connection.subscribe(
            env.topic,
            durable=durable or env.group,
            type=_type(env, variant),
            start="earliest" if env.workload is not Workload.LATENCY else "latest",
            window=_window(env, variant),
        )

    def __init__(self, env: Env, variant: str) -> None:
        """Connect."""
        self._env = env
        self._variant = variant
        self._calls = 0
        # Statistics cost time, so only what is about bytes asks for them.
        self._traffic = Traffic(env.topic) if env.workload is Workload.AMPLIFICATION else None
        self._connection = self._connect(env, traffic=self._traffic, calls=self._count)
        self._connection.open()
        self._subscription: Any = None

    def _count(self, _name: str, _request: Sequence[object], _reply: Sequence[object]) -> None:
        self._calls += 1

    def join(self) -> None:
        """Attach; to a backlog only when the loop begins, as an attached member reads ahead."""
        if self._env.workload is not Workload.FIRST and self._env.workload not in BACKLOG:
            self._attach()

    def _attach(self) -> None:
        if self._subscription is None:
            self._subscription = self._subscribe(self._connection, self._env, self._variant)
            self._calls = 0

    def try_join(self) -> bool:
        """Attach; an exclusive subscription refuses a second member."""
        try:
            self.join()
        except SubscriptionActive:
            return False
        return True

    def drain(self, recorder: Recorder) -> None:
        """Settle every message, by itself or by the batch."""
        self._attach()
        if self._variant == "batch":
            while recorder.more():
                batch = self._subscription.receive_batch(recorder.room(_BATCH), timeout=0.1)
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
        """As `_each`, in batches, as the raw consumer does it: others may have got the rest."""
        values: list[bytes] = []
        while recorder.more():
            for delivery in self._subscription.receive_batch(_BATCH, timeout=0.1) or ():
                values.append(delivery.value)
                delivery.ack_nowait()
            recorder.batch(values)
            values.clear()

    def window1(self, recorder: Recorder) -> None:
        """One message in hand; the acknowledgement is confirmed, or within the budget."""
        self._attach()
        if self._variant == "lane-budget-100":
            self._each(recorder)
            return
        if self._env.workload is Workload.TURNS:
            self._settle_each(recorder, confirm=self._variant == "serial-each")
            return
        for delivery in self._subscription:
            going = recorder.one(delivery.value)
            delivery.ack()
            if not going and not recorder.more():
                break

    def serve(self, recorder: Recorder) -> None:
        """Handle, then settle."""
        self._settle_each(recorder, confirm=self._env.workload is Workload.FAILOVER)

    def _settle_each(self, recorder: Recorder, *, confirm: bool) -> None:
        while recorder.more():
            delivery = self._subscription.receive(timeout=0.1)
            if delivery is not None:
                recorder.handle(delivery.value)
                if confirm:
                    delivery.ack()
                else:
                    delivery.ack_nowait()

    def attach(self, recorder: Recorder) -> None:
        """Subscribe, receive one message, leave."""
        index = 0
        while recorder.more():
            durable = f"{self._env.group}-{index}" if self._variant == "create" else None
            since = time.monotonic_ns()
            with self._subscribe(self._connection, self._env, self._variant, durable) as subscription:
                delivery = subscription.receive(timeout=_FIRST_S)
                if delivery is None or delivery.value is None:
                    message = f"no message within {_FIRST_S:.0f} s of subscribing"
                    raise TimeoutError(message)
                recorder.arrived(delivery.value, since_ns=since)
                delivery.ack()
            index += 1

    def settle(self) -> None:
        """Wait until everything acknowledged is confirmed."""
        if self._subscription is None:
            return
        self._subscription.flush()

    def figures(self) -> Mapping[str, float]:
        """Script calls made, and collections of the oldest generation."""
        return {"script_calls": float(self._calls), "gc2": float(gc.get_stats()[2]["collections"])}

    def close(self) -> None:
        """Leave."""
        if self._traffic is not None:
            # librdkafka tells by its own clock, whoever asks; closing takes in what nobody has asked for.
            time.sleep(TOLD_S)
        self._connection.close()

    def closing_figures(self) -> Mapping[str, float]:
        """Bytes that came from the brokers."""
        return {} if self._traffic is None else {"fetched_bytes": float(self._traffic.received)}
