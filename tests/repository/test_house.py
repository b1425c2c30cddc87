"""What keeps the sources easy to live in: rooms, sizes, no import circle, one writer of verdicts."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {
    "kafkadur": "kafkadur",
    "kafkadur_coordinators": "coordinators/kafkadur_coordinators",
    "kafkadur_sharing": "sharing/kafkadur_sharing",
    "kafkadur_spark": "spark/kafkadur_spark",
}
MOST_LOOSE_MODULES = 8
MOST_LINES = 600
MOST_METHODS = 40
MOST_LINES_OF_A_FUNCTION = 60
#: Admin requests in which librdkafka damages memory or ends the process (docs/internals/reliability.md).
DANGEROUS = {
    "list_offsets",
    "delete_records",
    "list_consumer_group_offsets",
    "alter_consumer_group_offsets",
    "delete_consumer_groups",
    "describe_consumer_groups",
}
#: This file finds the leaders of all partitions before it asks.
MAY_LIST_OFFSETS = "kafkadur/testing/pytest_plugin.py"


def sources() -> Iterator[tuple[str, ast.Module, int]]:
    """Yield name, tree and number of lines of every source file that is written by hand."""
    for folder in PACKAGES.values():
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not text.startswith("# Generated from"):
                yield str(path.relative_to(ROOT)), ast.parse(text), text.count("\n")


def within(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the classes and functions below a node, with their dotted names."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}.{child.name}"
            yield name, child
        yield from within(child, name)


def test_few_modules_lie_outside_of_rooms() -> None:
    loose = [path.name for path in (ROOT / "kafkadur").glob("*.py")]
    assert len(loose) <= MOST_LOOSE_MODULES, loose


def test_files_are_short() -> None:
    assert [name for name, _, lines in sources() if lines > MOST_LINES] == []


def test_classes_are_small() -> None:
    large = [
        f"{file}{name}"
        for file, tree, _ in sources()
        for name, node in within(tree, ":")
        if isinstance(node, ast.ClassDef)
        and sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body) > MOST_METHODS
    ]
    assert large == []


def test_functions_are_short() -> None:
    """The docstring does not count: what a public function promises takes the lines that it takes."""
    long = [
        f"{file}{name}"
        for file, tree, _ in sources()
        for name, node in within(tree, ":")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and lines_of(node) > MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function without its docstring."""
    lines = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    return lines


def test_no_modules_import_each_other() -> None:
    """Imports for type checkers alone count: they say who knows whom."""
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False, cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    assert circles(imports) == []


def circles(imports: Mapping[str, set[str]]) -> list[str]:
    """Return the modules that import themselves through others."""

    def reached(module: str) -> set[str]:
        seen: set[str] = set()
        left = [module]
        while left:
            for other in imports[left.pop()] - seen:
                seen.add(other)
                left.append(other)
        return seen

    return sorted(module for module in imports if module in reached(module))


@pytest.mark.parametrize("imports", [{"a": {"b"}, "b": {"a"}}, {"a": {"b"}, "b": {"c"}, "c": {"a"}}])
def test_a_circle_is_found(imports: dict[str, set[str]]) -> None:
    assert circles(imports) == sorted(imports)


def test_policies_alone_know_the_type_of_a_subscription() -> None:
    asking = re.compile(r"\bSubscriptionType\b|definition\.(type|scope)\b")
    room = ROOT / "kafkadur" / "consumer"
    asked = {
        str(path.relative_to(room))
        for path in room.rglob("*.py")
        if asking.search(path.read_text(encoding="utf-8"))
    }
    assert asked == {"policy/choose.py"}


def test_one_module_writes_verdicts() -> None:
    """All changes of a verdict byte lie in one file, where each says which byte it expects."""
    written = re.compile(r"\bverdicts\[[^]]*\] *=(?!=)|\.verdicts *=(?! *Verdicts\(|=)")
    writers = {
        str(path.relative_to(ROOT))
        for room in ("aio", "consumer", "fetch", "handlers", "jms", "runtime")
        for path in (ROOT / "kafkadur" / room).glob("*.py")
        if written.search(path.read_text(encoding="utf-8"))
    }
    assert writers == {"kafkadur/consumer/chunk.py"}


def test_no_admin_request_that_damages_memory_is_used() -> None:
    used = {
        (name, node.attr)
        for name, tree, _ in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in DANGEROUS
    }
    assert used == {(MAY_LIST_OFFSETS, "list_offsets")}
