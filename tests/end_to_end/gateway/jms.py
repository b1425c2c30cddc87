"""Apache Qpid JMS: its jars, fetched once and verified, and programs of it in a JVM of their own."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from kafkadur.stack.jars import IVY_DEPENDENCY, IVY_MODULE, IVY_SETTINGS, cache_folder, ivy_jar, parse_lock
from kafkadur.stack.java import Java

HERE = Path(__file__).parent
LOCK = HERE / "qpid-jms.lock"
#: Seconds for the download, and for a scenario.
FETCH_S, SCENARIO_S = 600, 240


def jars(java: Java) -> Path:
    """Return the folder of the verified jars; the Ivy inside pyspark fetches them if the cache lacks them."""
    folder = cache_folder() / f"qpid-jms-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    if not _wrong(folder):
        return folder
    ivy = ivy_jar()
    if ivy is None:
        pytest.skip("pyspark is not installed, whose Ivy fetches Qpid JMS")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="qpid-", dir=folder.parent) as work:
        fetched = Path(work) / "jars"
        _fetch(java, ivy, Path(work), fetched)
        assert _wrong(fetched) == []
        shutil.rmtree(folder, ignore_errors=True)
        try:
            fetched.rename(folder)
        except OSError:  # another process was faster
            assert _wrong(folder) == []
    return folder


def _fetch(java: Java, ivy: Path, work: Path, target: Path) -> None:
    settings, module = work / "ivysettings.xml", work / "ivy.xml"
    settings.write_text(IVY_SETTINGS)
    listed = "\n".join(IVY_DEPENDENCY.format(jar=jar) for jar in parse_lock(LOCK.read_text()))
    module.write_text(IVY_MODULE.format(dependencies=listed))
    done = subprocess.run(
        [
            java.command, f"-Divy.home={work}", "-cp", str(ivy), "org.apache.ivy.Main",
            "-settings", str(settings), "-ivy", str(module), "-cache", str(work / "cache"),
            "-retrieve", f"{target}/[artifact]-[revision].[ext]", "-types", "jar", "bundle",
        ],
        capture_output=True, text=True, timeout=FETCH_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]


def _wrong(folder: Path) -> list[str]:
    """Return the names of jars that are missing or have another content."""
    return [
        jar.file
        for jar in parse_lock(LOCK.read_text())
        if not (folder / jar.file).is_file()
        or hashlib.sha256((folder / jar.file).read_bytes()).hexdigest() != jar.sha256
    ]


class Jms:
    """Runs scenarios of `Scenarios.java`."""

    def __init__(self, java: Java, classes: Path) -> None:
        """Compile them into the folder `classes`."""
        self._java = java
        self._classes = str(classes)
        self._path = f"{classes}:{jars(java)}/*"
        self.compile(HERE / "Scenarios.java")

    def compile(self, source: Path) -> None:
        """Compile a program; its class is named in `program`."""
        compiler = Path(self._java.command).resolve().with_name("javac")
        if not compiler.exists():
            pytest.skip("there is no Java compiler: a JDK has one")
        subprocess.run(
            [str(compiler), "-Xlint:all", "-cp", self._path, "-d", self._classes, str(source)],
            check=True,
            timeout=FETCH_S,
        )

    def program(self, name: str, *arguments: str) -> Sequence[str]:
        """Return the command that runs a class."""
        virtual_machine = [self._java.command, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [*virtual_machine, "-cp", self._path, name, *arguments]

    def command(self, scenario: str, *arguments: str) -> Sequence[str]:
        """Return the command that runs a scenario."""
        return self.program("Scenarios", scenario, *arguments)

    def run(self, scenario: str, *arguments: str) -> list[str]:
        """Run a scenario to its end; returns the lines that it printed."""
        done = subprocess.run(
            self.command(scenario, *arguments),
            capture_output=True,
            text=True,
            timeout=SCENARIO_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()
