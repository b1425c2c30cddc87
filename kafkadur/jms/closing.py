"""Closing several things: an error of one keeps none of the others open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kafkadur_sharing.errors import KafkadurError


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> object:
        """Close it; may raise `KafkadurError`."""
        ...


def close_all(opened: Iterable[Closable]) -> None:
    """Close each; raises the first `KafkadurError` when all are closed."""
    failed: KafkadurError | None = None
    for each in opened:
        try:
            each.close()
        except KafkadurError as error:
            failed = failed or error
    if failed is not None:
        raise failed
