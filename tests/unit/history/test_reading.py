"""Reading a delivery history: entries become deliveries; a delivery without a verdict is shown as such."""

from itertools import count
from typing import Any, cast

from confluent_kafka import Message

from kafkadur.history.entries import Entry, Outcome, Written, encoded
from kafkadur.history.reading import Delivered, Reader


class Value:
    """A message of the history topic, of which only the value is read."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def value(self) -> bytes:
        return self._value


def messages(*written: Written) -> list[Message]:
    return [cast("Any", Value(value)) for each in written for value, _ in encoded(each)]


def handed(*offsets: int, at: int = 10, attempt: int = 1) -> Entry:
    return Entry(
        partition=0, offsets=list(offsets), attempt=attempt, handed=at, outcome=Outcome.HANDED, at=at + 1
    )


def acked(*offsets: int, handed: int = 10, attempt: int = 1) -> Entry:
    return Entry(
        partition=0,
        offsets=list(offsets),
        attempt=attempt,
        handed=handed,
        outcome=Outcome.ACKNOWLEDGED,
        at=30,
    )


NUMBERS = count(1)


def by(member: str, *entries: Entry, missing: int = 0, subscription: str = "s") -> Written:
    return Written(
        subscription=subscription, member=member, name=f"name of {member}", number=next(NUMBERS),
        entries=list(entries), missing=missing,
    )  # fmt: skip


def told(found: list[Delivered]) -> list[tuple[str, int, int, Outcome]]:
    return [(each.member, each.start, each.end, each.outcome) for each in found]


def test_a_verdict_takes_the_place_of_the_delivery() -> None:
    reader = Reader("s")
    found = list(
        reader.read(messages(by("a", handed(0, 10)), by("a", acked(0, 4, 6, 10)), by("b", acked(4, 5))))
    )
    assert told(found) == [
        ("a", 0, 4, Outcome.ACKNOWLEDGED),
        ("a", 6, 10, Outcome.ACKNOWLEDGED),
        ("b", 4, 5, Outcome.ACKNOWLEDGED),
        ("a", 4, 6, Outcome.HANDED),
    ]
    assert [each.held for each in found] == [20, 20, 20, None]


def test_another_delivery_of_the_same_message_is_its_own() -> None:
    reader = Reader("s")
    found = list(reader.read(messages(by("a", handed(0, 1)), by("a", acked(0, 1, handed=20, attempt=2)))))
    assert told(found) == [("a", 0, 1, Outcome.ACKNOWLEDGED), ("a", 0, 1, Outcome.HANDED)]


def test_a_verdict_is_that_of_a_delivery_that_is_dated_a_little_apart() -> None:
    """Deliveries within 50 ms are dated together, and not always the same ones."""
    written = messages(by("a", handed(0, 2, at=10)), by("a", acked(1, 2, handed=45), acked(0, 1, handed=8)))
    assert told(list(Reader("s").read(written))) == [
        ("a", 1, 2, Outcome.ACKNOWLEDGED),
        ("a", 0, 1, Outcome.ACKNOWLEDGED),
    ]


def test_a_verdict_for_all_leaves_no_delivery_open() -> None:
    written = messages(by("a", handed(0, 2)), by("a", handed(2, 4)), by("a", acked(0, 4)))
    assert told(list(Reader("s").read(written))) == [("a", 0, 4, Outcome.ACKNOWLEDGED)]


def test_only_what_is_asked_for() -> None:
    written = messages(by("a", acked(0, 100), missing=3), by("b", acked(100, 200), missing=4))
    reader = Reader("s", offsets={0: (150, 7, 99), 1: (5,)})
    assert [each.start for each in reader.read(written)] == [7, 99, 150]
    assert reader.missing == 7
    for name in ("b", "name of b"):
        reader = Reader("s", member=name)
        assert told(list(reader.read(written))) == [("b", 100, 200, Outcome.ACKNOWLEDGED)]
        assert reader.missing == 4


def test_damaged_messages_are_passed_over() -> None:
    read: list[int] = []
    damaged = cast("Any", Value(b"nothing"))
    reader = Reader("s")
    found = list(reader.read([damaged, *messages(by("a", acked(0, 1)))], read.append))
    assert told(found) == [("a", 0, 1, Outcome.ACKNOWLEDGED)]
    assert (read, reader.unread) == ([1, 2], 1)


def test_another_subscription_of_the_name_is_not_shown() -> None:
    written = messages(by("a", acked(0, 1), subscription="before"), by("a", acked(1, 2)))
    assert told(list(Reader("s").read(written))) == [("a", 1, 2, Outcome.ACKNOWLEDGED)]


def test_a_message_that_was_written_twice_counts_once() -> None:
    first, second, third = messages(by("a", acked(0, 1)), by("a", acked(1, 2)), by("a", acked(2, 3)))
    found = Reader("s").read([first, third, second, first, third, second])
    assert [each.start for each in found] == [0, 2, 1]
