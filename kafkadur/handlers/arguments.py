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
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from kafkadur.consumer.delivery import Delivery
from kafkadur.handlers.results import is_coroutine_function
from kafkadur_sharing.errors import IllegalState, Undecodable


class Part(StrEnum):
    """A part of a delivery that a parameter can ask for: `Annotated[Order, Part.VALUE]`."""

    #: The value, converted to the annotation.
    VALUE = "value"
    #: The key, converted to the annotation.
    KEY = "key"
    #: The properties, a dict.
    PROPERTIES = "properties"
    #: The delivery itself.
    DELIVERY = "delivery"


#: Names of parameters that say which part they ask for.
_NAMES: Final = {part.value: part for part in Part} | {"message": Part.DELIVERY}
#: Places of a message that are named when they do not fit.
_MOST_TOLD: Final = 5
#: Errors of pydantic whose text, or whose place, is made by the application or from the message.
_PRIVATE_TEXT: Final = ("value_error", "assertion_error")
_PRIVATE_PLACE: Final = ("extra_forbidden", "invalid_key")
#: Gives an argument, from a delivery.
Getter = Callable[[Delivery[Any, Any]], Any]


def with_arguments(handler: Callable[..., Any], owner: str, *, later: bool = False) -> Callable[[Any], Any]:
    """Return a function that calls the handler for a delivery with the arguments that it asks for.

    It is the handler itself where that takes a delivery. `owner` is named in errors. `later`: annotations
    may still be missing, because the module is not read to its end. Raises `IllegalState` for a parameter
    that asks for nothing known.
    """
    wanted = _parameters(handler, owner, later=later)
    if wanted is None:
        return handler
    positional = [getter for kind, _, getter in wanted if kind is inspect.Parameter.POSITIONAL_ONLY]
    by_name = {name: getter for kind, name, getter in wanted if kind is not inspect.Parameter.POSITIONAL_ONLY}

    def call(delivery: Delivery[Any, Any]) -> Any:  # noqa: ANN401 - what the handler returns
        arguments = [getter(delivery) for getter in positional]
        return handler(*arguments, **{name: getter(delivery) for name, getter in by_name.items()})

    if not is_coroutine_function(handler):
        return _named(call, handler)

    async def call_and_wait(delivery: Delivery[Any, Any]) -> Any:  # noqa: ANN401 - as above
        return await call(delivery)

    return _named(call_and_wait, handler)


