"""Runs the tests of the compiled client under AddressSanitizer: it reads no memory that is not its own.

The module is compiled anew into a copy of the package, with gcc's sanitizer. Servers that the tests start run
without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hatch_build import compiled
from tools.places import NATIVE, ROOT
from tools.setup_messages import SetupError

_FLAG = "-fsanitize=address"
#: Tests that read and publish with the compiled client.
TESTS = (
    "tests/integration/subscriptions/test_native.py",
    "tests/integration/client/test_compiled_producer.py",
)
#: The library of the sanitizer must be loaded before all others, and only into this process.
_PROGRAM = """
import os, sys
del os.environ["LD_PRELOAD"]
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def main() -> int:
    """Run the tests, or those that the arguments name; return pytest's exit status, 1 without a compiler."""
    try:
        library = _library()
    except SetupError as error:
        sys.stderr.write(f"sanitize: {error}.\n")
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _build(folder)
        places = (folder, ROOT / "coordinators", ROOT / "sharing", ROOT / "spark", ROOT)
        environment = {
            **os.environ,
            "LD_PRELOAD": library,
            # Python keeps memory until its end, and its own allocator would hide what is read too late
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": os.pathsep.join(map(str, places)),
        }
        command = (sys.executable, "-c", _PROGRAM, "-p", "no:cacheprovider", *(sys.argv[1:] or TESTS))
        return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode


def _library() -> str:
    """Return the path of gcc's sanitizer. Raises SetupError if there is none."""
    if shutil.which("gcc") is None:
        raise SetupError("there is no gcc, whose AddressSanitizer is needed: install it")
    asked = ("gcc", "-print-file-name=libasan.so")
    found = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        raise SetupError("gcc has no AddressSanitizer here: install its library (Debian: libasan8)")
    return found


def _build(folder: Path) -> None:
    """Lay a copy of the package into a folder, with the module compiled for the sanitizer."""
    package, made = folder / "kafkadur", folder / "made"
    shutil.copytree(ROOT / "kafkadur", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    made.mkdir()
    os.environ |= {"CC": "gcc", "CFLAGS": f"{_FLAG} -fno-omit-frame-pointer -g -O1", "LDFLAGS": _FLAG}
    built = compiled(NATIVE / "_native.pyx", made)
    shutil.copy(built, package / "native" / built.name)


if __name__ == "__main__":
    sys.exit(main())
