"""The options of `Connection.subscribe` by the type of the subscription, as type checkers see them.

`Connection.subscribe` documents them. `kafkadur_sharing.changing` refuses at run time what a type does not
have. `no_local` is an option of every type, because in the mode `weblogic` every type has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypedDict

from kafkadur.events import Event
from kafkadur_sharing.decisions import OnChange
from kafkadur_sharing.definition import AckLevel, HeaderType, Scope, Start
from kafkadur_sharing.redelivery_policy import Redelivery


class CommonOptions(TypedDict, total=False):
    """Options of every type."""

    shared: str | None
    window: int
    window_bytes: int
    unconfirmed: int | None
    start: Start | None
    selector: str | None
    no_local: bool
    header_types: Mapping[str, HeaderType] | None
    redelivery: Redelivery | None
    ack_level: AckLevel | None
    history: timedelta | float | None
    on_change: OnChange | None
    allow_conversion: bool
    create: bool
    topic_member: str | None
    name: str | None
    on_event: Callable[[Event], None] | None


class ExclusiveOptions(CommonOptions, total=False):
    """Options of the type exclusive."""

    strict_order: bool | None


class SharedOptions(CommonOptions, total=False):
    """Options of the type shared."""

    max_consumers: int | None


class PriorityOptions(ExclusiveOptions, SharedOptions, total=False):
    """Options of the type priority."""

    priority: int
    preempt: bool


class SerialOptions(ExclusiveOptions, SharedOptions, total=False):
    """Options of the type serial."""

    scope: Scope | None


class KeyOrderedOptions(ExclusiveOptions, SharedOptions, total=False):
    """Options of the type key-ordered."""

    key_lanes: int | None


class AnyOptions(PriorityOptions, SerialOptions, KeyOrderedOptions, total=False):
    """Options of a type that is known at run time only."""
