"""The descriptions of handlers' failures in dead letters."""

import pytest

from kafkadur.handlers.failures import FailureDetail, describe


class Unspeakable(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("it has no text")


def bill() -> None:
    """Stand for a handler."""


@pytest.mark.parametrize("detail", ["class", "message", "stack"])
def test_an_exception_whose_text_cannot_be_made_is_described_by_its_class(detail: FailureDetail) -> None:
    """Else the error would end the run, and with it the rollback of the message."""
    assert describe(Unspeakable(), bill, detail) == "Unspeakable (in handler bill)"


def test_a_message_is_bounded() -> None:
    text = describe(ValueError("x" * 5_000), bill, "message")
    assert text == f"ValueError: {'x' * 300} (in handler bill)"
