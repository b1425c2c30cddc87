"""Files written by a tool are what the tool would write now. Lock files are in `test_locks.py`."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Tools that write source files; each takes --check.
GENERATORS = ["generate_sync", "generate_reference"]


@pytest.mark.parametrize("generator", GENERATORS)
def test_generated_files_are_up_to_date(generator: str) -> None:
    if importlib.util.find_spec(f"tools.{generator}") is None:
        pytest.skip(f"tools/{generator}.py is not part of this checkout")
    done = subprocess.run(
        [sys.executable, "-m", f"tools.{generator}", "--check"],
        check=False, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
