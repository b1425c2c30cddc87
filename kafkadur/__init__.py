"""Durable subscriptions for Apache Kafka: per-message acknowledge and roll back, coordinated in Redis.

`connect` gives an asynchronous connection, `kafkadur.sync.connect` its synchronous twin; `embedded` runs a
real Kafka and a real Valkey on this machine for trying out and tests. Everything not named here is private.
"""

from kafkadur.aio.connection import Connection, connect
from kafkadur.aio.distributed import Distributed
from kafkadur.aio.session import Session
from kafkadur.aio.subscription import Delivery, Subscription
from kafkadur.delivery import Batch
from kafkadur.events import Event
from kafkadur.handlers import Reject
from kafkadur.limits import CircuitBreaker, RateLimit
from kafkadur.producer import Producer, Receipt
from kafkadur.service.app import App
from kafkadur.settings import Settings
from kafkadur.stack import embedded
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
