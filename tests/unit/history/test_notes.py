"""What a member notes for the delivery history: verdicts by run, hand-outs by time, losses."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, cast

import pytest

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.turn import LaneGroup
from kafkadur.history import notes as noting
from kafkadur.history.entries import Entry, Outcome, Written, decoded, encoded
from kafkadur.history.notes import Notes


@dataclass
class Clock:
    """Both clocks of a member."""

    ms: int = 1_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notes(clock: Clock) -> Notes:
    return Notes(lanes=1, now_ms=clock.now_ms, monotonic=clock.monotonic)


def a_chunk(count: int = 10, *, attempts: int = 0, offsets: list[int] | None = None, token: int = 7) -> Chunk:
    lease = Lease(
        token=token, incarnation=1, partition=3, start=100, end=100 + count, attempts=attempts,
        redelivered=False, lane=False, group=LaneGroup(), seen=0,
    )  # fmt: skip
    messages = cast("Any", [b"x"] * count)
    return Chunk(cast("Any", None), lease, messages, 100, offsets, size=count)


def hand_out(notes: Notes, chunk: Chunk, start: int, end: int) -> None:
    chunk.hand_out(start, end)
    notes.handed(chunk, start, end)


def taken(notes: Notes, *chunks: Chunk, leaves: bool = False) -> list[Entry]:
    """Take the notes of a member with these chunks in flight; none is missing."""
    notes.watch(nullcontext(), chunks)
    entries, missing = notes.take_notes(leaves=leaves)
    assert missing == 0
    return entries


def carry(notes: Notes, chunk: Chunk, *, refused: set[int] | None = None) -> list[Entry]:
    """Send the verdicts in an exchange that is answered; the entries then."""
    notes.collected(chunk, *chunk.send()[:2])
    notes.answered(refused or set())
    return taken(notes, chunk)


def told(entries: list[Entry]) -> list[tuple[list[int], int | None, int | None, Outcome, int]]:
    return [(each.offsets, each.attempt, each.handed, each.outcome, each.at) for each in entries]


def test_a_run_is_one_entry(notes: Notes, clock: Clock) -> None:
    chunk = a_chunk(1_000)
    hand_out(notes, chunk, 0, 1_000)
    clock.ms = 1_040
    assert chunk.acknowledge_range(0, 1_000)
    entries = carry(notes, chunk)
    assert told(entries) == [([100, 1_100], 1, 1_000, Outcome.ACKNOWLEDGED, 1_040)]
    assert entries[0].partition == 3
    assert taken(notes, chunk) == []


def test_exchanges_within_50_ms_are_dated_together(notes: Notes, clock: Clock) -> None:
    chunk = a_chunk(40)
    notes.run(chunk, 0, 40)
    for index in range(30):
        clock.ms += 5
        chunk.hand_out(index, index + 1)
        chunk.acknowledge(index)
        notes.collected(chunk, *chunk.send()[:2])
        notes.answered(set())
    entries = taken(notes, chunk)
    assert [offset for each in entries for offset in range(*each.offsets)] == list(range(100, 130))
    assert {each.at for each in entries} == {1_005, 1_055, 1_105}
    assert {each.handed for each in entries} == {1_000, 1_050, 1_100, 1_150}


def test_entries_are_split_by_when_they_were_handed_out(notes: Notes, clock: Clock) -> None:
    chunk = a_chunk(6, attempts=2)
    for start in (0, 2, 4):
        hand_out(notes, chunk, start, start + 2)
        clock.ms += 50
    hand_outs = [[0, 2, 1_000], [2, 4, 1_050], [4, 6, 1_100]]
    assert chunk.recorded().handouts == hand_outs
    for index in (1, 2, 3):
        chunk.acknowledge(index)
    assert told(carry(notes, chunk)) == [
        ([101, 102], 3, 1_000, Outcome.ACKNOWLEDGED, 1_150),
        ([102, 104], 3, 1_050, Outcome.ACKNOWLEDGED, 1_150),
        ([100, 101], 3, 1_000, Outcome.HANDED, 1_150),
        ([104, 106], 3, 1_100, Outcome.HANDED, 1_150),
    ]


def test_records_that_are_handed_out_one_by_one_are_dated_with_the_exchanges(
    notes: Notes, clock: Clock
) -> None:
    chunk = a_chunk(6)
    notes.run(chunk, 0, 5)
    notes.run(chunk, 0, 5)  # nothing was handed out before
    for index in range(3):
        chunk.hand_out(index, index + 1)
        chunk.acknowledge(index)
    clock.ms = 1_060
    assert told(carry(notes, chunk)) == [
        ([100, 101], 1, 1_000, Outcome.ACKNOWLEDGED, 1_060),
        ([101, 103], 1, 1_060, Outcome.ACKNOWLEDGED, 1_060),
    ]
    chunk.hand_out(3, 4)
    clock.ms = 1_120
    assert told(taken(notes, chunk)) == [([103, 104], 1, 1_120, Outcome.HANDED, 1_120)]
    chunk.expire()  # the next one
    clock.ms = 9_000
    notes.run(chunk, 5, 6)
    chunk.hand_out(5, 6)
    chunk.acknowledge(5)
    found = {each.offsets[0]: (each.handed, each.outcome) for each in carry(notes, chunk)}
    assert found == {104: (None, Outcome.EXPIRED), 105: (9_000, Outcome.ACKNOWLEDGED)}


def test_each_way_to_end_a_delivery_has_its_outcome(notes: Notes, clock: Clock) -> None:
    chunk = a_chunk(7, offsets=[100, 102, 104, 106, 108, 110, 112])
    hand_out(notes, chunk, 0, 6)
    chunk.expire()  # the last one was never handed out
    chunk.acknowledge(0)
    chunk.roll_back(1, 250)
    chunk.release(2)
    chunk.hold_too_long(3)
    chunk.reject(4)
    chunk.recorded().causes[4] = "rejected"
    chunk.dead_letter_written(4)
    clock.ms = 1_100
    entries = carry(notes, chunk)
    assert sorted(told(entries), key=itemgetter(0)) == [
        ([100, 101], 1, 1_000, Outcome.ACKNOWLEDGED, 1_100),
        ([102, 103], 1, 1_000, Outcome.ROLLED_BACK, 1_100),
        ([104, 105], 1, 1_000, Outcome.RELEASED, 1_100),
        ([106, 107], 1, 1_000, Outcome.OVERDUE, 1_100),
        ([108, 109], 1, 1_000, Outcome.DEAD, 1_100),
        ([110, 111], 1, 1_000, Outcome.HANDED, 1_100),
        ([112, 113], None, None, Outcome.EXPIRED, 1_100),
    ]
    by_outcome = {each.outcome: each for each in entries}
    assert by_outcome[Outcome.ROLLED_BACK].delay == 250
    assert by_outcome[Outcome.DEAD].cause == "rejected"


def test_what_was_never_handed_out_and_goes_back_is_no_delivery(notes: Notes) -> None:
    chunk = a_chunk(4)
    chunk.release_rest()
    assert carry(notes, chunk) == []


def test_a_delivery_without_a_verdict_is_told_once(notes: Notes, clock: Clock) -> None:
    chunk = a_chunk(4)
    hand_out(notes, chunk, 0, 2)
    assert [each.offsets for each in taken(notes, chunk)] == [[100, 102]]
    assert taken(notes, chunk) == []
    clock.ms = 2_000
    hand_out(notes, chunk, 2, 3)
    assert [each.offsets for each in taken(notes, chunk)] == [[102, 103]]


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (None, Outcome.LOST),
        (lambda chunk: chunk.acknowledge(0), Outcome.REFUSED),
        (lambda chunk: chunk.roll_back(0), Outcome.REFUSED),
        (lambda chunk: chunk.reject(0), Outcome.REFUSED),
    ],
)
def test_a_lease_that_ends(notes: Notes, verdict: Callable[[Chunk], object] | None, outcome: Outcome) -> None:
    chunk = a_chunk(2)
    hand_out(notes, chunk, 0, 1)
    if verdict is not None:
        verdict(chunk)
    before = bytes(chunk.verdicts)
    chunk.lose()
    notes.changed(chunk, before)
    assert told(taken(notes)) == [([100, 101], 1, 1_000, outcome, 1_000)]


def test_a_refused_lease_in_the_answer(notes: Notes) -> None:
    chunk = a_chunk(1)
    hand_out(notes, chunk, 0, 1)
    chunk.acknowledge(0)
    assert [each.outcome for each in carry(notes, chunk, refused={7})] == [Outcome.REFUSED]


@pytest.mark.parametrize("leaves", [True, False])
def test_verdicts_that_are_never_answered(notes: Notes, leaves: bool) -> None:
    chunk = a_chunk(1)
    hand_out(notes, chunk, 0, 1)
    chunk.acknowledge(0)
    notes.collected(chunk, *chunk.send()[:2])
    if not leaves:
        notes.unanswered(())
    assert [each.outcome for each in taken(notes, chunk, leaves=leaves)] == [Outcome.UNKNOWN]


def test_verdicts_that_are_sent_again_are_noted_once(notes: Notes) -> None:
    chunk = a_chunk(2)
    hand_out(notes, chunk, 0, 2)
    chunk.acknowledge_range(0, 2)
    notes.collected(chunk, *chunk.send()[:2])
    notes.unanswered({id(chunk)})
    for index in (0, 1):
        chunk.unsend(index)
    before = bytes(chunk.verdicts)
    chunk.low = 0
    chunk.take_over(held=lambda offset: offset == 101, arrived=lambda offset: offset == 100)
    notes.changed(chunk, before)
    assert told(taken(notes, chunk)) == [([100, 101], 1, 1_000, Outcome.ACKNOWLEDGED, 1_000)]
    assert told(carry(notes, chunk)) == [([101, 102], 1, 1_000, Outcome.ACKNOWLEDGED, 1_000)]


def test_a_dead_letter_stays_one_when_it_is_sent_again(notes: Notes) -> None:
    chunk = a_chunk(3)
    hand_out(notes, chunk, 0, 3)
    chunk.reject(0)
    chunk.recorded().causes[0] = "rejected"
    chunk.dead_letter_written(0)
    chunk.expire_dispatched(1)
    chunk.acknowledge(2)
    notes.collected(chunk, *chunk.send()[:2])
    notes.unanswered({id(chunk)})
    for index in range(3):
        chunk.unsend(index)
    chunk.low = 0
    assert [(each.offsets, each.outcome, each.cause) for each in carry(notes, chunk)] == [
        ([100, 101], Outcome.DEAD, "rejected"),
        ([101, 102], Outcome.EXPIRED, None),
        ([102, 103], Outcome.ACKNOWLEDGED, None),
    ]


def test_an_acknowledgement_whose_answer_never_came_is_unknown(notes: Notes) -> None:
    chunk = a_chunk(2)
    hand_out(notes, chunk, 0, 2)
    chunk.acknowledge(0)
    chunk.send()
    chunk.unsend(0)
    chunk.acknowledge(1)
    before = bytes(chunk.verdicts)
    chunk.lose()
    notes.changed(chunk, before)
    assert [(each.offsets, each.outcome) for each in taken(notes)] == [
        ([100, 101], Outcome.UNKNOWN),
        ([101, 102], Outcome.REFUSED),
    ]


def test_what_was_never_carried_when_a_member_left_comes_again(notes: Notes) -> None:
    chunk = a_chunk(3)
    hand_out(notes, chunk, 0, 2)
    chunk.acknowledge(0)
    assert [(each.offsets, each.outcome) for each in taken(notes, chunk, leaves=True)] == [
        ([100, 101], Outcome.REFUSED),
        ([101, 102], Outcome.LOST),
    ]


def test_a_defect_ends_the_notes_and_nothing_else(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chunk = a_chunk(2)
    hand_out(notes, chunk, 0, 2)
    chunk.acknowledge(0)
    monkeypatch.setattr(noting, "_by_time", None)
    assert carry(notes, chunk) == []
    assert "a defect of kafkadur" in caplog.text
    chunk.acknowledge(1)
    assert carry(notes, chunk) == []
    before = bytes(chunk.verdicts)
    chunk.lose()
    notes.changed(chunk, before)
    assert taken(notes, chunk, leaves=True) == []


def test_what_does_not_fit_is_counted(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noting, "MOST_OFFSETS", 4)
    chunk = a_chunk(12, offsets=list(range(100, 124, 2)))
    hand_out(notes, chunk, 0, 12)
    for indices in ((0, 2), (4, 6, 8, 10)):
        for index in indices:
            chunk.roll_back(index, index)
        notes.collected(chunk, *chunk.send()[:2])
        notes.answered(set())
    entries, missing = notes.take_notes(leaves=False)
    assert (len(entries), missing) == (2, 4)
    assert taken(notes) == []


def test_lanes_of_keys_are_partitions_again(clock: Clock) -> None:
    notes = Notes(lanes=2, now_ms=clock.now_ms, monotonic=clock.monotonic)
    chunk = a_chunk(1)
    hand_out(notes, chunk, 0, 1)
    chunk.acknowledge(0)
    assert [each.partition for each in carry(notes, chunk)] == [1]


def test_a_slow_loop_takes_small_blocks(notes: Notes, clock: Clock) -> None:
    chunk = a_chunk(5_000)

    def block(limit: int = 500) -> int:
        size, start = notes.paced(limit), chunk.handed
        hand_out(notes, chunk, start, start + size)
        return size

    sizes = [block() for _ in range(11)]
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500], "no time at all"
    clock.ms += 500
    assert block() == 50, "1 ms a record"
    clock.ms += 50 * 100
    assert block() == 1, "100 ms a record"
    clock.ms += 1
    assert block() == 2, "it grows slowly: the next ones may be slow again"


def test_entries_are_read_as_they_were_written() -> None:
    entries = [
        Entry(partition=1, offsets=[3, 5, 9, 10], attempt=1, handed=5, outcome=Outcome.ACKNOWLEDGED, at=9),
        Entry(partition=1, offsets=[5, 6], attempt=2, handed=5, outcome=Outcome.ROLLED_BACK, at=9, delay=-1),
        Entry(
            partition=0, offsets=[7, 8], attempt=0, handed=None, outcome=Outcome.DEAD, at=9, cause="expiring"
        ),
    ]
    written = Written(subscription="s", member="m", name="n", number=5, entries=entries, missing=4)
    ((value, number),) = encoded(written)
    assert number == 4 + 3 + 1 + 1
    assert decoded(value) == written


def test_many_entries_are_spread_over_messages() -> None:
    entry = Entry(partition=0, offsets=[0, 1] * 5_000, attempt=1, handed=1, outcome=Outcome.RELEASED, at=1)
    large = replace(entry, offsets=[0, 1] * 15_000)
    written = Written(
        subscription="s", member="m", name="n", number=7, entries=[entry] * 4 + [large], missing=2
    )
    values = list(encoded(written))
    read = [each for value, _ in values if (each := decoded(value)) is not None]
    assert [len(each.entries) for each in read] == [2, 2, 1, 1]
    assert [each.missing for each in read] == [2, 0, 0, 0]
    assert [each.number for each in read] == [7, 8, 9, 10]
    assert [
        offset for each in read[2:] for entry in each.entries for offset in entry.offsets
    ] == large.offsets
    assert all(len(value) < 500_000 for value, _ in values)


HEAD = b'{"format":1,"subscription":"s","member":"m","name":"n","number":1,"entries":'


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"{", b"[]", b'{"format":1}', HEAD.replace(b"1", b"2", 1) + b"[]}",
        HEAD + b'[{"partition":0,"outcome":"lost"}]}', HEAD + b'[],"missing":1e999}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_message_is_left_out(value: bytes | None) -> None:
    assert decoded(value) is None


def test_an_outcome_of_a_newer_version_is_left_out() -> None:
    known = b'{"partition":0,"offsets":[0,1],"attempt":1,"handed":1,"at":1,"outcome":"lost"}'
    read = decoded(HEAD + b"[" + known + b"," + known.replace(b"lost", b"eaten") + b"]}")
    assert read is not None
    assert [each.outcome for each in read.entries] == [Outcome.LOST]
