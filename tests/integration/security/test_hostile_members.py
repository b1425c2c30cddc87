"""A hostile member cannot keep messages from its neighbour.

Scripts refuse a malformed request with INVALID and change nothing. A well-formed request changes only the
leases of its sender. The requests of administrators are in `test_scripts.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import given

from kafkadur.stack import Valkey, as_administrator
from kafkadur_coordinators.interface import Claim, PartitionReport
from kafkadur_coordinators.redis.wire import (
    POSITIONS,
    AttachRequest,
    ConfirmRequest,
    ExchangeRequest,
    PartClaims,
    ReclaimRequest,
    RenewRequest,
)
from kafkadur_sharing.numbers import LONGEST_DELAY
from tests.integration.coordinators.world import (
    SESSION_MS,
    Member,
    World,
    blob,
    report,
    rolled_back,
    settled,
    unread,
)
from tests.integration.security.any_values import ITEMS, many, temporary_world
from tests.integration.security.requests import changed

KINDS = ("shared", "serial", "priority", "key-ordered")
SCRIPTS = ("attach", "confirm", "detach", "exchange", "exchange", "exchange", "reclaim", "renew")
FEW, MANY = 40, 800
END, MOST_ROUNDS = 50, 60
TRANSACTED = POSITIONS["AttachRequest"]["transacted"] - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_the_neighbour_of_a_hostile_member_receives_everything(
    server: Valkey, kind: str, examples: int
) -> None:
    client: Any = redis.Redis.from_url(as_administrator(server.url))

    @many(examples)
    @given(
        attacks=st.lists(
            st.tuples(st.sampled_from(SCRIPTS), st.integers(0, 10_000), ITEMS), min_size=1, max_size=5
        )
    )
    def attack(attacks: Sequence[tuple[str, int, Any]]) -> None:
        with temporary_world(server, client, type_=kind) as world:
            hostile, neighbour = world.attach("hostile"), world.attach("neighbour")
            for member in (hostile, neighbour):
                member.say(report(0, readable_end=END), report(1, readable_end=END), credit=15)
            had = held_by(world, "hostile")
            for number, (name, at, item) in enumerate(attacks, 2):
                request = changed(list(usual_request(world, name, number)), at, item)
                request[1:2] = [world.clock()]  # members of a real server cannot say the time
                if name == "attach" and request[TRANSACTED : TRANSACTED + 1] == [1]:
                    continue  # its commits are looked up first, by a process that is not here
                before = world.dump()
                code = world.coordinator.run(name, keys_for(world, name), request).code
                assert code != "INVALID" or world.dump() == before, (name, request)
                had |= held_by(world, "hostile")
            received = work(world, hostile, neighbour)
            everything = {(p, offset) for p in range(2) for offset in range(END)}
            assert everything - received <= had, attacks

    with client:
        attack()


def keys_for(world: World, name: str) -> list[str]:
    if name in {"confirm", "renew"}:
        return world.address.fixed()[:2]
    partitions = [] if name == "attach" else world.keys(0) + world.keys(1)
    return [*world.address.fixed(), *partitions]


def held_by(world: World, member: str) -> set[tuple[int, int]]:
    """Offsets below the end that lie within the leases of a member."""
    return {
        (lease.partition, offset)
        for lease in world.leases().values()
        if lease.member == member
        for offset in range(min(lease.start, END), min(lease.horizon, END))
    }


def usual_request(world: World, name: str, number: int) -> Sequence[object]:
    """A request as the hostile member would make it if it were not hostile."""
    common = world.coordinator.common(subscription_id=world.id, incarnation=1, member="hostile")
    said = report(
        readable_end=END,
        settled=[settled(1, 0, 3), blob(1, [9, 11])],
        returned=[rolled_back(1, 5, 8, 100)],
    )
    request: Sequence[object] = {
        "attach": AttachRequest("hostile", SESSION_MS, 1, 0, "", 0, 0, 0),
        "detach": ([0, 1], 1),
        "confirm": ConfirmRequest(number, 1, 10, 1, 10, 0, END, 3, -1, 1, 0, 3, 0, 0),
        "exchange": ExchangeRequest(number, 10, 1, 1, 10, [said, report(1, readable_end=END)], 0, 0, 1),
        "renew": RenewRequest(1, int(world.field("sequence"))),
        "reclaim": ReclaimRequest(1, [PartClaims(0, [Claim(1, 1, 0, (0, 5))]), PartClaims(1, [])], 1),
    }[name]
    return [*common, *request]


def work(world: World, hostile: Member, neighbour: Member) -> set[tuple[int, int]]:
    """Let the neighbour receive and settle until all is settled; returns what it received."""
    received: set[tuple[int, int]] = set()
    world.ears.forget(hostile.channel)
    for number in range(MOST_ROUNDS):
        reply = neighbour.say(*(verdicts(neighbour, p, received) for p in range(2)), credit=100, ask=True)
        for token, horizon in reply.horizons.items():
            neighbour.grants[token] = neighbour.grants[token]._replace(horizon=horizon)
        if all(view.floor >= END for view in world.inspect().partitions):
            return received
        world.clock.advance(SESSION_MS // 2 if number else LONGEST_DELAY.days * 86_400_000)
    pytest.fail(f"stuck: {world.inspect()}")


def verdicts(member: Member, partition: int, received: set[tuple[int, int]]) -> PartitionReport:
    """Settle what the member was granted of a partition, and give back what is beyond the end."""
    all_settled, returned, done, position = [], [], [], -1
    for grant in [grant for grant in member.grants.values() if grant.partition == partition]:
        bounds = grant.stretch or (grant.start, grant.horizon)
        inside = [min(bound, END) for bound in bounds]
        received |= {
            (partition, offset)
            for start, end in zip(inside[::2], inside[1::2], strict=True)
            for offset in range(start, end)
        }
        if inside[-1] > inside[0]:
            all_settled.append(settled(grant.token, *inside))
        if grant.kind == "lane":
            position = max(position, inside[-1])
            continue
        returned += [
            unread(grant.token, max(start, END), end)
            for start, end in zip(bounds[::2], bounds[1::2], strict=True)
            if end > max(start, END)
        ]
        done.append(grant.token)
        del member.grants[grant.token]
    return report(
        partition, readable_end=END, position=position, settled=all_settled, returned=returned, done=done
    )
