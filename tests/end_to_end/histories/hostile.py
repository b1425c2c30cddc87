"""A member that sends requests of which one value is replaced by any other one, straight to the scripts.

It settles nothing on purpose: what it was granted must come to the other members when it is gone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from kafkadur.admin.changes import Admin
from kafkadur.settings import Settings
from kafkadur_coordinators.changes import state_in_force
from kafkadur_coordinators.interface import Claim, PartitionReport
from kafkadur_coordinators.redis.coordinator import RedisCoordinator, Refusal, SubscriptionAddress
from kafkadur_coordinators.redis.wire import (
    POSITIONS,
    AttachRequest,
    DetachRequest,
    ExchangeRequest,
    PartClaims,
    ReclaimRequest,
)
from tests.integration.security.requests import changed

_TIMEOUT_S = 2.0
_SCRIPTS = ("attach", "exchange", "exchange", "exchange", "reclaim", "detach")
_REQUESTS = 40
#: Numbers that are nearly right do more harm than what is far off.
_VALUES: Sequence[Any] = (
    *(None, True, False, -1, 0, 1, 2, 0.5, 2.5, math.nan, math.inf),
    *(2**31, 2**47, 2**48, 2**53, 2**63 - 1, -(2**63), 2**64 - 1),
    *("", "a}{:*m-", b"\xff" * 12, [], [[]], [1, [2, [3]]], [0, 2**48], [-1, 0.5]),
)
_TRANSACTED = POSITIONS["AttachRequest"]["transacted"] - 1


def attack(settings: Settings, subscription: str, chance: random.Random) -> int:
    """Attach to a subscription, send requests, and leave; returns how many were accepted.

    Raises KafkadurError for one that makes a script fail.
    """
    with Admin(settings) as admin:
        key = admin.key(subscription)
    address = SubscriptionAddress(prefix=settings.prefix, namespace=key.namespace, tag=key.tag)
    coordinator = RedisCoordinator(settings.redis, timeout=_TIMEOUT_S)
    member = f"hostile-{chance.getrandbits(32):08x}"
    accepted = 0
    try:
        known = coordinator.peek(address)
        if not known.definition:
            return 0  # it is just being made
        partitions = range(min(known.partitions, 2))
        keys = address.keys(known.id, state_in_force(known), partitions)
        common = coordinator.common(subscription_id=known.id, incarnation=known.incarnation, member=member)
        for number in range(1, _REQUESTS + 1):
            name = "attach" if number == 1 else chance.choice(_SCRIPTS)
            request = [*common, *_usual(name, number, known.version, partitions)]
            if number > 1:
                request = changed(request, chance.randrange(10_000), chance.choice(_VALUES))
            if name == "attach" and request[_TRANSACTED : _TRANSACTED + 1] == [1]:
                continue  # what it has committed is looked up first, by a process that is not here
            accepted += (
                coordinator.run(name, address.fixed() if name == "attach" else keys, request).code == "OK"
            )
        coordinator.run("detach", keys, [*common, *DetachRequest(list(partitions), 0)])
    except Refusal:
        pass  # there is no subscription at this moment
    finally:
        coordinator.close()
    return accepted


def _usual(name: str, number: int, version: int, partitions: Sequence[int]) -> Sequence[object]:
    """A request as a member would make it that receives nothing."""
    requests: dict[str, Sequence[object]] = {
        "attach": AttachRequest("hostile", 2_000, version, 0, "", 0, 0, 0),
        "detach": DetachRequest(list(partitions), 0),
        "exchange": ExchangeRequest(number, 0, 0, 1, 10, [PartitionReport(p) for p in partitions], 0, 0, 1),
        "reclaim": ReclaimRequest(1, [PartClaims(p, [Claim(1, 1, 0, (0, 5))]) for p in partitions], 1),
    }
    return requests[name]
