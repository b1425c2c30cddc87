"""Durable subscriptions for Apache Kafka: per-message acknowledge and roll back, coordinated in Redis.

`connect` gives an asynchronous connection, `kafkadur.sync.connect` its synchronous twin; `embedded` runs a
real Kafka and a real Valkey on this machine for trying out and tests. Everything not named here is private.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkadur.aio.connection import Connection, connect
    from kafkadur.aio.delivery import Delivery
    from kafkadur.aio.distributed import Distributed
    from kafkadur.aio.session import Session
    from kafkadur.aio.subscription import Subscription
    from kafkadur.consumer.delivery import Batch
    from kafkadur.events import Event
    from kafkadur.handlers.limits import CircuitBreaker, RateLimit
    from kafkadur.handlers.results import Reject
    from kafkadur.producer.producer import Producer
    from kafkadur.producer.receipt import Receipt
    from kafkadur.settings import Settings
    from kafkadur.stack import embedded
    from kafkadur.worker.app import App
    from kafkadur_sharing.definition import SubscriptionType
    from kafkadur_sharing.distributed import DistributedTopic, TopicMember
    from kafkadur_sharing.errors import (
        AlreadySettled,
        ConnectionClosed,
        CoordinatorRefused,
        CoordinatorUnavailable,
        DeliveryFailed,
        Fenced,
        ForkedConnection,
        IllegalState,
        InternalError,
        InvalidClientId,
        InvalidDestination,
        InvalidName,
        InvalidProperty,
        InvalidSelector,
        InvalidSubscriptionSharing,
        KafkadurError,
        KafkaRefused,
        LeaseLost,
        LevelNotReached,
        NotConnected,
        ResourceLimit,
        StateLost,
        SubscriptionActive,
        SubscriptionTypeMismatch,
        TopicChanged,
        TransactionRolledBack,
        Undecodable,
        Unencodable,
        Unreached,
    )
    from kafkadur_sharing.keys import ClientIdPolicy
    from kafkadur_sharing.redelivery import Redelivery
    from kafkadur_sharing.selector import Selector

__all__ = [
    "AlreadySettled",
    "App",
    "Batch",
    "CircuitBreaker",
    "ClientIdPolicy",
    "Connection",
    "ConnectionClosed",
    "CoordinatorRefused",
    "CoordinatorUnavailable",
    "Delivery",
    "DeliveryFailed",
    "Distributed",
    "DistributedTopic",
    "Event",
    "Fenced",
    "ForkedConnection",
    "IllegalState",
    "InternalError",
    "InvalidClientId",
    "InvalidDestination",
    "InvalidName",
    "InvalidProperty",
    "InvalidSelector",
    "InvalidSubscriptionSharing",
    "KafkaRefused",
    "KafkadurError",
    "LeaseLost",
    "LevelNotReached",
    "NotConnected",
    "Producer",
    "RateLimit",
    "Receipt",
    "Redelivery",
    "Reject",
    "ResourceLimit",
    "Selector",
    "Session",
    "Settings",
    "StateLost",
    "Subscription",
    "SubscriptionActive",
    "SubscriptionType",
    "SubscriptionTypeMismatch",
    "TopicChanged",
    "TopicMember",
    "TransactionRolledBack",
    "Undecodable",
    "Unencodable",
    "Unreached",
    "connect",
    "embedded",
]

#: Public names by the module that has them. Each is imported when it is first used: `import kafkadur` costs
#: milliseconds, the clients of Kafka and Redis most of a second.
_MODULES = {
    "kafkadur.aio.connection": ("Connection", "connect"),
    "kafkadur.aio.distributed": ("Distributed",),
    "kafkadur.aio.session": ("Session",),
    "kafkadur.aio.delivery": ("Delivery",),
    "kafkadur.aio.subscription": ("Subscription",),
    "kafkadur.consumer.delivery": ("Batch",),
    "kafkadur.events": ("Event",),
    "kafkadur.handlers.results": ("Reject",),
    "kafkadur.handlers.limits": ("CircuitBreaker", "RateLimit"),
    "kafkadur.producer.producer": ("Producer",),
    "kafkadur.producer.receipt": ("Receipt",),
    "kafkadur.worker.app": ("App",),
    "kafkadur.settings": ("Settings",),
    "kafkadur.stack": ("embedded",),
    "kafkadur_sharing.definition": ("SubscriptionType",),
    "kafkadur_sharing.distributed": ("DistributedTopic", "TopicMember"),
    "kafkadur_sharing.errors": (
        "AlreadySettled",
        "ConnectionClosed",
        "CoordinatorRefused",
        "CoordinatorUnavailable",
        "DeliveryFailed",
        "Fenced",
        "ForkedConnection",
        "IllegalState",
        "InternalError",
        "InvalidClientId",
        "InvalidDestination",
        "InvalidName",
        "InvalidProperty",
        "InvalidSelector",
        "InvalidSubscriptionSharing",
        "KafkadurError",
        "KafkaRefused",
        "LeaseLost",
        "LevelNotReached",
        "NotConnected",
        "ResourceLimit",
        "StateLost",
        "SubscriptionActive",
        "SubscriptionTypeMismatch",
        "TopicChanged",
        "TransactionRolledBack",
        "Undecodable",
        "Unencodable",
        "Unreached",
    ),
    "kafkadur_sharing.keys": ("ClientIdPolicy",),
    "kafkadur_sharing.redelivery": ("Redelivery",),
    "kafkadur_sharing.selector": ("Selector",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # type checkers see the imports above, and report a name that is missing

    def __getattr__(name: str) -> object:
        """Import a public name, or a module of the package. Raises AttributeError for any other name."""
        if name in _MODULE_OF:
            value: object = getattr(import_module(_MODULE_OF[name]), name)
            globals()[name] = value
            return value
        missing = AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name.startswith("_"):
            raise missing
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name == f"{__name__}.{name}":
                raise missing from None
            raise  # a package that this module needs


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *__all__})
