"""What a run is to do: the subscriptions, how they are worked on, how long. Plain values, kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kafkadur_sharing.definition import TypeName

#: Partitions of a topic.
PARTITIONS = 3
#: Keys of every topic; all messages of a key lie in one partition.
KEYS = 24

#: Who may have messages of one lane in its hands at a time: nobody in particular, one member of all
#: partitions, one of each partition, one of each key.
NOBODY, WHOLE, PARTITION, KEY = "nobody", "whole", "partition", "key"


@dataclass(frozen=True, kw_only=True)
class SubscriptionPlan:
    """One subscription, on a topic of its own with the same name."""

    name: str
    type: TypeName
    #: records
    window: int
    max_attempts: int = 5
    #: what of it has one holder at a time
    lane: str = NOBODY
    strict: bool = False
    scope: str = "subscription"
    key_lanes: int | None = None
    #: of its topic
    partitions: int = PARTITIONS
    #: its share of the messages a second of a plan: less where every roll back holds all others back
    share: float = 1.0

    @property
    def full_name(self) -> str:
        """Its name as the administrator says it: an exclusive one needs a client id."""
        return f"{self.name}/{self.name} (unrestricted)" if self.type == "exclusive" else self.name

    @property
    def lanes(self) -> int:
        """Lanes of keys that each partition has; to the coordinator each is a partition."""
        return self.key_lanes or 1

    @property
    def ordered(self) -> bool:
        """Whether the messages of a partition come in order to whoever holds it."""
        return self.lane in {WHOLE, PARTITION}


#: What `--types` can name.
SUBSCRIPTIONS: Mapping[str, SubscriptionPlan] = {
    plan.name: plan
    for plan in (
        SubscriptionPlan(name="shared", type="shared", window=10),
        SubscriptionPlan(name="exclusive", type="exclusive", window=5, lane=WHOLE),
        SubscriptionPlan(name="priority", type="priority", window=4, lane=WHOLE),
        # a turn is three messages long, and changes hands on a busy machine
        SubscriptionPlan(name="serial", type="serial", window=3, lane=WHOLE, share=0.5),
        SubscriptionPlan(
            name="own-turns", type="serial", window=3, lane=PARTITION, scope="partition", share=0.5
        ),
        SubscriptionPlan(name="key-ordered", type="key-ordered", window=8, lane=KEY, key_lanes=2),
        SubscriptionPlan(name="strict", type="exclusive", window=5, lane=WHOLE, strict=True, share=0.3),
        # several members are at home with one partition: only then have they to be served in turn
        SubscriptionPlan(name="crowd", type="shared", window=4, partitions=1),
    )
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run. Times in seconds."""

    seed: int
    types: tuple[str, ...]
    faults: tuple[str, ...]
    minutes: float
    #: Redis is a cluster
    cluster: bool = False
    #: members a subscription
    members: int = 3
    #: messages a second and subscription
    rate: float = 30.0
    session: float = 3.0
    #: mean time between two faults of members, and of servers
    member_fault_every: float = 2.5
    server_fault_every: float = 10.0
    #: longest time until everything is settled after all is whole again
    drain: float = 90.0
    #: what was run
    commit: str = "unknown"
    subscriptions: Mapping[str, SubscriptionPlan] = field(default_factory=dict[str, SubscriptionPlan])

    def __post_init__(self) -> None:
        """Look up what the types stand for."""
        if not self.subscriptions:
            object.__setattr__(self, "subscriptions", {name: SUBSCRIPTIONS[name] for name in self.types})

    @property
    def command(self) -> str:
        """What repeats it, as far as a run of real processes can be repeated."""
        return (
            f"python -m tests.end_to_end.histories run --seed {self.seed} --minutes {self.minutes:g} "
            f"--types {','.join(self.types)} --faults {','.join(self.faults) or 'none'} "
            f"--members {self.members}{' --cluster' if self.cluster else ''}"
        )

    def write(self, path: Path) -> None:
        """Keep it in a file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Plan:
        """What `write` wrote; raises OSError, ValueError."""
        content: dict[str, Any] = json.loads(path.read_text())
        content["types"], content["faults"] = tuple(content["types"]), tuple(content["faults"])
        content["subscriptions"] = {
            name: SubscriptionPlan(**plan) for name, plan in content["subscriptions"].items()
        }
        return cls(**content)
