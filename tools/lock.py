"""Writes the lock files (`make lock`) and says, without network, whether they are those of pyproject.toml.

Each lock file opens with a digest of what it was made from. Installing from them is `environment.py`.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from tools.places import PYPROJECT, ROOT

#: No host of an index and no path of this machine may get into a lock file: mirrors are the user's choice.
OPTIONS = (
    "--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url", "--no-header",
    "--quiet",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Lock:
    """One lock file."""

    #: Its name in the root folder.
    file: str
    #: Dependency groups of pyproject.toml it locks.
    groups: tuple[str, ...]
    #: Whether it locks the project's own dependencies too.
    project: bool
    #: Lock files written before whose versions it must share.
    agrees_with: tuple[str, ...] = ()


LOCKS = (
    Lock(file="requirements.lock", groups=("build", "dev"), project=True),
    Lock(
        file="requirements-build.lock", groups=("build",), project=False, agrees_with=("requirements.lock",)
    ),
    Lock(file="requirements-image.lock", groups=("image",), project=True, agrees_with=("requirements.lock",)),
    Lock(
        file="requirements-spark.lock", groups=("spark",), project=False, agrees_with=("requirements.lock",)
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the lock files; return the exit status."""
    parser = argparse.ArgumentParser(prog="lock", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which lock files are out of date")
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest versions, not those locked now"
    )
    options = parser.parse_args(arguments)
    if options.check:
        return report(stale())
    for lock in LOCKS:
        text = compiled(lock, upgrade=options.upgrade)
        (ROOT / lock.file).write_text(header(lock) + text)
        print(f"{lock.file}: {len(re.findall(r'^[a-z0-9]', text, re.MULTILINE))} packages")
    return 0


def report(files: Sequence[str]) -> int:
    """Tell which lock files are out of date; return the exit status."""
    for file in files:
        print(f"{file} is not made from this pyproject.toml: run `make lock`", file=sys.stderr)
    return 1 if files else 0


def stale() -> list[str]:
    """Return the names of the lock files that are missing or not made from the present pyproject.toml."""
    return [lock.file for lock in LOCKS if not is_fresh(lock)]


def is_fresh(lock: Lock) -> bool:
    """Say whether a lock file is made from the present pyproject.toml."""
    path = ROOT / lock.file
    return path.exists() and path.read_text().startswith(header(lock))


def header(lock: Lock) -> str:
    """Return the first lines of a lock file."""
    return f"# Written by `make lock`, not by hand.\n# Made from: {digest(lock)}\n"


def digest(lock: Lock) -> str:
    """Return the SHA-256 of all that decides about a lock file: parts of pyproject.toml, and the options."""
    project = tomllib.loads(PYPROJECT.read_text())
    wanted: dict[str, object] = {
        "dependencies": project["project"]["dependencies"] if lock.project else [],
        "groups": {group: project["dependency-groups"][group] for group in lock.groups},
        "uv": project["tool"]["uv"],
        "python": project["project"]["requires-python"],
        "options": OPTIONS,
    }
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()


def compiled(lock: Lock, *, upgrade: bool) -> str:
    """Return what uv resolves for a lock file. Versions locked now are kept if they fit, unless `upgrade`."""
    command = [sys.executable, "-m", "uv", "pip", "compile", *OPTIONS, "--output-file", str(ROOT / lock.file)]
    for group in lock.groups:
        command += ["--group", group]
    for other in lock.agrees_with:
        command += ["--constraints", other]
    if lock.project:
        command.append("pyproject.toml")
    if upgrade:
        command.append("--upgrade")
    subprocess.run(command, check=True, cwd=ROOT)
    return (ROOT / lock.file).read_text()


if __name__ == "__main__":
    sys.exit(main())
