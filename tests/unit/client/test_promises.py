"""What a member does with what it was promised: how much it keeps, and what goes back first."""

import pytest

from kafkadur.consumer.chunk import Lease
from kafkadur.consumer.reservations import give_back, reservation, surplus
from kafkadur.consumer.turn import LaneGroup


def lease(token: int, *pairs: int, fill: int | None = None, reserved: bool = True) -> Lease:
    made = Lease(
        token=token,
        incarnation=1,
        partition=0,
        start=pairs[0],
        end=pairs[-1],
        attempts=0,
        redelivered=False,
        lane=False,
        group=LaneGroup(),
        seen=0,
        pairs=pairs,
        reserved=reserved,
    )
    if fill is not None:
        made.fill = fill
    return made


def test_what_was_read_is_no_promise_any_more() -> None:
    assert reservation(lease(1, 5, 6, 8, 9, 11, 12)) == 3
    assert reservation(lease(1, 5, 9)) == 4
    assert reservation(lease(1, 5, 9, fill=7)) == 2
    assert reservation(lease(1, 5, 9, reserved=False)) == 0


def test_what_is_known_to_be_written_is_no_promise_any_more() -> None:
    """Else its holder would be granted as many others, and have to give some of them back."""
    held = lease(1, 5, 7, 8, 10)
    held.written = 9
    assert reservation(held) == 1
    assert give_back(held, 9) == [(9, 10)]
    assert (list(held.stretch), held.end) == ([(5, 7), (8, 9)], 9)
    held.withdrawn = True
    assert reservation(held) == 3
    assert give_back(held, 3) == [(5, 7), (8, 9)]


@pytest.mark.parametrize(
    ("count", "back", "left", "end"),
    [
        (0, [], 4, 13),
        (1, [(12, 13)], 3, 9),
        (2, [(8, 9), (12, 13)], 2, 7),
        (3, [(6, 7), (8, 9), (12, 13)], 1, 6),
        (4, [(5, 7), (8, 9), (12, 13)], 0, 5),
        (9, [(5, 7), (8, 9), (12, 13)], 0, 5),
    ],
)
def test_what_comes_last_goes_back_first(
    count: int, back: list[tuple[int, int]], left: int, end: int
) -> None:
    held = lease(1, 5, 7, 8, 9, 12, 13)
    assert give_back(held, count) == back
    assert (reservation(held), held.end) == (left, end)


def test_what_was_read_stays() -> None:
    held = lease(1, 5, 9, fill=7)
    assert give_back(held, 9) == [(7, 9)]
    assert (reservation(held), held.end) == (0, 7)


def test_what_there_is_no_room_for_goes_back() -> None:
    first, second = lease(1, 5, 6, 8, 9), lease(2, 11, 12, 14, 15)
    other = lease(3, 20, 25, reserved=False)
    assert surplus([first, second, other], 4) == []
    assert surplus([first, second, other], 3) == [(second, 1)]
    assert surplus([first, second, other], 1) == [(second, 2), (first, 1)]


def test_what_was_withdrawn_goes_back_whole_and_takes_no_room() -> None:
    first, second = lease(1, 5, 6, 8, 9), lease(2, 11, 12, 14, 15)
    first.withdrawn = True
    assert surplus([first, second], 2) == [(first, 2)]
