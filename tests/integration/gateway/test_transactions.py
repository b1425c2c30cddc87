"""Local transactions through the gateway: a client's received and sent messages are committed together."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from proton import Delivery, Described, symbol, ulong
from proton.reactor import SenderOption
from proton.utils import LinkDetached

from tests.integration.gateway.running import (
    ANSWER_S,
    BlockingConnection,
    Message,
    Source,
    bodies,
    client,
    drained,
)
from tests.integration.gateway.test_topics import cut
from tests.integration.subscriptions.helpers import Place
from tests.integration.transactions.helpers import committed

_DECLARED, _TRANSACTIONAL, _ACCEPTED = 0x33, 0x34, 0x24


class _ToCoordinator(SenderOption):
    def apply(self, sender: Any) -> None:
        """Set the target."""
        sender.target.type = sender.target.COORDINATOR
        sender.target.capabilities.put_object(symbol("amqp:local-transactions"))


class Transactions:
    """A coordinator link, and its present transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.link = connection.create_sender(None, name="coordinator", options=_ToCoordinator()).link
        self.id = b""

    def ask(self, code: int, *fields: Any) -> Any:
        """Send a request and wait for its answer."""
        asked = self.link.send(Message(body=Described(ulong(code), list(fields))))
        self._connection.wait(lambda: asked.settled, msg="the coordinator answers")
        return asked

    def declare(self) -> None:
        """Begin a transaction."""
        answer = self.ask(0x31, None)
        assert answer.remote_state == _DECLARED
        self.id = bytes(answer.remote.data[0])

    def end(self, *, fail: bool = False) -> str | None:
        """Commit or roll back; returns the condition of a refusal."""
        answer = self.ask(0x32, self.id, fail)
        if answer.remote_state == Delivery.ACCEPTED:
            return None
        assert answer.remote_state == Delivery.REJECTED
        return str(answer.remote.condition.name)

    def send(self, sender: Any, *values: Any) -> None:
        """Send messages in the transaction."""
        for value in values:
            sent = sender.link.send(Message(body=value))
            sent.local.data = [self.id]
            sent.update(_TRANSACTIONAL)
            self._connection.wait(lambda sent=sent: sent.settled, msg="sent")
            assert sent.remote_state == _TRANSACTIONAL

    def accept(self, receiver: Any, *, settled: bool = True, code: int = _ACCEPTED) -> Any:
        """Accept in the transaction what was received last."""
        delivery = receiver.fetcher.unsettled.pop()
        delivery.local.data = [self.id, Described(ulong(code), [])]
        delivery.update(_TRANSACTIONAL)
        if settled:
            delivery.settle()
        return delivery


def received(receiver: Any, transactions: Transactions, count: int) -> list[Any]:
    """Receive messages and accept them in the transaction."""
    found: list[Any] = []
    for _ in range(count):
        found.append(receiver.receive(timeout=ANSWER_S).body)
        transactions.accept(receiver)
    return found


def test_received_and_sent_messages_are_committed_together(place: Place, port: int) -> None:
    topic, out = place.topic(), place.topic()
    with client(port, "app") as connection, client(port) as other:
        transactions = Transactions(connection)
        receiver = connection.create_receiver(topic, name="dur", options=Source(durable=True), credit=10)
        relay = connection.create_sender(out)
        sender = other.create_sender(topic)
        for number in range(6):
            sender.send(Message(body=str(number)))
        transactions.declare()
        assert received(receiver, transactions, 2) == ["0", "1"]
        transactions.send(relay, "10", "11")
        assert committed(place, out) == []
        assert transactions.end() is None
        assert committed(place, out) == [10, 11]
        transactions.declare()
        assert received(receiver, transactions, 2) == ["2", "3"]
        transactions.send(relay, "12")
        assert transactions.end(fail=True) is None
        again = [receiver.receive(timeout=ANSWER_S) for _ in range(2)]
        while sorted(each.body for each in again) != ["2", "3"]:  # 4 and 5 were sent before the rollback
            again = [each for each in again if each.body in "23"] + [receiver.receive(timeout=ANSWER_S)]
        assert [each.delivery_count for each in again] == [1, 1]
        assert committed(place, out) == [10, 11]
    with client(port, "app") as connection:
        receiver = connection.create_receiver(topic, name="dur", options=Source(durable=True), credit=10)
        assert sorted(bodies(receiver, 4)) == ["2", "3", "4", "5"]
        drained(receiver, 1)
        assert not receiver.fetcher.incoming


