"""Reads all subscriptions again and again in a thread, so that lists and charts are answered from memory.

A list of 10,000 subscriptions costs no call of Redis then, however many people look at it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kafkadur.admin.changes import Admin
from kafkadur.admin.documents import Summary, summary
from kafkadur.admin.rates import Rates, rates
from kafkadur.admin.subscription_info import SubscriptionInfo, handled_key, without_records
from kafkadur.admin.topics import TopicAdmin
from kafkadur.service.ids import id_of
from kafkadur.service.series import Age, Ends, Sample, Series
from kafkadur.service.state_words import words
from kafkadur.settings import Settings
from kafkadur_coordinators.topics import asking_group
from kafkadur_sharing.errors import IllegalState, InternalError, KafkadurError

_log = logging.getLogger("kafkadur.service")

#: Seconds that `close` waits for the reading that is under way.
_LAST_S: Final = 2.0
#: Milliseconds between two samples of a subscription, and where there are many subscriptions.
_SAMPLE_MS, _RARE_SAMPLE_MS, _MANY = 10_000, 30_000, 1_000


class Entry(Summary):
    """A subscription in the list of the service."""

    id: str
    #: its state for people, such as "waits: no member is attached"
    words: str
    #: offsets a second since the last reading
    arrived_per_s: float | None
    settled_per_s: float | None
    #: seconds since the oldest unsettled message was written; `oldest_at_least`: it is older than that
    oldest_s: float | None
    oldest_at_least: bool
    #: dead letters that were neither redriven nor purged; those of others count if they share the topic
    dead_letters: int | None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The result of the last reading of all subscriptions."""

    #: counts the readings, from 1; 0: there was none
    number: int = 0
    #: server time of the last reading that succeeded, ms since 1970
    at: int | None = None
    #: all subscriptions, and the entries of the list, which leave out records of handled dead letters
    infos: tuple[SubscriptionInfo, ...] = ()
    entries: tuple[Entry, ...] = ()
    #: why the last reading failed; then the subscriptions are those of an earlier one
    problem: KafkadurError | None = None


