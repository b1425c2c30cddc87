"""Queues through the gateway: consumers share what every sender sent, browsers only look."""

from typing import Any

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from proton import byte, symbol
from proton.reactor import Copy
from proton.utils import LinkDetached, SendException

from tests.integration.gateway.running import (
    ANSWER_S,
    Message,
    bodies,
    client,
    drained,
    selecting,
)
from tests.integration.subscriptions.helpers import Place

_TO, _REPLY_TO = symbol("x-opt-jms-dest"), symbol("x-opt-jms-reply-to")


def test_consumers_share_a_queue_and_closing_them_keeps_it(place: Place, port: int) -> None:
    topic = place.topic(partitions=2)
    queue = f"queue://{topic}"
    with client(port, "app") as connection, client(port) as other:
        sender = connection.create_sender(queue)
        for number in range(4):
            sender.send(Message(body=number, reply_to="answers", annotations={_REPLY_TO: byte(0)}))
        first = connection.create_receiver(queue, credit=1)
        message = first.receive(timeout=ANSWER_S)
        assert (message.address, message.annotations[_TO], message.annotations[_REPLY_TO]) == (topic, 0, 0)
        first.accept()
        first.close()
        second = other.create_receiver(queue, credit=10)
        assert [message.body, *bodies(second, 3)] == [0, 1, 2, 3]
        drained(second, 1)
        assert second.fetcher.incoming == type(second.fetcher.incoming)()
    with place.connect_sync(client_id=None) as python:
        assert python.known(f"queue.{topic}") is not None


def test_what_a_client_did_not_settle_comes_again_to_another_one(place: Place, port: int) -> None:
    topic = place.topic()
    queue = f"queue://{topic}"
    with client(port) as connection:
        with client(port) as dying:
            connection.create_sender(queue).send(Message(body="work"))
            held = dying.create_receiver(queue, credit=10).receive(timeout=ANSWER_S)
            assert (held.body, held.delivery_count) == ("work", 0)
        assert bodies(connection.create_receiver(queue, credit=10), 1) == ["work"]


@pytest.mark.parametrize("named", ["prefix", "annotation"])
def test_a_message_may_name_its_queue(place: Place, port: int, named: str) -> None:
    topic = place.topic()
    with client(port) as connection:
        relay = connection.create_sender(None)
        if named == "prefix":
            relay.send(Message(body="hello", address=f"queue://{topic}"))
        else:
            relay.send(Message(body="hello", address=topic, annotations={_TO: byte(0)}))
        receiver = connection.create_receiver(f"queue://{topic}", credit=1)
        assert receiver.receive(timeout=ANSWER_S).address == topic
        receiver.accept()
        with pytest.raises(SendException):
            relay.send(Message(body="lost", address=f"queue://{topic}.none"))


def test_a_queue_needs_its_topic_and_no_selector(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port) as connection:
        for create in (connection.create_sender, connection.create_receiver):
            with pytest.raises(LinkDetached, match="amqp:not-found"):
                create(f"queue://{topic}.none")
        with pytest.raises(LinkDetached, match="shared durable subscriptions"):
            connection.create_receiver(f"queue://{topic}", options=selecting("n = 1"))


def browsed(receiver: Any) -> list[Any]:
    """Return the bodies of all messages that a browser shows."""
    found: list[Any] = []
    while True:
        drained(receiver, 2)
        if not receiver.fetcher.incoming:
            return found
        while receiver.fetcher.incoming:
            found.append(receiver.receive(timeout=ANSWER_S).body)


def test_a_browser_shows_what_waits_and_consumes_nothing(place: Place, port: int) -> None:
    topic = place.topic(partitions=2)
    queue = f"queue://{topic}"
    with client(port) as connection, client(port) as other:
        sender = connection.create_sender(queue)
        for number in range(3):
            sender.send(Message(body=number, properties={"n": number}))
        sender.send(Message(body="expired", ttl=0.001))
        consumer = connection.create_receiver(queue, credit=1)
        first = consumer.receive(timeout=ANSWER_S).body
        consumer.accept()
        consumer.close()
        left = sorted({0, 1, 2} - {first})
        for _ in range(2):
            browser = other.create_receiver(queue, options=Copy())
            assert sorted(browsed(browser)) == left
            browser.close()
        chosen = other.create_receiver(queue, options=[Copy(), selecting(f"n > {left[0]}")])
        assert browsed(chosen) == [number for number in left if number > left[0]]
        chosen.close()
        with pytest.raises(LinkDetached, match="amqp:invalid-field"):
            other.create_receiver(queue, options=[Copy(), selecting("n >")])
        assert sorted(bodies(connection.create_receiver(queue, credit=10), 2)) == left
