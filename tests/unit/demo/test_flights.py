"""The input as messages, checked against facts known of the file."""

import json

import pytest

from examples.demo.flights import ALL, airlines, digest, flights, row_of, rows
from kafkadur_sharing.errors import KafkadurError


def test_the_first_flight() -> None:
    flight = next(flights(1))
    assert (flight.row, flight.key) == (1, "N14228")
    assert flight.properties == {
        "carrier": "UA", "origin": "EWR", "dest": "IAH", "dep_delay": 2, "distance": 1400, "month": 1,
    }  # fmt: skip
    content = json.loads(flight.value)
    assert content["row"] == 1
    assert content["time_hour"] == "2013-01-01T10:00:00Z"
    assert b" " not in flight.value
    assert row_of(flight.value) == 1


def test_a_row_has_what_the_message_has() -> None:
    content = json.loads(next(flights(1)).value)
    assert content == {"row": 1, **next(rows(1))}


def test_every_carrier_has_a_name() -> None:
    assert {row["carrier"] for row in rows(20_000)} <= set(airlines())
    assert airlines()["UA"] == "United Air Lines Inc."


def test_no_more_than_asked_for() -> None:
    assert [flight.row for flight in flights(3)] == [1, 2, 3]


def test_what_is_not_known_is_none() -> None:
    cancelled = next(flight for flight in flights(1_000) if flight.properties["dep_delay"] is None)
    assert json.loads(cancelled.value)["dep_time"] is None


@pytest.mark.long
def test_the_file_has_as_many_rows_as_the_demo_says_and_one_that_is_too_short_is_refused() -> None:
    count = 0
    with pytest.raises(KafkadurError, match="has 336776 rows, not 336777"):
        for count, _flight in enumerate(flights(ALL + 1), 1):  # noqa: B007 - how many there were
            pass
    assert count == ALL


@pytest.mark.parametrize("value", [b"", b"hello", b'{"row":x,', b'{"row":'])
def test_what_is_no_flight_has_no_row(value: bytes) -> None:
    assert row_of(value) == 0


def test_different_contents_have_different_digests() -> None:
    values = [flight.value for flight in flights(2_000)]
    assert len(set(map(digest, values))) == len(set(values)) == 2_000
