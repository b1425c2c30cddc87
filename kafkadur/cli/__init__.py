"""The command line: `kafkadur up`, `sub ls`, `publish`, `consume` and the rest.

Data goes to standard output, talk to standard error; `--json` gives data as JSON. Exit status:

- 0: done
- 1: it failed, one message on standard error says why and what to do; also `status` when not everything runs
- 2: the command line is wrong
- 130: interrupted by Ctrl-C (143: by SIGTERM)

Here is the entry point alone. Options and errors common to all commands are in `call.py`, what is printed and
how in `output.py`, the commands in the files named for them.
"""

import sys

#: The packages of the extra `cli`.
EXTRA = {"click", "rich", "typer"}


def main() -> None:
    """Run the command line of this process; does not return."""
    try:
        from kafkadur.cli.application import app  # noqa: PLC0415 - it needs the extra, and says so below
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        sys.stderr.write(
            f"The command line needs the package {error.name}, which is not installed: "
            "pip install 'kafkadur[cli]'.\n"
        )
        sys.exit(2)
    app(prog_name="kafkadur")


__all__ = ["main"]
