"""`kafkadur sub peek | watch`: the messages that wait in a subscription, and how their numbers change."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count as counter
from itertools import islice
from typing import Annotated, Any, cast

import typer

from kafkadur.admin.changes import Admin
from kafkadur.admin.documents import iso, waiting
from kafkadur.admin.explain import Explanation, OffsetState
from kafkadur.admin.peek import Peeked
from kafkadur.admin.rates import Rates, rates
from kafkadur.admin.subscription_info import SubscriptionInfo, without_records
from kafkadur.cli.call import Call, command
from kafkadur.cli.messages import line_of
from kafkadur.cli.naming import NameArgument, complete
from kafkadur.cli.output import Column, clock, duration
from kafkadur.cli.output import count as count_of
from kafkadur.message.headers import decode
from kafkadur_sharing.errors import CoordinatorUnavailable, KafkadurError, StateLost
from kafkadur_sharing.keys import SubscriptionKey

# --- peek -----------------------------------------------------------------------------------------------


@command
def peek(
    call: Call,
    name: NameArgument,
    *,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="The most messages that are shown.")
    ] = 10,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, metavar="N", help="Only messages of this partition.")
    ] = None,
) -> None:
    """Show the messages that wait or are in flight: partition by partition, in each the oldest first.

    Nothing is consumed, and no attempt is counted.
    """
    with call.admin() as admin:
        key = admin.key(name)
        info = admin.info(key)
        types, now = info.definition.header_types, info.now
        shown = 0
        for each in islice(admin.peek(key, partition), limit):
            shown += 1
            call.out.line(
                json.dumps(waiting(each, types), ensure_ascii=False)
                if call.options.json
                else _as_text(each, types, now)
            )
    call.out.say(f"{shown} shown." if shown else f"No message waits in subscription {key}.")


def _as_text(each: Peeked, types: Any, now: int) -> str:  # noqa: ANN401 - as decode takes them
    message, headers = each.message, cast("Any", each.message.headers())
    place = f"{message.partition()}@{message.offset()}  {_state(each.explanation, now)}"
    return line_of(place, message.key(), decode(headers, types).properties, message.value())


def _state(explanation: Explanation, now: int) -> str:
    """Return the state of a message in a few words."""
    if explanation.reserved:
        return "reserved for a member that has not read it yet"
    if explanation.state is OffsetState.LEASED:
        lease, holder = explanation.lease, explanation.holder
        by = holder.name if holder is not None else "" if lease is None else lease.member
        if explanation.holder_gone:
            return f"was in flight at {by}, which is gone, attempt={explanation.attempt}"
        return f"in flight at {by}, attempt={explanation.attempt}"
    due = "ready" if explanation.due is None else f"due in {duration(max(explanation.due - now, 0))}"
    return f"{due}, attempts={explanation.attempts}"


# --- watch ----------------------------------------------------------------------------------------------

#: Titles of the columns of lines, and their widths; and after how many lines the titles come again.
_COLUMNS = (
    ("time", 8), ("state", 10), ("members", 7), ("in flight", 9), ("backlog", 11), ("arrived/s", 9),
    ("settled/s", 9),
)  # fmt: skip
_TITLES_EVERY = 20

#: A subscription, and its rates since the look before.
_Seen = tuple[SubscriptionInfo, Rates | None]


@command
def watch(
    call: Call,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Name of the subscription, or CLIENT_ID/NAME; default: all.",
            autocompletion=complete,
        ),
    ] = None,
    *,
    every: Annotated[
        float, typer.Option("--every", min=0.1, metavar="SECONDS", help="Time between two looks.")
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="End after so many looks.")
    ] = None,
) -> None:
    """Show how subscriptions change, until Ctrl-C: in a table on a terminal, else in a line for each look."""
    with call.admin() as admin:
        key = None if name is None else admin.key(name)
        if call.options.json:
            for seen in _looks(admin, key, every, count, call.out.fail):
                for each in seen:
                    call.out.line(json.dumps(_sample(*each)))
        elif call.out.on_terminal:
            _show_live(call, admin, key, every, count)
        else:
            _print_lines(call, _looks(admin, key, every, count, call.out.fail), named=name is None)


def _looks(
    admin: Admin,
    key: SubscriptionKey | None,
    every: float,
    count: int | None,
    fail: Callable[[KafkadurError], None],
) -> Iterator[list[_Seen]]:
    """Yield one subscription, or all, again and again.

    `fail` is called with the error of a server that does not answer, except at the first look, which raises.
    """
    before: dict[SubscriptionKey, SubscriptionInfo] | None = None
    for number in counter(1):
        try:
            found = without_records(admin.list()) if key is None else (admin.info(key),)
        except (CoordinatorUnavailable, StateLost) as error:
            if before is None:
                raise
            fail(error)
        else:
            known = before or {}
            yield [(info, rates(known.get(info.key), info)) for info in found]
            before = {info.key: info for info in found}
        if number == count:
            return
        time.sleep(every)  # the time between two looks


def _show_live(
    call: Call, admin: Admin, key: SubscriptionKey | None, every: float, count: int | None
) -> None:
    """Show a table in place of the one before; an error stands below the table."""
    rows: list[_Seen] = []
    with call.out.live() as show:

        def fail(error: KafkadurError) -> None:
            show(rows, _LIVE, error.message)

        for seen in _looks(admin, key, every, count, fail):
            now = clock(max((info.now for info, _ in seen), default=0))
            rows[:] = sorted(seen, key=lambda each: (-(each[0].backlog or 0), str(each[0].key)))
            show(rows, _LIVE, f"{now}, every {every:g} s; Ctrl-C ends it" if seen else _NONE)


def _arrived(seen: _Seen) -> str:
    return "-" if seen[1] is None else f"{seen[1].arrived:,.0f}"


def _settled(seen: _Seen) -> str:
    return "-" if seen[1] is None else f"{seen[1].settled:,.0f}"


_NONE = "There are no durable subscriptions."
#: The columns of the table on a terminal.
_LIVE: tuple[Column[_Seen], ...] = (
    Column("name", lambda seen: str(seen[0].key)),
    Column("type", lambda seen: seen[0].definition.type.value, wide=True),
    Column("topic", lambda seen: seen[0].definition.topic, wide=True),
    Column("state", lambda seen: seen[0].state),
    Column("members", lambda seen: count_of(len(seen[0].attached)), number=True),
    Column("in flight", lambda seen: count_of(seen[0].in_flight), number=True),
    Column("backlog", lambda seen: count_of(seen[0].backlog), number=True),
    Column("arrived/s", _arrived, number=True),
    Column("settled/s", _settled, number=True),
)


def _print_lines(call: Call, looks: Iterator[list[_Seen]], *, named: bool) -> None:
    """Print a line for each subscription and look; `named`: with its name at the end."""
    titles = [title for title, _ in _COLUMNS]
    printed = 0
    for seen in looks:
        for info, speeds in seen:
            if printed % _TITLES_EVERY == 0:
                call.out.line(_aligned(titles) + ("  name" if named else ""))
            printed += 1
            call.out.line(_aligned(_cells(info, speeds)) + (f"  {info.key}" if named else ""))


def _cells(info: SubscriptionInfo, speeds: Rates | None) -> list[str]:
    numbers = [count_of(len(info.attached)), count_of(info.in_flight), count_of(info.backlog)]
    seen = (info, speeds)
    return [clock(info.now).partition(" ")[2], info.state, *numbers, _arrived(seen), _settled(seen)]


def _aligned(cells: Sequence[str]) -> str:
    """Return a line: texts to the left, numbers to the right."""
    widths = [width for _, width in _COLUMNS]
    texts = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return "  ".join([*texts, *numbers]).rstrip()


def _sample(info: SubscriptionInfo, speeds: Rates | None) -> dict[str, Any]:
    arrived, settled = (None, None) if speeds is None else speeds
    return {
        "time": iso(info.now),
        "subscription": str(info.key),
        "state": info.state,
        "attached": len(info.attached),
        "in_flight": info.in_flight,
        "backlog": info.backlog,
        "arrived_per_s": arrived,
        "settled_per_s": settled,
    }
