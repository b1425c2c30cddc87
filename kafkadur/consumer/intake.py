"""The side of a member that its readers call: records, ends of logs, leader epochs, losses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import Part, State
from kafkadur.events import Event
from kafkadur.fetch.buffer import ReadBatch, Records
from kafkadur.fetch.native import size_of
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur")


class Intake(Part):
    """Takes in what the readers of one member found. Its calls take the member's lock."""

    def __init__(
        self,
        state: State,
        *,
        policy: Policy,
        router: Router,
        ready: Callable[[], None],
        fail: Callable[[KafkadurError], None],
    ) -> None:
        """`ready` tells the application that it can take a block; `fail` ends the member."""
        super().__init__(state)
        self._policy = policy
        self._router = router
        self._ready = ready
        self._fail = fail
        self.display = state.terms.display
        #: records that a reader may read in one call
        self.at_once = state.terms.read_at_once
        #: partitions that the topic has, as the reader found
        self._topic_partitions = 0

    def fail(self, error: KafkadurError) -> None:
        """Reading cannot go on: the next call of the application raises `error`."""
        self._fail(error)

    # -- followed partitions

    def add_records(self, partition: int, messages: Records, number: int) -> None:
        """Records that the tail fetcher read (not empty, in order)."""
        with self._lock:
            buffer = self._fetch.of(partition, number)
            if buffer is None:  # the reader does not know yet that it is to stop
                return
            self._change.begin()
            buffer.add(ReadBatch(messages, size_of(messages)))
            self._fetch.records_read += len(messages)
            news = self._router.route(partition)
            asks = self._asks_after_reading(news=news)
            self._change.end()
        self._after_reading(news=news, asks=asks)

    def reach(self, partition: int, offset: int, number: int) -> None:
        """The tail fetcher came to the end of the partition, which is `offset`."""
        with self._lock:
            buffer = self._fetch.of(partition, number)
            if buffer is None or (offset <= buffer.position and buffer.stop >= 0):
                if buffer is not None:
                    buffer.stop = max(buffer.stop, offset)
                return  # as after each record at the live end: it is known since the record was read
            self._change.begin()
            news = False
            if offset > buffer.position:
                buffer.reach(offset)
                news = self._router.route(partition)
            buffer.stop = max(buffer.stop, offset)
            asks = self._asks_after_reading(news=news)
            self._change.end()
        self._after_reading(news=news, asks=asks)

    def pass_by(self, partition: int, offset: int, number: int) -> None:
        """The tail fetcher found nothing more for this member before `offset`; it reads on from there."""
        with self._lock:
            buffer = self._fetch.of(partition, number)
            if buffer is None or offset <= buffer.position:
                return
            self._change.begin()
            buffer.reach(offset)
            news = self._router.route(partition)
            asks = self._asks_after_reading(news=news)
            self._change.end()
        self._after_reading(news=news, asks=asks)

    def lead(self, partition: int, epoch: int, number: int) -> None:
        """Records of a followed partition that come from now on were written under this leader epoch."""
        buffer = self._fetch.of(partition, number)
        if buffer is not None:
            buffer.epoch = epoch  # one assignment: no lock is needed

    def end_at(self, partition: int, offset: int, number: int) -> None:
        """The log of a partition that is followed ends at `offset` now.

        Called before the records that were read together with it.
        """
        buffer = self._fetch.of(partition, number)
        if buffer is not None:
            buffer.end = offset  # one assignment: no lock is needed

    @property
    def has_enough(self) -> bool:
        """Whether the reader is to pause: enough records were read and not dispatched, or bytes of them.

        False while a lease waits for records that were written and not read yet: other members may wait for
        it. Takes no lock.
        """
        if any(lease.fill < lease.end and self._policy.starves(lease) for lease in self._leases):
            return False
        draining, queue, terms = self._policy.draining, self._queue, self._terms
        buffers = [each for p, each in list(self._fetch.buffers.items()) if p not in draining]
        if sum([each.buffered for each in buffers]) + queue.records >= terms.read_ahead:
            return True
        size = sum([each.size for each in buffers]) + queue.records * queue.mean_size
        return size >= terms.read_ahead_bytes

    # -- ranges

    def add_range_records(self, token: int, messages: Records, reached: int) -> bool:
        """Records that the range fetcher read for a lease, up to offset `reached`; whether it is to go on."""
        if token < 0:
            return self._add_parked(token, messages, reached)
        with self._lock:
            lease, buffer = self._leases.by_token.get(token), self._fetch.ranges.get(token)
            if lease is None or buffer is None or lease.lost:
                return False
            self._change.begin()
            if messages:
                buffer.add(ReadBatch(messages, size_of(messages)))
                self._fetch.records_read += len(messages)
            buffer.reach(min(reached, lease.end))
            news, more = self._router.fill_range(lease, buffer)
            self._change.end()
        if news:
            self._ready()
        self._schedule.request_exchange()
        return more

    def _add_parked(self, token: int, messages: Records, reached: int) -> bool:
        """As `add_range_records`, for records of keys that were read before and not kept."""
        with self._lock:
            self._change.begin()
            more = self._policy.add_parked(token, messages, reached)
            self._change.end()
        if not more:
            self._ready()
        self._schedule.request_exchange()
        return more

    # -- partitions that were added

    def grown(self, partitions: int) -> None:
        """The topic has so many partitions. The coordinator learns of added ones before an exchange."""
        self._topic_partitions = partitions
        if self.added_to:
            self._schedule.request_exchange()

    @property
    def added_to(self) -> int:
        """Partitions that the topic has by now, if the coordinator does not know all of them; else 0."""
        count = self._topic_partitions
        return count if count * self._terms.definition.lanes > self._schedule.partitions else 0

    # -- losses in Kafka

    def expire(self, partition: int, offset: int) -> None:
        """Kafka has removed the messages before `offset`: those that are not settled are lost.

        They are counted, reported, and settled as expired.
        """
        with self._lock:
            self._fetch.expiry.keeps_from(partition, offset)

    def expiring(self, until: Mapping[int, int]) -> None:
        """Messages before these offsets expire soon: they are rescued if the redelivery policy says so."""
        if self._terms.redelivery.rescue:
            with self._lock:
                self._fetch.expiry.rescue(until)

    def cut(self, partition: int, offset: int) -> None:
        """Kafka lost the records at or beyond `offset`. The coordinator learns it before an exchange."""
        cuts = self._fetch.cuts
        with self._lock:
            cuts[partition] = min(offset, cuts.get(partition, offset))
        self._schedule.request_exchange()

    @property
    def cuts(self) -> Mapping[int, int]:
        """Partition -> offset from which on Kafka lost it, as far as the coordinator does not know yet."""
        return self._fetch.cuts

    def note_truncated(self, lost: Mapping[int, int]) -> None:
        """The coordinator has forgotten offsets that Kafka lost; `lost`: how many of each partition."""
        self._teller.note(Event.TRUNCATED)
        for partition, count in sorted(lost.items()):
            _log.error(
                "Kafka lost the end of a partition. State: %s[%d] from offset %d on; %d offsets that had "
                "been read are gone, settled or not. Owner: subscription %s. Remedy: none is needed for what "
                "is written there now, it is delivered; to have Kafka wait for a broker that has all, set "
                "unclean.leader.election.enable=false.",
                self._terms.definition.topic,
                partition // self._terms.definition.lanes,
                self._fetch.cuts.get(partition, 0),
                count,
                self._terms.display,
            )

    def found_end(self, partition: int, offset: int, incarnation: int) -> None:
        """The log of a partition ended at `offset` when Kafka was asked under this incarnation."""
        with self._lock:
            if incarnation != self._leases.incarnation:
                return
            self._fetch.log_ends[partition] = offset
            self._schedule.touch((partition,))
            self._schedule.request()
        self._schedule.request_exchange()

    def floors(self) -> dict[int, int]:
        """Lowest unsettled offset of each partition that is known here, to be mirrored to Kafka.

        Not of one whose log was cut off: that the lost records were settled is taken back.
        """
        with self._lock:
            cut = self._fetch.cuts
            return {p: state.floor for p, state in self._fetch.states.items() if p not in cut}

    # -- whether an exchange is needed (the lock is held)

    def _after_reading(self, *, news: bool, asks: bool) -> None:
        if news:
            self._ready()
        if asks:
            self._schedule.request_exchange()

    def _asks_after_reading(self, *, news: bool) -> bool:
        """Whether an exchange is to be made at once after records were read."""
        return self.needs_exchange(news=news) or self._policy.lacks_reservations()

    def needs_exchange(self, *, news: bool) -> bool:
        """Whether the records read need an exchange now; `news`: some of them can be dispatched."""
        return (
            self._wants_readable_end()
            or self._only_gaps()
            or (news and self._policy.keeps_nothing)
            or bool(self._policy.beyond_window())
        )

    def _wants_readable_end(self) -> bool:
        """Whether records wait for a grant that only an exchange can bring."""
        if not self._pending.is_answered:
            return False
        buffers = self._fetch.buffers
        return self._policy.wants_exchange({p: b for p, b in buffers.items() if b.position > b.reported})

    def _only_gaps(self) -> bool:
        """Whether what was read holds nothing to dispatch: settling it brings more to read.

        Gaps are offsets of records that the selector does not take, of aborted transactions, or compacted.
        """
        if not self._pending.is_answered:
            return False
        if self._selection.is_all and self._in_flight.chunks:
            return False  # the exchange that collects the verdicts on them comes soon, and settles gaps, too
        # a chunk whose records were all dispatched stays queued until the application asks for more
        return not self._queue.has_unhanded() and any(lease.gaps for lease in self._leases)
