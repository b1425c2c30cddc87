"""What a soak makes of its figures: slopes, their errors, stretches of offsets, and the judgement."""

import random

import pytest

from benchmarks.soak.driving import Disturbance, Record
from benchmarks.soak.measures import Point, outside, percentile, slope
from benchmarks.soak.report import judge
from benchmarks.soak.working import TYPES, Warned, runs

HOUR = 3_600


def line(per_hour: float, noise: float = 0.0, seed: int = 1) -> list[Point]:
    """A value of 100 that changes so much in an hour, each second."""
    chance = random.Random(seed)
    return [Point(at, 100 + per_hour * at / HOUR + chance.gauss(0, noise)) for at in range(HOUR)]


def test_a_slope_is_that_of_the_line() -> None:
    found = slope(line(12))
    assert found.per_hour == pytest.approx(12)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert found.mean == pytest.approx(106, rel=0.01)
    assert found.grows(0.05, hours=1)
    assert not found.grows(0.05, hours=0.25), "that is little in such a time"


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_no_growth(seed: int) -> None:
    found = slope(line(0, noise=20, seed=seed))
    assert abs(found.per_hour) < 4 * found.error
    assert not found.grows(0.05, hours=1)


@pytest.mark.parametrize("seed", range(10))
def test_growth_is_found_in_noise(seed: int) -> None:
    assert slope(line(30, noise=20, seed=seed)).grows(0.05, hours=1)


def test_two_values_have_no_slope() -> None:
    with pytest.raises(ValueError, match="2 values are too few"):
        slope([Point(0, 1), Point(1, 2)])


def test_runs_are_stretches_without_gaps() -> None:
    assert list(runs([3, 4, 5, 9, 11, 12])) == [(3, 6), (9, 10), (11, 13)]
    assert list(runs([])) == []


def test_percentiles_and_what_is_left_out() -> None:
    assert percentile(range(1, 101), 0.99) == 100
    assert percentile([5], 0.5) == 5
    points = [Point(at, 0) for at in range(10)]
    assert [p.at for p in outside(points, [(2, 4), (7, 20)])] == [0, 1, 5, 6]


def a_record() -> Record:
    """What a run of an hour has seen in which all went well."""
    record = Record(began=0, ended=HOUR, published=1_000)
    record.memory["stays"] = line(0)
    record.latencies = [Point(at, 10.0) for at in range(HOUR)]
    record.disturbances = [Disturbance(1_000, "a member is killed")]
    record.lost = dict.fromkeys(TYPES, 0)
    return record


def test_a_good_run_has_no_fault() -> None:
    found = judge(a_record(), peak=200, rate=100)
    assert found.faults == []
    assert found.p99_ms == 10
    assert found.disturbances == {"a member is killed": 1}


def test_a_run_that_was_broken_off_at_once_is_judged_by_what_is_known() -> None:
    record = Record(began=0, ended=5, published=10)
    record.memory["stays"] = [Point(4, 100.0)]
    record.lost = dict.fromkeys(TYPES, 0)
    found = judge(record, peak=200, rate=100)
    assert found.slopes == {}
    assert [fault.partition(":")[0] for fault in found.faults] == [
        "nothing is known of stays",
        "nothing is known of p99, ms",
    ]


def test_each_fault_is_named() -> None:
    record = a_record()
    record.memory["stays"] = line(50)
    record.latencies = [Point(at, 10.0 + at / 100) for at in range(HOUR)]
    record.lost["shared"] = 3
    record.warnings = [Warned(1_010, "expected"), Warned(3_000, "kafkadur: strange")]
    found = judge(record, peak=200, rate=100)
    assert found.warnings == ["kafkadur: strange"]
    assert [fault.partition(" ")[0] for fault in found.faults] == ["3", "1", "stays", "p99,"]
