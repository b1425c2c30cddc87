"""The command of the demo: options, the stack, signals, exit status. What it plays is in `story.py`."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from confluent_kafka import KafkaException
from rich.console import Console

from examples.demo.chaos import Chaos
from examples.demo.display import Display
from examples.demo.flights import ALL, SHORT
from examples.demo.handover import hand_over
from examples.demo.outcome import Outcome
from examples.demo.report import CHART, PARQUET, report
from examples.demo.report import FOLDER as SPARK_FOLDER
from examples.demo.story import Stage, play
from kafkadur.stack import FOLDER, RunningStack, Stack, down, embedded, status, up
from kafkadur.stack.errors import file_error
from kafkadur_sharing.errors import KafkadurError

OK: Final = 0
FAILED: Final = 1
#: 128 and the number of the signal: 130 for Ctrl-C.
SIGNALLED: Final = 128

#: What workers leave in the output folder, and what stays there when it is over.
_LEFT: Final = ("*.ledger", "*.log", SPARK_FOLDER)
_RESULTS: Final = (PARQUET, CHART)
#: Seconds between two looks whether the servers still run.
_LOOK_S: Final = 0.5
#: Seconds until a signal is raised again that was lost.
_AGAIN_S: Final = 0.05
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        """`number` is that of the signal."""
        super().__init__(number)
        self.number = number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status: 0 all is well, 1 it is not, 130 interrupted by Ctrl-C."""
    options = _options(arguments)
    # With --json standard output is for the document alone.
    console = Console(stderr=options.json)
    # What the library logs on the way (a killed member, for example) is part of the story, and told there.
    logging.getLogger("kafkadur").addHandler(logging.NullHandler())
    sys.unraisablehook = _interrupt_again
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    started = time.monotonic()
    seconds: dict[str, float] = {}
    outcome: Outcome | None = None
    try:
        outcome = _run(options, Display(console), seconds)
        line, code = outcome.line, OK if outcome.ok else FAILED
    except ServerEnded as ended:
        line, code = f"demo: FAILED {ended.failure}", FAILED
    except Interrupted as interrupted:
        line, code = "demo: interrupted", SIGNALLED + interrupted.number
    except KafkadurError as error:
        line, code = f"demo: FAILED {error}", FAILED
    except KafkaException as error:
        line, code = f"demo: FAILED Kafka did not answer: {error.args[0].str()}", FAILED
    except OSError as error:
        line, code = f"demo: FAILED {file_error(error, options.output)}", FAILED
    if options.json:
        seconds["all"] = time.monotonic() - started
        sys.stdout.write(json.dumps(_document(options, line, code, outcome, seconds)) + "\n")
    console.print(line, markup=False, highlight=False, soft_wrap=True)
    return code


class ServerEnded(Exception):
    """A server of the demo ended by itself."""

    def __init__(self, failure: KafkadurError) -> None:
        """`failure` says which one, and why."""
        super().__init__(str(failure))
        self.failure = failure


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Durable subscriptions on a real Kafka, through killed processes, checked at the end.",
    )
    parser.add_argument(
        "--short", action="store_true", help=f"the first {SHORT:,} flights instead of all {ALL:,}"
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave Kafka, Valkey and the ledgers for looking around"
    )
    parser.add_argument(
        "--chaos",
        action="store_true",
        help="break everything else in the middle of it: Redis wiped and restarted, processes, connections",
    )
    parser.add_argument("--seed", type=int, help="of what --chaos breaks (default: drawn, and shown)")
    parser.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), metavar="FOLDER",
        help="where the report comes, and the workers' ledgers lie while it runs (default: %(default)s)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.chaos and options.keep:
        parser.error("--chaos breaks the servers of its own stack: leave --keep out")
    if options.seed is not None and not options.chaos:
        parser.error("--seed is for --chaos")
    if options.chaos and options.seed is None:
        options.seed = random.randrange(1_000_000)  # noqa: S311 - not a secret
    return options


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    # Whatever comes after the first one would only disturb the end that has begun.
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


