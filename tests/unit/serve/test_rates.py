"""Rates from two looks at a subscription, documents of odd records, and the end of a reading."""

from dataclasses import replace
from typing import Any, cast

import pytest

from kafkadur.admin.browse import Some
from kafkadur.admin.documents import iso
from kafkadur.admin.rates import Rates, rates
from tests.unit.serve.test_words import info


def at(seconds: int, end: int, backlog: int | None, **changed: Any) -> Any:
    found = info(backlog=backlog)
    (partition,) = found.partitions
    return replace(
        found, now=seconds * 1_000, partitions=(replace(partition, log_end=end, backlog=backlog),), **changed
    )


def test_what_arrived_and_was_settled_between_two_looks() -> None:
    assert rates(at(0, 100, 40), at(10, 200, 20)) == Rates(10.0, 12.0)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (None, at(10, 200, 20)),
        (at(0, 100, None), at(10, 200, 20)),
        (at(10, 100, 40), at(10, 200, 20)),
        (at(0, 100, 40), at(10, 200, 20, version=2)),  # moved or altered
        (at(0, 100, 40), at(10, 200, 20, id="0.9")),  # another subscription of the name
        (at(0, 100, 40), at(10, 200, 20, topic_id="new")),
    ],
)
def test_rates_that_are_not_known(before: Any, now: Any) -> None:
    assert rates(before, now) is None


def test_no_rate_is_negative() -> None:
    assert rates(at(0, 100, 0), at(10, 50, 50)) == Rates(0.0, 0.0)


def test_a_time_of_any_size_is_a_document() -> None:
    assert iso(0) == "1970-01-01T00:00:00.000+00:00"
    assert iso(999_999_999_999_999) is None


class Message:
    def __init__(self, size: int) -> None:
        self.size = size

    def value(self) -> bytes:
        return b"x" * self.size


@pytest.mark.parametrize(
    ("records", "size", "passed", "cut"),
    [(10, 100, 5, False), (5, 100, 5, False), (3, 100, 3, True), (10, 25, 3, True)],
)
def test_a_reading_ends_by_number_or_size(records: int, size: int, passed: int, cut: bool) -> None:
    some = Some(records, size)
    assert len(list(some(cast("Any", [Message(10)] * 5)))) == passed
    assert some.cut is cut
