"""The options of a gateway: where it listens, who may connect, and its limits."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from kafkadur.gateway.permissions import EVERYTHING, Permissions
from kafkadur.gateway.sasl import CheckPassword
from kafkadur_sharing.redelivery_policy import Redelivery


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """Where a gateway listens, who may connect, and its limits."""

    host: str = "127.0.0.1"
    #: 0: any free port
    port: int = 5672
    #: None: without TLS
    tls: ssl.SSLContext | None = None
    #: whether clients may connect without saying who they are
    anonymous: bool = True
    #: says whether a user has a password; called in threads. None: there is no PLAIN
    check_password: CheckPassword | None = None
    #: what users may do; by default everything
    permissions: Permissions = EVERYTHING
    #: seconds without a frame after which a client counts as gone
    idle_timeout: float = 60.0
    #: seconds that a client has to authenticate and to open its connection
    handshake_timeout: float = 10.0
    #: of all clients, and of one of them
    most_connections: int = 10_000
    most_sessions: int = 256
    most_links: int = 1_024
    #: bytes of a frame, and of a message
    most_frame_bytes: int = 65_536
    most_message_bytes: int = 1_048_576
    #: bytes of messages that one consumer has and has not settled
    most_unsettled_bytes: int = 67_108_864
    #: whether a message that a client releases counts as an attempt: a listener of Qpid JMS that raises an
    #: exception releases its message
    counts_released: bool = False
    #: the policy of subscriptions that clients create; None: messages are redelivered for ever, at once
    redelivery: Redelivery | None = None
