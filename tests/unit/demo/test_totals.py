"""The totals by plain Python, what counts as a difference, and which bad records have to be dead letters."""

from examples.demo.bad_records import BAD, NO_JSON, places, wrong_letters
from examples.demo.flights import rows
from examples.demo.report import absent
from examples.demo.totals import Delays, differences, together, totals


def flight(carrier: str, *, left: int | None = None, landed: int | None = None) -> dict[str, object]:
    """A flight of a carrier from EWR to IAH, with its delays in minutes."""
    return {
        "carrier": carrier, "origin": "EWR", "dest": "IAH",
        "dep_time": None if left is None else 517, "dep_delay": left, "arr_delay": landed,
    }  # fmt: skip


def test_totals_of_what_left_landed_or_did_not() -> None:
    first, second = totals(
        [flight("UA", left=-2, landed=7), flight("AA"), flight("UA", left=5), flight("UA")]
    )
    assert first == ("AA", "EWR", "IAH", 1, 1, 0, 0, None, 0, 0, None)
    assert second == ("UA", "EWR", "IAH", 3, 1, 2, 3, 1.5, 1, 7, 7.0)


def test_totals_of_the_file_have_every_flight() -> None:
    found = together(totals(rows(20_000)), lambda row: row.origin)
    assert sum(delays.flights for delays in found.values()) == 20_000
    assert set(found) == {"EWR", "JFK", "LGA"}


def test_totals_together_are_added_up() -> None:
    rows_of_two = totals([flight("UA", left=10, landed=1), flight("AA", left=20, landed=-1)])
    assert together(rows_of_two, lambda row: row.route) == {"EWR-IAH": Delays(2, 0, 2, 30, 2, 0)}


def test_equal_totals_have_no_difference() -> None:
    expected = totals(rows(1_000))
    assert differences(reversed(expected), expected) == []


def test_every_difference_is_named() -> None:
    right, other = totals([flight("UA", left=3), flight("AA", left=4)])
    assert differences([right._replace(flights=2), other], [right, other]) == [
        "report: 1 totals are not those of the file, for example AA EWR-IAH has flights 2, by the file 1"
    ]
    assert "UA EWR-IAH is missing" in differences([right], [right, other])[0]
    assert "is not in the file, or comes twice" in differences([right, right, other], [right, other])[0]


def test_bad_records_are_spread_over_all_flights() -> None:
    found = places(20_000)
    assert list(found.values()) == list(BAD)
    assert 0 < min(found) < max(found) < 20_000
    assert len(found) == len(BAD)


def test_letters_are_right_when_each_is_there_once() -> None:
    letters = list(BAD.items())
    assert wrong_letters(reversed(letters)) == []
    assert "is not there" in wrong_letters(letters[1:])[0]
    assert "should not be" in wrong_letters([*letters, letters[0]])[0]
    assert "5 dead letters, 6 are right" in wrong_letters(letters[1:])[0]
    assert wrong_letters([(value, NO_JSON) for value, _ in letters]) != []


def test_what_is_not_installed_is_named() -> None:
    assert absent(("json", "no_such_package", "csv")) == ["no_such_package"]
    assert absent() == []
