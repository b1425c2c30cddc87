"""How long programs take until they begin to work: ``python -m benchmarks.startup``.

Measures whole processes, from the call to the end: importing the package, help, completion, and a command
that asks the servers of the embedded stack.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kafkadur.stack import embedded

_CLI = (sys.executable, "-m", "kafkadur.cli")
#: What is run: its name, the command, variables of its environment, and the goal in ms (None: no goal).
_PROGRAMS: tuple[tuple[str, tuple[str, ...], dict[str, str], int | None], ...] = (
    ("python -c pass", (sys.executable, "-c", "pass"), {}, None),
    ("import kafkadur", (sys.executable, "-c", "import kafkadur"), {}, 150),
    ("import kafkadur.sync", (sys.executable, "-c", "import kafkadur.sync"), {}, None),
    ("kafkadur --help", (*_CLI, "--help"), {}, 300),
    (
        "completion of kafkadur sub",
        (sys.executable, "-c", "from kafkadur.cli import main; main()"),
        {"_KAFKADUR_COMPLETE": "complete_bash", "COMP_WORDS": "kafkadur sub ", "COMP_CWORD": "2"},
        300,
    ),
    ("kafkadur sub ls", (*_CLI, "sub", "ls"), {}, 500),
)


def main(
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs of each program.")] = 20,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how long programs take to start."""
    with embedded() as stack:
        environment = {**os.environ, "KAFKADUR_KAFKA": stack.kafka, "KAFKADUR_REDIS": stack.redis}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process would compile the whole package
        took: dict[str, list[float]] = {name: [] for name, *_ in _PROGRAMS}
        with Progress(console=Console(stderr=True), transient=True) as progress:
            for _ in progress.track(range(runs + 1)):
                for name, command, more, _goal in _PROGRAMS:
                    began = time.perf_counter()
                    subprocess.run(command, env={**environment, **more}, capture_output=True, check=False)
                    took[name].append((time.perf_counter() - began) * 1000)
    medians = {name: statistics.median(of[1:]) for name, of in took.items()}  # the first one compiles
    if as_json:
        typer.echo(json.dumps({"runs": runs, "median_ms": medians}))
        return
    table = Table("program", "median, ms", "goal, ms")
    for name, _, _, goal in _PROGRAMS:
        table.add_row(name, f"{medians[name]:.0f}", "" if goal is None else str(goal))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
