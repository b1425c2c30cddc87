"""Numbers of callers: only what is in range and of the right type is taken."""

import math
from datetime import timedelta
from typing import Any

import pytest

from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.numbers import check_delay, check_integer
from kafkadur_sharing.redelivery_policy import Redelivery


class OfAnotherLibrary:
    """An integer that is no `int`."""

    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize("value", [1, 3, 5, OfAnotherLibrary()])
def test_an_integer_in_range_is_taken(value: object) -> None:
    found = check_integer("window", value, 1, 5)
    assert type(found) is int
    assert 1 <= found <= 5


@pytest.mark.parametrize("value", [0, 6, 2**70, -1, 2.5, 2.0, "3", None, True, math.nan, math.inf, b"3", [3]])
def test_other_numbers_and_types_are_refused(value: object) -> None:
    with pytest.raises(IllegalState, match=r"window cannot be .*use an integer from 1 to 5\."):
        check_integer("window", value, 1, 5)


@pytest.mark.parametrize("value", [0, 0.25, 604_800, timedelta(0), timedelta(days=7)])
def test_a_delay_in_range_is_taken(value: timedelta | float) -> None:
    expected = value.total_seconds() if isinstance(value, timedelta) else value
    assert check_delay("delay", value) == expected


@pytest.mark.parametrize(
    "value",
    [-1, -0.001, 604_801, 1e17, math.nan, math.inf, "1", None, True, timedelta(-1), timedelta(days=8)],
)
def test_other_delays_are_refused(value: object) -> None:
    with pytest.raises(IllegalState, match=r"delay cannot be .* from 0 to 7 days"):
        check_delay("delay", value)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(IllegalState, match=r"window cannot be 'x{39}\.\.\.\."):
        check_integer("window", "x" * 1_000, 1, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 2.5},
        {"max_attempts": True},
        {"max_attempts": 10_001},
        {"backoff": "1"},
        {"backoff": True},
        {"backoff": math.nan},
        {"max_backoff": timedelta(days=8)},
        {"max_backoff": -1},
        {"max_hold": 0.099},
        {"max_hold": timedelta(milliseconds=99)},
    ],
)
def test_a_redelivery_policy_takes_no_other_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(IllegalState, match=next(iter(wrong))):
        Redelivery(**wrong)


def test_times_of_a_redelivery_policy_are_timedeltas_or_seconds() -> None:
    """Each is rounded to whole ms, as it is stored."""
    assert Redelivery(backoff=0.25, max_backoff=60, max_hold=1.0004) == Redelivery(
        backoff=timedelta(milliseconds=250), max_backoff=timedelta(minutes=1), max_hold=timedelta(seconds=1)
    )
    assert Redelivery.from_record(Redelivery(backoff=0.1234).to_record()).backoff == timedelta(
        milliseconds=123
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"key_lanes": 2.0},
        {"key_lanes": 65},
        {"max_consumers": 0},
        {"max_consumers": "many"},
        {"history": 59},
        {"history": timedelta(days=3_651)},
        {"history": "7d"},
    ],
)
def test_a_definition_takes_no_other_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(IllegalState, match=next(iter(wrong))):
        Definition(type=SubscriptionType.SHARED, topic="t", **wrong)


def test_a_policy_of_another_type_is_refused() -> None:
    policy: Any = {"max_attempts": 3}
    with pytest.raises(IllegalState, match=r"redelivery cannot be .* use Redelivery\(\.\.\.\)"):
        Definition(type=SubscriptionType.SHARED, topic="t", redelivery=policy)
