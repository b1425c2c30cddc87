"""The totals of the report on delays, by plain Python from the file: what those of Spark have to equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

#: Most differences that are named.
_EXAMPLES: Final = 3


class Delays(NamedTuple):
    """Totals of some flights. Minutes are negative where flights were early."""

    flights: int = 0
    #: Flights that never left.
    cancelled: int = 0
    #: Flights whose delay at departure is known, and those delays added up, minutes.
    departed: int = 0
    departure_minutes: int = 0
    #: The same at arrival: some flights left and landed elsewhere.
    arrived: int = 0
    arrival_minutes: int = 0

    def plus(self, other: Delays) -> Delays:
        """Both together."""
        return Delays(*(mine + its for mine, its in zip(self, other, strict=True)))

    @property
    def departure_delay(self) -> float | None:
        """Mean delay at departure, minutes; None where none is known."""
        return self.departure_minutes / self.departed if self.departed else None

    @property
    def arrival_delay(self) -> float | None:
        """Mean delay at arrival, minutes; None where none is known."""
        return self.arrival_minutes / self.arrived if self.arrived else None


class Row(NamedTuple):
    """A row of the report: its columns are called like this. As for `Delays`, and where it belongs."""

    carrier: str
    origin: str
    dest: str
    flights: int
    cancelled: int
    departed: int
    departure_minutes: int
    #: Mean, minutes.
    departure_delay: float | None
    arrived: int
    arrival_minutes: int
    arrival_delay: float | None

    @property
    def route(self) -> str:
        """From where to where."""
        return f"{self.origin}-{self.dest}"

    @property
    def delays(self) -> Delays:
        """What can be added up of it."""
        return Delays(
            self.flights,
            self.cancelled,
            self.departed,
            self.departure_minutes,
            self.arrived,
            self.arrival_minutes,
        )


def totals(flights: Iterable[Mapping[str, object]]) -> list[Row]:
    """The report on flights, rows of the file; in order of carrier, origin and destination."""
    sums: dict[tuple[str, str, str], list[int]] = {}
    for flight in flights:
        key = (str(flight["carrier"]), str(flight["origin"]), str(flight["dest"]))
        total = sums.setdefault(key, [0] * len(Delays._fields))
        total[0] += 1
        total[1] += flight["dep_time"] is None
        for place, minutes in ((2, flight["dep_delay"]), (4, flight["arr_delay"])):
            if isinstance(minutes, int):
                total[place] += 1
                total[place + 1] += minutes
    return [_row(key, Delays(*total)) for key, total in sorted(sums.items())]


def _row(key: tuple[str, str, str], delays: Delays) -> Row:
    return Row(
        *key,
        **delays._asdict(),
        departure_delay=delays.departure_delay,
        arrival_delay=delays.arrival_delay,
    )


def together(rows: Iterable[Row], by: Callable[[Row], T]) -> dict[T, Delays]:
    """The rows added up that have the same of something, such as their carrier."""
    found: dict[T, Delays] = {}
    for row in rows:
        of = by(row)
        found[of] = found.get(of, Delays()).plus(row.delays)
    return found


def differences(found: Iterable[Row], expected: Iterable[Row]) -> list[str]:
    """What a report says otherwise than expected, in sentences; empty when they are equal."""
    wanted = {row[:3]: row for row in expected}
    wrong: list[str] = []
    for row in found:
        right = wanted.pop(row[:3], None)
        which = f"{row.carrier} {row.route}"
        if right is None:
            wrong.append(f"{which} is not in the file, or comes twice")
        elif row != right:
            name = next(name for name in Row._fields if getattr(row, name) != getattr(right, name))
            wrong.append(f"{which} has {name} {getattr(row, name)}, by the file {getattr(right, name)}")
    wrong += [f"{row.carrier} {row.route} is missing" for row in wanted.values()]
    if not wrong:
        return []
    examples = "; ".join(wrong[:_EXAMPLES])
    return [f"report: {len(wrong)} totals are not those of the file, for example {examples}"]
