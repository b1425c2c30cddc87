"""Finds Java before anything is downloaded: nobody should wait for packages only to hear that it is missing.

`kafkadur.stack.java` asks the same when a broker starts; it cannot be imported before the packages are here.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from tools.setup_messages import SetupError

#: The oldest Java that runs a Kafka 4 broker.
OLDEST = 17

REMEDY = (
    f"install a Java runtime of version {OLDEST} or newer (Debian and Ubuntu: apt install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17), put it on PATH or set JAVA_HOME to its folder"
)


def find_java() -> str:
    """Return the java command: the one of JAVA_HOME, else the one on PATH. Raises SetupError."""
    home = os.environ.get("JAVA_HOME")
    if home:
        command = str(Path(home) / "bin" / "java")
        if not os.access(command, os.X_OK):
            raise SetupError(f"JAVA_HOME is {home}, but there is no {command}: {REMEDY}")
        return command
    found = shutil.which("java")
    if found is None:
        raise SetupError(f"Java was not found, and the embedded Kafka broker needs it: {REMEDY}")
    return found


def check_java(command: str) -> None:
    """Raise SetupError if this Java does not run or is too old."""
    try:
        asked = subprocess.run([command, "-version"], check=False, capture_output=True, text=True)
    except OSError as error:
        raise SetupError(f"{command} does not run ({error.strerror}): {REMEDY}") from error
    said = asked.stderr + asked.stdout
    number = re.search(r'version "(?:1\.)?(\d+)', said)
    if asked.returncode or number is None:
        reason = " ".join(said.split()) or "it says nothing"
        raise SetupError(f"{command} does not work ({reason}): {REMEDY}")
    if int(number[1]) < OLDEST:
        raise SetupError(f"{command} is Java {number[1]}, too old for the embedded Kafka broker: {REMEDY}")
