"""Makes the synchronous surface `kafkadur/sync` from the asynchronous one `kafkadur/aio`.

    python -m tools.generate_sync           writes the files
    python -m tools.generate_sync --check   fails when they are not what would be written

The source is taken as a syntax tree and `async` and `await` are taken out of it; comments and layout come
back as ruff formats them. What waits differently is written twice by hand: `waiting.py`.
"""

from __future__ import annotations

import ast
import subprocess
import sys

from tools.places import ROOT

_SOURCE = ROOT / "kafkadur" / "aio"
_TARGET = ROOT / "kafkadur" / "sync"
_FILES = (
    "__init__.py",
    "connection.py",
    "delivery.py",
    "distributed.py",
    "durable.py",
    "running.py",
    "session.py",
    "subscribing.py",
    "subscription.py",
)
_NAMES = {
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "StopAsyncIteration": "StopIteration",
}
_HEAD = "# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.\n"


class _Synchronous(ast.NodeTransformer):
    """Takes `async` and `await` out."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        plain = ast.FunctionDef(
            name=_NAMES.get(node.name, node.name),
            args=node.args,
            body=node.body,
            decorator_list=node.decorator_list,
            returns=node.returns,
        )
        return ast.copy_location(plain, node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.name = _NAMES.get(node.name, node.name)
        return node

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        return node.value

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        plain = ast.For(target=node.target, iter=node.iter, body=node.body, orelse=node.orelse)
        return ast.copy_location(plain, node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.With(items=node.items, body=node.body), node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = _NAMES.get(node.id, node.id)
        return node

    def visit_alias(self, node: ast.alias) -> ast.AST:
        node.name = _NAMES.get(node.name, node.name)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        self.generic_visit(node)
        if node.module and node.module.startswith("kafkadur.aio"):
            node.module = node.module.replace("kafkadur.aio", "kafkadur.sync", 1)
        node.names = list({(name.name, name.asname): name for name in node.names}.values())
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            text = node.value.replace("kafkadur/sync/", "kafkadur/SYNC/").replace(
                "kafkadur/aio/", "kafkadur/sync/"
            )
            text = text.replace("an asynchronous iterator", "an iterator").replace(
                "asynchronous surface", "synchronous surface"
            )
            node.value = text.replace("kafkadur/SYNC/", "kafkadur/sync/")
        return node


def generate(name: str) -> str:
    """The synchronous text of one file."""
    tree = _Synchronous().visit(ast.parse((_SOURCE / name).read_text(encoding="utf-8")))
    text = _HEAD + ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    target = str(_TARGET / name)
    ruff = [sys.executable, "-m", "ruff"]
    sorted_ = subprocess.run(
        [*ruff, "check", "--quiet", "--fix", "--select", "I", "--stdin-filename", target, "-"],
        input=text, capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip
    return subprocess.run(
        [*ruff, "format", "--stdin-filename", target, "-"],
        input=sorted_, capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip


def main() -> int:
    """Write or check; 1 when a file is not up to date."""
    check = "--check" in sys.argv[1:]
    stale = []
    for name in _FILES:
        text = generate(name)
        target = _TARGET / name
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                target.write_text(text, encoding="utf-8")
    if check and stale:
        sys.stderr.write(
            f"not up to date: kafkadur/sync/{', '.join(stale)}: run python -m tools.generate_sync\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