def test_a_queue_and_several_consumers_are_in_one_transaction(place: Place, port: int) -> None:
    first, second = (f"queue://{place.topic()}" for _ in range(2))
    with client(port) as connection:
        transactions = Transactions(connection)
        one, two = (connection.create_receiver(queue, credit=1) for queue in (first, second))
        for queue in (first, second):
            connection.create_sender(queue).send(Message(body="a"))
        transactions.declare()
        assert received(one, transactions, 1) == received(two, transactions, 1) == ["a"]
        transactions.send(connection.create_sender(None, name="relay"), *())
        assert transactions.end() is None
        for receiver in (one, two):
            drained(receiver, 1)
            assert not receiver.fetcher.incoming


@pytest.mark.parametrize("kind", ["non-durable", "temporary"])
def test_what_is_in_no_journal_is_settled_after_the_commit(place: Place, port: int, kind: str) -> None:
    with client(port) as connection:
        transactions = Transactions(connection)
        if kind == "temporary":
            receiver = connection.create_receiver(None, dynamic=True, credit=1)
        else:
            receiver = connection.create_receiver(place.topic(), credit=1)
        address = receiver.link.remote_source.address
        sender = connection.create_sender(address)
        sender.send(Message(body="a"))
        transactions.declare()
        assert received(receiver, transactions, 1) == ["a"]
        assert transactions.end(fail=True) is None
        again = receiver.receive(timeout=ANSWER_S)
        assert (again.body, again.delivery_count) == ("a", 1)
        transactions.declare()
        transactions.accept(receiver)
        transactions.send(sender, "b")
        assert transactions.end() is None
        assert bodies(receiver, 1) == ["b"]
        drained(receiver, 1)
        assert not receiver.fetcher.incoming


def test_what_a_client_has_not_settled_it_keeps_after_a_rollback(place: Place, port: int) -> None:
    queue = f"queue://{place.topic()}"
    with client(port) as connection:
        transactions = Transactions(connection)
        receiver = connection.create_receiver(queue, credit=1)
        sender = connection.create_sender(queue)
        sender.send(Message(body="a"))
        transactions.declare()
        assert receiver.receive(timeout=ANSWER_S).body == "a"
        kept = transactions.accept(receiver, settled=False)
        assert transactions.end(fail=True) is None
        assert not kept.settled
        kept.update(Delivery.ACCEPTED)
        kept.settle()
        sender.send(Message(body="b"))
        receiver.link.flow(1)
        assert receiver.receive(timeout=ANSWER_S).body == "b"
        transactions.declare()
        kept = transactions.accept(receiver, settled=False)
        assert transactions.end() is None
        connection.wait(lambda: kept.settled, msg="the gateway settles")
        drained(receiver, 1)
        assert not receiver.fetcher.incoming


def test_a_drain_is_answered_within_a_transaction(place: Place, port: int) -> None:
    queue = f"queue://{place.topic()}"
    with client(port) as connection:
        transactions = Transactions(connection)
        receiver = connection.create_receiver(queue, credit=1)
        connection.create_sender(queue).send(Message(body="a"))
        transactions.declare()
        assert received(receiver, transactions, 1) == ["a"]
        drained(receiver, 5)
        assert transactions.end() is None


def test_the_end_of_a_connection_rolls_back(place: Place, port: int) -> None:
    topic, out = place.topic(), place.topic()
    queue = f"queue://{topic}"
    with client(port) as connection:
        transactions = Transactions(connection)
        connection.create_sender(queue).send(Message(body="7"))
        receiver = connection.create_receiver(queue, credit=1)
        transactions.declare()
        assert received(receiver, transactions, 1) == ["7"]
        transactions.send(connection.create_sender(out), "1")
    with client(port) as connection:
        assert bodies(connection.create_receiver(queue, credit=1), 1) == ["7"]
        assert committed(place, out) == []


def test_requests_that_cannot_be_carried_out(place: Place, port: int) -> None:
    with client(port) as connection:
        transactions = Transactions(connection)
        transactions.id = b"none"
        assert transactions.end() == "amqp:transaction:unknown-id"
        transactions.declare()
        for code, fields, condition in (
            (0x31, (None,), "amqp:resource-limit-exceeded"),
            (0x31, (b"global",), "amqp:not-implemented"),
            (0x77, (), "amqp:not-implemented"),
        ):
            answer = transactions.ask(code, *fields)
            assert (answer.remote_state, answer.remote.condition.name) == (Delivery.REJECTED, condition)
        wrong = transactions.link.send(Message(body="what?"))
        connection.wait(lambda: wrong.settled, msg="answered")
        assert wrong.remote.condition.name == "amqp:decode-error"
        sender = connection.create_sender(None, name="relay")
        lost = sender.link.send(Message(body="x", address=f"{place.topic()}.none"))
        lost.local.data = [transactions.id]
        lost.update(_TRANSACTIONAL)
        connection.wait(lambda: lost.settled, msg="refused")
        assert lost.remote_state == Delivery.REJECTED
        assert transactions.end() == "amqp:transaction:rollback"


