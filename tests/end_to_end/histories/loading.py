"""Reading a recorded history from its folder."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kafkadur_coordinators.interface import LeaseView, PartitionView, Run
from tests.end_to_end.histories.faults import FAULTS, MEMBER
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


def load(folder: Path) -> History:
    """Read a history; raises OSError and ValueError for a folder that holds none."""
    plan = Plan.read(folder / PLAN)
    end: dict[str, Any] = json.loads((folder / END).read_text())
    members = _Members()
    for path in sorted(folder.glob(MEMBERS)):
        members.take(path.stem.removeprefix("member-"), read(path))
    return History(
        plan=plan,
        began=end["began"],
        deliveries=sorted(members.deliveries, key=lambda each: each.at),
        verdicts=sorted(members.verdicts, key=lambda each: each.called),
        attachments=sorted(members.attachments.values(), key=lambda each: each.attached),
        lost=sorted(members.lost, key=lambda each: each.at),
        faults=sorted(
            [
                *_faults(folder / FAULT_LOG, end["ended"]),
                *members.stalls,
                *(
                    Injected(kind="crash", start=at, end=at, process=process)
                    for process, at in members.latest.items()
                    if process in end["crashed"]
                ),
            ],
            key=lambda each: each.start,
        ),
        floors=list(_floors(folder / OBSERVED)),
        inspections=list(_inspections(folder / INSPECTED)),
        calls=sorted(members.calls, key=lambda each: (each.incarnation, each.sequence, each.at)),
        truth={message.place: message for message in _truth(folder / TRUTH)},
        dead=list(_dead(folder / DEAD)),
        published=list(_published(folder / PUBLISHED)),
        ends=[End(**one) for one in end["subscriptions"]],
        counts=dict(members.counts),
        crashed=end["crashed"],
    )


class _Members:
    """What the files of members hold."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.verdicts: list[Verdict] = []
        self.attachments: dict[str, Attachment] = {}
        self.lost: list[Lost] = []
        self.stalls: list[Injected] = []
        self.calls: list[Call] = []
        #: when each process wrote something last (ns)
        self.latest: dict[str, int] = {}
        self.counts: defaultdict[tuple[str, str], int] = defaultdict(int)

    def take(self, process: str, lines: Iterable[dict[str, Any]]) -> None:
        """The lines of one process."""
        closing: dict[str, dict[str, Any]] = {}
        for line in lines:
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
            elif op == "stall":
                self.stalls.append(
                    Injected(kind="stall", start=line["since"], end=line["at"], process=process)
                )
            elif "partition" in line:
                self.verdicts.append(_verdict(process, line))
        self._close(closing)

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


_DELIVERY = ("member", "digest", "key", "attempt", "redelivered", "called", "at")


_CALL = (
    *("subscription", "member", "at", "name", "incarnation", "sequence"),
    *("credit", "have", "token", "rank", "members", "left_over"),
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
            process=line.get("process", "") if FAULTS[line["op"]].hits == MEMBER else "",
            subscription=line.get("subscription", ""),
            certain=line["outcome"] == OK,
        )


def _inspections(path: Path) -> Iterator[Inspection]:
    if not path.exists():  # one of an earlier version
        return
    for line in read(path):
        if line["outcome"] == OK:
            yield Inspection(
                partitions=[
                    PartitionView(
                        **view
                        | {"bits": bytes.fromhex(view["bits"]), "runs": [Run(*r) for r in view["runs"]]}
                    )
                    for view in line["partitions"]
                ],
                leases=[LeaseView(*lease) for lease in line["leases"]],
                **{name: line[name] for name in ("subscription", "called", "at", "incarnation", "sequence")},
            )


def _floors(path: Path) -> Iterator[Floor]:
    for line in read(path):
        if line["outcome"] == OK:
            for partition, floor in enumerate(line["floors"]):
                yield Floor(
                    subscription=line["subscription"],
                    partition=partition,
                    floor=floor,
                    called=line["called"],
                    at=line["at"],
                )


def _truth(path: Path) -> Iterator[Message]:
    for line in read(path):
        yield Message(place=_place(line), digest=line["digest"], key=line["key"])


def _dead(path: Path) -> Iterator[DeadLetter]:
    for line in read(path):
        yield DeadLetter(
            place=_place(line), digest=line["digest"], cause=line["cause"], attempts=line["attempts"]
        )


def _published(path: Path) -> Iterator[Publication]:
    for line in read(path):
        if line["op"] == "publish":
            yield Publication(
                digest=line["digest"],
                called=line["called"],
                at=line.get("at"),
                outcome=line["outcome"],
                place=_place(line) if line["outcome"] == OK else None,
            )
