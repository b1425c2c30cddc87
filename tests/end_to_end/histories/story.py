"""Histories made by hand, operation by operation, to test the checks with. Time passes by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from kafkadur_coordinators.interface import LeaseView, PartitionView, Run
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
    Told,
    Verdict,
)
from tests.end_to_end.histories.plan import Plan
from tests.end_to_end.histories.recording import OK

#: So much time passes with each operation (ns).
STEP = 10_000_000


class Story:
    """A history that is being told."""

    def __init__(self, *types: str) -> None:
        """Nothing has happened yet."""
        self.plan = Plan(seed=0, types=types, faults=(), minutes=1)
        self.now = 0
        self._counter = 0
        self._incarnation = 1
        self._subscription: dict[str, str] = {}
        self._drained: dict[str, float | None] = dict.fromkeys(types, 1.0)
        self.deliveries: list[Delivery] = []
        self.verdicts: list[Verdict] = []
        self.attachments: dict[str, Attachment] = {}
        self.lost: list[Lost] = []
        self.faults: list[Injected] = []
        self.floors: list[Floor] = []
        self.inspections: list[Inspection] = []
        #: of every subscription one before anything is there
        self._blank = [
            Inspection(subscription=name, called=0, at=0, incarnation=0, sequence=0) for name in types
        ]
        self.calls: list[Call] = []
        self.truth: dict[Place, Message] = {}
        self.dead: list[DeadLetter] = []
        self.published: list[Publication] = []
        self.unmarked: list[frozenset[tuple[str, int]]] = []
        self.crashed: dict[str, str] = {}

    def step(self, times: int = 1) -> int:
        """Time passes; returns the new time."""
        self.now += times * STEP
        return self.now

    def publish(
        self,
        subscription: str,
        *,
        partition: int = 0,
        key: str = "k0",
        due: int | None = None,
        over: int | None = None,
        transaction: int | None = None,
    ) -> Place:
        """A message is written; `due` and `over` are its times (ns)."""
        called = self.step()
        offset = sum(place[:2] == (subscription, partition) for place in self.truth)
        place = Place(subscription, partition, offset)
        digest = f"{subscription}-{partition}-{offset}"
        self.truth[place] = Message(place, digest, key, due, over)
        self.published.append(
            Publication(
                digest=digest,
                called=called,
                at=self.step(),
                outcome=OK,
                topic=subscription,
                partition=partition,
                transaction=transaction,
            )
        )
        return place

    def attach(self, process: str, subscription: str) -> str:
        """A member attaches; returns its id."""
        member = f"m-{process}"
        self._subscription[member] = process
        self.attachments[member] = Attachment(
            process=process,
            member=member,
            subscription=subscription,
            window=self.plan.subscriptions[subscription].window,
            attached=self.step(),
        )
        return member

    def close(self, member: str) -> None:
        """A member leaves in order."""
        closing = self.step()
        self.attachments[member] = replace(
            self.attachments[member], closing=closing, closed=self.step(), outcome=OK
        )

    def deliver(self, member: str, place: Place, **other: Any) -> Delivery:
        """A message comes into hands, under a token of its own; `other` are fields that differ."""
        self._counter += 1
        before = [each for each in self.deliveries if each.place == place]
        called = self.step()
        fields: dict[str, Any] = {
            "process": self._subscription[member],
            "member": member,
            "place": place,
            "digest": self.truth[place].digest if place in self.truth else "",
            "key": self.truth[place].key if place in self.truth else "",
            "attempt": 1,
            "redelivered": bool(before),
            "token": (self._incarnation, self._counter),
            "called": called,
            "at": self.step(),
        }
        delivery = Delivery(**fields | other)
        self.deliveries.append(delivery)
        return delivery

    def settle(self, delivery: Delivery, kind: str = "ack", **other: Any) -> Verdict:
        """A verdict; `other` are fields that differ."""
        called = self.step()
        fields: dict[str, Any] = {
            "process": delivery.process,
            "member": delivery.member,
            "place": delivery.place,
            "token": delivery.token,
            "attempt": delivery.attempt,
            "kind": kind,
            "called": called,
            "at": self.step(),
            "outcome": OK,
        }
        verdict = Verdict(**fields | other)
        self.verdicts.append(verdict)
        return verdict

    def bury(self, place: Place, cause: str, attempts: int) -> None:
        """A dead letter is written."""
        digest = self.truth[place].digest if place in self.truth else ""
        self.dead.append(DeadLetter(place=place, digest=digest, cause=cause, attempts=attempts))

    def fault(self, kind: str, process: str = "") -> None:
        """Something breaks for a moment; what forgets makes a new incarnation."""
        start = self.step()
        fault = Injected(kind=kind, start=start, end=self.step(), process=process)
        self.faults.append(fault)
        if fault.forgets:
            self._incarnation += 1

    def floor(self, subscription: str, floor: int) -> None:
        """An administrator is told the floor of partition 0."""
        called = self.step()
        self.floors.append(
            Floor(subscription=subscription, partition=0, floor=floor, called=called, at=self.step())
        )

    def inspect(
        self,
        subscription: str,
        *,
        settled: Iterable[int] = (),
        leases: Sequence[LeaseView] = (),
        **other: Any,
    ) -> None:
        """All that is kept of partition 0 is seen; `settled`: above base; `other`: fields of the view."""
        numbers = ("partition", "base", "next", "readable_end", "origin", "seen")
        fields: dict[str, Any] = dict.fromkeys(numbers, 0)
        fields |= other
        runs: Sequence[Run] = fields.pop("runs", ())
        decided = {*settled, *(offset for run in runs for offset in range(run.start, run.end))}
        ones = bytearray(max([fields["next"], *(offset + 1 for offset in decided)]) // 8 + 1)
        for offset in decided:
            ones[offset // 8] |= 128 >> offset % 8
        view = PartitionView(**fields, decided=len(decided), runs=runs, bits=bytes(ones))
        called = self.step()
        self.inspections.append(
            Inspection(
                subscription=subscription,
                called=called,
                at=self.step(),
                incarnation=self._incarnation,
                sequence=len(self.inspections),
                partitions=[view],
                leases=leases,
            )
        )

    def call(self, member: str, *, credit: int = 5, rank: int = 0, members: int = 2, **other: Any) -> None:
        """A member makes an exchange, and is told leases: pairs of partition and records of new messages."""
        told: list[tuple[int, int]] = other.pop("told", [])
        fields: dict[str, Any] = {
            "process": self._subscription[member],
            "member": member,
            "subscription": self.attachments[member].subscription,
            "at": self.step(),
            "name": "exchange",
            "incarnation": self._incarnation,
            "sequence": len(self.calls) + 1,
            "credit": credit,
            "have": self._counter,
            "token": self._counter + len(told),
            "rank": rank,
            "members": members,
            "grants": [
                Told(self._counter + number, partition, records, "range")
                for number, (partition, records) in enumerate(told, 1)
            ],
        }
        self._counter += len(told)
        self.calls.append(Call(**fields | other))

    def look_away(self) -> None:
        """Nothing is ever inspected."""
        self._blank.clear()

    def never_drains(self, subscription: str) -> None:
        """What waits is not settled."""
        self._drained[subscription] = None

    def history(self) -> History:
        """All of it."""
        return History(
            plan=self.plan,
            began=0,
            deliveries=sorted(self.deliveries, key=lambda each: each.at),
            verdicts=sorted(self.verdicts, key=lambda each: each.called),
            attachments=list(self.attachments.values()),
            lost=self.lost,
            faults=self.faults,
            floors=self.floors,
            inspections=[*self.inspections, *self._blank],
            calls=self.calls,
            truth=self.truth,
            dead=self.dead,
            published=self.published,
            unmarked=self.unmarked,
            ends=[
                End(subscription=name, backlog=0 if drained else 3, expired=0, drained=drained)
                for name, drained in self._drained.items()
            ],
            crashed=self.crashed,
        )
