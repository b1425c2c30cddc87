"""Makes `docs/reference/rules.md` of the catalogue and the tests named by rules.

The command is ``python -m tests.integration.rules.table``.

A test is of the rules that its name begins with (`test_u5_s4_...`), a case of a table of the one that its id
begins with (`id="U4-topic"`).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.integration.rules.catalogue import GROUPS

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "reference" / "rules.md"
_NAMED = re.compile(r"test_((?:[a-z]\d+_)+)")
_CASE = re.compile(r"[A-Z]\d+")
_ANY = re.compile(r'def test_[a-z]\d|\bid="[A-Z]\d')
_HEAD = """# Rules

Who may attach, what happens to a subscription that exists already, who may unsubscribe. Each row is tested
in the files that it names, under its id: `python -m pytest -k u5`. Where the sources disagree, the setting
`mode` says whose rules hold: `jms` (the default) or `weblogic`.

Sources: UM Universal Messaging; QPID Apache Qpid; AMQ ActiveMQ and Artemis; WLS WebLogic; JM Jakarta
Messaging 3.1 with the section, JD its javadoc; TCK its compatibility kit. This file is made by
`python -m tests.integration.rules.table`.
"""


def _rules(file: Path) -> Iterator[str]:
    """The rule ids of tests and cases in a file."""
    text = file.read_text()
    if not _ANY.search(text):  # parsing every file would take seconds
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (named := _NAMED.match(node.name)):
            yield from (name.upper() for name in named[1].strip("_").split("_"))
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg == "id" and isinstance(value, str) and (case := _CASE.match(value)):
                    yield case[0]


def tested() -> Mapping[str, Mapping[Path, int]]:
    """How many tests, or cases, of each rule there are in each file."""
    found: dict[str, dict[Path, int]] = defaultdict(lambda: defaultdict(int))
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for rule in _rules(file):
            found[rule][file] += 1
    return found


def render() -> str:
    """The table as Markdown."""
    found = tested()
    lines = [_HEAD]
    for title, rules in GROUPS.items():
        lines += [
            f"## {title}",
            "",
            "| rule | situation | outcome | source | tests |",
            "|---|---|---|---|---|",
        ]
        for rule in rules:
            where = [
                f"[{file.stem}](../../{file.relative_to(ROOT).as_posix()}) {count}"
                for file, count in found.get(rule.id, {}).items()
            ]
            tests = ", ".join(where)
            lines.append(f"| {rule.id} | {rule.situation} | {rule.outcome} | {rule.source} | {tests} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    TABLE.write_text(render())
