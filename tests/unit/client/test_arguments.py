"""What handlers are called with (`kafkadur/handlers/arguments.py`)."""

import asyncio
import functools
import inspect
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, cast

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

import kafkadur
import kafkadur.sync
from kafkadur.consumer.delivery import Delivery as AnyDelivery
from kafkadur.handlers.arguments import Part, with_arguments
from kafkadur_sharing.errors import IllegalState, Undecodable


class Order(BaseModel):
    """A value."""

    number: int
    customer: str = "nobody"


class Head(BaseModel):
    """Properties."""

    region: str


@dataclass
class Row:
    """A value, too."""

    number: int


class Typed(TypedDict):
    """And one more."""

    number: int


class Odd:
    """A class that pydantic does not know."""


@dataclass
class Fake:
    """What a delivery has; a handler sees no more of it."""

    value: object = b'{"number": 7}'
    key: object = b"k"
    properties: Mapping[str, object] | None = None
    topic: str = "t"
    partition: int = 1
    offset: int = 2


def called(handler: Callable[..., Any], delivery: Fake) -> object:
    return with_arguments(handler, "subscription d")(cast("AnyDelivery", delivery))


def plain(delivery) -> object:  # type: ignore[no-untyped-def]  # a handler without annotations
    return delivery


def typed(message: kafkadur.Delivery) -> object:
    return message


def synchronous(message: kafkadur.sync.Delivery[bytes, bytes]) -> object:
    return message


def anything(message: Any) -> object:
    return message


def thing(it: object, more: int = 3) -> object:
    del more
    return it


@pytest.mark.parametrize("handler", [plain, typed, synchronous, anything, thing, lambda x: x, str])
def test_a_handler_with_one_parameter_is_called_with_the_delivery_as_before(
    handler: Callable[..., Any],
) -> None:
    assert with_arguments(handler, "d") is handler


def model(order: Order) -> object:
    return order


def maybe(order: Order | None) -> object:
    return order


def row(order: Row) -> object:
    return order


def table(order: Typed) -> object:
    return order


def text(value: str) -> object:
    return value


def raw(value: bytes) -> object:
    return value


def untyped(value: Any) -> object:
    return value


def day(value: date) -> object:
    return value


def known(value: Odd) -> object:
    return value


ODD = Odd()


@pytest.mark.parametrize(
    ("handler", "given", "expected"),
    [
        (model, b'{"number": 7}', Order(number=7)),
        (model, {"number": 7}, Order(number=7)),
        (model, Order(number=7), Order(number=7)),
        (maybe, None, None),
        (row, b'{"number": 7}', Row(7)),
        (table, b'{"number": 7}', {"number": 7}),
        (text, b"abc", "abc"),
        (raw, b"abc", b"abc"),
        (untyped, b"abc", b"abc"),
        (day, b"2026-01-31", date(2026, 1, 31)),
        (day, b'"2026-01-31"', date(2026, 1, 31)),
        (known, ODD, ODD),
    ],
)
def test_the_value_is_converted_to_its_annotation(
    handler: Callable[..., Any], given: object, expected: object
) -> None:
    assert called(handler, Fake(value=given)) == expected


@pytest.mark.parametrize(
    ("handler", "given", "wrong"),
    [
        (model, b'{"number": "x"}', "number"),
        (model, b"no json", "value"),
        (model, b'{"customer": "a"}', "number"),
        (model, None, "value"),
        (model, b"\xff", "value"),
        (text, b"\xff", "value"),
        (text, None, "value"),
        (day, b"soon", "value"),
        (known, 7, "value"),
    ],
)
def test_what_does_not_fit_is_undecodable(handler: Callable[..., Any], given: object, wrong: str) -> None:
    with pytest.raises(Undecodable) as raised:
        called(handler, Fake(value=given))
    error = raised.value
    assert (error.field, error.topic, error.partition, error.offset, error.transient) == (
        "value",
        "t",
        1,
        2,
        False,
    )
    assert error.state is not None
    assert error.state.startswith(f"t[1]@2, {wrong}: ")
    assert error.__cause__ is None, "pydantic's error contains the payload"
    assert "no json" not in str(error), "an error has no payload"


def every(
    order: Order,
    key: str,
    properties: Head,
    delivery: kafkadur.Delivery,
    *,
    number: Annotated[int, Part.KEY] = 0,
) -> object:
    return order, key, properties, delivery, number


def test_all_parts_in_any_order() -> None:
    delivery = Fake(key=b"12", properties={"region": "EU"})
    assert called(every, delivery) == (Order(number=7), "12", Head(region="EU"), delivery, 12)


def test_wrong_properties_and_keys_are_named() -> None:
    with pytest.raises(Undecodable, match="The properties of the message"):
        called(every, Fake(properties={}))
    with pytest.raises(Undecodable, match="The key of the message") as raised:
        called(every, Fake(key=b"x", properties={"region": "EU"}))
    assert raised.value.field == "key"


def test_a_marked_parameter_may_have_any_name() -> None:
    def handle(who: Annotated[uuid.UUID, Part.KEY], what: Annotated[str, Part.VALUE]) -> object:
        return who, what

    name = uuid.uuid4()
    assert called(handle, Fake(key=str(name).encode(), value=b"x")) == (name, "x")


async def later(order: Order, message: kafkadur.Delivery) -> object:
    await asyncio.sleep(0)
    return order, message


def test_a_coroutine_function_stays_one() -> None:
    delivery = Fake()
    call = with_arguments(later, "d")
    assert inspect.iscoroutinefunction(call)
    assert asyncio.run(call(delivery)) == (Order(number=7), delivery)
    assert call.__qualname__ == "later"


def test_methods_partials_and_objects() -> None:
    class Shop:
        def handle(self, order: Order) -> object:
            return order

        def __call__(self, order: Order) -> object:
            return order

    def with_shop(shop: Shop, order: Order) -> object:
        del shop
        return order

    for handler in (Shop().handle, Shop(), functools.partial(with_shop, Shop())):
        assert called(handler, Fake()) == Order(number=7)


def unknown(order: Order, session: object) -> None:
    del order, session


def test_a_parameter_that_asks_for_nothing_known_is_refused_when_it_is_declared() -> None:
    with pytest.raises(IllegalState, match="parameter 'session' of the handler"):
        with_arguments(unknown, "d")
    with pytest.raises(IllegalState, match="parameter 'session'"):
        kafkadur.App().subscription("t", durable="d")(unknown)
