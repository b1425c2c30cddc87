"""One run: start everything, break things for a while, heal, drain, and write down what Kafka holds.

What is recorded lies in a folder; `loading.py` reads it.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from confluent_kafka.admin import NewTopic

from kafkadur.admin.changes import Admin, SubscriptionInfo
from kafkadur.settings import Settings, settings
from kafkadur.stack import Stack, embedded
from kafkadur.stack.kafka import quiet_admin
from kafkadur_sharing.errors import KafkadurError
from tests.end_to_end.histories.breaking import Breaker
from tests.end_to_end.histories.crew import Crew
from tests.end_to_end.histories.history import End as Ending
from tests.end_to_end.histories.inspecting import Inspector
from tests.end_to_end.histories.loading import DEAD, END, FAULT_LOG, INSPECTED, OBSERVED, PLAN, TRUTH
from tests.end_to_end.histories.plan import Plan, SubscriptionPlan
from tests.end_to_end.histories.recording import FAIL, OK, Recorder
from tests.end_to_end.histories.topics import Topics
from tests.end_to_end.histories.truth import write_dead, write_truth
from tests.end_to_end.histories.working import DRAIN
from tests.end_to_end.histories.working import END as END_ORDER

#: Called with seconds done, seconds in all, and what is done.
Progress = Callable[[int, int, str], None]

#: Of a cluster.
_PRIMARIES = 3
_TICK_S = 0.05
_START_S = 180.0
_END_S = 120.0
#: A run takes at most so many times as long as asked for.
_MOST_TIMES = 4


class Observer:
    """Asks again and again, as an administrator, where the subscriptions stand. A thread."""

    def __init__(self, plan: Plan, chosen: Settings, path: Path) -> None:
        """Begin."""
        self._plan = plan
        self._settings = chosen
        self._path = path
        self._over = threading.Event()
        #: how each subscription stood when it was asked for last
        self.latest: dict[str, SubscriptionInfo] = {}
        self.rounds = 0
        self._thread = threading.Thread(target=self._main, name="observer")
        self._thread.start()

    def _main(self) -> None:
        with Recorder(self._path) as recorder:
            while not self._over.is_set():
                # a connection for each round, as a command would make one
                with Admin(self._settings) as admin:
                    for name, plan in self._plan.subscriptions.items():
                        self._ask(recorder, admin, name, plan)
                self.rounds += 1
                self._over.wait(1.0)

    def _ask(self, recorder: Recorder, admin: Admin, name: str, plan: SubscriptionPlan) -> None:
        key = admin.key(plan.full_name)
        number = recorder.call("info", subscription=name)
        try:
            info = admin.info(key)
        except KafkadurError as error:
            recorder.done(number, FAIL, error=type(error).__name__, text=str(error))
        else:
            recorder.done(number, OK, floors=[partition.floor for partition in info.partitions])
            self.latest[name] = info

    def close(self) -> None:
        """End."""
        self._over.set()
        self._thread.join()


def run(plan: Plan, folder: Path, progress: Progress) -> None:
    """Do a run and leave its history in `folder`, which is empty. Raises KafkadurError if it cannot start."""
    plan.write(folder / PLAN)
    servers = folder / "servers"  # the logs of temporary stacks go when many others start
    primaries = _PRIMARIES if plan.cluster else 0
    with embedded(
        data=servers, proxy=True, users=True, valkey_primaries=primaries, progress=progress
    ) as stack:
        namespace = f"histories-{uuid.uuid4().hex[:8]}"
        chosen = settings(
            {
                "kafka": stack.kafka,
                # past the proxies, which break
                "redis": stack.redis if stack.valkey is None else stack.valkey.url,
                "namespace": namespace,
                "journal_partitions": 2,
                "kafka_timeout": 10.0,
                "redis_timeout": 2.0,
            }
        )
        _make_topics(plan, stack)
        with Crew(plan, stack, folder, namespace) as crew, Recorder(folder / FAULT_LOG) as recorder:
            began = time.monotonic_ns()
            _work(plan, stack, crew, recorder, chosen, folder, progress, began)
        write_truth(stack.kafka, plan.subscriptions, folder / TRUTH)
        write_dead(stack.kafka, plan.subscriptions, folder / DEAD)
    for data in (*servers.glob("broker-*"), *servers.glob("valkey*")):
        shutil.rmtree(data)


def _make_topics(plan: Plan, stack: Stack) -> None:
    topics = [NewTopic(name, of.partitions, 1) for name, of in plan.subscriptions.items()]
    admin = quiet_admin(stack.kafka)  # must outlive what it promises
    for future in admin.create_topics(topics).values():
        future.result(_END_S)


def _work(
    plan: Plan,
    stack: Stack,
    crew: Crew,
    recorder: Recorder,
    chosen: Settings,
    folder: Path,
    progress: Progress,
    began: int,
) -> None:
    for slot in crew.slots:
        crew.fill(slot)
    crew.produce()
    _wait_for_members(crew, folder)
    observer = Observer(plan, chosen, folder / OBSERVED)
    inspector = Inspector(plan, chosen, folder / INSPECTED)
    try:
        topics = Topics(plan, stack, crew, folder, chosen)
        breaker = Breaker(plan, stack, crew, recorder, topics=topics, settings=chosen)
        seconds = round(plan.minutes * 60)
        started = time.monotonic()
        # a busy machine takes longer until every kind of fault has come
        while (passed := time.monotonic() - started) < seconds or (
            breaker.missing and passed < _MOST_TIMES * seconds
        ):
            breaker.step()
            crew.look()
            progress(min(int(passed), seconds), seconds, "breaking things, seconds")
            time.sleep(_TICK_S)  # the beat of the run
        progress(0, 1, "healing")
        breaker.heal()
        assert crew.producer is not None
        crew.producer.order(DRAIN)
        crew.end({"producer": crew.producer}, _END_S + _START_S)
        crew.order(DRAIN)
        drained = _drain(plan, crew, observer, progress)
        crew.order(END_ORDER)
        crew.end({s.process.name: s.process for s in crew.slots if s.process is not None}, _END_S)
    finally:
        inspector.close()
        observer.close()
    ends = [
        Ending(
            subscription=name,
            backlog=_left(observer.latest.get(name)),
            expired=observer.latest[name].expired if name in observer.latest else 0,
            drained=drained.get(name),
        )
        for name in plan.subscriptions
    ]
    (folder / END).write_text(
        json.dumps(
            {
                "began": began,
                "ended": time.monotonic_ns(),
                "crashed": crew.crashed,
                "subscriptions": [asdict(end) for end in ends],
            },
            indent=1,
        )
    )


def _wait_for_members(crew: Crew, folder: Path) -> None:
    deadline = time.monotonic() + _START_S
    for slot in crew.slots:
        assert slot.process is not None
        path = folder / f"member-{slot.process.name}.jsonl"
        while not path.exists() or b'"outcome":"ok"' not in path.read_bytes():
            assert time.monotonic() < deadline, (
                f"{slot.process.name} does not start: {slot.process.last_words}"
            )
            time.sleep(_TICK_S)


def _left(info: SubscriptionInfo | None) -> int:
    return -1 if info is None or info.backlog is None else info.backlog


def _drain(plan: Plan, crew: Crew, observer: Observer, progress: Progress) -> dict[str, float]:
    """Wait until everything is settled; returns the seconds it took for those where that came."""
    began = time.monotonic()
    rounds = observer.rounds
    drained: dict[str, float] = {}
    while len(drained) < len(plan.subscriptions) and time.monotonic() - began < plan.drain:
        crew.look()
        if observer.rounds > rounds + 1:  # what is seen from now on was asked for after the healing
            for name, info in list(observer.latest.items()):
                if _left(info) == 0 and not info.in_flight:
                    drained.setdefault(name, time.monotonic() - began)
        progress(len(drained), len(plan.subscriptions), "draining, subscriptions")
        time.sleep(_TICK_S)  # polls for a condition, with a deadline
    return drained
