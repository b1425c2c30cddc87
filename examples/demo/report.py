"""The part of the demo with Spark: flights stream through a durable subscription into a report of delays.

The job is a process of its own, `examples.demo.job`. It is killed in the middle of a batch and started
again; at the end its report is compared with the file. Without Spark on the machine the part is left out.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from examples.demo.bad_records import BAD, places, wrong_letters
from examples.demo.crew import Crew, DemoError, News, Worker
from examples.demo.display import Bar
from examples.demo.flights import SHORT, airlines, rows
from examples.demo.outcome import Replay, Report
from examples.demo.story import Stage, create_topic, send
from examples.demo.totals import Row, differences, together, totals
from examples.demo.worker import REPORT, REPORT_TOPIC, Job
from kafkadur.admin.changes import Admin
from kafkadur.admin.dead_letters import DeadLetterAdmin

#: What stays in the output folder, and the folder of Spark there, which does not.
PARQUET: Final = "report.parquet"
CHART: Final = "delays.png"
FOLDER: Final = "report.spark"
#: The folder in there of what Spark leaves lying about.
TEMPORARY: Final = "tmp"

#: What Spark and the chart need beyond what kafkadur itself does.
_NEEDED: Final = ("pyspark", "pyarrow", "matplotlib")
#: Batches that the messages come in.
_BATCHES: Final = 5
#: Share of the messages that a job settles before it is killed.
_KILL_AFTER: Final = 0.15
#: Seconds until Spark has started: it may fetch its source for Kafka first. And for one batch.
_START_S, _BATCH_S = 300.0, 120.0


def absent(needed: Iterable[str] = _NEEDED) -> list[str]:
    """Which of these packages are not installed."""
    return [name for name in needed if importlib.util.find_spec(name) is None]


def report(stage: Stage) -> Report:
    """Play the part; raises `KafkadurError` when it cannot go on."""
    stage.display.head("5. report: a Spark job, killed in the middle of a batch")
    if missing := absent():
        left_out = f"{', '.join(missing)} not installed: run `make setup`"
        stage.display.say(f"   left out: {left_out}")
        return Report(left_out=left_out)
    create_topic(stage.kafka, REPORT_TOPIC)
    folder = stage.output / FOLDER
    folder.mkdir()
    with ExitStack() as running:
        running.callback(shutil.rmtree, folder / TEMPORARY, ignore_errors=True)
        crew = Crew(kafka=stage.kafka, redis=stage.redis, output=stage.output, total=stage.total)
        replays = _Jobs(stage, running.enter_context(crew), folder).play()
    return _checked(stage, replays)


# --- the jobs -----------------------------------------------------------------------------------------------


class _Jobs:
    """The processes of the job, one after the other."""

    def __init__(self, stage: Stage, crew: Crew, folder: Path) -> None:
        """None has started."""
        self._stage = stage
        self._crew = crew
        self._folder = folder
        self._messages = stage.total + len(BAD)

    def play(self) -> list[Replay]:
        """Kill one, or two in a long run, and let the last one come to its end; returns what came again."""
        # A batch that is settled is the harder one: all of it must come again, and none of it count twice.
        stands = [True] if self._stage.total <= SHORT else [False, True]
        replays: list[Replay] = []
        standing: News | None = None
        for number, settles_first in enumerate([*stands, None], 1):
            worker = self._start(number, settles_first)
            with self._stage.display.bar(f"{worker.job.name} reads") as bar:
                batches, stood = self._work(worker, bar)
            if standing is not None:
                replays.append(self._replayed(worker, standing, batches))
            if settles_first is not None:
                standing = self._kill(worker, stood)
        return replays

    def _start(self, number: int, settles_first: bool | None) -> Worker:  # noqa: FBT001 - one of three
        """Start a job, the messages are loaded meanwhile; `settles_first` None: it is not to be killed."""
        worker = self._crew.start_job(
            Job(
                name=f"{REPORT}-{number}",
                subscription=REPORT,
                kafka=self._stage.kafka,
                redis=self._stage.redis,
                ledger=str(self._folder),
                report_every=self._messages // _BATCHES + 1,
                last_stand=0 if settles_first is None else int(self._messages * _KILL_AFTER),
                settles_first=bool(settles_first),
            )
        )
        if number == 1:
            text = f"loading {self._stage.total:,} flights and {len(BAD)} bad records meanwhile"
            send(self._stage, REPORT_TOPIC, REPORT, text, places(self._stage.total))
        with self._stage.display.bar(f"{worker.job.name} starts Spark"):
            self._crew.wait_for("attached", worker, timeout=_START_S)
        self._crew.go(worker)
        return worker

    def _work(self, worker: Worker, bar: Bar) -> tuple[list[News], News | None]:
        """Let it work until it waits to be killed, or has ended; returns its batches, and where it stands."""
        batches: list[News] = []
        while True:
            news = self._crew.hear(_BATCH_S)
            if news is None:
                raise DemoError(f"{worker.job.name} settled nothing for {_BATCH_S:.0f} s.")
            bar.update(self._crew.done, self._messages)
            if news.worker is not worker:
                continue
            if news.event == "batch":
                batches.append(news)
            elif news.event == "standing":
                return batches, news
            elif news.event == "gone":
                return batches, None

    def _kill(self, worker: Worker, stood: News | None) -> News:
        if stood is None:
            raise DemoError(f"{worker.job.name} came to its end before it was to be killed.")
        worker.kill()
        how = "settled, before Spark had noted that" if worker.job.settles_first else "not settled"
        self._stage.display.say(
            f"   {worker.job.name} was killed (SIGKILL) in batch {stood.more['batch']}: "
            f"{stood.more['messages']:,} messages written and {how}"
        )
        return stood

    def _replayed(self, worker: Worker, standing: News, batches: Sequence[News]) -> Replay:
        """What the next one did with the batch that the last one was killed in."""
        first: dict[str, Any] = batches[0].more if batches else {}
        replay = Replay(
            killed=standing.worker.job.name,
            settled=standing.worker.job.settles_first,
            generation=standing.more["generation"],
            batch=standing.more["batch"],
            messages=standing.more["messages"],
            settled_again=first.get("settled", 0),
        )
        known = ("generation", "batch", "messages", "rejected")
        if any(first.get(name) != standing.more[name] for name in known) or not first.get("again"):
            raise DemoError(
                f"{worker.job.name} did not begin with the batch that {replay.killed} was killed in.",
                state=f"{first} instead of {standing.more}",
            )
        self._stage.display.say(
            f"   {worker.job.name} had batch {replay.batch} again: the same {replay.messages:,} messages, "
            f"written over, {replay.settled_again:,} of them settled now"
        )
        return replay


# --- the check ----------------------------------------------------------------------------------------------


def _checked(stage: Stage, replays: Sequence[Replay]) -> Report:
    """Compare the report with the file, and look at what is left of the subscription."""
    path = stage.output / PARQUET
    found = read(path)
    unequal = differences(found, totals(rows(stage.total)))
    with stage.connect(REPORT) as connection, Admin(connection.settings) as admin:
        key = admin.key(REPORT)
        backlog = admin.info(key).backlog
        letters = list(DeadLetterAdmin(connection.settings, admin).letters(key))
    defects = unequal + wrong_letters((letter.value, letter.reason) for letter in letters)
    if backlog != 0:
        defects.append(f"report: {backlog} messages of the subscription are not settled")
    defects += [
        f"report: batch {replay.batch} was settled, and {replay.settled_again} of it once more"
        for replay in replays
        if replay.settled_again != (0 if replay.settled else replay.messages)
    ]
    made = Report(
        flights=sum(row.flights for row in found),
        rows=len(found),
        dead_letters=len(letters),
        backlog=backlog,
        replays=tuple(replays),
        parquet=str(path),
        chart=str(stage.output / CHART),
        defects=tuple(defects),
    )
    _show(stage, found)
    here = Path.cwd()
    shown = stage.output.relative_to(here) if stage.output.is_relative_to(here) else stage.output
    stage.display.say(
        f"   {made.rows} carriers on their routes are in {shown / PARQUET}, a picture is {shown / CHART}"
    )
    stage.display.say(
        f"   report: {made.flights:,} flights, totals {'not ' if unequal else ''}equal to those of the file; "
        f"{made.dead_letters} dead letters of {len(BAD)} bad records; {backlog} not settled"
    )
    return made


def read(path: Path) -> list[Row]:
    """The rows of a report; raises `OSError` if it cannot be read."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - the other parts do without it

    return [Row(**row) for row in pq.read_table(path).to_pylist()]


def _show(stage: Stage, found: Sequence[Row]) -> None:
    """The totals of each carrier, the largest one first."""
    stage.display.say("   mean delay of each carrier, minutes:")
    names = airlines()
    carriers = sorted(together(found, lambda row: row.carrier).items(), key=lambda pair: -pair[1].flights)
    stage.display.table(
        ("carrier", "flights", "cancelled", "departure", "arrival"),
        (
            (
                names.get(carrier, carrier),
                f"{delays.flights:,}",
                f"{delays.cancelled:,}",
                _minutes(delays.departure_delay),
                _minutes(delays.arrival_delay),
            )
            for carrier, delays in carriers
        ),
    )


def _minutes(delay: float | None) -> str:
    return "" if delay is None else f"{delay:.1f}"
