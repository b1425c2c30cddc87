"""Closing several things: an error of one keeps none of the others open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kafkadur_sharing.errors import KafkadurError


class FirstError:
    """Catches the `KafkadurError` of each `with` block that it is used in, and raises the first of them."""

    def __init__(self) -> None:
        self._error: KafkadurError | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, KafkadurError):
            return False
        self._error = self._error or error
        return True

    def reraise(self) -> None:
        """Raise the first error that was caught, if there is one."""
        if self._error is not None:
            raise self._error


class _Closable(Protocol):
    def close(self) -> object: ...


def close_all(opened: Iterable[_Closable]) -> None:
    """Close each; raises the first `KafkadurError` when all are closed."""
    first = FirstError()
    for each in opened:
        with first:
            each.close()
    first.reraise()
