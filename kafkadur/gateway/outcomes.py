"""What a client says of a message that it has: the outcomes of AMQP, also in a transaction."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Final, Protocol

import proton
from proton import Described

from kafkadur_sharing.errors import AlreadySettled, LeaseLost

#: The state of a delivery that is part of a transaction, and that of a transaction that was declared.
TRANSACTIONAL, DECLARED = 0x34, 0x33
#: The outcomes by their descriptors, as symbols and as numeric codes.
_ACCEPTED, _REJECTED, _RELEASED, _MODIFIED = (
    int(proton.Delivery.ACCEPTED),
    int(proton.Delivery.REJECTED),
    int(proton.Delivery.RELEASED),
    int(proton.Delivery.MODIFIED),
)
#: The words for them.
WORDS: Final = {_ACCEPTED: "accepted", _REJECTED: "rejected", _RELEASED: "released", _MODIFIED: "modified"}
_BY_SYMBOL: Final = {
    "amqp:accepted:list": _ACCEPTED,
    "amqp:rejected:list": _REJECTED,
    "amqp:released:list": _RELEASED,
    "amqp:modified:list": _MODIFIED,
}


class Settleable(Protocol):
    """A message in a client's hands."""

    def ack_nowait(self) -> None:
        """It is done."""

    def reject_nowait(self, reason: str) -> None:
        """It cannot be processed."""

    def rollback_nowait(self) -> None:
        """It comes again, counted as an attempt."""

    def release_nowait(self) -> None:
        """It comes again, uncounted."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What becomes of a message."""

    kind: int
    #: of a modified one: whether the delivery has failed, and whether it is not to be tried here again
    failed: bool = False
    undeliverable: bool = False
    #: of a rejected one
    reason: str = ""

    @property
    def word(self) -> str:
        """The word for its kind."""
        return WORDS[self.kind]

    @property
    def is_accepted(self) -> bool:
        """Whether the client has processed the message."""
        return self.kind == _ACCEPTED

    def settle(self, message: Settleable, *, counts_released: bool) -> None:
        """Give the message its verdict; one whose lease was lost comes again anyway."""
        with contextlib.suppress(AlreadySettled, LeaseLost):
            if self.is_accepted:
                message.ack_nowait()
            elif self.kind == _REJECTED:
                message.reject_nowait(self.reason or "the client rejected it")
            elif self.kind == _MODIFIED and self.undeliverable:
                message.reject_nowait("the client says that it cannot be delivered here")
            elif (self.kind == _MODIFIED and self.failed) or counts_released:
                message.rollback_nowait()
            else:
                message.release_nowait()


#: The outcome of a message that a client takes as settled, when the socket has it.
PROCESSED: Final = Outcome(kind=_ACCEPTED)
#: The outcome of a message that a client settles without saying any.
UNSAID: Final = Outcome(kind=_RELEASED)


def outcome_of(disposition: proton.Delivery) -> Outcome | None:
    """Return the outcome in a disposition that is not part of a transaction; None: there is none."""
    state, remote = int(disposition.remote_state), disposition.remote
    if state == _MODIFIED:
        return Outcome(kind=state, failed=bool(remote.failed), undeliverable=bool(remote.undeliverable))
    if state == _REJECTED:
        return Outcome(kind=state, reason=_reason(remote.condition))
    return Outcome(kind=state) if state in {_ACCEPTED, _RELEASED} else None


def transaction_of(delivery: proton.Delivery) -> bytes | None:
    """Return the id of the transaction that a delivery is part of, as its sender says; None: of none."""
    if int(delivery.remote_state) != TRANSACTIONAL:
        return None
    data: Any = delivery.remote.data
    found = data[0] if isinstance(data, list) and data else b""
    return bytes(found) if isinstance(found, bytes | memoryview) else b""


def outcome_in_transaction(disposition: proton.Delivery) -> Outcome | None:
    """Return the outcome in a disposition that is part of a transaction; None: there is none."""
    data: Any = disposition.remote.data
    described = data[1] if isinstance(data, list) and len(data) > 1 else None
    if not isinstance(described, Described):
        return None
    descriptor: Any = described.descriptor
    kind = _BY_SYMBOL.get(str(descriptor)) if isinstance(descriptor, str) else descriptor
    if not isinstance(kind, int):
        return None
    fields: Any = described.value if isinstance(described.value, list) else []
    if kind == _MODIFIED:
        return Outcome(
            kind=kind, failed=bool(fields[:1] == [True]), undeliverable=bool(fields[1:2] == [True])
        )
    if kind == _REJECTED:
        return Outcome(kind=kind, reason="the client rejected it in a transaction")
    return Outcome(kind=kind) if kind in {_ACCEPTED, _RELEASED} else None


def _reason(condition: Any) -> str:  # noqa: ANN401 - a condition of Proton, which has no stub
    if condition is None:
        return ""
    return f"{condition.name}: {condition.description or ''}".strip(": ")
