"""The lock files are those of pyproject.toml, complete, with hashes, and name no index."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import LOCKS, Lock, digest, stale

ROOT = Path(__file__).resolve().parents[2]
FILES = [lock.file for lock in LOCKS]


def locked(file: str) -> dict[str, str]:
    """Return version by name of the packages in a lock file."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / file).read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def test_the_locks_are_made_from_this_pyproject() -> None:
    assert stale() == [], "run `make lock`"


def test_another_dependency_makes_a_lock_stale() -> None:
    with_project, without = (Lock(file="x", groups=("build",), project=project) for project in (True, False))
    assert digest(with_project) != digest(without)


@pytest.mark.parametrize("file", FILES)
def test_every_package_has_hashes(file: str) -> None:
    blocks = re.split(r"^(?=[\w.-]+==)", (ROOT / file).read_text(), flags=re.MULTILINE)[1:]
    assert blocks
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("file", FILES)
def test_a_lock_names_no_index(file: str) -> None:
    assert re.findall(r"\w+://\S+|^-.*|^--\S*index.*", (ROOT / file).read_text(), re.MULTILINE) == []


def test_every_requirement_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for lock in LOCKS:
        wanted = [text for group in lock.groups for text in project["dependency-groups"][group]]
        if lock.project:
            wanted += project["project"]["dependencies"]
        pins = locked(lock.file)
        for requirement in map(Requirement, wanted):
            assert pins.get(canonicalize_name(requirement.name), "") in requirement.specifier, requirement


def test_locks_agree_on_versions() -> None:
    main, build = locked("requirements.lock"), locked("requirements-build.lock")
    assert {name: main.get(name) for name in build} == build
