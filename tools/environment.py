"""Makes `.venv`: the virtual environment with the locked packages, the project itself and the Kafka jars.

Everything is inside the checkout or in the user's cache folder. The last thing written is a stamp: a run that
finds one of the same inputs has nothing to do, a run that finds none finishes what was begun. Which packages
are locked is `lock.py`, how the jars are fetched is `kafkadur.stack`.
"""

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

from tools.failures import SetupError, disk_full, failure
from tools.java import check_java, find_java
from tools.packages import clean_environ, drop_half_installed, install_locked, install_project
from tools.places import BUILD_LOCK, JARS_LOCK, LOCK, PYPROJECT, PYTHON, ROOT, SPARK_LOCK, VENV

STAMP = VENV / "kafkadur-setup.json"

#: What decides about the content of `.venv`.
INPUTS = (PYPROJECT, BUILD_LOCK, LOCK, SPARK_LOCK, JARS_LOCK)


def main() -> int:
    """Set up the checkout; return the exit status."""
    try:
        prepare()
    except SetupError as error:
        say(f"{error}.")
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        say("interrupted; run it again and it goes on from here.")
        return 130
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        say(f"{disk_full() if full else f'cannot use {error.filename or VENV}: {error.strerror}'}.")
    else:
        return 0
    return 1


def prepare() -> None:
    """Bring `.venv` up to date. Raises SetupError or OSError."""
    if up_to_date():
        return
    with one_at_a_time():
        if up_to_date():
            return
        java = find_java()
        check_java(java)
        make_venv()
        # From here on an interrupted run must not look finished.
        STAMP.unlink(missing_ok=True)
        drop_half_installed()
        install_locked("the build tools", BUILD_LOCK)
        install_locked("the locked packages", LOCK)
        install_locked("pyspark and its companions, a download of 500 MB that pip keeps", SPARK_LOCK)
        install_project()
        jars = fetch_jars()
        STAMP.write_text(json.dumps({"identity": identity(), "inputs": inputs(), "java": java, "jars": jars}))
        say("ready.")


def say(text: str) -> None:
    """Tell the user what happens."""
    sys.stderr.write(f"setup: {text}\n")


# ---- what is there already


def identity() -> str:
    """Return what a virtual environment is tied to: the interpreter that made it, and its own place."""
    return f"{sys.implementation.name} {sys.version.split()[0]} {sys.base_prefix} {ROOT}"


def inputs() -> str:
    """Return a digest over all files that decide about the content of `.venv`."""
    digest = hashlib.sha256()
    for path in INPUTS:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def stamp() -> dict[str, str]:
    """Return the stamp; empty if the set-up never came to its end."""
    try:
        return dict(json.loads(STAMP.read_text()))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}


def up_to_date() -> bool:
    """Say whether there is nothing to do, without starting a process. Raises SetupError: no Java."""
    found = stamp()
    return (
        bool(found)
        and found.get("identity") == identity()
        and found.get("inputs") == inputs()
        and found.get("java") == find_java()
        and PYTHON.exists()
        and Path(found["jars"]).is_dir()
    )


@contextlib.contextmanager
def one_at_a_time() -> Generator[None]:
    """Let a second `make` in this checkout wait for the first. The folder is locked: no file is left."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout to end.")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


# ---- the virtual environment


def make_venv() -> None:
    """Make `.venv` anew unless there is a working one of this interpreter. Raises SetupError."""
    if stamp().get("identity", identity()) == identity() and works():
        return
    # Debian packs these apart from Python.
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
            raise SetupError(
                f"this Python lacks the module {module}, so it cannot make a virtual environment: "
                f"install it (Debian and Ubuntu: apt install {package})"
            )
    say(f"making {VENV.name} with Python {sys.version.split()[0]}.")
    # The interpreter itself, not a virtual environment it runs in: that may be the very one to be made anew.
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    command = [str(base) if base.exists() else sys.executable, "-m", "venv", "--clear", str(VENV)]
    made = subprocess.run(command, check=False, capture_output=True, text=True, env=clean_environ())
    if made.returncode:
        raise failure("the virtual environment cannot be made", made.stdout + made.stderr)


def works() -> bool:
    """Say whether `.venv` has this interpreter and a pip that runs."""
    program = "import pip, sys; print(sys.version.split()[0])"
    try:
        asked = subprocess.run([PYTHON, "-c", program], check=False, capture_output=True, text=True)
    except OSError:
        return False
    return asked.stdout.strip() == sys.version.split()[0]


# ---- the Kafka jars


def fetch_jars() -> str:
    """Have the Kafka jars fetched if the cache lacks them; return their folder. Raises SetupError."""
    folder, verified = cached_jars()
    if verified:
        return folder
    fetched = subprocess.run(
        [PYTHON, "-m", "kafkadur.stack.fetch"], check=False, cwd=ROOT, env=clean_environ()
    )
    folder, verified = cached_jars()
    if fetched.returncode or not verified:
        # What is wrong was said by the fetching itself.
        raise SetupError("the Kafka jars are missing, see the line above; settle that and run this again")
    return folder


def cached_jars() -> tuple[str, bool]:
    """Return the folder of the Kafka jars and whether they are all there. Raises SetupError."""
    asked = subprocess.run(
        [PYTHON, "-m", "tools.jars"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=clean_environ(),
    )
    if not asked.stdout:
        raise failure("the installed project does not work", asked.stderr)
    return asked.stdout.strip(), asked.returncode == 0
