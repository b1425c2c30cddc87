"""The history thread: what it writes when the log takes it, refuses it, or takes it later."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafkadur.history import writer
from kafkadur.history.entries import Entry, Outcome, Written, decoded
from kafkadur.history.writer import HistoryThread
from kafkadur_sharing.errors import KafkaUnavailable
from kafkadur_sharing.keys import SubscriptionKey
from tests.integration.subscriptions.helpers import wait_until

Done = Callable[[str | None, bool], None]


class Log:
    """Takes messages, or says that it does not: `answers` are used up one a message."""

    def __init__(self) -> None:
        self.taken: list[Written] = []
        self.refused = 0
        self.answers: list[tuple[str, bool]] = []
        self.prepared: list[timedelta] = []
        self.is_away = False
        #: answers that are held back, and rounds of the thread
        self.is_slow = False
        self.held: list[Done] = []
        self.rounds = 0

    def prepare(self, topic: str, kept: timedelta) -> None:
        del topic
        if self.is_away:
            raise KafkaUnavailable
        self.prepared.append(kept)

    def write(self, topic: str, value: bytes, done: Done) -> None:
        del topic
        if self.is_slow:
            self.held.append(done)
            return
        if self.answers:
            self.refused += 1
            done(*self.answers.pop(0))
            return
        written = decoded(value)
        assert written is not None
        self.taken.append(written)
        done(None, False)

    def serve(self, timeout: float) -> None:
        del timeout
        self.rounds += 1


class Member:
    """Notes entries when it is told to."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.missing = 0
        self.left = False

    def note(self, *offsets: int) -> None:
        self.entries = [
            *self.entries,
            *(
                Entry(partition=0, offsets=[o, o + 1], attempt=1, handed=1, outcome=Outcome.RELEASED, at=2)
                for o in offsets
            ),
        ]

    def take_notes(self, *, leaves: bool) -> tuple[list[Entry], int]:
        self.left = self.left or leaves
        taken, missing = (self.entries, self.missing)
        self.entries, self.missing = [], 0
        return taken, missing


class Scene:
    """A history thread with one member."""

    def __init__(self) -> None:
        self.log, self.member = Log(), Member()
        self.thread = HistoryThread(lambda: self.log)
        subscription = SimpleNamespace(
            key=SubscriptionKey(namespace="n", name="d"),
            id="s",
            definition=SimpleNamespace(history=timedelta(hours=1)),
        )
        self.thread.add(self.member, cast("Any", subscription), member="m", name="ann")

    @property
    def offsets(self) -> list[int]:
        return [entry.offsets[0] for written in self.log.taken for entry in written.entries]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(writer, "EVERY", 0.005)
    monkeypatch.setattr(writer, "_WAIT_S", (0.005, 0.02))
    return Scene()


def test_entries_are_written_in_their_order(scene: Scene) -> None:
    scene.member.note(1, 2)
    wait_until(lambda: scene.offsets == [1, 2], "the first entries")
    scene.member.note(3)
    wait_until(lambda: scene.offsets == [1, 2, 3], "the next one")
    assert [(each.number, each.member, each.name) for each in scene.log.taken] == [
        (1, "m", "ann"),
        (2, "m", "ann"),
    ]
    assert scene.log.prepared == [timedelta(hours=1)]
    scene.thread.close()


def test_what_is_refused_for_now_is_written_later(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.log.answers = [("away", True)] * 3
    scene.member.note(1)
    wait_until(lambda: scene.log.refused > 0, "a refusal")
    scene.member.note(2)
    wait_until(lambda: scene.offsets == [1, 2], "both entries")
    assert [each.missing for each in scene.log.taken] == [0, 0]
    assert caplog.text.count("cannot be written") == 1
    assert len(scene.log.prepared) == 4, "the topic may have been deleted"
    scene.log.answers = [("away", True)]
    scene.member.note(3)
    wait_until(lambda: scene.offsets == [1, 2, 3], "the third entry")
    assert caplog.text.count("cannot be written") == 2, "it is another outage"
    scene.thread.close()


def test_later_entries_wait_for_those_under_way(scene: Scene) -> None:
    """Else an entry that is tried again would lie behind the verdict that follows it."""
    scene.log.is_slow = True
    scene.member.note(1)
    wait_until(lambda: len(scene.log.held) == 1, "the first entry under way")
    scene.member.note(2)
    rounds = scene.log.rounds
    wait_until(lambda: scene.log.rounds > rounds + 6, "some rounds")
    assert len(scene.log.held) == 1
    scene.log.is_slow = False
    scene.log.held.pop()("away", True)
    wait_until(lambda: len(scene.offsets) == 2, "both entries")
    assert scene.offsets == [1, 2]
    scene.thread.close()


def test_what_is_refused_for_good_is_counted(scene: Scene) -> None:
    scene.log.answers = [("too large", False)]
    scene.member.note(1, 2)
    wait_until(lambda: [each.missing for each in scene.log.taken] == [2], "the number of missing entries")
    assert scene.offsets == []
    scene.thread.close()


def test_a_member_keeps_its_notes_while_the_topic_cannot_be_prepared(scene: Scene) -> None:
    scene.log.is_away = True
    scene.member.note(1)
    wait_until(lambda: bool(scene.member.entries), "the notes")
    scene.log.is_away = False
    wait_until(lambda: scene.offsets == [1], "the entry")
    scene.thread.close()


def test_the_last_entries_of_a_member_that_left_are_written(scene: Scene) -> None:
    scene.log.answers = [("away", True)] * 2
    scene.member.note(1)
    scene.thread.remove(scene.member)
    wait_until(lambda: scene.member.left, "the last notes taken")
    wait_until(lambda: scene.offsets == [1], "the last entry")
    scene.member.note(2)
    scene.thread.close()
    assert scene.offsets == [1], "nothing is taken of a member that has left"


def test_closing_writes_what_is_there_and_does_not_wait_for_ever(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene.member.note(1)
    scene.thread.close()
    assert scene.offsets == [1]
    other = Scene()
    monkeypatch.setattr(writer, "_LAST_S", 0.05)
    other.log.answers = [("away", True)] * 1_000
    other.member.note(1)
    other.thread.close()
    assert "closed while delivery histories could not be written: 1 lost" in caplog.text


def test_a_defect_does_not_end_the_thread(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    whole, scene.log.write = scene.log.write, cast("Any", None)  # type: ignore[method-assign]
    scene.member.note(1)
    wait_until(lambda: "is tried again" in caplog.text, "the warning")
    scene.log.write = whole  # type: ignore[method-assign]
    scene.member.note(2)
    wait_until(lambda: 2 in scene.offsets, "the next entry")
    scene.thread.close()
