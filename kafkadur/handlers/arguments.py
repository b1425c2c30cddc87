"""What a handler is called with: the delivery, or what its parameters ask for.

A handler with one parameter for the delivery is called with it. Any other handler says by the names and
annotations of its parameters what it wants: value, key, properties, delivery. Pydantic checks and converts
them, and what does not fit raises `Undecodable`, as a deserializer does.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Union, get_args, get_origin, is_typeddict

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from kafkadur.consumer.delivery import Delivery
from kafkadur_sharing.errors import IllegalState, Undecodable


class Part(StrEnum):
    """A part of a delivery that a parameter can ask for: `Annotated[Order, Part.VALUE]`."""

    VALUE = "value"
    KEY = "key"
    PROPERTIES = "properties"
    DELIVERY = "delivery"


#: Names of parameters that say which part they ask for.
_NAMES: Final = {**{part.value: part for part in Part}, "message": Part.DELIVERY}
#: Places of a message that are named when they do not fit.
_MOST_TOLD: Final = 5
#: Annotations of values: of such a type is no delivery.
_DATA: Final = (BaseModel, dict, list, tuple, set, str, bytes, int, float)
#: Gives an argument, from a delivery.
Getter = Callable[[Delivery[Any, Any]], Any]


def with_arguments(handler: Callable[..., Any], owner: str) -> Callable[[Any], Any]:
    """Return a function that calls the handler for a delivery with the arguments that it asks for.

    It is the handler itself where that takes a delivery. `owner` is named in errors. Raises `IllegalState`
    for a parameter that asks for nothing known.
    """
    wanted = _parameters(handler, owner)
    if wanted is None:
        return handler
    positional = [getter for kind, _, getter in wanted if kind is not inspect.Parameter.KEYWORD_ONLY]
    by_name = {name: getter for kind, name, getter in wanted if kind is inspect.Parameter.KEYWORD_ONLY}

    def call(delivery: Delivery[Any, Any]) -> Any:  # noqa: ANN401 - what the handler returns
        arguments = [getter(delivery) for getter in positional]
        return handler(*arguments, **{name: getter(delivery) for name, getter in by_name.items()})

    if not _is_coroutine_function(handler):
        return _named(call, handler)

    async def call_and_wait(delivery: Delivery[Any, Any]) -> Any:  # noqa: ANN401 - as above
        return await call(delivery)

    return _named(call_and_wait, handler)


def _named(call: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
    call.__qualname__ = getattr(handler, "__qualname__", type(handler).__qualname__)  # for logs
    return call


def _is_coroutine_function(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
    )


# -- parameters

#: Kind and name of a parameter, and what gives its argument.
_Wanted = tuple[Any, str, Getter]


def _parameters(handler: Callable[..., Any], owner: str) -> list[_Wanted] | None:
    """Return what the parameters ask for; None for a handler that takes a delivery."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # a built-in function tells nothing about its parameters
        return None
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each for each in parameters if each.kind not in variable]
    required = [each for each in needed if each.default is inspect.Parameter.empty]
    hints = _hints(handler)
    asked = {each.name: _asked(each, hints) for each in needed}
    if len(required) <= 1 and set(asked.values()) <= {None, Part.DELIVERY}:
        return None
    wanted: list[_Wanted] = []
    for each in needed:
        if (part := asked[each.name]) is not None:
            wanted.append((each.kind, each.name, _getter(part, hints.get(each.name, Any), owner)))
        elif each in required:
            raise IllegalState(
                f"It is not known what the parameter {each.name!r} of the handler is to be.",
                state=f"its annotation is {hints.get(each.name, 'missing')}",
                owner=f"handler {getattr(handler, '__qualname__', handler)}",
                remedy="call it value, key, properties or delivery, or annotate it with a pydantic model, "
                "with Delivery, or with Annotated[..., kafkadur.Part.KEY]",
            )
    return wanted


def _hints(handler: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the parameters; empty if they cannot be resolved."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    called = handler if inspect.isroutine(handler) else type(handler).__call__
    try:
        return typing.get_type_hints(called, include_extras=True)
    except (NameError, TypeError, AttributeError):  # names that exist for type checkers only
        return {}


def _asked(parameter: inspect.Parameter, hints: dict[str, Any]) -> Part | None:
    """Return the part that a parameter asks for; None: neither its name nor its annotation says one."""
    annotation = hints.get(parameter.name)
    if get_origin(annotation) is Annotated:
        annotation, *marks = get_args(annotation)
        marked = [each for each in marks if isinstance(each, Part)]
        if marked:
            return marked[0]
    if _is(annotation, Delivery):
        return Part.DELIVERY
    part = _NAMES.get(parameter.name)
    required = parameter.default is inspect.Parameter.empty
    if part is None and required and (_is(annotation, *_DATA) or is_typeddict(annotation)):
        return Part.VALUE
    return part


def _is(annotation: object, *bases: type) -> bool:
    """Whether an annotation is a class below one of `bases`, with type arguments or in a union, too."""
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_is(each, *bases) for each in get_args(annotation))
    plain = get_origin(annotation) or annotation
    if not isinstance(plain, type):
        return False
    return issubclass(plain, bases) or (BaseModel in bases and is_dataclass(plain))


# -- arguments


def _getter(part: Part, annotation: object, owner: str) -> Getter:
    if part is Part.DELIVERY:
        return _itself
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if kind in (Any, inspect.Parameter.empty):
        return lambda delivery: getattr(delivery, part)
    adapter = _adapter(annotation)
    # text and bytes are taken as they are; bytes of anything else are JSON, or a text such as a date
    as_json = not _is(kind, bytes) and not _is(kind, str)

    def get(delivery: Delivery[Any, Any]) -> Any:  # noqa: ANN401 - of the type of the annotation
        given = getattr(delivery, part)
        try:
            if as_json and isinstance(given, bytes):
                return _from_bytes(adapter, given)
            return adapter.validate_python(given)
        except ValidationError as error:
            # its text contains parts of the message
            raise _undecodable(part, delivery, error, owner) from None

    return get


def _adapter(annotation: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any annotation
    try:
        return TypeAdapter(annotation)
    except PydanticSchemaGenerationError:  # a class that pydantic does not know: only its instances fit
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError as error:
        raise IllegalState(
            f"Nothing can be converted to {annotation}.",
            state=str(error).partition("\n")[0],
            owner="the annotation of a handler's parameter",
            remedy="use another annotation, such as a pydantic model",
        ) from error


def _from_bytes(adapter: TypeAdapter[Any], given: bytes) -> Any:  # noqa: ANN401 - of the type of the annotation
    try:
        return adapter.validate_json(given)
    except ValidationError:
        try:
            return adapter.validate_strings(given.decode())
        except (ValidationError, UnicodeDecodeError):
            pass
        raise


def _itself(delivery: Delivery[Any, Any]) -> Delivery[Any, Any]:
    return delivery


def _undecodable(part: Part, delivery: Delivery[Any, Any], error: ValidationError, owner: str) -> Undecodable:
    wrong = [
        f"{'.'.join(map(str, each['loc'])) or part}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return Undecodable(
        f"The {part} of the message is not what the handler takes.",
        field=part.value,
        topic=delivery.topic,
        partition=delivery.partition,
        offset=delivery.offset,
        state=f"{delivery.topic}[{delivery.partition}]@{delivery.offset}, {'; '.join(wrong[:_MOST_TOLD])}",
        owner=owner,
        remedy="reject the message with on_undecodable='reject', or correct the annotation of the handler",
    )
