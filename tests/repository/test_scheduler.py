"""A run of tests goes on when one of its workers crashes."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests.conftest import pytest_xdist_make_scheduler  # noqa: F401 - a hook of pytest
"""
TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(40))
def test_one(number):
    if number == CRASHES:
        os._exit(1)
"""


@pytest.mark.long
def test_other_tests_run_when_a_worker_crashes_early_and_at_the_end(tmp_path: Path) -> None:
    """Each crashed test is named as failed, and not tried again."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name, crashes in [("early", 3), ("late", 39)]:
        (tmp_path / f"test_{name}.py").write_text(TESTS.replace("CRASHES", str(crashes)))
    # Without the summary (-rN), which names each failure again and cuts its text only where CI is not set.
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-q", "-rN", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 failed, 78 passed" in run.stdout, run.stdout
    assert run.stdout.count("crashed while running") == 2
