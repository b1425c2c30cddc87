"""The tutorials as a reader follows them: in a new folder and virtual environment, block by block."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TUTORIAL, OF_AMQP = (ROOT / "docs" / name for name in ("tutorial.md", "tutorial-amqp.md"))
LIMIT_S = 60.0

#: Commands that go on until Ctrl-C, and what they print when they are ready.
STAYS = dict.fromkeys(("kafkadur run", "kafkadur serve", "kafkadur gateway"), "Ctrl-C ends it")


class Reader:
    """Somebody who types what the tutorial says."""

    def __init__(self, folder: Path) -> None:
        """`folder` is empty."""
        self._folder = folder
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KAFKADUR_", "COVERAGE_", "VIRTUAL_ENV"))
        }
        self._stays: list[subprocess.Popen[bytes]] = []
        self._files = 0

    def write(self, name: str, code: str) -> None:
        """Write a program."""
        (self._folder / name).write_text(code)

    def type(self, command: str) -> str:
        """Type a command; returns what it printed, on both outputs."""
        if command == ". .venv/bin/activate":
            path = f"{self._folder / '.venv' / 'bin'}{os.pathsep}{self._environment['PATH']}"
            self._environment["PATH"] = path
            return ""
        if command.startswith("pip install"):
            command = command.replace("'kafkadur[", f"'{ROOT}[")
        begins = " ".join(shlex.split(command)[:2])
        if begins in STAYS:
            return self._stay(command, STAYS[begins])
        done = subprocess.run(
            ["bash", "-c", command], cwd=self._folder, env=self._environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def _stay(self, command: str, ready: str) -> str:
        """Start a command that stays, after one of the same kind was ended with Ctrl-C."""
        self.interrupt(" ".join(shlex.split(command)[:2]))
        self._files += 1
        output = self._folder / f"output-{self._files}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                shlex.split(command), cwd=self._folder, env=self._environment, stdout=file, stderr=file
            )  # fmt: skip
        self._stays.append(process)
        wait_for(lambda: ready in output.read_text() or process.poll() is not None, f"{command} is ready")
        assert process.poll() is None, output.read_text()
        return ""

    def printed(self) -> str:
        """Return what the commands that stay have printed."""
        return "".join(file.read_text() for file in sorted(self._folder.glob("output-*")))

    def interrupt(self, begins: str = "") -> None:
        """Press Ctrl-C in the terminals of the commands that stay."""
        for process in self._stays:
            if " ".join(map(str, process.args)).startswith(begins):  # type: ignore[arg-type]  # it is a list
                process.send_signal(signal.SIGINT)
                process.wait(LIMIT_S)
        self._stays = [process for process in self._stays if process.poll() is None]


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def steps(tutorial: Path) -> Iterator[tuple[str, str]]:
    """Yield the blocks of a tutorial: language, and content."""
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", tutorial.read_text(), re.DOTALL | re.MULTILINE):
        yield found[1], found[2]


@pytest.mark.long
def test_a_reader_gets_to_its_end(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    printed: dict[str, list[str]] = {}
    try:
        for language, block in steps(TUTORIAL):
            if language == "python":
                reader.write(block.partition("\n")[0].removeprefix("# "), block)
                continue
            for line in block.splitlines():
                command = line.removeprefix("$ ")
                if command == "kafkadur sub dead ls billing":
                    wait_for(
                        lambda: all(part in reader.type("kafkadur sub dead ls billing") for part in LETTERS),
                        "both dead letters are there",
                    )
                if command == "kafkadur down":
                    wait_for(
                        lambda: "credit for order 2: 1.00 EUR" in reader.printed(), "the credit is printed"
                    )
                    reader.interrupt()
                printed.setdefault(command, []).append(reader.type(command))
    except BaseException:
        sys.stderr.write(reader.printed())
        raise
    finally:
        reader.interrupt()
        subprocess.run([sys.executable, "-m", "kafkadur.cli", "down"], cwd=tmp_path, check=False)
    assert re.search(r"invoices .*\b3\b", printed["kafkadur sub ls"][0]), printed["kafkadur sub ls"][0]
    (first,) = printed['python receive.py || echo "It died."']
    assert first.rstrip().endswith("order 2, attempt 1\nIt died.")
    (second,) = printed["python receive.py"]
    assert "order 2, attempt 2" in second
    told = reader.printed()
    assert "order 1: 9.50 EUR" in told
    assert "order 3: 20.00 EUR" in told


#: Causes of the dead letters of the tutorial.
LETTERS = ("attempts", "undecodable")


@pytest.mark.long
def test_a_reader_of_amqp_gets_to_its_end(tmp_path: Path) -> None:
    """With JavaScript where Node.js is installed; .NET and Maven are not tried here."""
    pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")
    reader = Reader(tmp_path)
    printed: dict[str, str] = {}
    has_node = shutil.which("npm") is not None and shutil.which("node") is not None
    try:
        for language, block in steps(OF_AMQP):
            if language in {"python", "javascript"}:
                reader.write(re.split(r"[# /\n]+", block)[1], block)
                continue
            for line in block.splitlines() if language == "console" else ():
                command = line.removeprefix("$ ")
                program = command.split()[0]
                if command == "kafkadur down":
                    reader.interrupt()
                if program != "dotnet" and (has_node or program not in {"npm", "node"}):
                    printed[command] = reader.type(command)
    except BaseException:
        sys.stderr.write(reader.printed())
        raise
    finally:
        reader.interrupt()
        subprocess.run([sys.executable, "-m", "kafkadur.cli", "down"], cwd=tmp_path, check=False)
    assert printed["python orders.py"] == "an order of Python\n"
    assert re.search(r"invoices .*\b0\b", printed["kafkadur sub ls"]), printed["kafkadur sub ls"]
    if has_node:
        assert printed["node orders.js"] == "an order of JavaScript\n"
