"""The command line: `kafkadur up`, `sub ls`, `publish`, `consume` and the rest.

Data goes to standard output, messages go to standard error; `--json` prints data as JSON. Exit status:

- 0: done
- 1: failed, one message on standard error says why and what to do; also `status` when not everything runs
- 2: the command line is wrong
- 130: interrupted by Ctrl-C (143: by SIGTERM)

This module has only the entry point. Options common to all commands are in `options.py`, the handling of
errors is in `call.py`, printing is in `output.py`, the commands are in the files named for them.
"""

import sys
from importlib.util import find_spec

#: The packages of the extra `cli`.
EXTRA = ("typer", "rich")


def main() -> None:
    """Run the command line of this process; does not return."""
    if missing := [package for package in EXTRA if find_spec(package) is None]:
        sys.stderr.write(
            f"The command line needs the package {missing[0]}, which is not installed: "
            "pip install 'kafkadur[cli]'.\n"
        )
        sys.exit(2)
    from kafkadur.cli.application import run  # noqa: PLC0415 - it needs the extra

    run(sys.argv[1:])


__all__ = ["main"]
