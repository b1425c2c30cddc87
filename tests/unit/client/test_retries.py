"""What becomes of a message whose handler failed (`kafkadur/handlers/retries.py`)."""

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest

from kafkadur.handlers.retries import Retries
from kafkadur.runtime.dead_letters import Cause
from kafkadur_sharing.errors import ConnectionClosed, IllegalState, LeaseLost, Undecodable
from kafkadur_sharing.redelivery_policy import Redelivery

NONE = Redelivery()


def test_a_message_becomes_a_dead_letter_at_its_tenth_failure() -> None:
    retries = Retries(NONE)
    assert [retries.cause_to_give_up(ValueError(), attempt) for attempt in range(1, 10)] == [None] * 9
    assert retries.cause_to_give_up(ValueError(), 10) is Cause.ATTEMPTS


def test_it_is_retried_for_ever_where_that_is_wanted() -> None:
    assert Retries(NONE, attempts=None).cause_to_give_up(ValueError(), 1_000_000) is None


@pytest.mark.parametrize(
    ("attempts", "overruled"), [(10, ""), (4, ""), (3, "attempts=3"), (None, "attempts=None")]
)
def test_the_number_of_the_policy_goes_first(attempts: int | None, overruled: str) -> None:
    retries = Retries(Redelivery(max_attempts=4), attempts=attempts)
    assert retries.cause_to_give_up(ValueError(), 3) is None
    assert retries.cause_to_give_up(ValueError(), 4) is Cause.ATTEMPTS
    assert retries.overruled == overruled


def test_the_delay_doubles_to_five_minutes_within_its_upper_half() -> None:
    shortest, longest = Retries(NONE, random=lambda: 0.0), Retries(NONE, random=lambda: 1.0)
    error = ValueError()
    assert [longest.delay(error, attempt) for attempt in (1, 2, 3, 9, 10, 2_000)] == [1, 2, 4, 256, 300, 300]
    assert [shortest.delay(error, attempt) for attempt in (1, 2, 3, 9, 10, 2_000)] == [
        0.5,
        1,
        2,
        128,
        150,
        150,
    ]


def test_the_back_off_of_the_policy_goes_first() -> None:
    policy = Redelivery(backoff=timedelta(seconds=7))
    assert Retries(policy).delay(ValueError(), 1) is None
    assert Retries(policy, delay=2).delay(ValueError(), 1) == 2


def test_the_delay_of_the_nearest_class_counts() -> None:
    delays: Any = {OSError: 3, Exception: timedelta(seconds=2), TimeoutError: 0}
    retries = Retries(NONE, delay=delays)
    assert retries.delay(ConnectionError(), 1) == 3
    assert retries.delay(TimeoutError(), 9) == 0
    assert retries.delay(ValueError(), 1) == 2
    only = Retries(NONE, delay={OSError: 3}, random=lambda: 1.0)
    assert only.delay(ValueError(), 2) == 2, "the default"


def test_exceptions_that_are_rejected_and_retried() -> None:
    retries = Retries(NONE, attempts=2, retry_on=(OSError, KeyError), reject_on=TimeoutError)
    assert retries.cause_to_give_up(TimeoutError(), 1) is Cause.REJECTED, "reject_on goes first"
    assert retries.cause_to_give_up(ValueError(), 1) is Cause.REJECTED
    assert retries.cause_to_give_up(KeyError(), 1) is None
    assert retries.cause_to_give_up(ConnectionError(), 1) is None
    assert retries.cause_to_give_up(ConnectionError(), 2) is Cause.ATTEMPTS
    assert Retries(NONE, reject_on=()).cause_to_give_up(SystemExit(), 1) is None


@pytest.mark.parametrize(
    "error",
    [SystemExit(), asyncio.CancelledError(), LeaseLost(), ConnectionClosed(), Undecodable(transient=True)],
)
def test_what_says_nothing_about_the_message_is_retried_whatever_retry_on_says(error: BaseException) -> None:
    retries = Retries(NONE, attempts=2, retry_on=KeyError)
    assert retries.cause_to_give_up(error, 1) is None
    assert retries.cause_to_give_up(error, 2) is Cause.ATTEMPTS
    assert retries.cause_to_give_up(Undecodable(), 1) is Cause.REJECTED


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"attempts": 0}, "attempts"),
        ({"attempts": 2.5}, "attempts"),
        ({"attempts": 10_001}, "attempts"),
        ({"delay": -1}, "retry_delay"),
        ({"delay": math.nan}, "retry_delay"),
        ({"delay": {ValueError: math.inf}}, r"retry_delay\[ValueError\]"),
        ({"delay": {"ValueError": 1}}, "retry_delay"),
        ({"retry_on": "ValueError"}, "retry_on"),
        ({"retry_on": [ValueError]}, "retry_on"),
        ({"reject_on": (ValueError, int)}, "reject_on"),
        ({"reject_on": KeyboardInterrupt}, "reject_on"),
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(IllegalState, match=f"{named} cannot be"):
        Retries(NONE, **wrong)
