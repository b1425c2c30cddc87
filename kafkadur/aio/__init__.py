"""The asynchronous surface.

Connection, subscription, delivery. `kafkadur.sync` is generated from this package.
"""

from kafkadur.aio.connection import Connection, connect
from kafkadur.aio.session import Session
from kafkadur.aio.subscription import Delivery, Subscription

__all__ = ["Connection", "Delivery", "Session", "Subscription", "connect"]
