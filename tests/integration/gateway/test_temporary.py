"""Temporary queues and topics through the gateway, and request and reply by them."""

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from proton import Delivery, byte, symbol, timestamp
from proton.reactor import ReceiverOption
from proton.utils import LinkDetached, SendException

from kafkadur import Redelivery
from tests.integration.gateway.running import ANSWER_S, Message, Source, bodies, client, drained, selecting
from tests.integration.subscriptions.helpers import Place

_TO = symbol("x-opt-jms-dest")


class Dynamic(ReceiverOption):
    """Asks the gateway to make a temporary topic."""

    def apply(self, receiver: Any) -> None:
        """Set it."""
        Source(capabilities=("temporary-topic",)).apply(receiver)
        receiver.source.dynamic = True


def test_a_reply_comes_back_through_another_gateway(place: Place, gateway: Callable[..., int]) -> None:
    requests = f"queue://{place.topic()}"
    with client(gateway()) as asking, client(gateway()) as answering:
        replies = asking.create_receiver(None, dynamic=True, credit=10)
        address = replies.link.remote_source.address
        asking.create_sender(requests).send(Message(body=2, reply_to=address, correlation_id="c"))
        worker = answering.create_receiver(requests, credit=1)
        request = worker.receive(timeout=ANSWER_S)
        assert request.reply_to == address
        relay = answering.create_sender(None)
        relay.send(Message(body=2 * request.body, address=request.reply_to, correlation_id="c"))
        worker.accept()
        reply = replies.receive(timeout=ANSWER_S)
        assert (reply.body, reply.correlation_id, reply.address) == (4, "c", address)
        assert reply.annotations[_TO] == byte(2)
        replies.accept()
        answering.create_sender(address).send(Message(body="again"))
        assert bodies(replies, 1) == ["again"]


def test_consumers_of_a_temporary_queue_share_it_and_what_they_do_not_settle_comes_again(port: int) -> None:
    with client(port) as connection, client(port) as other:
        first = connection.create_receiver(None, dynamic=True, credit=0)
        address = first.link.remote_source.address
        sender = other.create_sender(address)
        for number in range(3):
            sender.send(Message(body=number))
        assert first.receive(timeout=ANSWER_S).body == 0
        second = connection.create_receiver(address, name="second", credit=10)
        assert bodies(second, 2) == [1, 2]
        first.fetcher.unsettled[-1].local.failed = True
        first.settle(Delivery.MODIFIED)
        again = second.receive(timeout=ANSWER_S)
        assert (again.body, again.delivery_count) == (0, 1)
        second.settle(Delivery.RELEASED)
        again = second.receive(timeout=ANSWER_S)
        assert (again.body, again.delivery_count) == (0, 1)
        second.close()  # it has not settled the message
        first.link.flow(10)
        assert first.receive(timeout=ANSWER_S).body == 0
        first.reject()
        drained(first, 5)
        assert not first.fetcher.incoming
        with pytest.raises(LinkDetached, match="Another connection"):
            other.create_receiver(address)
        first.close()
        with pytest.raises(SendException):
            sender.send(Message(body="lost"))
        for create in (other.create_sender, connection.create_receiver):
            with pytest.raises(LinkDetached, match="has ended"):
                create(address, name="late")


def test_released_messages_keep_their_order_and_attempts_end(gateway: Callable[..., int]) -> None:
    with client(gateway(redelivery=Redelivery(max_attempts=2, backoff=0.2))) as connection:
        receiver = connection.create_receiver(None, dynamic=True, credit=4)
        sender = connection.create_sender(receiver.link.remote_source.address)
        for number in range(4):
            sender.send(Message(body=number))
        assert [receiver.receive(timeout=ANSWER_S).body for _ in range(4)] == [0, 1, 2, 3]
        for _ in range(4):
            receiver.settle(Delivery.RELEASED)
        receiver.link.flow(10)
        assert bodies(receiver, 3) == [0, 1, 2]
        for attempt in (0, 1):
            found = receiver.receive(timeout=ANSWER_S)
            assert (found.body, found.delivery_count) == (3, attempt)
            receiver.fetcher.unsettled[-1].local.failed = True
            receiver.settle(Delivery.MODIFIED)
        drained(receiver, 5)
        assert not receiver.fetcher.incoming


def test_each_consumer_of_a_temporary_topic_has_all_and_its_own_selector(port: int) -> None:
    with client(port) as connection, client(port) as other:
        every = connection.create_receiver(None, options=Dynamic(), credit=10)
        address = every.link.remote_source.address
        chosen = connection.create_receiver(address, name="chosen", options=selecting("n > 1"), credit=10)
        with pytest.raises(LinkDetached, match="amqp:invalid-field"):
            connection.create_receiver(address, name="wrong", options=selecting("n >"))
        sender = other.create_sender(address)
        for number in range(3):
            sender.send(Message(body=number, properties={"n": number}))
        assert bodies(every, 3) == [0, 1, 2]
        assert bodies(chosen, 1) == [2]


def test_messages_of_a_temporary_queue_have_times(port: int) -> None:
    with client(port) as connection:
        receiver = connection.create_receiver(None, dynamic=True, credit=0)
        sender = connection.create_sender(receiver.link.remote_source.address)
        sender.send(Message(body="over", ttl=0.001))
        later = Message(body="later")
        later.annotations = {symbol("x-opt-delivery-time"): timestamp(round(time.time() * 1_000) + 1_500)}
        sender.send(later)
        sender.send(Message(body="now"))
        receiver.link.flow(10)
        assert bodies(receiver, 2) == ["now", "later"]


def test_a_temporary_queue_without_room_ends(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkadur.gateway.temporary._MOST_BYTES", 100_000)
    with client(port) as connection, client(port) as other:
        receiver = connection.create_receiver(None, dynamic=True, credit=0)
        sender = other.create_sender(receiver.link.remote_source.address)

        def fill() -> None:
            for _ in range(1_000):
                sender.send(Message(body="x" * 5_000))

        with pytest.raises(SendException):
            fill()
        with pytest.raises(LinkDetached, match="amqp:resource-limit-exceeded"):
            receiver.receive(timeout=ANSWER_S)
