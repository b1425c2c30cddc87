"""The files of scripts are read at once: a process that is short of file descriptors later needs them."""

from pathlib import Path

import pytest

from kafkadur_coordinators.redis import scripts


def test_files_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = scripts.names()  # the first use
    monkeypatch.setattr(scripts, "_FOLDER", tmp_path / "gone")
    for cached in (scripts.load, scripts._read):  # noqa: SLF001 - what was read before must not count
        cached.cache_clear()
    loaded = [scripts.load(name) for name in names]
    assert len(loaded) > 10
    assert all(script.text for script in loaded)
