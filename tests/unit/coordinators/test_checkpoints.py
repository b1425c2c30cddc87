"""Checkpoints as records: what they say is read as it was written, damage leaves less, several say more."""

import zlib
from functools import reduce
from typing import cast

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import given

from kafkadur_coordinators.journal import checkpoints
from kafkadur_coordinators.journal.checkpoints import (
    KEPT_MS,
    Checkpoint,
    decode,
    encode,
    encoded,
    key_of,
    superseded,
    united,
)
from kafkadur_coordinators.journal.origins import Origin
from kafkadur_coordinators.settlement_states import SettlementState, Waiting, covers, unite
from tests.integration.coordinators.test_settlement_states import END, in_order, settlements, unsettled

ORIGIN = Origin("3.17", 2, "gRIpx5/FTNWCz+pv0dMYdw~4")
KEY = key_of(ORIGIN, 5, "writer", 9)
HEAD = 15


def settled(settlement: SettlementState) -> set[int]:
    return set(range(settlement.next)) - set(unsettled(settlement))


@given(settlements())
def test_read_as_it_was_written(settlement: SettlementState) -> None:
    assert decode(KEY, encode(settlement)) == Checkpoint(ORIGIN, 5, settlement, KEY, 0, 9)


@given(settlements(), st.integers(HEAD, 400), st.integers(1, 255))
def test_a_damaged_body_leaves_the_floor(settlement: SettlementState, at: int, flip: int) -> None:
    value = bytearray(encode(settlement))
    value[HEAD + (at - HEAD) % (len(value) - HEAD)] ^= flip
    assert decode(KEY, bytes(value)) == Checkpoint(
        ORIGIN, 5, SettlementState(next=settlement.floor), KEY, 0, 9
    )


@given(settlements(), st.integers(0, HEAD - 1), st.integers(1, 255))
def test_a_damaged_head_says_nothing(settlement: SettlementState, at: int, flip: int) -> None:
    value = bytearray(encode(settlement))
    value[at] ^= flip
    assert decode(KEY, bytes(value)) is None


@pytest.mark.parametrize(
    "body",
    [
        [2, 9, 9, [], []],  # of a later format
        [1, 9, 9, [4], []],
        [1, 9, 9, [4, 0], []],
        [1, 9, 9, [-4, 2], []],
        [1, 9, 9, [4, 6], []],  # waits behind its end
        [1, 9, 9, [4, 2], [[3, 0, 0, 0]]],
        [1, 9, 9],
        "text",
        None,
        {},
    ],
)
def test_a_body_that_makes_no_sense_leaves_the_floor(body: object) -> None:
    packed = cast("bytes", msgpack.packb(body))
    value = encode(SettlementState(next=4))[:HEAD] + zlib.crc32(packed).to_bytes(4, "big") + packed
    assert decode(KEY, value) == Checkpoint(ORIGIN, 5, SettlementState(next=4), KEY, 0, 9)


@pytest.mark.parametrize(
    "key", [b"settled/", b"settled/1:2:3:4", b"settled/a:b:c:d:e:f", b"settled/\xff:1:t:1:w:1"]
)
def test_a_key_that_makes_no_sense_says_nothing(key: bytes) -> None:
    assert decode(key, encode(SettlementState(next=4))) is None


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    settlement = SettlementState(next=4_000, waiting=tuple(Waiting(n, n + 1) for n in range(10, 4_000, 2)))
    whole = encode(settlement)
    monkeypatch.setattr(checkpoints, "LARGEST_BODY", 1_000)
    cut = encode(settlement)
    assert not encoded(settlement).whole
    assert encoded(SettlementState(next=4_000, waiting=settlement.waiting[:10])).whole
    assert len(cut) < 1_100 < len(whole)
    found = decode(KEY, cut)
    assert found is not None
    assert found.settlement.floor == settlement.floor
    assert settled(found.settlement) < settled(settlement)
    assert found.settlement.seen >= settlement.next, "what was settled may have been delivered"


@given(settlements(), st.integers(128, 2_000))
def test_what_fits_is_not_cut(settlement: SettlementState, largest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "LARGEST_BODY", largest)
        record = encoded(settlement)
        found = decode(KEY, record.value)
        assert found is not None
        assert (found.settlement == settlement) is record.whole


