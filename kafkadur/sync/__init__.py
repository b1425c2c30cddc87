# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""The synchronous surface.

Connection, subscription, delivery. `kafkadur.sync` is generated from this package.
"""

from kafkadur.sync.connection import Connection, connect
from kafkadur.sync.delivery import Delivery
from kafkadur.sync.distributed import Distributed
from kafkadur.sync.session import Session
from kafkadur.sync.subscription import Subscription

__all__ = ["Connection", "Delivery", "Distributed", "Session", "Subscription", "connect"]


def __dir__() -> list[str]:
    """Return the public names, without the modules that they are in."""
    return __all__
