"""`make dist`: what it builds works in an environment that has nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
def test_the_distribution_is_whole_and_works() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.dist"],
        check=False, capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("dist: ready.\n")
    assert {file.suffix for file in (ROOT / "dist").iterdir()} == {".whl", ".gz"}
