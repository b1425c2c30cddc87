"""Java and the jars: what is missing or wrong is said in words, and only verified files are kept."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kafkadur.stack import StackError, cache_folder
from kafkadur.stack.jars import (
    KAFKA_VERSION,
    fetch,
    fetch_by_ivy,
    fetch_error,
    install,
    ivy_jar,
    kafka_jars,
    locked_jars,
    parse_lock,
    wrong_files,
)
from kafkadur.stack.java import find_java
from kafkadur.stack.kafka import distribution


def silent(_done: int, _all: int, _text: str) -> None:
    """Report nothing."""


@pytest.fixture
def good() -> Path:
    """Return the folder of the verified jars, fetched if this machine has none yet."""
    return distribution(silent).jars


def copied(good: Path, to: Path) -> Path:
    """Make a folder with links to all jars."""
    to.mkdir(parents=True)
    for jar in locked_jars():
        (to / jar.file).hardlink_to(good / jar.file) if _same_disk(good, to) else (to / jar.file).write_bytes(
            (good / jar.file).read_bytes()
        )
    return to


def _same_disk(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


def fake_tool(folder: Path, name: str, script: str) -> None:
    """Put a shell script on a PATH of its own."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match=r"Java was not found.*JAVA_HOME"):
        find_java()


def test_no_java_ends_a_program_with_one_sentence(tmp_path: Path) -> None:
    program = "from kafkadur.stack import embedded\nwith embedded(): pass"
    environment = {key: os.environ[key] for key in os.environ.keys() - {"JAVA_HOME"}} | {
        "PATH": str(tmp_path)
    }
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, env=environment
    )
    assert done.returncode != 0
    assert "Java was not found" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("said", ['openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_292"'])
def test_old_java(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path / "bin", "java", f"echo '{said}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StackError, match=r"is Java (11|8): too old.*17"):
        find_java()


def test_neither_maven_nor_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = find_java()
    monkeypatch.setattr("kafkadur.stack.jars.ivy_jar", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match=r"Install Maven.*or install pyspark"):
        fetch(java, tmp_path, tmp_path, silent)


def test_wrong_checksum_is_refused_and_nothing_kept(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Maven that brings one altered file: the download is refused by name."""
    java = find_java()
    altered = locked_jars()[3].file
    served = copied(good, tmp_path / "served")
    (served / altered).unlink()
    (served / altered).write_bytes(b"something else")
    script = f'for a in "$@"; do case "$a" in -DoutputDirectory=*) cp {served}/*.jar "${{a#*=}}";; esac; done'
    fake_tool(tmp_path / "bin", "mvn", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(StackError, match=rf"refused, {altered} does not match its SHA-256"):
        kafka_jars(java, silent)
    assert list((cache_folder() / f"kafka-{KAFKA_VERSION}").iterdir()) == []
    # The same tool with the right file: accepted, and a cached file that goes bad later is fetched again.
    (served / altered).write_bytes((good / altered).read_bytes())
    jars = kafka_jars(java, silent)
    (jars / altered).write_bytes(b"bit rot")
    assert wrong_files(jars) == [altered]
    assert wrong_files(kafka_jars(java, silent)) == []


def test_two_installations_at_once_leave_one_good_folder(good: Path, tmp_path: Path) -> None:
    target = tmp_path / "jars"
    fetched = [copied(good, tmp_path / f"fetched-{number}") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for done in [
            pool.submit(install, folder, target, aside=tmp_path / f"aside-{number}")
            for number, folder in enumerate(fetched)
        ]:
            done.result()
    assert wrong_files(target) == []


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("java.net.UnknownHostException: somewhere", "could not reach Maven Central"),
        ("Could not transfer artifact x: Connection refused", "could not reach Maven Central"),
        ("cannot write: No space left on device", "No space left on the disk"),
        ("[ERROR] broken pom", r"\[ERROR\] broken pom"),
        ("", "gave no reason"),
    ],
)
def test_failed_download_says_why(said: str, expected: str) -> None:
    with pytest.raises(StackError, match=expected):
        raise fetch_error(said, "Maven")


def test_lock_file_names_complete_sums() -> None:
    jars = locked_jars()
    assert len({jar.file for jar in jars}) == len(jars)
    assert all(len(jar.sha256) == 64 for jar in jars)
    assert f"kafka_2.13-{KAFKA_VERSION}.jar" in {jar.file for jar in jars}
    assert list(parse_lock("# nothing\n")) == []


@pytest.mark.long
def test_ivy_brings_the_same_files(tmp_path: Path) -> None:
    ivy = ivy_jar()
    assert ivy is not None  # pyspark brings it
    target = tmp_path / "jars"
    target.mkdir()
    fetch_by_ivy(ivy, find_java(), tmp_path, target, silent)
    assert wrong_files(target) == []
    assert len(list(target.iterdir())) == len(locked_jars())
