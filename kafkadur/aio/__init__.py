"""The asynchronous surface.

Connection, subscription, delivery. `kafkadur.sync` is generated from this package.
"""

from kafkadur.aio.connection import Connection, connect
from kafkadur.aio.delivery import Delivery
from kafkadur.aio.distributed import Distributed
from kafkadur.aio.session import Session
from kafkadur.aio.subscription import Subscription

__all__ = ["Connection", "Delivery", "Distributed", "Session", "Subscription", "connect"]


def __dir__() -> list[str]:
    """Return the public names, without the modules that they are in."""
    return __all__
