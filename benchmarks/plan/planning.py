"""Calculates what a demand needs. Pure: the costs and the demand come in, a plan goes out.

How it calculates:

- Each subscription with a consumer receives all messages of its topic. Topics have the same rate, and
  subscriptions the same number of consumers, each in a process of its own.
- A consumer confirms what it acknowledges every 50 ms, or more often if it receives more than an exchange
  settles: half of its window (a quarter of one below 1,000), or as many messages as were measured.
- A message that comes alone costs a consumer more than one of a batch. Messages are taken to come alone until
  that takes half of a core; what a consumer receives beyond that comes in batches.
- The members of a subscription share its partitions as evenly as whole partitions allow. If there are more
  members than partitions, several read each partition.
  `tests/integration/coordinators/test_many_members.py` tries 50 subscriptions with 100 members each.
- Kafka stores a batch for each partition and `linger`, of one message at least. Each batch is written and
  read by itself, which is more than it costs where a request has many batches.
- Each partition with settled messages has a checkpoint a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kafkadur.consumer.schedule import CONFIRM_WITHIN

if TYPE_CHECKING:
    from benchmarks.plan.costs import Costs

#: Bytes of a megabyte, and of the network of a gigabit for a second.
_MB, _GBIT = 1e6, 125e6
#: Bytes that Kafka's format, headers and protocol add to a message; and those of a checkpoint.
_OVERHEAD, _CHECKPOINT = 70, 150
#: Messages, and bytes of them, that a member reads ahead.
_AHEAD, _AHEAD_BYTES = 10_000, 64 * 2**20
#: Most of a core that messages take that come alone.
_ALONE = 0.5
#: Renewals a second of a member that has nothing to say for half of its session of 10 s.
_RENEWALS = 0.2
#: Part of the window that a member dispatches before it asks for more, below and from 1,000 messages on.
_QUARTER, _HALF, _LARGE = 0.25, 0.5, 1_000
#: Replicas of partitions that a broker should have at most.
_REPLICAS = 4_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What is to be delivered."""

    subscriptions: int
    #: attached, of all subscriptions together
    members: int
    #: messages a second that are published, to all topics together
    rate: float
    topics: int
    #: bytes of a message
    size: int
    #: of each topic
    partitions: int = 12
    window: int = 1_000
    #: messages of all subscriptions that wait for another attempt
    waiting: int = 0
    #: of Kafka's topics
    replication: int = 3
    #: seconds that producers wait for more messages of a batch
    linger: float = 0.005

    @property
    def active(self) -> int:
        """The subscriptions that have a consumer."""
        return max(min(self.subscriptions, self.members), 1)

    @property
    def followers(self) -> float:
        """How many subscriptions with a consumer receive each message."""
        return self.active / self.topics

    @property
    def sharing(self) -> int:
        """The members of a subscription."""
        return math.ceil(self.members / self.active)

    @property
    def readers(self) -> float:
        """How many members of a subscription read each partition."""
        return max(1.0, self.sharing / self.partitions)

    @property
    def busiest(self) -> float:
        """The part of a subscription's messages that its busiest member receives."""
        if self.sharing <= self.partitions:
            return math.ceil(self.partitions / self.sharing) / self.partitions
        return 1 / (self.partitions * (self.sharing // self.partitions))


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What one server has, and how much of it is to be used."""

    cores: int = 8
    gbits: float = 10.0
    #: part of cores and network that a plan uses
    load: float = 0.6


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A line of a plan."""

    what: str
    unit: str
    #: in all, and what one of them gives
    need: float
    of_one: float
    #: how many there are to be; 1 for what cannot be divided
    count: int
    divisible: bool = True

    @property
    def used(self) -> float:
        """The part of what is there that is used."""
        return self.need / (self.of_one * self.count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a demand needs."""

    partitions: int
    brokers: int
    primaries: int
    #: a second, of all members
    exchanges: float
    client_cores: float
    client_gbits: float
    client_bytes: float
    redis_bytes: float
    needs: tuple[Need, ...]

    @property
    def tightest(self) -> Need:
        """What is used most, of what cannot be divided among more servers."""
        return max((each for each in self.needs if not each.divisible), key=lambda each: each.used)


class Bottleneck(NamedTuple):
    """What is used up first when the rate grows, and at how many times the rate."""

    what: str
    times: float


class _Brokers(NamedTuple):
    """What Kafka has to do in a second."""

    cores: float
    #: bytes that come in, and that go out, copies included
    came: float
    went: float


def exchanges_of_member(demand: Demand, costs: Costs, rate: float) -> float:
    """Return the exchanges a second of a member that receives `rate` messages a second."""
    part = _QUARTER if demand.window < _LARGE else _HALF
    together = max(min(demand.window * part, costs.messages_an_exchange), 1.0)
    return min(rate, max(1 / CONFIRM_WITHIN, rate / together))


def cores_of_member(costs: Costs, rate: float) -> float:
    """Return the cores of a member that receives `rate` messages a second."""
    alone = min(rate, _ALONE / costs.live_message_s)
    return alone * costs.live_message_s + (rate - alone) * costs.backlog_message_s


def redis_ms_of_member(demand: Demand, costs: Costs, rate: float) -> float:
    """Return the CPU of Redis in a second for a member that receives `rate` messages a second, ms."""
    exchanges = exchanges_of_member(demand, costs, rate)
    partitions = max(demand.partitions / demand.sharing, 1.0)
    touched = min(partitions, rate / exchanges) if exchanges else 1.0
    exchange_ms = costs.exchange_ms + (touched - 1) * costs.partition_ms
    renewals = max(_RENEWALS - exchanges, 0.0)
    checkpoints = min(rate, 1.0)
    return exchanges * exchange_ms + renewals * costs.renewal_ms + checkpoints * costs.inspection_ms


def _brokers(demand: Demand, costs: Costs, brokers: int) -> _Brokers:
    """Return what Kafka has to do, where each reader asks all of so many brokers."""
    record, all_partitions = demand.size + _OVERHEAD, demand.topics * demand.partitions
    checkpoints = min(demand.active * demand.partitions, demand.rate * demand.followers)
    came = demand.rate * record + checkpoints * _CHECKPOINT
    read = demand.rate * record * demand.followers * demand.readers
    copied = came * (demand.replication - 1)
    batches = min(demand.rate, all_partitions / demand.linger) * (1 + demand.followers * demand.readers) / 2
    cores = (
        (came + copied) / _MB * costs.written_mb_s
        + (read + copied) / _MB * costs.read_mb_s
        + batches * costs.batch_s
        + demand.members * min(brokers, demand.partitions) * costs.idle_reader_cores
    )
    return _Brokers(cores, came + copied, read + copied)


def _count_brokers(demand: Demand, machine: Machine, costs: Costs) -> int:
    """Return how many brokers suffice."""
    nic = machine.gbits * _GBIT * machine.load
    replicas = demand.topics * demand.partitions * demand.replication
    count = max(demand.replication, math.ceil(replicas / _REPLICAS))
    while True:  # more brokers are asked by more readers: but that grows no further than the partitions
        load = _brokers(demand, costs, count)
        wanted = max(
            math.ceil(load.cores / (machine.cores * machine.load)), math.ceil(max(load.came, load.went) / nic)
        )
        if wanted <= count:
            return count
        count = wanted


def plan(demand: Demand, machine: Machine, costs: Costs) -> Plan:
    """Calculate what a demand needs."""
    of_subscription = demand.rate / demand.topics
    rate, busiest = of_subscription / demand.sharing, of_subscription * demand.busiest
    exchanges = exchanges_of_member(demand, costs, rate)
    member_ms = redis_ms_of_member(demand, costs, rate)
    redis_cores = demand.members * member_ms / 1_000
    primaries = max(math.ceil(redis_cores / machine.load), 1)
    brokers = _count_brokers(demand, machine, costs)
    kafka = _brokers(demand, costs, brokers)
    all_partitions = demand.topics * demand.partitions
    record, nic = demand.size + _OVERHEAD, machine.gbits * _GBIT
    leader = demand.rate / all_partitions * record
    leader *= demand.followers * demand.readers + demand.replication - 1
    read = demand.rate * record * demand.followers * demand.readers
    ahead = min(_AHEAD * demand.size, _AHEAD_BYTES)

    def shared(what: str, unit: str, need: float, of_one: float, count: int) -> Need:
        return Need(what=what, unit=unit, need=need, of_one=of_one, count=count)

    def single(what: str, unit: str, need: float, of_one: float) -> Need:
        return Need(what=what, unit=unit, need=need, of_one=of_one, count=1, divisible=False)

    return Plan(
        partitions=all_partitions,
        brokers=brokers,
        primaries=primaries,
        exchanges=demand.members * exchanges,
        client_cores=demand.members * (cores_of_member(costs, rate) + costs.idle_subscription_cores),
        client_gbits=read / _GBIT,
        client_bytes=demand.members * (costs.process_bytes + ahead),
        redis_bytes=demand.subscriptions * demand.partitions * costs.partition_bytes
        + demand.waiting * costs.waiting_bytes,
        needs=(
            shared("brokers: CPU", "cores", kafka.cores, machine.cores, brokers),
            shared("brokers: network in", "MB/s", kafka.came / _MB, nic / _MB, brokers),
            shared("brokers: network out", "MB/s", kafka.went / _MB, nic / _MB, brokers),
            shared("brokers: replicas", "", all_partitions * demand.replication, _REPLICAS, brokers),
            shared("Redis primaries: CPU", "cores", redis_cores, 1, primaries),
            single("a subscription: its primary", "cores", demand.sharing * member_ms / 1_000, 1),
            single(
                "a member: CPU",
                "cores",
                cores_of_member(costs, busiest) + costs.idle_subscription_cores,
                1,
            ),
            single("a partition: its leader", "MB/s", leader / _MB, nic / _MB),
        ),
    )


def bottleneck(demand: Demand, machine: Machine, costs: Costs) -> Bottleneck:
    """Return what is used up first when the rate grows, however many servers there are."""

    def tightest(times: float) -> Need:
        return plan(replace(demand, rate=demand.rate * times), machine, costs).tightest

    low, high = 0.0, 1.0
    while tightest(high).used < 1:
        low, high = high, 2 * high
    while high - low > high / 1_000:
        middle = (low + high) / 2
        low, high = (middle, high) if tightest(middle).used < 1 else (low, middle)
    return Bottleneck(tightest(high).what, high)
