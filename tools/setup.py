"""The door of `make setup`: refuses a Python that is too old, in words, and hands over to `environment.py`.

Any Python from 3.6 on must understand this file, so it looks at the version before it imports anything of the
project.
"""

import shutil
import subprocess
import sys

#: The oldest Python that runs the project; the same as requires-python in pyproject.toml.
OLDEST = (3, 11)


def too_old() -> str:
    """Return the sentence for a Python that is too old, naming a newer one on PATH if there is one."""
    found, wanted = (".".join(map(str, version)) for version in (sys.version_info[:2], OLDEST))
    newer = [name for name in ("python3.13", "python3.12", "python3.11") if runs(name)]
    remedy = (
        f"run make with PYTHON={newer[0]}"
        if newer
        else f"install one and run make with PYTHON=python{wanted}"
    )
    return f"setup: {sys.executable} is Python {found}, but kafkadur needs {wanted} or newer: {remedy}."


def runs(name: str) -> bool:
    """Say whether a command is on PATH and starts: version managers put names there that lead nowhere."""
    return (
        shutil.which(name) is not None and subprocess.call([name, "-c", ""], stderr=subprocess.DEVNULL) == 0
    )


def main() -> int:
    """Set up the checkout; return the exit status."""
    if sys.version_info < OLDEST:
        sys.stderr.write(too_old() + "\n")
        return 1
    from tools import environment  # noqa: PLC0415 - an old Python would not understand that file

    return environment.main()


if __name__ == "__main__":
    sys.exit(main())