def _named(call: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
    call.__qualname__ = getattr(handler, "__qualname__", type(handler).__qualname__)  # for logs
    return call


# -- parameters

#: Kind and name of a parameter, and what gives its argument.
_Wanted = tuple[Any, str, Getter]


class _Unresolved:
    """Stands for an annotation that cannot be resolved, such as a name that type checkers alone import."""


_UNRESOLVED: Final = _Unresolved()


def _parameters(handler: Callable[..., Any], owner: str, *, later: bool) -> list[_Wanted] | None:
    """Return what the parameters ask for; None for a handler that takes a delivery."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # a built-in function tells nothing about its parameters
        return None
    bound = _bound(handler)
    needed = [each for each in parameters if each.kind not in _VARIABLE and each.name not in bound]
    if not needed:
        if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
            return None
        raise _refused(handler, "The handler takes no argument.", "it has no parameter", "give it one")
    hints = _hints(handler, needed)
    if later and any(hint is _UNRESOLVED for hint in hints.values()):
        return None
    asked = {each.name: _asked(each, hints[each.name]) for each in needed}
    required = [each for each in needed if each.default is inspect.Parameter.empty]
    for each in required:
        hint = hints[each.name]
        if hint is _UNRESOLVED or (asked[each.name] is None and len(required) > 1):
            raise _unknown(handler, each.name, hint)
    if len(required) <= 1 and set(asked.values()) <= {None, Part.DELIVERY}:
        return None
    return [
        (each.kind, each.name, _getter(part, hints[each.name], owner))
        for each in needed
        if (part := asked[each.name]) is not None
    ]


_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _bound(handler: Callable[..., Any]) -> set[str]:
    """Return the parameters that `functools.partial` has bound by name."""
    names: set[str] = set()
    while isinstance(handler, functools.partial):
        names |= handler.keywords.keys()
        handler = handler.func
    return names


def _unknown(handler: Callable[..., Any], name: str, hint: object) -> IllegalState:
    state = "cannot be resolved" if hint is _UNRESOLVED else "is missing" if hint is None else f"is {hint}"
    return _refused(
        handler,
        f"It is not known what the parameter {name!r} of the handler is to be.",
        f"its annotation {state}",
        "call it value, key, properties or delivery, or annotate it with a pydantic model, with Delivery, or "
        "with Annotated[..., kafkadur.Part.KEY], all of them imported at run time",
    )


def _refused(handler: Callable[..., Any], message: str, state: str, remedy: str) -> IllegalState:
    owner = f"handler {getattr(handler, '__qualname__', handler)}"
    return IllegalState(message, state=state, owner=owner, remedy=remedy)


def _hints(handler: Callable[..., Any], needed: list[inspect.Parameter]) -> dict[str, Any]:
    """Return the annotation of each parameter; None: it has none."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    called = handler if inspect.isroutine(handler) else type(handler).__call__
    names = getattr(inspect.unwrap(called), "__globals__", {})
    return {each.name: _resolved(each.annotation, names) for each in needed}


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:  # noqa: ANN401 - any annotation
    if annotation is inspect.Parameter.empty:
        return None
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["it"]
    except (NameError, TypeError, AttributeError, SyntaxError):
        # a name that type checkers alone import is a delivery by its name
        return Delivery if "Delivery" in str(annotation) else _UNRESOLVED


def _asked(parameter: inspect.Parameter, annotation: Any) -> Part | None:  # noqa: ANN401 - any annotation
    """Return the part that a parameter asks for; None: neither its name nor its annotation says one.

    A parameter with a default asks for something only if its annotation says so.
    """
    for each in (annotation, *get_args(annotation)):
        if get_origin(each) is Annotated:
            marked = [mark for mark in get_args(each)[1:] if isinstance(mark, Part)]
            if marked:
                return marked[0]
    kinds = _kinds(annotation)
    if any(_is_below(kind, Delivery) for kind in kinds):
        return Part.DELIVERY
    named = _NAMES.get(parameter.name)
    required = parameter.default is inspect.Parameter.empty
    is_model = any(_is_below(kind, BaseModel) or is_dataclass(kind) for kind in kinds)
    if is_model or (required and any(map(_is_data, kinds))):
        return Part.VALUE if named in (None, Part.DELIVERY) else named
    return named if required else None


def _kinds(annotation: Any) -> list[Any]:  # noqa: ANN401 - any annotation
    """Return the classes of an annotation: those of a union one by one, without None."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for each in get_args(annotation) for kind in _kinds(each) if kind is not type(None)]
    return [get_origin(annotation) or annotation]


def _is_below(kind: object, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _is_data(kind: object) -> bool:
    """Whether a parameter of this class takes data: any class but those that a delivery may be meant by."""
    if not isinstance(kind, type) or kind in (Any, object):
        return False
    return not getattr(kind, "_is_protocol", False)


# -- arguments


def _getter(part: Part, annotation: object, owner: str) -> Getter:
    if part is Part.DELIVERY:
        return _itself
    kinds = _kinds(annotation)
    if annotation is None or Any in kinds or object in kinds:
        return lambda delivery: getattr(delivery, part)
    adapter = _adapter(annotation)
    # text and bytes are taken as they are; bytes of anything else are JSON, or a text such as a date
    as_json = not any(_is_below(kind, bytes) or _is_below(kind, str) for kind in kinds)

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
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        adapter.rebuild(raise_errors=True)  # a model may name classes that do not exist
    except PydanticSchemaGenerationError:  # a class that pydantic does not know: only its instances fit
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticUserError, NameError) as error:
        raise IllegalState(
            f"Nothing can be converted to {annotation}.",
            state=str(error).partition("\n")[0],
            owner="the annotation of a handler's parameter",
            remedy="use another annotation, such as a complete pydantic model",
        ) from error
    return adapter


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
    wrong = [_told(each, part) for each in error.errors(include_url=False, include_context=False)]
    return Undecodable(
        f"The {part} of the message is not what the handler takes.",
        field=part.value,
        topic=delivery.topic,
        partition=delivery.partition,
        offset=delivery.offset,
        state=f"{delivery.topic}[{delivery.partition}]@{delivery.offset}, {'; '.join(wrong[:_MOST_TOLD])}",
        owner=owner,
        remedy="correct the annotation of the handler, or what is published; on_undecodable='reject' makes "
        "dead letters of such messages",
    )


def _told(error: Any, part: Part) -> str:  # noqa: ANN401 - pydantic's dictionary of an error
    """Return the place and the reason of an error, without what comes from the message."""
    place = [] if error["type"] in _PRIVATE_PLACE else error["loc"]
    reason = error["type"] if error["type"] in (*_PRIVATE_TEXT, *_PRIVATE_PLACE) else error["msg"]
    return f"{'.'.join(map(str, place)) or part}: {reason}"
