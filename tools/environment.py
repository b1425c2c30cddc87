"""Makes `.venv` with uv: the locked packages, the project itself; and has the Kafka jars fetched meanwhile.

Everything is inside the checkout or in the user's caches. The last thing written is a stamp: a run that finds
one of the same inputs has nothing to do, a run that finds none finishes what was begun.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

from tools.java import check_java, find_java
from tools.places import BUILD_HOOK, JARS_LOCK, LOCK, NATIVE, PYPROJECT, PYTHON, ROOT, VENV
from tools.setup_messages import SetupError, say

STAMP = VENV / "kafkadur-setup.json"

#: What decides about the content of `.venv`.
INPUTS = (PYPROJECT, LOCK, JARS_LOCK, BUILD_HOOK, *sorted(NATIVE.glob("*.p?[xi]")))

#: Settings of the user that would make pip install elsewhere than into `.venv`, or Python import from there.
ELSEWHERE = {
    "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV", "PYTHONPATH", "PYTHONHOME",
    "UV_PROJECT_ENVIRONMENT", "UV_TARGET", "UV_PREFIX", "UV_SYSTEM_PYTHON", "VIRTUAL_ENV",
}  # fmt: skip

#: What uv calls the settings of pip that lead to mirrors and certificates.
COUNTERPARTS = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_DEFAULT_TIMEOUT": "UV_HTTP_TIMEOUT",
}


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
        say(f"cannot use {error.filename or VENV}: {error.strerror}.")
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
        install_uv()
        say("installing the locked packages.")
        uv("--group", "build")
        uv("--no-build-isolation", "--group", "dev", "--editable", ".")
        compiler = built()
        if not compiler:
            say(
                "the compiled client of Kafka and the gateway's AMQP engine were left out: "
                "there is no C compiler, or no header of Python."
            )
        # Maven fetches the Kafka jars while uv builds pyspark; without Maven the Ivy in pyspark does, later.
        with fetching_jars(early=bool(shutil.which("mvn"))):
            say("installing pyspark; the first time that is a download of 430 MB, which uv keeps.")
            # Stored, not compressed: its jars are compressed already, and uv unpacks the wheel at once.
            stored = ("--config-settings-package", "pyspark:--build-option=--compression=stored")
            uv("--group", "spark", *(("--group", "gateway") if compiler else ()), *stored)
        jars, verified = cached_jars()
        if not verified:
            raise SetupError("the Kafka jars are missing, see the line above; settle that and run this again")
        STAMP.write_text(json.dumps({"identity": identity(), "inputs": inputs(), "java": java, "jars": jars}))
        say("ready.")


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
    # The interpreter itself, not a virtual environment it runs in: that may be the one to be made anew.
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = str(base) if base.exists() else sys.executable
    run("the virtual environment cannot be made", python, "-m", "venv", "--clear", str(VENV))


def works() -> bool:
    """Say whether `.venv` has this interpreter and a pip that runs."""
    program = "import pip, sys; print(sys.version.split()[0])"
    try:
        asked = subprocess.run([PYTHON, "-c", program], check=False, capture_output=True, text=True)
    except OSError:
        return False
    return asked.stdout.strip() == sys.version.split()[0]


# ---- packages


def install_uv() -> None:
    """Have pip install uv, with the version and hashes of the lock. Raises SetupError."""
    locked = re.search(r"^uv==.*\n(?: +--hash=.*\n)+", LOCK.read_text(), re.MULTILINE)
    assert locked is not None  # noqa: S101 - it is one of the development dependencies
    only = VENV / "uv.lock"
    only.write_text(locked[0])
    command = (str(PYTHON), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes")
    run("uv cannot be installed", *command, "--requirement", str(only))


def uv(*arguments: str) -> None:
    """Have uv install packages into `.venv`, with the versions and hashes of the lock. Raises SetupError.

    What uv keeps comes first: the lock names every file by its hash, so an index cannot know better. Where a
    mirror does not say that a file is unchanged, uv would download and build pyspark anew for each checkout.
    """
    locked = ("--constraints", str(LOCK), "--build-constraints", str(LOCK))
    command = (str(PYTHON), "-m", "uv", "pip", "install")
    kept = subprocess.run(
        (*command, "--offline", *locked, *arguments),
        check=False,
        capture_output=True,
        env=clean_environ(),
        cwd=ROOT,
    )
    if kept.returncode:
        run("the packages cannot be installed", *command, *locked, *arguments)


def run(failed: str, *command: str) -> None:
    """Run one command, its output on the screen. Raises SetupError that begins with `failed`."""
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, env=clean_environ(), cwd=ROOT)
    if done.returncode:
        raise SetupError(f"{failed}, for the reason above; settle that and run this again")


def clean_environ() -> dict[str, str]:
    """Return the environment without what leads pip, uv or Python out of `.venv`.

    Mirrors and certificates that are set for pip hold for uv, too.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    mirrors = {ours: kept[theirs] for theirs, ours in COUNTERPARTS.items() if theirs in kept}
    own = {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "VIRTUAL_ENV": str(VENV),
    }
    return {"UV_SYSTEM_CERTS": "true", **mirrors, **kept, **own}


def built() -> bool:
    """Say whether the compiled client of Kafka works. Tests do without it, and skip what is about it."""
    program = "import sys; from kafkadur.native.choice import is_native; sys.exit(not is_native())"
    return subprocess.call([PYTHON, "-c", program], env=clean_environ(), cwd=ROOT) == 0


# ---- the Kafka jars


@contextlib.contextmanager
def fetching_jars(*, early: bool) -> Generator[None]:
    """Have the Kafka jars fetched if the cache lacks them: beside the block if `early`, else after it.

    What is wrong is said by the fetching itself.
    """
    command = [str(PYTHON), "-m", "kafkadur.stack.fetch"]
    if cached_jars()[1]:
        yield
    elif early:
        with subprocess.Popen(command, cwd=ROOT, env=clean_environ()) as process:
            try:
                yield
            except BaseException:
                process.terminate()
                raise
    else:
        yield
        subprocess.run(command, check=False, cwd=ROOT, env=clean_environ())


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
        raise SetupError(f"the installed project does not work: {asked.stderr.strip()[-300:]}")
    return asked.stdout.strip(), asked.returncode == 0
