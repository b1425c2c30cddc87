"""The verification finds what it is there to find: each test hands it ledgers with one thing wrong."""

from pathlib import Path

import pytest

from examples.demo.flights import digest
from examples.demo.ledger import ACK, ROLLBACK, Ledger, Line, write_lines
from examples.demo.verification import BROKEN, KILLED, ROLLED_BACK, Disturbance, Proof, verify

ROWS = 10
#: Messages: further than this from its end, a killed worker's ledger excuses nothing.
BOUND = 4
EXPECTED = [digest(b"row %d" % row) for row in range(1, ROWS + 1)]


def line(row: int, *, attempt: int = 1, verdict: bytes = ACK) -> Line:
    return Line(row, row % 3, row // 3, attempt, verdict, EXPECTED[row - 1])


def rows(first: int, last: int) -> list[Line]:
    return [line(row) for row in range(first, last + 1)]


class Desk:
    """Writes ledgers and has them verified."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledgers: list[Ledger] = []
        self.disturbances: list[Disturbance] = []

    def ledger(self, worker: str, lines: list[Line], *, killed: bool = False) -> Path:
        path = self.folder / worker
        write_lines(path, lines)
        self.ledgers.append(Ledger(worker=worker, path=path, killed=killed))
        return path

    def verify(self) -> Proof:
        return verify(
            "s",
            EXPECTED,
            self.ledgers,
            rolls_back=lambda row: row in {5, 6},
            most_unconfirmed=BOUND,
            disturbances=self.disturbances,
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_every_row_once_is_fine(desk: Desk) -> None:
    desk.ledger("a", rows(1, 4))
    desk.ledger("b", rows(5, ROWS))
    proof = desk.verify()
    assert proof.ok
    assert (proof.messages, proof.deliveries, proof.redelivered) == (ROWS, ROWS, 0)


def test_a_row_nobody_has_is_lost(desk: Desk) -> None:
    desk.ledger("a", [*rows(1, 6), *rows(8, ROWS)])
    proof = desk.verify()
    assert not proof.ok
    assert proof.lost == [7]
    assert "1 lost, for example row 7" in proof.defects()[0]


def test_a_row_that_was_rolled_back_and_never_acknowledged_is_lost(desk: Desk) -> None:
    desk.ledger("a", [*rows(1, 4), line(5, verdict=ROLLBACK), *rows(6, ROWS)])
    assert desk.verify().lost == [5]


def test_rows_rolled_back_twice_and_never_acknowledged_are_lost(desk: Desk) -> None:
    desk.ledger("a", [*rows(1, 4), line(5, verdict=ROLLBACK), *rows(6, ROWS)])
    desk.ledger("b", [line(5, verdict=ROLLBACK)], killed=True)
    assert desk.verify().lost == [5]


@pytest.mark.parametrize(
    "wrong",
    [
        Line(3, 0, 1, 1, ACK, digest(b"another content")),
        Line(ROWS + 1, 0, 99, 1, ACK, digest(b"row 11")),
        Line(0, 0, 99, 1, ACK, digest(b"no flight")),
        Line(3, 0, 77, 1, ACK, EXPECTED[2]),
    ],
    ids=["other content", "row beyond the file", "no row", "a second copy in the topic"],
)
def test_what_is_not_in_the_input_is_invented(desk: Desk, wrong: Line) -> None:
    desk.ledger("a", [*rows(1, ROWS), wrong])
    proof = desk.verify()
    assert not proof.ok
    assert len(proof.invented) == 1
    assert "1 invented" in proof.defects()[0]


def test_a_rollback_by_plan_explains_one_repeat(desk: Desk) -> None:
    desk.ledger("a", [*rows(1, 4), line(5, verdict=ROLLBACK), *rows(6, ROWS)])
    desk.ledger("b", [line(5, attempt=2)])
    proof = desk.verify()
    assert proof.ok
    assert proof.repeats == {ROLLED_BACK: 1}


def test_a_rollback_out_of_plan_is_unexplained(desk: Desk) -> None:
    desk.ledger("a", [*rows(1, 8), line(9, verdict=ROLLBACK), line(10), line(9, attempt=2)])
    assert len(desk.verify().unexplained) == 1


def test_a_second_rollback_is_unexplained(desk: Desk) -> None:
    back = line(5, verdict=ROLLBACK)
    desk.ledger("a", [*rows(1, 4), back, back, *rows(6, ROWS), line(5, attempt=2)])
    assert len(desk.verify().unexplained) == 1


def test_a_rollback_that_was_not_counted_is_unexplained(desk: Desk) -> None:
    desk.ledger("a", [*rows(1, 4), line(5, verdict=ROLLBACK), *rows(6, ROWS), line(5)])
    assert len(desk.verify().unexplained) == 1


def test_a_killed_worker_explains_what_it_did_last(desk: Desk) -> None:
    desk.ledger("a", rows(1, 6), killed=True)
    desk.ledger("b", rows(4, ROWS))
    proof = desk.verify()
    assert proof.ok
    assert proof.repeats == {KILLED: 3}


def test_a_killed_worker_does_not_explain_what_was_confirmed_long_ago(desk: Desk) -> None:
    desk.ledger("a", rows(1, 6), killed=True)
    desk.ledger("b", [line(1), *rows(7, ROWS)])
    proof = desk.verify()
    assert not proof.ok
    assert len(proof.unexplained) == 1


def test_a_killed_worker_has_no_row_twice_by_itself(desk: Desk) -> None:
    desk.ledger("a", [*rows(1, 6), line(6), line(6)], killed=True)
    desk.ledger("b", rows(7, ROWS))
    assert len(desk.verify().unexplained) == 1


def test_a_repeat_between_two_that_live_is_unexplained(desk: Desk) -> None:
    desk.ledger("a", rows(1, ROWS))
    desk.ledger("b", [line(8)])
    proof = desk.verify()
    assert not proof.ok
    assert "row 8 has a repeat that nothing explains: ack by b at attempt 1" in proof.unexplained


def test_the_torn_last_line_of_a_killed_worker_does_not_count(desk: Desk) -> None:
    path = desk.ledger("a", rows(1, 4), killed=True)
    path.write_bytes(path.read_bytes() + b"5 2 1 1 a")
    desk.ledger("b", rows(5, ROWS))
    assert desk.verify().ok


@pytest.mark.parametrize("end", [b"5 2 1 1 a", b"what is this\n"])
def test_a_damaged_ledger_is_a_defect(desk: Desk, end: bytes) -> None:
    path = desk.ledger("a", rows(1, ROWS))
    path.write_bytes(path.read_bytes() + end)
    proof = desk.verify()
    assert not proof.ok
    assert len(proof.unexplained) == 1


def test_what_was_broken_in_between_explains_a_repeat(desk: Desk) -> None:
    desk.ledger("a", rows(1, 8))
    desk.ledger("b", [line(9), line(1), line(10)])
    desk.disturbances.append(Disturbance(began={"a": 2, "b": 1}, ended={"a": 2, "b": 1}))
    proof = desk.verify()
    assert proof.ok
    assert proof.repeats == {BROKEN: 1}


def test_what_was_in_hands_when_something_was_broken_comes_again_later(desk: Desk) -> None:
    desk.ledger("a", rows(1, 8))
    desk.ledger("b", [line(9), line(4), line(10)])
    desk.disturbances.append(Disturbance(began={"a": 1, "b": 0}, ended={"a": 1, "b": 0}))
    assert desk.verify().repeats == {BROKEN: 1}


def test_what_was_broken_afterwards_explains_nothing(desk: Desk) -> None:
    desk.ledger("a", rows(1, 8))
    desk.ledger("b", [line(9), line(1), line(10)])
    desk.disturbances.append(Disturbance(began={"a": 8, "b": 3}, ended={"a": 8, "b": 3}))
    assert len(desk.verify().unexplained) == 1


def test_what_was_broken_before_explains_nothing(desk: Desk) -> None:
    desk.ledger("a", rows(1, 8))
    desk.ledger("b", [line(9), line(8), line(10)])
    desk.disturbances.append(Disturbance(began={"a": 0}, ended={"a": 0}))
    assert len(desk.verify().unexplained) == 1


def test_a_rollback_may_be_forgotten_when_something_was_broken(desk: Desk) -> None:
    desk.ledger("a", [*rows(1, 4), line(5, verdict=ROLLBACK), *rows(6, ROWS)])
    desk.ledger("b", [line(5)])
    desk.disturbances.append(Disturbance(began={"a": 5}, ended={"a": 5}))
    proof = desk.verify()
    assert proof.ok
    assert proof.redelivered == 1


def test_what_was_broken_does_not_excuse_a_loss(desk: Desk) -> None:
    desk.ledger("a", [*rows(1, 6), *rows(8, ROWS)])
    desk.disturbances.append(Disturbance(began={"a": 6}, ended={"a": 7}))
    assert desk.verify().lost == [7]
