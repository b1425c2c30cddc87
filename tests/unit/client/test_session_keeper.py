"""Keeping the sessions of many members: how many calls that takes, and what failures do."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from kafkadur.runtime.served import Served
from kafkadur.runtime.session_keeper import SessionKeeper
from kafkadur_sharing.errors import CoordinatorUnavailable, InternalError


class Servers:
    """Stands in for the coordinator: two servers, and what is called there."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.renewed: list[list[str]] = []
        self.silent: set[str] = set()
        self.down: set[str] = set()
        self.answer = "OK"
        self.error: Exception = CoordinatorUnavailable()

    def node_of(self, root: str) -> str:
        return root[0]

    def heard(self, channels: list[str]) -> dict[str, bool]:
        self.asked.append(channels)
        if channels[0][0] in self.down:
            raise self.error
        return {channel: channel not in self.silent for channel in channels}

    def run_many(self, calls: Sequence[str]) -> list[Any]:
        self.renewed.append(list(calls))
        if self.down:
            raise self.error
        return [SimpleNamespace(code=self.answer) for _ in calls]


class Renewed:
    """Stands in for a member's renewals: due at a time, and what was told to them."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.told: list[str] = []

    def suffices(self, by: float) -> bool:
        return self.due <= by

    def made(self, _sent_at: float) -> None:
        self.told.append("made")

    def failed(self) -> None:
        self.told.append("failed")


class Member:
    """Stands in for a member with a neighbour."""

    def __init__(self, due: float) -> None:
        self.display, self.neighbour, self.session = "m", "n", 10.0
        self.renewal = Renewed(due)
        self.reports = 0
        self.failed: list[Exception] = []

    def fail(self, error: Exception) -> None:
        self.failed.append(error)

    def report_silence(self) -> None:
        self.reports += 1


def served(root: str, *, due: float = float("inf")) -> Any:
    address = SimpleNamespace(root=root, channel=lambda member: f"{root}-{member}")
    session = SimpleNamespace(renewing=lambda: root)
    subscription = SimpleNamespace(address=address)
    return Served(
        member=cast("Any", Member(due)),
        request=cast("Any", None),
        membership=cast("Any", SimpleNamespace(session=session, subscription=subscription)),
        name="",
        rank=cast("Any", None),
        session_name="",
    )


def test_neighbours_are_looked_for_with_one_call_for_each_server() -> None:
    servers = Servers()
    members = [served(root) for root in ("a1", "b1", "a2", "b2", "a3")]
    servers.silent = {"a2-n"}
    SessionKeeper(cast("Any", servers)).look_at_neighbours(members)
    assert servers.asked == [["a1-n", "a2-n", "a3-n"], ["b1-n", "b2-n"]]
    assert [each.member.reports for each in members] == [0, 0, 1, 0, 0]


def test_a_server_that_does_not_answer_hides_no_silence_elsewhere() -> None:
    servers = Servers()
    members = [served(root) for root in ("a1", "b1")]
    servers.down, servers.silent = {"a"}, {"b1-n"}
    SessionKeeper(cast("Any", servers)).look_at_neighbours(members)
    assert [each.member.reports for each in members] == [0, 1]


def test_a_member_without_a_neighbour_asks_for_none() -> None:
    servers, alone = Servers(), served("a1")
    alone.member.neighbour = ""
    SessionKeeper(cast("Any", servers)).look_at_neighbours([alone])
    assert servers.asked == []


def test_sessions_are_renewed_together_when_one_is_due() -> None:
    servers = Servers()
    keeper = SessionKeeper(cast("Any", servers))
    due, idle = served("a1", due=0.0), served("a2")
    keeper.renew([due, idle], [idle])
    assert servers.renewed == [], "none of those that are looked at is due"
    detached = served("a3", due=0.0)
    detached.detached = True
    keeper.renew([due, idle, detached], [due, detached])
    assert servers.renewed == [["a1"]]
    assert (due.member.renewal.told, detached.member.renewal.told) == (["made"], [])


def test_where_it_fails_exchanges_are_made() -> None:
    servers = Servers()
    keeper = SessionKeeper(cast("Any", servers))
    due = served("a1", due=0.0)
    servers.answer = "SLOW"
    keeper.renew([due], [due])
    assert due.member.renewal.told == ["failed"]
    servers.down = {"a"}
    keeper.renew([due], [due])
    assert due.member.renewal.told == ["failed"], "its exchange will say what is wrong"


def test_an_error_of_the_operating_system_does_not_end_the_thread() -> None:
    servers = Servers()
    servers.down, servers.silent = {"a"}, {"b1-n"}
    servers.error = OSError(24, "Too many open files")
    keeper = SessionKeeper(cast("Any", servers))
    due, other = served("a1", due=0.0), served("b1")
    keeper.renew([due], [due])
    assert due.member.renewal.told == []
    keeper.look_at_neighbours([due, other])
    assert [each.member.reports for each in (due, other)] == [0, 1]


def test_a_defect_fails_only_the_member_in_which_it_occurs() -> None:
    servers = Servers()
    broken, other = served("a1", due=0.0), served("a2", due=0.0)
    broken.member.renewal.due = "never"
    SessionKeeper(cast("Any", servers)).renew([broken, other], [broken, other])
    assert servers.renewed == [["a2"]]
    assert other.member.renewal.told == ["made"]
    assert {type(error) for error in broken.member.failed} == {InternalError}
