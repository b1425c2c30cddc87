"""Imports go one way: spark -> kafkadur -> coordinators -> sharing, and sharing does no I/O.

Read off the source text, so that an import inside a function counts as well. What a package offers is tested
in its own room.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: The folder of each import package, from the bottom up: a package may import itself and those before it.
PACKAGES = {
    "kafkadur_sharing": ROOT / "sharing" / "kafkadur_sharing",
    "kafkadur_coordinators": ROOT / "coordinators" / "kafkadur_coordinators",
    "kafkadur": ROOT / "kafkadur",
    "kafkadur_spark": ROOT / "spark" / "kafkadur_spark",
}

#: Folders that are not in the wheel: an import of them would work here and fail for users.
NOT_IN_THE_WHEEL = {"tests", "benchmarks", "tools", "examples"}

#: What the rules must do without.
IO_MODULES = {
    "asyncio", "confluent_kafka", "hiredis", "http", "multiprocessing", "redis", "selectors", "socket",
    "socketserver", "ssl", "subprocess", "threading",
}  # fmt: skip


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and top-level name of every absolute import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]


def imports_of(folder: Path, names: set[str]) -> list[str]:
    """Return "file:line name" for every import of one of `names` below a folder."""
    return [
        f"{path.relative_to(folder.parent)}:{line} {name}"
        for path in sorted(folder.rglob("*.py"))
        for line, name in imported(path.read_text(encoding="utf-8"))
        if name in names
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_of_a_room_above(package: str) -> None:
    order = list(PACKAGES)
    above = set(order[order.index(package) + 1 :])
    assert imports_of(PACKAGES[package], above | NOT_IN_THE_WHEEL) == []


def test_the_rules_do_no_io() -> None:
    assert imports_of(PACKAGES["kafkadur_sharing"], IO_MODULES) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_packages_are_where_this_test_looks(package: str) -> None:
    assert (PACKAGES[package] / "__init__.py").is_file()


def test_an_import_the_wrong_way_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "room"
    folder.mkdir()
    (folder / "a.py").write_text("def f():\n    from kafkadur.stack import up\n    import redis.asyncio\n")
    assert imports_of(folder, {"kafkadur", "redis"}) == ["room/a.py:2 kafkadur", "room/a.py:3 redis"]
