"""Outcomes of messages in transactions, as clients encode them."""

from typing import Any, cast

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

import proton
from proton import Described, symbol, ulong

from kafkadur.gateway.outcomes import Outcome, outcome_in_transaction, transaction_of


class Remote:
    """The remote side of a delivery of Proton: only a transport makes a real one."""

    def __init__(self, data: object) -> None:
        self.data = data


class Disposition:
    """A disposition of a client."""

    def __init__(self, data: object, state: int = 0x34) -> None:
        self.remote, self.remote_state = Remote(data), state


def disposition(data: object, state: int = 0x34) -> proton.Delivery:
    return cast("proton.Delivery", Disposition(data, state))


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (Described(ulong(0x24), []), Outcome(kind=0x24)),
        (Described(symbol("amqp:accepted:list"), []), Outcome(kind=0x24)),
        (Described(ulong(0x26), []), Outcome(kind=0x26)),
        (
            Described(ulong(0x25), [None]),
            Outcome(kind=0x25, reason="the client rejected it in a transaction"),
        ),
        (Described(ulong(0x27), [True]), Outcome(kind=0x27, failed=True)),
        (Described(symbol("amqp:modified:list"), [None, True]), Outcome(kind=0x27, undeliverable=True)),
        (Described(ulong(0x23), []), None),  # received: it is no outcome
        (Described(1.5, []), None),
        ("accepted", None),
    ],
)
def test_an_outcome_in_a_transaction(described: Any, expected: Outcome | None) -> None:
    assert outcome_in_transaction(disposition([b"1", described])) == expected


@pytest.mark.parametrize("data", [None, [], [b"1"], b"1"])
def test_a_state_without_an_outcome(data: object) -> None:
    assert outcome_in_transaction(disposition(data)) is None


@pytest.mark.parametrize(
    ("data", "state", "expected"),
    [
        ([b"1"], 0x34, b"1"),
        ([memoryview(b"1"), None], 0x34, b"1"),
        ([b"1"], 0x24, None),
        (None, 0x34, b""),
        ([7], 0x34, b""),
    ],
)
def test_the_transaction_of_a_delivery(data: object, state: int, expected: bytes | None) -> None:
    assert transaction_of(disposition(data, state)) == expected
