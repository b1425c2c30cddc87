"""`kafkadur sub peek | watch`: the messages that wait in a subscription, and how their numbers change."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import count as counter
from itertools import islice
from typing import Annotated, Any, cast

import typer

from kafkadur.admin.changes import Admin
from kafkadur.admin.documents import iso, waiting
from kafkadur.admin.explain import Explanation, OffsetState
from kafkadur.admin.peek import Peeked
from kafkadur.admin.rates import Rates, rates
from kafkadur.admin.subscription_info import SubscriptionInfo
from kafkadur.cli.call import Call, command
from kafkadur.cli.messages import line_of
from kafkadur.cli.naming import NameArgument
from kafkadur.cli.output import clock, duration
from kafkadur.cli.output import count as count_of
from kafkadur.message.headers import decode
from kafkadur_sharing.errors import CoordinatorUnavailable, StateLost
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

#: Titles of the columns, and their widths; and after how many lines the titles come again.
_COLUMNS = (
    ("time", 8), ("state", 10), ("members", 7), ("in flight", 9), ("backlog", 11), ("arrived/s", 9),
    ("settled/s", 9),
)  # fmt: skip
_TITLES_EVERY = 20


@command
def watch(
    call: Call,
    name: NameArgument,
    *,
    every: Annotated[
        float, typer.Option("--every", min=0.1, metavar="SECONDS", help="Time between two lines.")
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="End after so many lines.")
    ] = None,
) -> None:
    """Print a line about a subscription every few seconds, until Ctrl-C."""
    with call.admin() as admin:
        key = admin.key(name)
        before: SubscriptionInfo | None = None
        for number in counter():
            before = _look(call, admin, key, number, before)
            if number + 1 == count:
                return
            time.sleep(every)  # the time between two looks


def _look(
    call: Call, admin: Admin, key: SubscriptionKey, number: int, before: SubscriptionInfo | None
) -> SubscriptionInfo | None:
    """Print a line; return what was seen. A server that does not answer is told, and looked at again."""
    try:
        now = admin.info(key)
    except (CoordinatorUnavailable, StateLost) as error:
        if before is None:
            raise
        call.out.fail(error)
        return before
    speeds = rates(before, now)
    if call.options.json:
        call.out.line(json.dumps(_sample(now, speeds)))
        return now
    if number % _TITLES_EVERY == 0:
        call.out.line(_aligned([title for title, _ in _COLUMNS]))
    call.out.line(_aligned(_cells(now, speeds)))
    return now


def _cells(info: SubscriptionInfo, speeds: Rates | None) -> list[str]:
    arrived, settled = ("-", "-") if speeds is None else (f"{rate:,.0f}" for rate in speeds)
    numbers = [count_of(len(info.attached)), count_of(info.in_flight), count_of(info.backlog)]
    return [clock(info.now).partition(" ")[2], info.state, *numbers, arrived, settled]


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
