"""What the set-up says to the person who runs it."""

import sys


class SetupError(Exception):
    """The set-up cannot go on; the text says why and what to do, without a full stop."""


def say(text: str) -> None:
    """Tell the user what happens."""
    sys.stderr.write(f"setup: {text}\n")
    sys.stderr.flush()
