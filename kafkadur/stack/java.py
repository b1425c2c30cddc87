"""Find a Java runtime that is new enough for a Kafka broker."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kafkadur.stack.errors import StackError

#: Oldest Java version that runs a Kafka 4 broker.
OLDEST = 17

REMEDY = (
    f"Install a Java runtime of version {OLDEST} or newer "
    "(Debian and Ubuntu: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) and put it on PATH or set JAVA_HOME to its folder."
)


@dataclass(frozen=True, kw_only=True)
class Java:
    """A Java runtime."""

    #: Path of the ``java`` command.
    command: str
    #: The output of ``java -version``, which differs from build to build.
    version: str


def find_java() -> Java:
    """Return the runtime of JAVA_HOME, else the one on PATH.

    Raises StackError if there is none or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        command = str(Path(home) / "bin" / "java")
        if not os.access(command, os.X_OK):
            raise StackError(f"JAVA_HOME is {home}, but there is no {command}. {REMEDY}")
    else:
        found = shutil.which("java")
        if found is None:
            raise StackError(f"Java was not found: the embedded Kafka broker needs it. {REMEDY}")
        command = found
    try:
        asked = subprocess.run(  # noqa: S603 - the user's own Java
            [command, "-version"], check=False, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"{command} does not run: {error}. {REMEDY}") from error
    version = asked.stderr + asked.stdout
    number = re.search(r'version "(?:1\.)?(\d+)', version)
    if asked.returncode or number is None:
        raise StackError(f"{command} does not work: {version.strip() or 'it says nothing'}. {REMEDY}")
    if int(number[1]) < OLDEST:
        raise StackError(f"{command} is Java {number[1]}: too old for the embedded Kafka broker. {REMEDY}")
    return Java(command=command, version=version)
