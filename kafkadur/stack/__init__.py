"""The embedded stack: a real Kafka and a real Valkey on this machine, for first steps, demos and tests.

:func:`embedded` runs one for the length of a ``with`` block; :func:`up`, :func:`status` and :func:`down`
manage one that outlives its command. kafkadur does not need this package where it is configured with the
addresses of real clusters.
"""

from kafkadur.stack.detached import FOLDER, RunningStack, StackStatus, down, status, up
from kafkadur.stack.errors import PortTakenError, StackError
from kafkadur.stack.jars import KAFKA_VERSION, Progress, cache_folder
from kafkadur.stack.kafka import Broker, create_topics
from kafkadur.stack.proxy import TcpProxy
from kafkadur.stack.server import Server
from kafkadur.stack.stack import Stack, embedded
from kafkadur.stack.valkey import Sentinel, Valkey, as_administrator

__all__ = [
    "FOLDER",
    "KAFKA_VERSION",
    "Broker",
    "PortTakenError",
    "Progress",
    "RunningStack",
    "Sentinel",
    "Server",
    "Stack",
    "StackError",
    "StackStatus",
    "TcpProxy",
    "Valkey",
    "as_administrator",
    "cache_folder",
    "create_topics",
    "down",
    "embedded",
    "status",
    "up",
]
