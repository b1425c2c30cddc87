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
from pydantic import BaseModel, ConfigDict, field_validator
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


def spaced(value: int, retries: int = 3, key: Annotated[str, Part.KEY] = "") -> object:
    return value, retries, key


def by_place(value: int, /, key: str) -> object:
    return value, key


def with_client(delivery, client: object = ODD, key=None) -> object:  # type: ignore[no-untyped-def]  # as users do
    return delivery, client, key


def test_defaults_stay_and_no_argument_slips_into_another_parameter() -> None:
    assert called(spaced, Fake(value=b"1")) == (1, 3, "k")
    assert called(by_place, Fake(value=b"1")) == (1, "k")
    assert with_arguments(with_client, "d") is with_client, "a default asks for nothing by its name"
    bound = functools.partial(spaced, key="mine")
    assert called(bound, Fake(value=b"1")) == (1, 3, "mine")


def model_called_message(message: Order) -> object:
    return message


def model_with_default(order: Order | None = None) -> object:
    return order


def marked_in_a_union(who: Annotated[Order, Part.VALUE] | None) -> object:
    return who


@pytest.mark.parametrize("handler", [model_called_message, model_with_default, marked_in_a_union])
def test_the_annotation_of_data_goes_before_the_name(handler: Callable[..., Any]) -> None:
    assert called(handler, Fake()) == Order(number=7)


def returning(order: Order, key: str) -> "NotThere":  # type: ignore[name-defined]  # noqa: F821 - on purpose
    return order, key


def for_checkers(message: "checkers.Delivery") -> object:  # type: ignore[name-defined]  # noqa: F821 - on purpose
    return message


def missing(order: "NotThere", key: str) -> None:  # type: ignore[name-defined]  # noqa: F821 - on purpose
    del order, key


def alone(order: "NotThere") -> None:  # type: ignore[name-defined]  # noqa: F821 - on purpose
    del order


def nothing() -> None: ...


class Incomplete(BaseModel):
    """A model that names a class that does not exist."""

    part: "NotThere"  # type: ignore[name-defined]  # noqa: F821 - on purpose


def incomplete(order: Incomplete) -> None:
    del order


def test_an_annotation_that_cannot_be_resolved_switches_no_check_off() -> None:
    assert called(returning, Fake()) == (Order(number=7), "k")
    assert with_arguments(for_checkers, "d") is for_checkers
    refused: dict[Callable[..., Any], str] = {
        missing: "parameter 'order'.*cannot be resolved",
        alone: "parameter 'order'.*cannot be resolved",
        nothing: "takes no argument",
        incomplete: "Nothing can be converted",
    }
    for handler, words in refused.items():
        with pytest.raises(IllegalState, match=words):
            with_arguments(handler, "d")
    kafkadur.App().subscription("t", durable="d")(missing)  # it may be defined further down


def test_an_error_shows_nothing_that_the_message_brought() -> None:
    class Card(BaseModel):
        model_config = ConfigDict(extra="forbid")
        number: str

        @field_validator("number")
        @classmethod
        def check(cls, number: str) -> str:
            raise ValueError(number)

    def pay(card: Card) -> None:
        del card

    with pytest.raises(Undecodable) as raised:
        called(pay, Fake(value=b'{"number": "4111-SECRET", "SECRET": 1}'))
    assert "SECRET" not in str(raised.value)
    assert "number: value_error" in str(raised.value)


def unknown(order: Order, session) -> None:  # type: ignore[no-untyped-def]  # as users do
    del order, session


def test_a_parameter_that_asks_for_nothing_known_is_refused_when_it_is_declared() -> None:
    with pytest.raises(IllegalState, match="parameter 'session' of the handler"):
        with_arguments(unknown, "d")
    with pytest.raises(IllegalState, match="parameter 'session'"):
        kafkadur.App().subscription("t", durable="d")(unknown)
