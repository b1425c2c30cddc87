"""Durable subscriptions for Apache Kafka: per-message acknowledge and roll back, coordinated in Redis.

`connect` gives an asynchronous connection, `kafkadur.sync.connect` its synchronous twin; `embedded` runs a
real Kafka and a real Valkey on this machine for trying out and tests. Everything not named here is private.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from kafkadur_sharing.errors import *  # noqa: F403 - all errors are public
from kafkadur_sharing.errors import __all__ as _errors

if TYPE_CHECKING:  # type checkers read these imports, and report a missing name
    from kafkadur.aio.connection import Connection as Connection
    from kafkadur.aio.connection import connect as connect
    from kafkadur.aio.delivery import Delivery as Delivery
    from kafkadur.aio.distributed import Distributed as Distributed
    from kafkadur.aio.session import Session as Session
    from kafkadur.aio.subscription import Subscription as Subscription
    from kafkadur.consumer.delivery import Batch as Batch
    from kafkadur.events import Event as Event
    from kafkadur.handlers.arguments import Part as Part
    from kafkadur.handlers.limits import CircuitBreaker as CircuitBreaker
    from kafkadur.handlers.limits import RateLimit as RateLimit
    from kafkadur.handlers.results import Reject as Reject
    from kafkadur.producer.producer import Producer as Producer
    from kafkadur.producer.receipt import Receipt as Receipt
    from kafkadur.settings import Settings as Settings
    from kafkadur.stack import embedded as embedded
    from kafkadur.worker.app import App as App
    from kafkadur_sharing.definition import SubscriptionType as SubscriptionType
    from kafkadur_sharing.distributed import DistributedTopic as DistributedTopic
    from kafkadur_sharing.distributed import TopicMember as TopicMember
    from kafkadur_sharing.keys import ClientIdPolicy as ClientIdPolicy
    from kafkadur_sharing.redelivery_policy import Redelivery as Redelivery
    from kafkadur_sharing.selector import Selector as Selector
else:
    #: Public names by module. Each is imported on first use: `import kafkadur` takes milliseconds, importing
    #: the Kafka and Redis clients takes most of a second.
    _MODULES = {
        "kafkadur.aio.connection": ("Connection", "connect"),
        "kafkadur.aio.delivery": ("Delivery",),
        "kafkadur.aio.distributed": ("Distributed",),
        "kafkadur.aio.session": ("Session",),
        "kafkadur.aio.subscription": ("Subscription",),
        "kafkadur.consumer.delivery": ("Batch",),
        "kafkadur.events": ("Event",),
        "kafkadur.handlers.arguments": ("Part",),
        "kafkadur.handlers.limits": ("CircuitBreaker", "RateLimit"),
        "kafkadur.handlers.results": ("Reject",),
        "kafkadur.producer.producer": ("Producer",),
        "kafkadur.producer.receipt": ("Receipt",),
        "kafkadur.settings": ("Settings",),
        "kafkadur.stack": ("embedded",),
        "kafkadur.worker.app": ("App",),
        "kafkadur_sharing.definition": ("SubscriptionType",),
        "kafkadur_sharing.distributed": ("DistributedTopic", "TopicMember"),
        "kafkadur_sharing.keys": ("ClientIdPolicy",),
        "kafkadur_sharing.redelivery_policy": ("Redelivery",),
        "kafkadur_sharing.selector": ("Selector",),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
    #: Public modules.
    _PUBLIC = ("jms", "sync", "testing")
    __all__ = [name for names in (_MODULE_OF, _errors) for name in names]

    def __getattr__(name: str) -> object:
        """Import a public name, or a module of the package. Raises AttributeError for any other name."""
        if name in _MODULE_OF:
            value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
            return value
        missing = AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name.startswith("_"):
            raise missing
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name == f"{__name__}.{name}":
                raise missing from None
            raise  # the module needs a package that is not installed

    def __dir__() -> list[str]:
        """Return the public names, and those that every module has."""
        return sorted([*__all__, *_PUBLIC, *(name for name in globals() if name.startswith("__"))])
