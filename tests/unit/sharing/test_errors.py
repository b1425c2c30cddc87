"""Errors: one base, default text from the docstring, attributes that survive pickling."""

from __future__ import annotations

import pickle

import pytest

from kafkadur_sharing import errors
from kafkadur_sharing.errors import (
    DeliveryFailed,
    InvalidSelector,
    KafkadurError,
    LeaseLost,
    SubscriptionActive,
)

ALL = [getattr(errors, name) for name in errors.__all__]


def test_all_names_every_error_of_the_module() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_below_the_base_and_its_docstring_is_the_default_message(
    error: type[KafkadurError],
) -> None:
    assert issubclass(error, KafkadurError)
    text = str(error())
    assert text == " ".join((error.__doc__ or "").split())
    assert text.endswith(".")


def test_text_holds_message_state_owner_and_remedy() -> None:
    error = LeaseLost("Offset 7 is gone.", state="lease over", owner="member m-1", remedy="receive it again")
    assert str(error) == "Offset 7 is gone. State: lease over. Owner: member m-1. Remedy: receive it again."
    assert (error.state, error.owner, error.remedy) == ("lease over", "member m-1", "receive it again")


def test_parts_that_are_not_given_leave_no_trace() -> None:
    assert str(LeaseLost("Gone", remedy="again")) == "Gone. Remedy: again."


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (SubscriptionActive(holders=("m-1", "m-2"), state="active"), {"holder": "m-1", "owner": "m-1, m-2"}),
        (InvalidSelector(position=3), {"position": 3}),
        (
            DeliveryFailed(failed=2, pending=1, reasons={"X": 2}),
            {"failed": 2, "pending": 1, "reasons": {"X": 2}},
        ),
    ],
)
def test_attributes_survive_pickling(error: KafkadurError, attributes: dict[str, object]) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    for name, value in attributes.items():
        assert getattr(copy, name) == getattr(error, name) == value


def test_holder_is_none_when_nobody_is_known() -> None:
    assert SubscriptionActive().holder is None
