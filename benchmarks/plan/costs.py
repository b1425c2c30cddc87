"""The measured costs that a plan is calculated from, and the file that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

#: The costs that belong to this version of kafkadur.
COSTS = Path(__file__).with_name("costs.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """CPU of one core of the machine they were measured on, memory in bytes."""

    #: CPU of the Redis server for an exchange about one partition, ms; for each further partition in it; for
    #: renewing the session of a member that has nothing to say; and for reading what a checkpoint stores
    exchange_ms: float
    partition_ms: float
    renewal_ms: float
    inspection_ms: float
    #: memory of Redis, for one partition of a subscription, and for one message that waits
    partition_bytes: float
    waiting_bytes: float
    #: CPU of brokers for writing and for reading a megabyte in large batches, s
    written_mb_s: float
    read_mb_s: float
    #: CPU of a broker for a batch of one message that is written and read by itself, s
    batch_s: float
    #: cores of a broker for one reader to which nothing comes
    idle_reader_cores: float
    #: CPU of a consumer for one message of a backlog, and for one that comes alone (200 a second), s
    backlog_message_s: float
    live_message_s: float
    #: messages of a backlog that one exchange settles, at a window of 10,000
    messages_an_exchange: float
    #: cores of a process for one subscription that is attached and idle
    idle_subscription_cores: float
    #: memory of a process with one subscription
    process_bytes: float


_ADAPTER = TypeAdapter(Costs)


def load(file: Path = COSTS) -> Costs:
    """Read costs. Raises `pydantic.ValidationError` for a file that does not hold them."""
    return _ADAPTER.validate_json(file.read_bytes())


def save(costs: Costs, file: Path) -> None:
    """Write costs."""
    file.write_bytes(_ADAPTER.dump_json(costs, indent=2) + b"\n")
