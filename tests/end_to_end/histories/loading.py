"""Reading a recorded history from its folder."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kafkadur_coordinators.interface import LeaseView, PartitionView, Run
from tests.end_to_end.histories.faults import FAULTS, FEW_FILES, FORK, MEMBER
from tests.end_to_end.histories.history import (
    Attachment,
    Call,
    DeadLetter,
    Delivery,
    End,
    Floor,
    History,
    Injected,
    Inspection,
    Lost,
    Message,
    Place,
    Publication,
    Token,
    Told,
    Verdict,
)
from tests.end_to_end.histories.lives import Lives
from tests.end_to_end.histories.plan import Plan
from tests.end_to_end.histories.recording import OK, read

#: Names of files in the folder of a history.
PLAN, FAULT_LOG, OBSERVED, INSPECTED, PUBLISHED, TRUTH, DEAD, END = (
    "plan.json",
    "faults.jsonl",
    "observed.jsonl",
    "inspected.jsonl",
    "published.jsonl",
    "truth.jsonl",
    "dead.jsonl",
    "end.json",
)
MEMBERS = "member-*.jsonl"
#: What brokers said, also before a restart.
BROKER_LOGS = "servers/logs/broker-*.log*"
_UNMARKED = re.compile(
    r"Couldn't find leader endpoint for partitions \w*\(([^)]*)\) while trying to send transaction markers"
)
#: What topics held that were deleted.
TRUTHS = "truth-*.jsonl"


def load(folder: Path) -> History:
    """Read a history; raises OSError and ValueError for a folder that holds none."""
    plan = Plan.read(folder / PLAN)
    end: dict[str, Any] = json.loads((folder / END).read_text())
    faults = list(_faults(folder / FAULT_LOG, end["ended"]))
    lives = Lives(faults)
    members = _Members(lives)
    for path in sorted(folder.glob(MEMBERS)):
        members.take(path.stem.removeprefix("member-"), read(path))
    published = list(_published(folder / PUBLISHED))
    times = {each.digest: (each.due, each.over) for each in published}
    truth = {
        message.place: message
        for path in (folder / TRUTH, *folder.glob(TRUTHS))
        for message in _truth(path, lives, times)
    }
    return History(
        plan=lives.plan(plan),
        began=end["began"],
        deliveries=sorted(members.deliveries, key=lambda each: each.at),
        verdicts=sorted(members.verdicts, key=lambda each: each.called),
        attachments=sorted(members.attachments.values(), key=lambda each: each.attached),
        lost=sorted(members.lost, key=lambda each: each.at),
        faults=sorted(
            [
                *(replace(fault, subscription=lives.at(fault.subscription, fault.start)) for fault in faults),
                *members.faults,
                *(
                    Injected(kind="crash", start=at, end=at, process=process)
                    for process, at in members.latest.items()
                    if process in end["crashed"]
                ),
            ],
            key=lambda each: each.start,
        ),
        floors=list(_floors(folder / OBSERVED, lives)),
        inspections=list(_inspections(folder / INSPECTED, lives)),
        calls=sorted(members.calls, key=lambda each: (each.incarnation, each.sequence, each.at)),
        truth=truth,
        dead=list(_dead(folder / DEAD, {message.digest: message.place for message in truth.values()})),
        published=published,
        unmarked=[each for path in folder.glob(BROKER_LOGS) for each in unmarked(path)],
        ends=[End(**one | {"subscription": lives.last(one["subscription"])}) for one in end["subscriptions"]],
        counts=dict(members.counts),
        crashed=end["crashed"],
        ended=lives.ended(plan),
    )


class _Members:
    """What the files of members hold."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        #: of each attached member: which life of the subscription it was attached to
        self._life: dict[str, str] = {}
        self.deliveries: list[Delivery] = []
        self.verdicts: list[Verdict] = []
        self.attachments: dict[str, Attachment] = {}
        self.lost: list[Lost] = []
        #: faults that the processes themselves recorded
        self.faults: list[Injected] = []
        self.calls: list[Call] = []
        #: when each process wrote something last (ns)
        self.latest: dict[str, int] = {}
        self.counts: defaultdict[tuple[str, str], int] = defaultdict(int)

    def take(self, process: str, lines: Iterable[dict[str, Any]]) -> None:
        """The lines of one process."""
        closing: dict[str, dict[str, Any]] = {}
        for line in map(self._with_life, lines):
            op = line["op"]
            if op == "script":
                self.calls.append(_call(process, line))
                continue
            self.latest[process] = line.get("at") or line["called"]
            self.counts[op, line.get("outcome", OK)] += 1
            if op == "deliver":
                self.deliveries.append(
                    Delivery(
                        process=process,
                        place=_place(line),
                        token=_token(line),
                        **{name: line[name] for name in _DELIVERY},
                    )
                )
            elif op == "attach":
                if line["outcome"] == OK:
                    self._life[line["member"]] = line["subscription"]
                    self.attachments[line["member"]] = Attachment(
                        process=process,
                        member=line["member"],
                        subscription=line["subscription"],
                        window=line["window"],
                        attached=line["at"],
                    )
            elif op == "close":
                closing[line["member"]] = line
            elif op == "lost":
                self.lost.append(
                    Lost(member=line["member"], place=_place(line), token=_token(line), at=line["at"])
                )
            elif op in _FAULTS:
                self.faults.append(Injected(kind=op, start=line["since"], end=line["at"], process=process))
            elif "partition" in line:
                self.verdicts.append(_verdict(process, line))
        self._close(closing)

    def _with_life(self, line: dict[str, Any]) -> dict[str, Any]:
        """The line, with the life of its subscription: the one that its member was attached to."""
        if "subscription" not in line:
            return line
        life = self._life.get(line.get("member", ""))
        return line | {
            "subscription": life or self._lives.at(line["subscription"], line.get("at") or line["called"])
        }

    def _close(self, closing: Mapping[str, dict[str, Any]]) -> None:
        for member, line in closing.items():
            known = self.attachments[member]
            self.attachments[member] = Attachment(
                process=known.process,
                member=member,
                subscription=known.subscription,
                window=known.window,
                attached=known.attached,
                closing=line["called"],
                closed=line.get("at"),
                outcome=line["outcome"],
            )


