"""Rate limit and circuit breaker over a clock from a list: nothing here sleeps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kafkadur import CircuitBreaker, IllegalState, RateLimit
from kafkadur.handlers.limits import Breaker, TokenBucket


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def calls_at_once(bucket: TokenBucket) -> int:
    count = 0
    while bucket.wait() == 0:
        bucket.take()
        count += 1
    return count


def test_a_burst_and_then_the_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(RateLimit(per_second=10, burst=3), clock)
    assert calls_at_once(bucket) == 3
    assert bucket.wait() == pytest.approx(0.1)
    clock.now += 0.05
    assert bucket.wait() == pytest.approx(0.05)
    clock.now += 0.05
    assert calls_at_once(bucket) == 1
    clock.now += 60
    assert calls_at_once(bucket) == 3, "a rest is not saved up beyond the burst"


def test_in_the_long_run_the_rate_is_met() -> None:
    clock = Clock()
    bucket = TokenBucket(RateLimit(per_second=7, burst=1), clock)
    made = 0
    while clock.now < 1_100:
        wait = bucket.wait()
        if wait:
            clock.now += wait  # who waits exactly so long may go on
            assert bucket.wait() == 0
        bucket.take()
        made += 1
    assert 699 <= made <= 702


@pytest.mark.parametrize(("per_second", "burst"), [(0.1, 1), (5, 1), (10, 1), (100, 10), (25, 2)])
def test_the_usual_burst_is_a_tenth_of_a_second(per_second: float, burst: int) -> None:
    assert calls_at_once(TokenBucket(RateLimit(per_second=per_second), Clock())) == burst


@pytest.mark.parametrize(
    "wrong",
    [{"per_second": 0}, {"per_second": -1}, {"per_second": float("inf")}, {"per_second": 1, "burst": 0}],
)
def test_a_wrong_rate_limit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(IllegalState) as caught:
        RateLimit(**wrong)
    assert caught.value.state
    assert caught.value.remedy


class Watched:
    """A breaker, its clock, and what it told."""

    def __init__(self, **plan: Any) -> None:
        self.clock = Clock()
        self.told: list[str] = []
        usual: dict[str, Any] = {"failures": 3, "pause": timedelta(seconds=10)}
        self.breaker = Breaker(
            CircuitBreaker(**usual | plan), self.clock, lambda state: self.told.append(state.value)
        )

    @property
    def state(self) -> str:
        return self.breaker.state.value

    def handle(self, *outcomes: bool | None) -> None:
        for failed in outcomes:
            ticket = self.breaker.admit()
            assert ticket is not None
            self.breaker.report(ticket, failed=failed)


def test_it_opens_after_failures_in_a_row() -> None:
    watched = Watched()
    watched.handle(True, True, False, True, True, None)
    assert watched.state == "closed"
    watched.handle(True)
    assert watched.state == "open"
    assert watched.breaker.admit() is None
    assert watched.breaker.wait() == 10
    assert watched.told == ["open"]


def test_failures_must_come_within_a_time() -> None:
    watched = Watched(within=timedelta(seconds=5))
    for _ in range(5):
        watched.handle(True)
        watched.clock.now += 3
    assert watched.state == "closed"
    watched.clock.now -= 1
    watched.handle(True)
    assert watched.state == "open", "the last three within 5 s"


def opened(**plan: Any) -> Watched:
    watched = Watched(**plan)
    watched.handle(True, True, True)
    watched.clock.now += 10
    assert watched.breaker.wait() == 0
    return watched


def test_half_open_one_message_is_tried_and_closes_it() -> None:
    watched = opened()
    breaker = watched.breaker
    assert watched.state == "half-open"
    ticket = breaker.admit()
    assert ticket is not None
    assert breaker.trying
    assert breaker.admit() is None, "one is enough"
    breaker.report(ticket, failed=False)
    assert watched.state == "closed"
    watched.handle(True, True)
    assert watched.state == "closed", "it counts from the beginning"
    assert watched.told == ["open", "half-open", "closed"]


def test_half_open_a_failure_opens_it_again_for_a_whole_pause() -> None:
    watched = opened()
    watched.handle(True)
    assert watched.state == "open"
    assert watched.breaker.wait() == 10
    assert watched.told == ["open", "half-open", "open"]


def test_half_open_what_says_nothing_lets_another_one_try() -> None:
    watched = opened()
    watched.handle(None)
    assert watched.state == "half-open"
    assert not watched.breaker.trying
    watched.handle(False)
    assert watched.state == "closed"


@pytest.mark.parametrize("failed", [True, False])
def test_what_was_begun_before_it_opened_decides_nothing(*, failed: bool) -> None:
    watched = Watched()
    late = watched.breaker.admit()
    assert late is not None
    watched.handle(True, True, True)
    watched.breaker.report(late, failed=failed)
    assert watched.state == "open"
    watched.clock.now += 10
    watched.breaker.wait()
    watched.breaker.report(late, failed=failed)
    assert watched.state == "half-open"


@pytest.mark.parametrize(
    "wrong", [{"failures": 0}, {"pause": timedelta(0)}, {"within": timedelta(seconds=-1)}]
)
def test_a_wrong_circuit_breaker_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(IllegalState) as caught:
        CircuitBreaker(**wrong)
    assert caught.value.state
    assert caught.value.remedy
