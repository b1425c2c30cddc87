"""`make check`: format, lint, types, Lua, chart, import direction, generated files. All run, whatever fails.

What a check demands is configured in pyproject.toml and .luacheckrc; here is only how each is started.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tools.places import ROOT

#: Everything that holds Python of ours; what is not there yet is left out.
FOLDERS = ("kafkadur", "coordinators", "sharing", "spark", "tests", "benchmarks", "tools", "examples", "docs")

#: Writes the sync surface from the async one.
GENERATOR = ROOT / "tools" / "generate_sync.py"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check."""

    name: str
    #: What to run with this Python.
    arguments: tuple[str, ...]


def main() -> int:
    """Run all checks and print a summary; return the exit status."""
    results = [(check.name, *run(check)) for check in checks()]
    print("\ncheck: summary")
    for name, passed, seconds in results:
        print(f"  {'ok    ' if passed else 'FAILED'}  {name}  ({seconds:.1f} s)")
    failed = [name for name, passed, _ in results if not passed]
    print(f"check: {'failed: ' + ', '.join(failed) if failed else 'ok'}")
    return 1 if failed else 0


def checks() -> Iterator[Check]:
    """Yield all checks, the quick ones first."""
    folders = tuple(folder for folder in FOLDERS if any((ROOT / folder).rglob("*.py")))
    yield Check(name="format", arguments=("-m", "ruff", "format", "--check", "--quiet", "--diff", *folders))
    yield Check(
        name="lint", arguments=("-m", "ruff", "check", "--quiet", "--output-format", "concise", *folders)
    )
    yield Check(name="lua", arguments=("-m", "tools.check_lua"))
    yield Check(name="helm", arguments=("-m", "tools.check_helm"))
    lint_imports = "import sys, importlinter.cli as lint; sys.exit(lint.lint_imports())"
    yield Check(name="imports", arguments=("-c", lint_imports))
    yield Check(name="repository", arguments=("-m", "pytest", "--quiet", "tests/repository"))
    if GENERATOR.exists():
        yield Check(name="sync from async", arguments=("-m", "tools.generate_sync", "--check"))
    yield Check(name="docs", arguments=("-m", "tools.docs"))
    yield Check(name="mypy", arguments=("-m", "mypy", *folders))
    yield Check(name="pyright", arguments=("-m", "pyright", "--warnings"))


def run(check: Check) -> tuple[bool, float]:
    """Run one check, its output on the screen; return whether it passed and the seconds it took."""
    print(f"check: {check.name}", flush=True)
    started = time.monotonic()
    done = subprocess.run([sys.executable, *check.arguments], check=False, cwd=ROOT)
    return done.returncode == 0, time.monotonic() - started


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