#: What a process records of itself: it was not running, or it did what `mistakes.py` says.
_FAULTS = {"stall", FORK, FEW_FILES}
_DELIVERY = ("member", "digest", "key", "attempt", "redelivered", "called", "at")


_CALL = (
    *("subscription", "member", "at", "name", "incarnation", "sequence"),
    *("credit", "have", "token", "rank", "members", "left_over", "reads_on"),
)


def _call(process: str, line: Mapping[str, Any]) -> Call:
    told = [Told(*grant) for grant in line["grants"]]
    return Call(process=process, grants=told, **{name: line[name] for name in _CALL})


def _verdict(process: str, line: Mapping[str, Any]) -> Verdict:
    return Verdict(
        process=process,
        place=_place(line),
        token=_token(line),
        kind=line["op"],
        at=line.get("at"),
        error=line.get("error", ""),
        level=line.get("level", "redis"),
        **{name: line[name] for name in ("member", "attempt", "called", "outcome")},
    )


def _place(line: Mapping[str, Any]) -> Place:
    return Place(line["subscription"], line["partition"], line["offset"])


def _token(line: Mapping[str, Any]) -> Token:
    incarnation, counter = line["token"]
    return (incarnation, counter)


def _faults(path: Path, ended: int) -> Iterator[Injected]:
    for line in read(path):
        yield Injected(
            kind=line["op"],
            start=line["called"],
            end=line.get("at", ended),
            switched=line.get("switched", 0),
            process=line.get("process", "") if FAULTS[line["op"]].hits == MEMBER else "",
            subscription=line.get("subscription", ""),
            certain=line["outcome"] == OK,
        )


def _inspections(path: Path, lives: Lives) -> Iterator[Inspection]:
    if not path.exists():  # one of an earlier version
        return
    for line in read(path):
        certain = line["outcome"] == OK and lives.is_certain(line["subscription"], line["called"], line["at"])
        if certain:
            yield Inspection(
                subscription=lives.at(line["subscription"], line["at"]),
                partitions=[
                    PartitionView(
                        **view
                        | {"bits": bytes.fromhex(view["bits"]), "runs": [Run(*r) for r in view["runs"]]}
                    )
                    for view in line["partitions"]
                ],
                leases=[LeaseView(*lease) for lease in line["leases"]],
                **{name: line[name] for name in ("called", "at", "incarnation", "sequence")},
            )


def _floors(path: Path, lives: Lives) -> Iterator[Floor]:
    for line in read(path):
        if line["outcome"] == OK and lives.is_certain(line["subscription"], line["called"], line["at"]):
            for partition, floor in enumerate(line["floors"]):
                yield Floor(
                    subscription=lives.at(line["subscription"], line["at"]),
                    partition=partition,
                    floor=floor,
                    called=line["called"],
                    at=line["at"],
                )


def _truth(path: Path, lives: Lives, times: Mapping[str, tuple[int | None, int | None]]) -> Iterator[Message]:
    """`times` are `due` and `over` of all messages, by their digest."""
    for line in read(path):
        line["subscription"] = lives.at(line["subscription"], line["at"])
        due, over = times.get(line["digest"], (None, None))
        yield Message(place=_place(line), digest=line["digest"], key=line["key"], due=due, over=over)


def _dead(path: Path, places: Mapping[str, Place]) -> Iterator[DeadLetter]:
    """`places` are those of all messages, by their digest."""
    for line in read(path):
        place = _place(line)
        found = places.get(line["digest"], place)
        yield DeadLetter(
            place=found if found[1:] == place[1:] else place,
            digest=line["digest"],
            cause=line["cause"],
            attempts=line["attempts"],
        )


def _published(path: Path) -> Iterator[Publication]:
    for line in read(path):
        if line["op"] == "publish":
            yield Publication(
                digest=line["digest"],
                called=line["called"],
                at=line.get("at"),
                outcome=line["outcome"],
                topic=line["subscription"],
                partition=line["partition"],
                transaction=line.get("transaction"),
                due=line.get("due"),
                over=line.get("over"),
            )


def unmarked(log: Path) -> Iterator[frozenset[tuple[str, int]]]:
    """Yield the topics and partitions of each transaction whose commit the broker did not mark."""
    for names in _UNMARKED.findall(log.read_text(errors="replace")):
        parts = [name.rpartition("-") for name in names.split(", ")]
        yield frozenset((topic, int(partition)) for topic, _, partition in parts)