def _interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """A signal that comes while an object is finalized raises where nothing comes out: once more, then."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)
        return
    number = unraisable.exc_value.number
    for each in _SIGNALS:
        signal.signal(each, _interrupt)
    # by another thread and a moment later: here, too, it would be swallowed
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _run(options: argparse.Namespace, display: Display, seconds: dict[str, float]) -> Outcome:
    total = SHORT if options.short else ALL
    output: Path = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    _clear(output)
    for name in _RESULTS:
        (output / name).unlink(missing_ok=True)
    evidence = bool(options.keep)
    try:
        display.head(f"kafkadur demo: {total:,} flights of 2013 on a real Kafka")
        with ExitStack() as running:
            begun = time.monotonic()
            stack: Stack | RunningStack
            chaos: Chaos | None = None
            if options.keep:
                stack = running.enter_context(_kept_stack(display))
            else:
                stack = running.enter_context(_stack(display, proxy=options.chaos))
                if options.chaos:
                    chaos = Chaos(stack, seed=options.seed, total=total, say=display.say)
                    display.say(
                        f"   chaos: {chaos.planned} things will be broken; repeat with --seed {chaos.seed}"
                    )
                running.enter_context(_watched(stack, chaos))
            seconds["stack"] = time.monotonic() - begun
            try:
                stage = Stage(
                    kafka=stack.kafka,
                    redis=stack.redis,
                    output=output,
                    total=total,
                    display=display,
                    chaos=chaos,
                    seconds=seconds,
                )
                outcome = play(stage, lambda: hand_over(stage), lambda: report(stage))
            except KafkadurError:
                evidence = True
                raise
            evidence = evidence or not outcome.ok
            begun = time.monotonic()
        seconds["end"] = time.monotonic() - begun
        for defect in outcome.defects:
            display.say(f"   {defect}")
        display.say("   seconds: " + ", ".join(f"{part} {took:.1f}" for part, took in seconds.items()))
        return outcome
    finally:
        if evidence and any(_left(output)):
            display.say(f"   ledgers and logs of the workers are in {options.output}")
        else:
            _clear(output)
            with contextlib.suppress(OSError):  # the report lies there, or something else
                output.rmdir()


def _left(output: Path) -> Iterator[Path]:
    return (path for pattern in _LEFT for path in output.glob(pattern))


def _clear(output: Path) -> None:
    for path in _left(output):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextlib.contextmanager
def _stack(display: Display, *, proxy: bool) -> Generator[Stack, None, None]:
    """A stack for the length of the demo; `proxy`: with proxies before the servers."""
    with ExitStack() as running:
        with display.bar("starting Kafka and Valkey") as bar:
            stack = running.enter_context(embedded(proxy=proxy, progress=bar.update))
        yield stack


@contextlib.contextmanager
def _watched(stack: Stack, chaos: Chaos | None) -> Generator[None, None, None]:
    """Raise `ServerEnded` when a server ends by itself: what waits for it would wait for long."""
    in_order = threading.Lock() if chaos is None else chaos.lock
    found: list[KafkadurError] = []
    over = threading.Event()
    #: held to send the signal, and to end the watch: no signal comes after that
    ending = threading.Lock()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            with in_order:
                failure = next(filter(None, (server.failure() for server in stack.servers)), None)
            if failure is None:
                continue
            with ending:
                if not over.is_set():
                    found.append(failure)
                    os.kill(os.getpid(), signal.SIGTERM)  # wakes the main thread wherever it waits
            return

    watcher = threading.Thread(target=watch, name="demo-servers", daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            with ending:  # a signal that was just sent interrupts this, and not what is printed at the end
                over.set()
    except Interrupted:
        if found:
            raise ServerEnded(found[0]) from None
        raise
    except (KafkadurError, KafkaException):  # whoever noticed first: the reason is the same, and told better
        failure = next(filter(None, (server.failure() for server in stack.servers)), None)
        if failure is not None:
            raise ServerEnded(failure) from None
        raise


@contextlib.contextmanager
def _kept_stack(display: Display) -> Generator[RunningStack, None, None]:
    """A stack that stays when the demo comes to its end; if it does not, only one that was there before."""
    there = status().stack is not None
    with display.bar("starting Kafka and Valkey") as bar:
        stack = up(progress=bar.update)
    try:
        yield stack
    except BaseException:
        if not there:
            down()
        raise
    display.say(
        f"   Kafka runs on at {stack.kafka}, Valkey at {stack.redis}, from {FOLDER}; "
        "stop them with `kafkadur down`"
    )


def _document(
    options: argparse.Namespace, line: str, code: int, outcome: Outcome | None, seconds: dict[str, float]
) -> dict[str, object]:
    """The result for programs."""
    return {
        "status": code,
        "line": line,
        "seed": options.seed,
        "broken": outcome.broken if outcome else [],
        "messages": outcome.total if outcome else 0,
        "takeover_seconds": outcome.takeover if outcome else None,
        "defects": outcome.defects if outcome else [line],
        "subscriptions": [asdict(proof) for proof in outcome.proofs] if outcome else [],
        "report": asdict(outcome.report) if outcome else None,
        "seconds": seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
