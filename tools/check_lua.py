"""Runs luacheck on the Lua scripts as the server gets them: with their includes.

A single file would not do: it calls functions of the files it includes. Messages show the line they are
about, since line numbers count in the assembled text, which is deleted again. What is wrong in an include is
said once.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kafkadur_coordinators.redis import scripts
from tools.places import ROOT

LUA = ROOT / "coordinators" / "kafkadur_coordinators" / "redis" / "lua"

#: A message of luacheck with the formatter "plain" and codes: file, line, column, code, text.
MESSAGE = re.compile(r"^(?P<script>\w+)\.lua:(?P<line>\d+):\d+: \((?P<code>\w+)\) (?P<text>.*)$")

#: luacheck's code for a local that nobody uses.
UNUSED = "W211"

#: luacheck's highest exit status for what it found in scripts; above it, luacheck itself failed.
FOUND_ERRORS = 2


def main() -> int:
    """Check all scripts; return the exit status."""
    luacheck = shutil.which("luacheck")
    if luacheck is None:
        sys.stderr.write(
            "luacheck was not found: install it (Debian and Ubuntu: apt-get install lua-check; "
            "macOS: brew install luacheck).\n"
        )
        return 1
    texts = {name: scripts.assemble(name) for name in scripts.names()}
    with tempfile.TemporaryDirectory(prefix="kafkadur-lua-") as folder:
        for name, text in texts.items():
            (Path(folder) / f"{name}.lua").write_text(text, encoding="utf-8")
        files = [f"{name}.lua" for name in texts]
        command = [luacheck, "--config", str(ROOT / ".luacheckrc"), "--formatter", "plain", "--codes", *files]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    if done.returncode > FOUND_ERRORS:
        sys.stderr.write(done.stdout + done.stderr)
        return 1
    found = list(messages(done.stdout, texts))
    for message in found:
        print(message)
    return 1 if found else 0


def messages(said: str, texts: dict[str, str]) -> Iterator[str]:
    """Yield what luacheck said about the assembled `texts`, each with its line of source, nothing twice."""
    seen: set[tuple[str, str]] = set()
    for line in said.splitlines():
        found = MESSAGE.match(line)
        if found is None:
            yield line
            continue
        source = texts[found["script"]].splitlines()[int(found["line"]) - 1]
        if (found["code"], source) in seen or is_spare(found["code"], found["script"], source):
            continue
        seen.add((found["code"], source))
        place = f"{found['script']} (assembled, line {found['line']})"
        yield f"{place}: {found['text']} ({found['code']})\n    {source.strip()}"


def is_spare(code: str, script: str, source: str) -> bool:
    """Say whether a message is about a top-level local of an include.

    A script takes a whole include and uses what it needs of it. In a script's own lines it is a mistake.
    """
    own = next(LUA.glob(f"{script}-*.lua")).read_text(encoding="utf-8").splitlines()
    return code == UNUSED and source.startswith("local ") and source not in own


if __name__ == "__main__":
    sys.exit(main())
