"""The lock file has everything that pyproject.toml asks for, with hashes, and names no index."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked() -> dict[str, str]:
    """Return version by name of the packages in the lock file."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", LOCK, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def test_every_package_has_hashes() -> None:
    blocks = re.split(r"^(?=[\w.-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert blocks
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_the_lock_names_no_index() -> None:
    assert re.findall(r"\w+://\S+|^-.*|^--\S*index.*", LOCK, re.MULTILINE) == []


def test_every_requirement_is_locked() -> None:
    project = PROJECT["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    for group in PROJECT["dependency-groups"].values():
        wanted += group
    pins = locked()
    missing = [
        str(requirement)
        for requirement in map(Requirement, wanted)
        if requirement.name != project["name"]
        and pins.get(canonicalize_name(requirement.name), "") not in requirement.specifier
    ]
    assert missing == [], "run `make lock`"
