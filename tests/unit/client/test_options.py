"""The options of `subscribe` for type checkers: they are its parameters, and those that each type has."""

import inspect
from typing import Any

import pytest

import kafkadur
import kafkadur.sync
from kafkadur.options import (
    AnyOptions,
    ExclusiveOptions,
    KeyOrderedOptions,
    PriorityOptions,
    SerialOptions,
    SharedOptions,
)
from kafkadur.worker import App, SubscribeOptions
from kafkadur.worker.options import HandlerOptions
from kafkadur_sharing.changing import check_parts
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.errors import IllegalState

OPTIONS: dict[SubscriptionType, type] = {
    SubscriptionType.EXCLUSIVE: ExclusiveOptions,
    SubscriptionType.PRIORITY: PriorityOptions,
    SubscriptionType.SERIAL: SerialOptions,
    SubscriptionType.SHARED: SharedOptions,
    SubscriptionType.KEY_ORDERED: KeyOrderedOptions,
}
#: A value of each option that not every type has.
SOME: dict[str, Any] = {
    "strict_order": True,
    "max_consumers": 2,
    "priority": 1,
    "preempt": True,
    "scope": "partition",
    "key_lanes": 2,
}


def has_at_run_time(kind: SubscriptionType, option: str) -> bool:
    try:
        check_parts(kind, {option: SOME[option]})
    except IllegalState:
        return False
    return True


@pytest.mark.parametrize("connection", [kafkadur.Connection, kafkadur.sync.Connection])
def test_the_options_are_the_parameters_of_subscribe(connection: type[Any]) -> None:
    explicit = {
        "self", "topic", "type", "durable", "session", "key_deserializer", "value_deserializer",
    }  # fmt: skip
    parameters = set(inspect.signature(connection.subscribe).parameters)
    assert set(AnyOptions.__annotations__) == parameters - explicit


@pytest.mark.parametrize("kind", SubscriptionType)
def test_each_type_has_the_same_options_at_run_time(kind: SubscriptionType) -> None:
    options = set(OPTIONS[kind].__annotations__)
    assert {option for option in SOME if has_at_run_time(kind, option)} == options & set(SOME)


async def refused(connection: kafkadur.Connection) -> None:
    """Calls that type checkers refuse: each comment here would be superfluous if they did not."""
    await connection.subscribe("t", priority=5)  # type: ignore[call-overload]
    await connection.subscribe("t", type="shared", priority=5)  # type: ignore[call-overload]
    await connection.subscribe("t", type="exclusive", max_consumers=2)  # type: ignore[call-overload]
    await connection.subscribe("t", type="serial", key_lanes=2)  # type: ignore[call-overload]
    await connection.subscribe("t", type="priority", scope="partition")  # type: ignore[call-overload]
    await connection.subscribe("t", type="prioritised")  # type: ignore[call-overload]
    await connection.subscribe("t", durabel="d")  # type: ignore[call-overload]


def accepted(connection: kafkadur.sync.Connection, kind: SubscriptionType) -> None:
    """Calls that type checkers accept."""
    connection.subscribe("t", type="priority", priority=5, preempt=True)
    connection.subscribe("t", type="key-ordered", key_lanes=2)
    connection.subscribe("t", type="serial", scope="partition", strict_order=True)
    connection.subscribe("t", type=kind, priority=5)


def refused_by_an_app(app: App) -> None:
    """Declarations that type checkers refuse."""
    app.subscription("t", priority=5)  # type: ignore[call-overload]
    app.subscription("t", type="exclusive", max_consumers=2)  # type: ignore[call-overload]
    app.subscription("t", type="serial", key_lanes=2, attempts=3)  # type: ignore[call-overload]
    app.subscription("t", type="prioritised")  # type: ignore[call-overload]
    app.subscription("t", atempts=3)  # type: ignore[call-overload]


def accepted_by_an_app(app: App, kind: SubscriptionType) -> None:
    """Declarations that type checkers accept."""
    app.subscription("t", durable="d", concurrency=4, attempts=None, max_consumers=2)
    app.subscription("t", type="priority", priority=5, preempt=True, retry_on=ValueError)
    app.subscription("t", type=kind, priority=5)


def test_the_options_of_a_handler_are_the_parameters_of_an_app() -> None:
    explicit = set(inspect.signature(App.subscription).parameters) - {"self", "topic", "options"}
    assert set(HandlerOptions.__annotations__) | {"type"} == (
        explicit | set(SubscribeOptions.__annotations__) - set(AnyOptions.__annotations__)
    )
