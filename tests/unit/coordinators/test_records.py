"""Records of the journal: what a record says, and which change is in force."""

import dataclasses
import json
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kafkadur_coordinators.journal.records import (
    Change,
    Entry,
    InForce,
    decode,
    encode_change,
    encode_incarnation,
    in_force,
    last_incarnation,
)

TAG = "0123456789abcdef"


def change(
    expected: int, name: str | None = "a", *, under: int = 0, tag: str = TAG, id_: str | None = None
) -> Change:
    return Change(
        tag=tag,
        key={"namespace": "test", "name": "invoices"},
        expected=expected,
        under=under,
        definition=None if name is None else {"topic": name},
        id=id_,
        topic_id="t",
        starts={0: 5, 11: 2**40},
    )


def journal(*changes: Change | None) -> list[Entry]:
    """Changes in this order; None is an incarnation."""
    return [Entry(offset=offset, change=item) for offset, item in enumerate(changes)]


def content(found: InForce | None) -> tuple[int, str, object] | None:
    if found is None:
        return None
    definition = found.change.definition
    return found.version, found.id, None if definition is None else definition["topic"]


def test_a_change_is_read_as_it_was_written() -> None:
    for written in (change(3), change(0, None), change(7, under=9, id_="1.2")):
        assert decode(4, encode_change(written)) == Entry(offset=4, change=written)


def test_an_incarnation_is_read_as_it_was_written() -> None:
    found = decode(4, encode_incarnation("server", [TAG, "another"]))
    assert found == Entry(offset=4, change=None, tags=frozenset({TAG, "another"}))


@given(at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_damaged_record_is_none(at: int, bit: int) -> None:
    written = encode_change(change(3))
    damaged = bytearray(written)
    damaged[at % len(written)] ^= 1 << bit
    found = decode(0, bytes(damaged))
    # some flips change nothing that counts, such as the case of an exponent: then it reads as it was
    assert found is None or found == decode(0, written)


@pytest.mark.parametrize(
    "value", [b"", b"null", b"[]", b"{}", b'{"body": 1, "sum": 2}', b"\xff", encode_change(change(1))[:-1]]
)
def test_what_is_no_record_is_none(value: bytes) -> None:
    assert decode(0, value) is None


def test_a_record_of_another_format_or_kind_is_none() -> None:
    import zlib

    for field in ({"format": 2}, {"kind": "wish"}):
        body = json.loads(encode_change(change(1)))["body"] | field
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        assert decode(0, json.dumps({"body": body, "sum": zlib.crc32(text.encode())}).encode()) is None


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        # nothing
        ([], None),
        ([None], None),
        # the first of those with the highest expected version
        ([change(0)], (1, "9.0", "a")),
        ([change(0), change(0, "b")], (1, "9.0", "a")),
        ([change(0), change(1, "b")], (2, "9.1", "b")),
        ([change(0), change(1, "b"), change(1, "c")], (2, "9.1", "b")),
        ([change(1, "b"), change(0)], (1, "9.0", "b")),
        # a delete is a change like others, and is kept
        ([change(0), change(1, None)], (2, "9.1", None)),
        ([change(0), change(1, None), change(2, "b")], (3, "9.2", "b")),
        # an abort keeps the id
        ([change(0), change(1, "a", id_="9.0")], (2, "9.0", "a")),
        # void: an incarnation newer than the one it began under lies before it
        ([change(0), None, change(1, "b")], (1, "9.0", "a")),
        ([change(0), None, change(1, "b", under=2)], (3, "9.2", "b")),
        ([change(0), None, change(1, "b"), change(1, "c", under=2)], (4, "9.3", "c")),
        ([change(0), None, None, change(1, "b", under=2)], (1, "9.0", "a")),
        ([change(0), None, None, change(1, "b", under=3)], (4, "9.3", "b")),
        # one that came before it stays
        ([change(0), change(1, "b"), None], (2, "9.1", "b")),
        # those of other subscriptions do not count
        ([change(0), change(5, "b", tag="other")], (1, "9.0", "a")),
    ],
)
def test_what_is_in_force(records: list[Change | None], expected: tuple[int, str, object] | None) -> None:
    assert content(in_force(journal(*records), TAG, 9)) == expected


def test_offsets_count_and_not_places() -> None:
    """Compaction leaves holes: what decides are the offsets that records have."""
    entries = [Entry(offset=40, change=change(0)), Entry(offset=90, change=change(41, "b"))]
    assert content(in_force(entries, TAG, 9)) == (91, "9.90", "b")
    assert content(in_force(entries[1:], TAG, 9)) == (91, "9.90", "b")


def test_the_last_incarnation() -> None:
    assert last_incarnation(journal(), TAG) == 0
    assert last_incarnation(journal(change(0), None, None, change(1)), TAG) == 3


def test_an_incarnation_of_others_does_not_count() -> None:
    mine = Entry(offset=1, change=None, tags=frozenset({TAG}))
    others = Entry(offset=5, change=None, tags=frozenset({"other"}))
    late = Entry(offset=6, change=change(1, "b", under=2))
    begun = Entry(offset=0, change=change(0))
    assert last_incarnation([mine, others], TAG) == 2
    assert content(in_force([begun, mine, others, late], TAG, 9)) == (7, "9.6", "b")
    assert content(in_force([begun, mine, replace(others, tags=None), late], TAG, 9)) == (1, "9.0", "a")


_changes = st.one_of(
    st.none(),
    st.builds(
        change,
        expected=st.integers(0, 3),
        name=st.sampled_from(("a", "b", None)),
        under=st.integers(0, 6),
        tag=st.sampled_from((TAG, "other")),
    ),
)


@given(st.lists(_changes, max_size=8), st.lists(_changes, max_size=3))
def test_what_was_decided_changes_only_by_a_higher_expected_version(
    before: list[Change | None], after: list[Change | None]
) -> None:
    earlier = in_force(journal(*before), TAG, 0)
    later = in_force(journal(*before, *after), TAG, 0)
    if earlier is not None:
        assert later is not None
        assert later == earlier or later.change.expected > earlier.change.expected


@given(st.lists(_changes, max_size=8), st.sets(st.integers(0, 7)))
def test_compaction_of_lower_expected_versions_changes_nothing(
    records: list[Change | None], removed: set[int]
) -> None:
    entries = journal(*records)
    found = in_force(entries, TAG, 0)
    top = -1 if found is None else found.change.expected
    kept = [
        entry
        for entry in entries
        if entry.offset not in removed
        or entry.change is None
        or entry.change.tag != TAG
        or entry.change.expected >= top
    ]
    assert in_force(kept, TAG, 0) == found


def test_records_are_values() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        change(0).expected = 1  # type: ignore[misc]  # that is the point
