"""Installs packages into `.venv` with pip, with a progress bar. Which ones and when is `environment.py`."""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from tools.failures import failure
from tools.places import PYTHON, ROOT, SITE_PACKAGES, VENV
from tools.progress import Bar

#: Everything pip said last; progress is read off it.
LOG = VENV / "kafkadur-setup.log"

#: Seconds between two looks at the progress of pip.
LOOK_S = 0.2

#: Lines by which pip says that it has dealt with one line of a lock file.
DEALT_WITH = re.compile(r"^(?:Collecting|Ignoring|Requirement already satisfied:) ", re.MULTILINE)

#: Settings of the user that would make pip install elsewhere than into `.venv`, or Python import from there.
ELSEWHERE = {
    "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV", "PYTHONPATH", "PYTHONHOME",
}  # fmt: skip


def install_locked(what: str, lock: Path) -> None:
    """Install all packages of a lock file, each checked against its hashes. Raises SetupError.

    Lock files are complete, hence `--no-deps`; build tools are locked as well, hence no build isolation.
    """
    lines = len(re.findall(r"^[\w.-]+==", lock.read_text(), re.MULTILINE))
    _install(what, lines, "--no-deps", "--no-build-isolation", "--require-hashes", "--requirement", str(lock))


def install_project() -> None:
    """Install the project itself, editable. Raises SetupError."""
    _install("the project", 1, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))


def drop_half_installed() -> None:
    """Forget packages whose installation was cut off, so that pip does it again.

    pip writes RECORD last of all; without it, the rest of the metadata would pass for an installed package.
    """
    for metadata in SITE_PACKAGES.glob("*.dist-info"):
        if not (metadata / "RECORD").exists():
            shutil.rmtree(metadata)


def clean_environ() -> dict[str, str]:
    """Return the environment without what leads pip or Python out of `.venv`; proxies and mirrors stay."""
    kept = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    return {
        **kept,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }


def _install(what: str, lines: int, *arguments: str) -> None:
    """Run pip: it collects each of the `lines`, then unpacks all packages, of which it says nothing."""
    command = [str(PYTHON), "-m", "pip", "install", "--retries", "3", *arguments]
    before = _installed()
    with LOG.open("w") as log, Bar(f"setup: installing {what}", 2 * lines) as bar:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_environ(), cwd=ROOT
        )
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
                collected = min(len(DEALT_WITH.findall(LOG.read_text())), lines)
                bar.update(collected + min(_installed() - before, lines - 1))
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode == 0:
            bar.update(2 * lines)
    if process.returncode:
        raise failure(f"{what} cannot be installed", LOG.read_text())


def _installed() -> int:
    """Return the count of packages unpacked in `.venv`."""
    return sum(1 for _ in SITE_PACKAGES.glob("*.dist-info"))
