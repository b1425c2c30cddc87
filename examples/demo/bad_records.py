"""Records that are no flights: what the demo publishes among the flights of the report, to be rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

#: Why a record is rejected.
EMPTY: Final = "it has no value"
NO_JSON: Final = "it is no JSON"
NO_NUMBER: Final = "a time or a delay is no number"
INCOMPLETE: Final = "carrier, origin or dest is missing"

#: Value of each -> the reason that it is to be rejected with. Each is published once.
BAD: Final[Mapping[bytes | None, str]] = {
    b"UA1545 left two minutes late": NO_JSON,
    b'{"row":0,"carrier":"UA","origin":"EWR","dest":"IAH","dep_ti': NO_JSON,
    b'{"row":0,"carrier":"UA","origin":"EWR","dest":"IAH","dep_time":517,"dep_delay":2,"arr_delay":"late"}': (
        NO_NUMBER
    ),
    b'{"row":0,"carrier":null,"origin":"EWR","dest":"IAH","dep_time":517,"dep_delay":2,"arr_delay":11}': (
        INCOMPLETE
    ),
    b'{"order":7,"amount":100}': INCOMPLETE,
    None: EMPTY,
}


def places(total: int) -> dict[int, bytes | None]:
    """After which flight (its row, from 1) of `total` each bad record comes: spread over all of them."""
    return {(number + 1) * total // (len(BAD) + 1): value for number, value in enumerate(BAD)}


def wrong_letters(letters: Iterable[tuple[bytes | None, str]]) -> list[str]:
    """What is wrong about dead letters, (value, reason) each, in sentences; empty when each is there once."""
    found, wanted = Counter(letters), Counter(BAD.items())
    missing = [f"{value!r} is not there as {why!r}" for value, why in (wanted - found).elements()]
    more = [
        f"{value!r} is there, as {why!r}, and should not be" for value, why in (found - wanted).elements()
    ]
    if not missing and not more:
        return []
    return [
        f"report: {found.total()} dead letters, {wanted.total()} are right, for example {(missing + more)[0]}"
    ]
