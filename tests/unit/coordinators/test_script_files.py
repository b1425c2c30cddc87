"""The files of scripts are read at once: a process that is short of file descriptors later needs them."""

from pathlib import Path

import pytest

from kafkadur_coordinators.redis import scripts


def test_files_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = {name: scripts.load(name) for name in scripts.names()}
    monkeypatch.setattr(scripts, "_FOLDER", tmp_path / "gone")
    scripts.load.cache_clear()
    assert {name: scripts.load(name) for name in scripts.names()} == before
    assert len(before) > 10
