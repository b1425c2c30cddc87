"""A short soak: all messages are handled through restarts and small faults, and the report says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak.working import TYPES

OPTIONS = ["--hours", "0.04", "--every", "35", "--rate", "300", "--json"]


@pytest.mark.long
def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    """It may find growth: two minutes are too short to say that there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *OPTIONS, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    found = json.loads(done.stdout)
    assert found["lost"] == dict.fromkeys(TYPES, 0)
    assert found["published"] > 20_000
    assert sum(found["disturbances"].values()) >= 3
    assert {"stays", "visitor", "Redis, data", "p99, ms"} <= found["slopes"].keys()
    assert json.loads((tmp_path / "soak.json").read_text(encoding="utf-8")) == found
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