@given(settlements(), settlements())
def test_settled_is_what_is_settled_in_either(one: SettlementState, other: SettlementState) -> None:
    both = unite(one, other)
    assert settled(both) == settled(one) | settled(other)
    assert in_order(both)
    assert both.seen == max(one.seen, other.seen)
    assert unite(other, one)[:2] == both[:2]
    for offset, item in unsettled(both).items():
        of = [waits[offset] for waits in (unsettled(one), unsettled(other)) if offset in waits]
        assert item.attempts == max(each.attempts for each in of)
        assert item.redelivered == any(each.redelivered for each in of)
        assert item.suspect == any(each.suspect for each in of)
        assert item.due == max(each.due for each in of)


@given(settlements(), settlements())
def test_a_place_covers_what_is_settled_in_it(one: SettlementState, other: SettlementState) -> None:
    if one.next == END and other.next == END:
        assert covers(one, other) == (settled(one) >= settled(other))
    assert covers(unite(one, other), one)
    assert not covers(one, other) or settled(one) >= settled(other)


@given(st.lists(settlements(), max_size=4), settlements())
def test_those_of_one_origin_are_united_by_lane(some: list[SettlementState], other: SettlementState) -> None:
    found = united(
        [
            *(Checkpoint(ORIGIN, 1, settlement) for settlement in some),
            Checkpoint(ORIGIN, 2, other),
            Checkpoint(ORIGIN._replace(epoch=3), 1, SettlementState(next=90)),
            Checkpoint(ORIGIN._replace(state="another"), 2, SettlementState(next=90)),
        ],
        ORIGIN,
    )
    assert found.keys() == ({1, 2} if some else {2})
    assert found[2] == other
    if some:
        assert settled(found[1]) == set().union(*map(settled, some))


_written = st.integers(0, 3).map(lambda hours: hours * KEPT_MS)
_some = st.lists(st.tuples(settlements(), _written, st.integers(0, 1)), max_size=6)


@given(_some)
def test_what_is_removed_says_nothing_more(some: list[tuple[SettlementState, int, int]]) -> None:
    now = 3 * KEPT_MS
    found = [Checkpoint(ORIGIN, lane, p, b"%d" % n, written) for n, (p, written, lane) in enumerate(some)]
    gone = set(superseded(found, {ORIGIN}, now))
    left = [item for item in found if item.key not in gone]
    assert {lane: settled(settlement) for lane, settlement in united(left, ORIGIN).items()} == {
        lane: settled(settlement) for lane, settlement in united(found, ORIGIN).items()
    }
    assert all(item.written < now - KEPT_MS for item in found if item.key in gone)
    for item in left:
        if item.written < now - KEPT_MS:
            later = [other for other in left if other.lane == item.lane and _when(other) > _when(item)]
            assert not later or not covers(
                reduce(unite, (other.settlement for other in later)), item.settlement
            )


def _when(item: Checkpoint) -> tuple[int, bytes]:
    return item.written, item.key


def test_two_who_remove_at_once_leave_all_that_was_said() -> None:
    """One of them read before the last checkpoint was written: what each keeps the other may remove."""
    now = 4 * KEPT_MS
    whole = Checkpoint(ORIGIN, 0, SettlementState(next=2), b"whole", 0)
    part = Checkpoint(ORIGIN, 0, SettlementState(next=1), b"part", 1)
    late = Checkpoint(ORIGIN, 0, SettlementState(next=2, waiting=(Waiting(0, 1),)), b"late", now)
    gone = {*superseded([whole, part], {ORIGIN}, now), *superseded([whole, part, late], {ORIGIN}, now)}
    left = united([item for item in (whole, part, late) if item.key not in gone], ORIGIN)
    assert settled(left[0]) == {0, 1}


def test_what_is_not_in_use_is_removed_when_it_is_old() -> None:
    old, new = (Checkpoint(ORIGIN, 0, SettlementState(next=n), b"%d" % n, n * KEPT_MS) for n in (0, 2))
    assert superseded([old, new], set(), 2 * KEPT_MS) == [b"0"]
    assert superseded([old], {ORIGIN}, 2 * KEPT_MS) == []
