"""Builds what a release consists of (`make dist`), and tries it as a user would.

The source distribution and the wheel, which has the compiled client for this platform, are laid into `dist/`.
Then a new virtual environment gets the wheel and nothing else, and runs the first program of the README on
servers that it starts itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tools.environment import clean_environ
from tools.places import LOCK, PYTHON, ROOT

DIST = ROOT / "dist"
#: Checks the description that package indexes show. No other tool needs it, so it is not locked.
TWINE = "twine==6.2.0"
#: Files of the wheel, one of each kind.
NEEDED = (
    "kafkadur/py.typed",
    "kafkadur/service/page/index.html",
    "kafkadur/stack/kafka-jars.lock",
    "kafkadur_coordinators/redis/coordinator.py",
    "kafkadur_sharing/errors.py",
    "kafkadur_spark/__init__.py",
)
_PROGRAM = re.compile(r"```python\n(import asyncio.*?)```", re.DOTALL)
_ORDERS = 6


class DistError(Exception):
    """The distribution cannot be built, or does not work; the text says why."""


def main() -> int:
    """Build and try; returns the exit status."""
    try:
        with tempfile.TemporaryDirectory(prefix="kafkadur-dist-") as scratch:
            wheel = build()
            check(wheel)
            attempt(wheel, Path(scratch))
    except DistError as error:
        say(f"{error}.")
        return 1
    for file in sorted(DIST.iterdir()):
        say(f"{file.relative_to(ROOT)}, {file.stat().st_size / 1_000_000:.1f} MB")
    say("ready.")
    return 0


def say(text: str) -> None:
    """Tell the user what happens."""
    sys.stderr.write(f"dist: {text}\n")
    sys.stderr.flush()


def run(failed: str, command: Sequence[str | Path], *, cwd: Path = ROOT) -> str:
    """Run a command and return its standard output. Raises DistError that begins with `failed`."""
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(),
        cwd=cwd,
    )
    if done.returncode:
        raise DistError(f"{failed}: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def environment() -> dict[str, str]:
    """Return the environment of the commands: nothing in it says where packages or servers are."""
    return {name: value for name, value in clean_environ().items() if not name.startswith("KAFKADUR_")}


def build() -> Path:
    """Build the source distribution, and the wheel from it; returns the wheel. Raises DistError."""
    say("building the source distribution and the wheel.")
    shutil.rmtree(DIST, ignore_errors=True)
    locked = ("--build-constraints", LOCK, "--python", PYTHON)
    run("nothing could be built", (PYTHON, "-m", "uv", "build", *locked, "--out-dir", DIST, ROOT))
    (DIST / ".gitignore").unlink(missing_ok=True)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check(wheel: Path) -> None:
    """Raise DistError unless the files are in the distribution that belong there, and no others."""
    say("checking what is in them.")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    if not any("/_native." in name and name.endswith((".so", ".pyd")) for name in names):
        raise DistError(f"the compiled client is not in {wheel.name}: there is no C compiler")
    if missing := [name for name in NEEDED if name not in names]:
        raise DistError(f"{wheel.name} lacks {', '.join(missing)}")
    if more := [name for name in names if not name.startswith("kafkadur")]:
        raise DistError(f"{wheel.name} has files that only the checkout needs: {', '.join(more[:3])}")
    (source,) = DIST.glob("*.tar.gz")
    with tarfile.open(source) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    known = run("git does not list the files", ("git", "ls-files", "-z"), cwd=ROOT).split("\0")
    if foreign := sorted(held - {*known, "PKG-INFO", ""}):
        raise DistError(f"{source.name} has files that are not in the repository: {', '.join(foreign[:3])}")
    files = (wheel, source)
    run(
        "twine complains",
        (PYTHON, "-m", "uv", "tool", "run", "--from", TWINE, "twine", "check", "--strict", *files),
    )


def attempt(wheel: Path, scratch: Path) -> None:
    """Install the wheel into an environment of its own, and run the first program. Raises DistError."""
    say("installing the wheel into a new virtual environment.")
    home = scratch / "venv"
    run("there is no new virtual environment", (PYTHON, "-m", "uv", "venv", "--python", PYTHON, home))
    python, command = home / "bin" / "python", home / "bin" / "kafkadur"
    uv = (PYTHON, "-m", "uv", "pip", "install", "--python", python, "--constraints", LOCK)
    run("the wheel cannot be installed", (*uv, f"{wheel}[cli,embedded,serve]"))
    program = "import sys; from kafkadur.native.choice import is_native; sys.exit(not is_native())"
    run("the compiled client does not work", (python, "-c", program), cwd=scratch)
    say(run("there is no command", (command, "--version"), cwd=scratch).strip() + ".")
    run("the service cannot be imported", (python, "-c", "import kafkadur.service.application"), cwd=scratch)
    say("running the first program of the README.")
    found = _PROGRAM.search((ROOT / "README.md").read_text())
    if found is None:
        raise DistError("the README has no first program")
    (scratch / "first.py").write_text(found[1])
    run("the servers do not start", (command, "up"), cwd=scratch)
    try:
        printed = run("the first program failed", (python, "-W", "error", "first.py"), cwd=scratch)
    finally:
        run("the servers do not stop", (command, "down"), cwd=scratch)
    if printed.count("order") != _ORDERS or "attempt 2" not in printed:
        raise DistError(f"the first program printed something else: {printed}")


if __name__ == "__main__":
    sys.exit(main())
