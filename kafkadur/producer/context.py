"""Producers as context managers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self

from kafkadur_sharing.errors import DeliveryFailed


class FlushingContext(ABC):
    """A synchronous and an asynchronous context manager that is closed at the end of its block."""

    @abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Flush and close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; a failed delivery does not hide the error that ended the block, but is noted on it."""
        try:
            self.close()
        except DeliveryFailed as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close without blocking the loop; errors as in `__exit__`."""
        await asyncio.to_thread(self.__exit__, kind, error, trace)