class Observer:
    """Reads the subscriptions of a namespace until it is closed."""

    def __init__(self, settings: Settings, *, every: float) -> None:
        """Read them every `every` seconds, once it is started."""
        self._settings = settings
        self._every = every
        self._closing = threading.Event()
        self._latest = Observation()
        self._thread = threading.Thread(target=self._run, name="kafkadur-observer", daemon=True)
        self._before: dict[str, SubscriptionInfo] = {}
        self._series: dict[str, Series] = {}
        self._ends: dict[tuple[str, int], Ends] = {}  # by id of the topic, and partition

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading; wait a moment for the reading that is under way, which a server may hold up."""
        self._closing.set()
        self._thread.join(_LAST_S)

    @property
    def runs(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    @property
    def latest(self) -> Observation:
        """The result of the last reading."""
        return self._latest

    def list(self) -> tuple[SubscriptionInfo, ...]:
        """Return all subscriptions as they were read last; raises the error of the last reading."""
        if self._latest.problem is not None:
            raise self._latest.problem
        if self._latest.number == 0:
            raise IllegalState("The subscriptions were not read yet.", remedy="ask again in a moment")
        return self._latest.infos

    def samples(self, id: str) -> Sequence[Sample]:  # noqa: A002 - the word of the API
        """Return the samples of a subscription of the last hour; empty for one that is not known."""
        series = self._series.get(id)
        return () if series is None else series.samples()

    # -- the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                with Admin(self._settings) as admin:
                    self._read_on(admin)
            except KafkadurError as error:
                _log.warning("subscriptions cannot be read: %s", error)
                self._tell(replace(self._latest, problem=error))
            except Exception as error:  # noqa: BLE001 - no record of any kind may end the thread
                _log.exception("subscriptions cannot be read")
                self._tell(replace(self._latest, problem=InternalError.by(error, "the service")))
            self._closing.wait(max(self._every - (time.monotonic() - began), 1.0))

    def _read_on(self, admin: Admin) -> None:
        """Read again and again until a reading fails."""
        config, timeout = self._settings.kafka, self._settings.kafka_timeout.total_seconds()
        topics = TopicAdmin(config, timeout=timeout, group=asking_group(self._settings.namespace))
        try:
            while not self._closing.is_set():
                began = time.monotonic()
                self._take(admin.list(), topics)
                took = time.monotonic() - began
                self._closing.wait(max(self._every - took, took))  # half of the time is for others
        finally:
            topics.close()

    def _take(self, found: Sequence[SubscriptionInfo], topics: TopicAdmin) -> None:
        shown = without_records(found)
        handled = {info.key: info for info in found}
        letters = topics.sizes({info.definition.dead_letter_topic or "" for info in shown})
        many = len(shown) > _MANY
        self._take_ends(shown)
        entries: list[Entry] = []
        series: dict[str, Series] = {}
        for info in shown:
            id = id_of(info.key)  # noqa: A001 - the word of the API
            speeds = rates(self._before.get(id), info)
            series[id] = self._series.get(id) or Series()
            _sample(series[id], info, speeds, _RARE_SAMPLE_MS if many else _SAMPLE_MS)
            topic, record = info.definition.dead_letter_topic or "", handled.get(handled_key(info.key))
            dead = letters.get(topic, 0)
            # one of another topic is an ordinary subscription of such a name, or the definition was altered
            if record is not None and record.definition.topic == topic:
                dead = record.backlog
            entries.append(_entry(id, info, speeds, oldest(info, self._ends), dead))
        self._before = dict(zip(series, shown, strict=True))
        self._series = series
        at = max((info.now for info in shown), default=round(time.time() * 1000))
        self._tell(Observation(at=at, infos=tuple(found), entries=tuple(entries)))

    def _tell(self, seen: Observation) -> None:
        self._latest = replace(seen, number=self._latest.number + 1)

    def _take_ends(self, shown: Sequence[SubscriptionInfo]) -> None:
        kept: dict[tuple[str, int], Ends] = {}
        for info in shown:
            for each in info.partitions:
                place = (info.topic_id, each.partition)
                if each.log_end is not None and place not in kept:
                    kept[place] = self._ends.get(place) or Ends()
                    kept[place].add(each.log_end, info.now)
        self._ends = kept


def oldest(info: SubscriptionInfo, ends: Mapping[tuple[str, int], Ends]) -> Age | None:
    """Return the age of the oldest unsettled message of a subscription; None: there is none."""
    found: list[Age] = []
    for each in info.partitions:
        known = ends.get((info.topic_id, each.partition))
        if known is None or not each.backlog:
            continue
        first = max(each.floor, each.log_start or 0)
        found.append(known.age_of(first, info.now) or Age(0, at_least=False))
    return max(found, key=lambda age: (age.ms, age.at_least), default=None)


def _sample(series: Series, info: SubscriptionInfo, speeds: Rates | None, spacing: int) -> None:
    """Add a sample unless the last one was taken just before."""
    if series.last is not None and info.now < series.last + spacing:
        return
    arrived, settled = (None, None) if speeds is None else (round(each * 1000) for each in speeds)
    series.add(
        Sample(
            at=info.now,
            backlog=info.backlog,
            in_flight=info.in_flight,
            came_back=info.exceptions,
            arrived=arrived,
            settled=settled,
        )
    )


def _entry(
    id: str,  # noqa: A002 - the word of the API
    info: SubscriptionInfo,
    speeds: Rates | None,
    age: Age | None,
    dead_letters: int | None,
) -> Entry:
    return {
        **summary(info),
        "id": id,
        "words": words(info),
        "arrived_per_s": None if speeds is None else round(speeds.arrived, 1),
        "settled_per_s": None if speeds is None else round(speeds.settled, 1),
        "oldest_s": None if age is None else round(age.ms / 1000, 1),
        "oldest_at_least": age is not None and age.at_least,
        "dead_letters": dead_letters,
    }
