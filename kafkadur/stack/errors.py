"""The errors of an embedded stack and their texts."""

import errno
from pathlib import Path

from kafkadur_sharing.errors import KafkadurError


class StackError(KafkadurError):
    """The embedded stack cannot be started, stopped or found; the text says what to do."""


class PortTakenError(StackError):
    """A loopback port was taken by another process before its use, or was in use all along."""


def port_taken(port: int | None, owner: str) -> PortTakenError:
    """Return the error for a server ``owner`` that found ``port`` in use; None: one of its ports."""
    named = f"port {port} on 127.0.0.1" if port else "a port on 127.0.0.1"
    return PortTakenError(
        f"{owner} cannot start: {named} is in use by another process. "
        "Stop that process, or give another port, or none to have a free one chosen."
    )


def disk_full(where: Path) -> StackError:
    """Return the error for a full disk under ``where``."""
    return StackError(
        f"No space left on the disk of {where}. Free some space (about 500 MB) there and try again."
    )


def file_error(error: OSError, where: Path) -> StackError:
    """Return the error for a failed file operation under ``where``; a full disk has a text of its own."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return disk_full(where)
    return StackError(
        f"Cannot use {where}: {error.strerror or error}. Check its permissions or give another folder."
    )
