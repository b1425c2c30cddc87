"""Messages with a delivery time or an expiration: real members on real scripts, with time moved by hand."""

from collections.abc import Callable

import pytest

from kafkadur.admin.explain import Log, backlog
from kafkadur.consumer import timeliness
from kafkadur_sharing.definition import Definition
from tests.integration.coordinators.together import EXCLUSIVE, SERIAL, SHARED, STRICT, Peer, Together
from tests.integration.coordinators.world import World, views

Make = Callable[..., World]

#: Redelivery policy as the scripts take it, in strict order.
IN_STRICT_ORDER = (0, 0, 0, 1, 1)

each_type = pytest.mark.parametrize("definition", [SHARED, EXCLUSIVE, SERIAL], ids=lambda d: str(d.type))


def together_of(make: Make, definition: Definition) -> Together:
    if definition.strict_order:
        return Together(make("exclusive", policy=IN_STRICT_ORDER), definition)
    return Together(make(str(definition.type)), definition)


def join(together: Together, *, window: int = 100) -> Peer:
    peer = together.join("one", window=window)
    together.settle()
    return peer


def deliver(together: Together, peer: Peer) -> list[int]:
    """Take and acknowledge what comes now, as an application that goes on asking."""
    taken: list[int] = []
    for _ in range(6):
        together.settle()
        taken += peer.take_all()
        peer.ack_all()
    together.settle()
    return taken


def unsettled(together: Together) -> int:
    """Number of messages that are not settled."""
    return backlog(views(together.world)[0], Log(start=0, end=together.ends[0]))


@each_type
def test_later_messages_pass_a_delayed_one(make: Make, definition: Definition) -> None:
    together = together_of(make, definition)
    one = join(together)
    together.write()
    together.write(delay=5.0)
    together.write()
    assert deliver(together, one) == [0, 2]
    together.run(4.5)
    assert deliver(together, one) == []
    together.run(1.0)
    together.settle()
    assert one.take() == 1
    assert (one.hands[0].attempt, one.hands[0].redelivered) == (1, False)
    one.ack()
    together.settle()
    assert unsettled(together) == 0


@each_type
def test_the_last_message_may_be_delayed(make: Make, definition: Definition) -> None:
    """Offsets at the end of a lease are given back as if they had not been granted: not so with a delay."""
    together = together_of(make, definition)
    one = join(together)
    together.write(delay=5.0)
    assert deliver(together, one) == []
    before = one.exchanges
    together.run(4.0)
    assert one.exchanges - before < 10, "it is not read again and again"
    together.write()
    assert deliver(together, one) == [1]
    together.run(1.5)
    assert deliver(together, one) == [0]
    assert unsettled(together) == 0


@each_type
def test_a_delayed_message_goes_to_a_member_that_joins_later(make: Make, definition: Definition) -> None:
    together = together_of(make, definition)
    one = join(together)
    together.write(count=3, delay=5.0)
    assert deliver(together, one) == []
    together.leave(one)
    two = together.join("two")
    together.run(4.0)
    assert deliver(together, two) == []
    together.run(2.0)
    assert deliver(together, two) == [0, 1, 2]
    assert unsettled(together) == 0


@each_type
def test_an_expired_message_is_settled_without_being_delivered(make: Make, definition: Definition) -> None:
    together = together_of(make, definition)
    together.write(count=2, ttl=5.0)
    together.write()
    together.run(5.5)
    one = join(together)
    together.write(ttl=5.0)
    assert deliver(together, one) == [2, 3]
    assert one.member.statistics()["outdated"] == 2
    assert unsettled(together) == 0


@each_type
@pytest.mark.parametrize("window", [1, 100])
def test_a_message_may_expire_while_it_waits(make: Make, definition: Definition, window: int) -> None:
    """It is looked at when it is about to be handed out, not when it is read."""
    together = together_of(make, definition)
    one = join(together, window=window)
    together.write()
    together.write(count=2, ttl=5.0)
    together.write()
    together.settle()
    assert one.take() == 0
    together.run(5.5)
    one.ack()
    assert deliver(together, one) == [3]
    assert one.member.statistics()["outdated"] == 2
    assert unsettled(together) == 0


@each_type
def test_a_message_that_was_rolled_back_may_expire(make: Make, definition: Definition) -> None:
    together = together_of(make, definition)
    one = join(together)
    together.write(ttl=5.0)
    together.settle()
    assert one.take() == 0
    one.roll_back(delay=6.0)
    together.run(7.0)
    assert deliver(together, one) == []
    together.run(0.1)  # it is settled by an exchange that no one waits for
    assert unsettled(together) == 0


@pytest.mark.parametrize("window", [1, 100])
def test_in_strict_order_later_messages_wait_for_a_delayed_one(make: Make, window: int) -> None:
    together = together_of(make, STRICT)
    one = join(together, window=window)
    together.write()
    together.write(delay=5.0)
    together.write()
    assert deliver(together, one) == [0]
    together.run(4.5)
    assert deliver(together, one) == []
    together.run(1.0)
    assert deliver(together, one) == [1, 2]
    assert unsettled(together) == 0


@each_type
def test_a_long_delay_is_waited_for_in_parts(
    make: Make, definition: Definition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeliness, "LONGEST_MS", 1_500)
    together = together_of(make, definition)
    one = join(together)
    together.write(delay=5.0)
    for _ in range(4):
        assert deliver(together, one) == []
        together.run(1.2)
    together.run(0.4)
    assert deliver(together, one) == [0]
    assert unsettled(together) == 0


def test_only_times_that_can_be_read_count(make: Make) -> None:
    together = together_of(make, SHARED)
    one = join(together)
    together.write(count=4)
    for offset, value in enumerate((b"soon", b"", b"-1", None)):
        together.headers[0, offset] = [("JMSDeliveryTime", value), ("JMSExpiration", value)]
    assert deliver(together, one) == [0, 1, 2, 3]
