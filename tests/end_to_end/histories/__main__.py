"""The command `python -m tests.end_to_end.histories`.

`run` records a history and checks it, `check` checks one again.

Exit status: 0 all holds, 1 something does not.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kafkadur.cli.output import Output
from kafkadur.stack.progress_bar import progress_bar
from kafkadur_sharing.errors import KafkadurError
from tests.end_to_end.histories.checking import check
from tests.end_to_end.histories.faults import selected
from tests.end_to_end.histories.loading import load
from tests.end_to_end.histories.plan import SUBSCRIPTIONS, Plan
from tests.end_to_end.histories.report import document, show
from tests.end_to_end.histories.running import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = _parser().parse_args(arguments)
    output = Output(as_json=options.json)
    if options.command == "check":
        return _check(options.folder, output, keep=True)
    try:
        faults = selected(options.faults, cluster=options.cluster)
    except ValueError as error:
        output.complain(f"{error}.")
        return 1
    plan = Plan(
        seed=random.randrange(1_000_000) if options.seed is None else options.seed,
        types=options.types,
        faults=faults,
        cluster=options.cluster,
        minutes=options.minutes,
        members=options.members,
        rate=options.rate,
        commit=_commit(),
    )
    folder = options.folder or Path(tempfile.mkdtemp(prefix=f"histories-{plan.seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        output.complain(f"{folder} is not empty: name another folder.")
        return 1
    output.say(f"seed {plan.seed}; the history goes to {folder}")
    try:
        with progress_bar(output.talk) as progress:
            run(plan, folder, progress)
    except KafkadurError as error:
        output.complain(str(error))
        return 1
    return _check(folder, output, keep=options.folder is not None)


def _check(folder: Path, output: Output, *, keep: bool) -> int:
    history = load(folder)
    findings = check(history)
    keep = keep or bool(findings)
    if output.as_json:
        output.json(document(history, findings, folder if keep else None))
    else:
        show(history, findings, output)
    if not keep:
        shutil.rmtree(folder)
    elif findings:
        output.say(
            f"the history is in {folder}; check it again with: "
            f"python -m tests.end_to_end.histories check {folder}"
        )
    return 1 if findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.histories", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="record a history and check it")
    runs.add_argument("--faults", default="all", help="with commas; all, none (default: %(default)s)")
    runs.add_argument("--cluster", action="store_true", help="Redis is a cluster of three primaries")
    runs.add_argument(
        "--types", type=_types, default=tuple(SUBSCRIPTIONS), help=f"of {', '.join(SUBSCRIPTIONS)}"
    )
    runs.add_argument("--minutes", type=float, default=2.0, help="of faults (default: %(default)g)")
    runs.add_argument("--seed", type=int, help="default: drawn")
    runs.add_argument("--members", type=int, default=3, help="a subscription (default: %(default)d)")
    runs.add_argument("--rate", type=float, default=30.0, help="messages a second (default: %(default)g)")
    runs.add_argument("--folder", type=Path, help="where to keep the history; else it stays if it is wrong")
    checks = commands.add_parser("check", help="check a recorded history")
    checks.add_argument("folder", type=Path)
    for each in (runs, checks):
        each.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    return parser


def _types(names: str) -> tuple[str, ...]:
    chosen = tuple(name for name in names.split(",") if name)
    unknown = [name for name in chosen if name not in SUBSCRIPTIONS]
    if unknown or not chosen:
        raise argparse.ArgumentTypeError(f"use some of {', '.join(SUBSCRIPTIONS)}")
    return chosen


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty"]
    root = Path(__file__).parent
    return subprocess.run(asked, check=False, capture_output=True, text=True, cwd=root).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
