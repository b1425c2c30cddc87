"""Who may read: the reader's thread or one of the application, over a clock that is moved by hand."""

from __future__ import annotations

import threading

from kafkadur.fetch.reading_turn import ReadingTurn


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def no_wake() -> None:
    raise AssertionError("nobody waits for records")


def test_the_reader_reads_as_long_as_nobody_borrows() -> None:
    assert ReadingTurn(Clock()).away_for() <= 0


def test_the_reader_stays_away_for_a_moment_after_the_application_has_read() -> None:
    clock = Clock()
    turn = ReadingTurn(clock)
    assert turn.borrow(no_wake)
    turn.give_back(comes_back=True)
    assert 0 < turn.away_for() < 0.1
    clock.now += turn.away_for()
    assert turn.away_for() <= 0


def test_the_reader_stays_away_while_the_application_waits() -> None:
    clock = Clock()
    turn = ReadingTurn(clock)
    assert turn.borrow(no_wake)
    turn.lend(5.0)
    clock.now += 5.0
    assert turn.away_for() > 0


def test_the_reader_goes_on_at_once_when_the_application_could_not_read() -> None:
    turn = ReadingTurn(Clock())
    assert turn.borrow(no_wake)
    turn.give_back(comes_back=False)
    assert turn.away_for() <= 0


def test_a_reader_that_waits_is_woken_and_lets_go() -> None:
    turn = ReadingTurn(Clock())
    turn.lock.acquire()
    assert turn.borrow(turn.lock.release)
    assert turn.lock.locked()


def test_a_reader_that_does_not_let_go_keeps_the_turn() -> None:
    turn = ReadingTurn(Clock())
    woken = threading.Event()
    with turn.lock:
        assert not turn.borrow(woken.set)
    assert woken.is_set()
    assert turn.borrow(no_wake), "the next time it is free"
