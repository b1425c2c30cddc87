"""A plan follows from the demand and the costs; the costs of this version are there."""

import dataclasses
import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.plan.command import main
from benchmarks.plan.costs import COSTS, Costs, load, save
from benchmarks.plan.planning import (
    Demand,
    Machine,
    Need,
    bottleneck,
    cores_of_member,
    exchanges_of_member,
    plan,
)

#: Round numbers.
ROUND = Costs(
    exchange_ms=0.2,
    partition_ms=0.01,
    renewal_ms=0.05,
    inspection_ms=0.1,
    partition_bytes=100,
    waiting_bytes=25,
    written_mb_s=0.01,
    read_mb_s=0.005,
    batch_s=2e-6,
    idle_reader_cores=0.001,
    backlog_message_s=1e-6,
    live_message_s=250e-6,
    messages_an_exchange=5_000,
    idle_subscription_cores=0.0001,
    process_bytes=80e6,
)
#: Half of the subscriptions have a member, and each of these a topic of its own.
LARGE = Demand(subscriptions=10_000, members=5_000, rate=1_000_000, topics=5_000, size=500)


def need(demand: Demand, what: str) -> Need:
    (found,) = [each for each in plan(demand, Machine(), ROUND).needs if each.what == what]
    return found


def test_a_large_installation() -> None:
    found = plan(LARGE, Machine(), ROUND)
    # 200 messages a second and member: 20 exchanges a second, of 10 partitions each
    assert found.exchanges == pytest.approx(100_000)
    assert need(LARGE, "Redis primaries: CPU").need == pytest.approx(5_000 * (20 * 0.29 + 0.1) / 1_000)
    assert found.primaries == 50, "29.5 cores, of which 0.6 are used"
    assert found.partitions == 60_000
    assert found.brokers == 45, "each has at most 4,000 replicas of 180,000"
    assert found.client_cores == pytest.approx(5_000 * (200 * 250e-6 + 0.0001))
    assert found.client_gbits == pytest.approx(4.56)
    assert found.redis_bytes == 10_000 * 12 * 100
    assert found.client_bytes == pytest.approx(5_000 * (80e6 + 5e6))
    assert all(each.used <= 1 for each in found.needs)
    assert found.tightest.what == "a member: CPU"


def test_what_goes_to_many_subscriptions_is_read_by_each() -> None:
    few = dataclasses.replace(LARGE, topics=100)
    assert few.followers == 50
    assert plan(few, Machine(), ROUND).client_gbits == pytest.approx(50 * 4.56)
    out = need(few, "brokers: network out").need
    # records, with two copies, and copies of a checkpoint a second of each partition of a subscription
    assert out == pytest.approx(570 * 52 + 2 * 60_000 * 150 / 1e6)


def test_many_partitions_make_many_brokers() -> None:
    assert need(LARGE, "brokers: replicas").need == 180_000
    assert plan(dataclasses.replace(LARGE, partitions=2), Machine(), ROUND).brokers < 45


def test_one_subscription_with_many_members_is_limited_by_its_primary() -> None:
    one = dataclasses.replace(LARGE, subscriptions=1, members=120, topics=1, rate=24_000, partitions=120)
    tightest = plan(one, Machine(), ROUND).tightest
    assert tightest.what == "a subscription: its primary"
    assert tightest.used == pytest.approx(120 * (20 * 0.2 + 0.1) / 1_000)
    first = bottleneck(one, Machine(), ROUND)
    # 4,940 exchanges a second, each of half a window
    assert first.what == tightest.what
    assert first.times == pytest.approx(4_940 * 500 / 24_000, rel=0.01)


def test_a_member_is_used_up_where_batches_take_a_core() -> None:
    first = bottleneck(LARGE, Machine(), ROUND)
    # 2,000 messages a second that come alone, and half a million in batches
    assert first.what == "a member: CPU"
    assert first.times == pytest.approx(502_000 / 200, rel=0.01)


@pytest.mark.parametrize(
    ("members", "busiest"),
    [
        (1, 1),
        (8, 2 / 12),  # of 12 partitions
        (12, 1 / 12),
        (13, 1 / 12),  # two members share one partition, the others have one each
        (24, 1 / 24),
    ],
)
def test_members_share_whole_partitions(members: int, busiest: float) -> None:
    demand = dataclasses.replace(LARGE, subscriptions=1, topics=1, members=members)
    assert demand.busiest == pytest.approx(busiest)


def test_more_members_than_partitions_read_partitions_together() -> None:
    few = plan(dataclasses.replace(LARGE, subscriptions=100, topics=100), Machine(), ROUND)
    many = plan(dataclasses.replace(LARGE, subscriptions=100, topics=100, partitions=50), Machine(), ROUND)
    assert few.client_gbits == pytest.approx(many.client_gbits * 50 / 12)


@pytest.mark.parametrize(
    ("rate", "window", "exchanges"),
    [
        (5, 1_000, 5),  # each message alone
        (500, 1_000, 20),  # confirmed every 50 ms
        (50_000, 1_000, 100),  # half a window with each
        (50_000, 100, 2_000),  # a quarter of a small window
        (500_000, 100_000, 100),  # no more than was measured
    ],
)
def test_exchanges_follow_rate_and_window(rate: float, window: int, exchanges: float) -> None:
    demand = dataclasses.replace(LARGE, window=window)
    assert exchanges_of_member(demand, ROUND, rate) == pytest.approx(exchanges)


def test_messages_come_alone_until_half_of_a_core_is_used() -> None:
    assert cores_of_member(ROUND, 1_000) == pytest.approx(0.25)
    assert cores_of_member(ROUND, 102_000) == pytest.approx(0.5 + 0.1)


def test_members_that_have_nothing_to_say_renew_their_sessions() -> None:
    idle = dataclasses.replace(LARGE, rate=1e-6, members=10_000)
    assert need(idle, "Redis primaries: CPU").need == pytest.approx(10_000 * 0.2 * 0.05 / 1_000, rel=0.01)


def test_the_costs_of_this_version_can_be_read_and_written(tmp_path: Path) -> None:
    costs = load(COSTS)
    assert all(value > 0 for value in dataclasses.asdict(costs).values())
    assert costs.live_message_s > costs.backlog_message_s
    assert costs.exchange_ms > costs.renewal_ms
    file = tmp_path / "costs.json"
    save(costs, file)
    assert load(file) == costs


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_command_says_what_is_needed(more: list[str]) -> None:
    app = Typer()
    app.command()(main)
    asked = ["--subscriptions", "10000", "--members", "5000", "--rate", "1000000", "--size", "500"]
    done = CliRunner().invoke(app, [*asked, *more])
    assert done.exit_code == 0, done.output
    if more:
        told = json.loads(done.stdout)
        assert told["plan"]["brokers"] >= 3
        assert told["plan"]["bottleneck"]["what"] in {each["what"] for each in told["plan"]["needs"]}
    else:
        assert "Kafka brokers" in done.stdout
        assert "First bottleneck:" in done.stdout
