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


def test_the_reader_reads_as_long_as_nobody_asks() -> None:
    assert ReadingTurn(Clock()).away_for() <= 0


def test_the_reader_stays_away_for_a_moment_after_the_application_has_read() -> None:
    clock = Clock()
    turn = ReadingTurn(clock)
    assert turn.ask(no_wake)
    assert 0 < turn.away_for() < 0.1
    clock.now += turn.away_for()
    assert turn.away_for() <= 0


def test_the_reader_stays_away_while_the_application_waits() -> None:
    clock = Clock()
    turn = ReadingTurn(clock)
    turn.lend(5.0)
    clock.now += 5.0
    assert turn.away_for() > 0


def test_the_reader_goes_on_at_once_when_the_application_cannot_read() -> None:
    turn = ReadingTurn(Clock())
    assert turn.ask(no_wake)
    turn.recall()
    assert turn.away_for() <= 0


def test_a_reader_that_waits_is_woken_and_lets_go() -> None:
    turn = ReadingTurn(Clock())
    turn.lock.acquire()
    assert turn.ask(turn.lock.release)


def test_a_reader_that_does_not_let_go_keeps_the_turn() -> None:
    clock, woken = Clock(), threading.Event()

    def passing() -> float:
        clock.now += 0.001
        return clock.now

    turn = ReadingTurn(passing)
    with turn.lock:
        assert not turn.ask(woken.set)
        assert turn.away_for() <= 0
    assert woken.is_set()
    assert turn.ask(no_wake), "the next time it is free"
