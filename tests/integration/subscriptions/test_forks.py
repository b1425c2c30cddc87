"""A process that forks after it has connected: the child is refused, and the parent does not notice.

The child has copies of the sockets of its parent. What it sent on them would be taken for the parent's.
"""

from collections.abc import Callable
from typing import Any

import pytest

import kafkadur.sync
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.forking import in_child
from tests.integration.subscriptions.helpers import LIMIT_S, PRIORITY_TOO, Place, number

COUNT = 30
KINDS = ("shared", "exclusive", PRIORITY_TOO, "serial", "key-ordered")

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


def taken(subscription: kafkadur.sync.Subscription) -> kafkadur.sync.Delivery:
    delivery = subscription.receive(timeout=LIMIT_S)
    assert delivery is not None
    return delivery


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_a_forked_child_is_refused(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(COUNT))
    session = {"exclusive": None}.get(kind, "session")
    with place.connect_sync() as connection:
        group = connection.session() if session else None
        with connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=10, session=group
        ) as subscription:
            seen: list[int] = []
            while len(seen) < COUNT:
                held = taken(subscription)
                child: dict[str, Callable[[], Any]] = {
                    "ack": held.ack,
                    "ack_nowait": held.ack_nowait,
                    "rollback": held.rollback,
                    "rollback_nowait": held.rollback_nowait,
                    "reject": held.reject,
                    "reject_nowait": held.reject_nowait,
                    "release": held.release,
                    "release_nowait": held.release_nowait,
                    "extend": held.extend,
                    "receive": lambda: subscription.receive(timeout=0),
                    "receive_batch": lambda: subscription.receive_batch(timeout=0),
                    "iterate": lambda: next(iter(subscription)),
                    "run": lambda: subscription.run(lambda _: None),
                    "statistics": subscription.statistics,
                    "subscribe": lambda: connection.subscribe(topic, durable="other"),
                    "unsubscribe": lambda: connection.unsubscribe("d"),
                    "producer": connection.producer,
                }
                if group is not None:
                    child |= {"acknowledge": group.acknowledge, "recover": group.recover}
                assert not in_child(child)
                held.ack()  # the first exchange after that of a child was taken for a repeat
                seen.append(number(held))
                if len(seen) < COUNT:
                    next_one = taken(subscription)
                    next_one.ack()
                    seen.append(number(next_one))
            assert sorted(seen) == [*range(COUNT)]
        with connection.subscribe(topic, durable="d", type=kind) as subscription:
            assert subscription.receive(timeout=1) is None, "what was confirmed does not come again"


def test_a_child_that_leaves_its_blocks_takes_nothing_from_its_parent(place: Place) -> None:
    """Closing in the child does nothing: it has nothing to give back."""
    topic = place.topic([1, 2])
    connection = place.connect_sync()
    connection.open()
    subscription = connection.subscribe(topic, durable="d", start="earliest")
    held = taken(subscription)

    def leave() -> None:
        subscription.stop()
        subscription.close()
        connection.close()
        held.ack()  # raises

    assert not in_child({"leave": leave})
    held.ack()
    other = taken(subscription)
    assert number(other) == 2
    other.ack()
    subscription.close()
    connection.close()