def test_consumers_end_with_their_coordinator(place: Place, gateway: Callable[..., int]) -> None:
    queue = f"queue://{place.topic()}"
    with client(gateway()) as connection:
        transactions = Transactions(connection)
        receiver = connection.create_receiver(queue, credit=1)
        transactions.link.close()
        with pytest.raises(LinkDetached, match="has ended"):
            receiver.receive(timeout=ANSWER_S)


def test_a_commit_contains_all_that_was_sent_before_it(
    place: Place, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client waits for no answer, and there is room for a part of its messages only."""
    monkeypatch.setattr("kafkadur.gateway.publishing._MOST_BYTES", 10_000)
    out = place.topic()
    with client(port) as connection:
        transactions = Transactions(connection)
        sender = connection.create_sender(out)
        transactions.declare()
        for number in range(100):
            sent = sender.link.send(Message(body=str(number)))
            sent.local.data = [transactions.id]
            sent.update(_TRANSACTIONAL)
        assert transactions.end() is None
    assert sorted(committed(place, out)) == list(range(100))


def test_a_message_that_is_refused_has_its_transaction_rolled_back(place: Place, port: int) -> None:
    out = place.topic()
    with client(port) as connection:
        transactions = Transactions(connection)
        sender = connection.create_sender(out)
        transactions.declare()
        transactions.send(sender, "1")
        wrong = sender.link.send(Message(body="2", properties={"no name": 1}))
        wrong.local.data = [transactions.id]
        wrong.update(_TRANSACTIONAL)
        connection.wait(lambda: wrong.settled, msg="refused")
        assert wrong.remote_state == Delivery.REJECTED
        assert transactions.end() == "amqp:transaction:rollback"
    assert committed(place, out) == []


def test_a_client_settles_what_it_has_enrolled_before_the_end(place: Place, port: int) -> None:
    queue = f"queue://{place.topic()}"
    with client(port) as connection:
        transactions = Transactions(connection)
        receiver = connection.create_receiver(queue, credit=1)
        connection.create_sender(queue).send(Message(body="a"))
        transactions.declare()
        assert receiver.receive(timeout=ANSWER_S).body == "a"
        kept = transactions.accept(receiver, settled=False)
        kept.settle()
        drained(receiver, 1)
        assert transactions.end(fail=True) is None
        receiver.link.flow(1)
        again = receiver.receive(timeout=ANSWER_S)
        assert (again.body, again.delivery_count) == ("a", 1)


def test_a_lost_client_of_a_transaction_counts_an_attempt(place: Place, port: int) -> None:
    queue = f"queue://{place.topic()}"
    with client(port) as connection:
        sender = connection.create_sender(queue)
        first = BlockingConnection(
            f"amqp://127.0.0.1:{port}", timeout=ANSWER_S, reconnect=False, allowed_mechs="ANONYMOUS"
        )
        transactions = Transactions(first)
        receiver = first.create_receiver(queue, credit=3)
        for number in range(3):
            sender.send(Message(body=number))
        transactions.declare()
        assert received(receiver, transactions, 1) == [0]
        assert transactions.end() is None
        transactions.declare()
        assert received(receiver, transactions, 1) == [1]
        assert receiver.receive(timeout=ANSWER_S).body == 2
        cut(first)
        again = connection.create_receiver(queue, name="again", credit=2)
        found = [again.receive(timeout=ANSWER_S) for _ in range(2)]
        assert sorted((each.body, each.delivery_count) for each in found) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("number", [2_000_000_000, "1", None])
def test_a_transaction_id_of_a_wrong_type_is_refused(port: int, number: object) -> None:
    with client(port) as connection:
        transactions = Transactions(connection)
        transactions.declare()
        answer = transactions.ask(0x32, number, False)
        assert answer.remote.condition.name == "amqp:transaction:unknown-id"
        assert transactions.end() is None


def test_consumers_that_are_older_than_the_coordinator_attach_anew(place: Place, port: int) -> None:
    """So do those of Qpid JMS when a gateway takes over a connection."""
    queue, out = f"queue://{place.topic()}", place.topic()
    with client(port) as connection:
        receiver = connection.create_receiver(queue, credit=1)
        connection.create_sender(queue).send(Message(body="1"))
        assert receiver.receive(timeout=ANSWER_S).body == "1"
        transactions = Transactions(connection)
        sender = connection.create_sender(out)
        transactions.declare()
        transactions.accept(receiver)  # it was given back when the coordinator link was attached
        transactions.send(sender, "1")
        assert transactions.end() == "amqp:transaction:rollback"
        transactions.declare()
        assert received(receiver, transactions, 1) == ["1"]
        transactions.send(sender, "2")
        assert transactions.end() is None
        drained(receiver, 1)
        assert not receiver.fetcher.incoming
    assert committed(place, out) == [2]
