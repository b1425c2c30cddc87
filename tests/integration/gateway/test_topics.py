"""Topics and subscriptions through the gateway, with Proton's own client of AMQP 1.0."""

import itertools
import socket
import uuid
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from proton import ConnectionException, Delivery, Endpoint, int32, short, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import LinkDetached, SendException

import kafkadur.sync
from tests.integration.gateway.running import (
    ANSWER_S,
    BlockingConnection,
    Message,
    Source,
    bodies,
    client,
    detach,
    drained,
    not_local,
    running_with,
    selecting,
)
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until

BODIES: tuple[Any, ...] = (
    "a text",
    "",
    None,
    {"a": 1, "b": [True, 2.5]},
    [1, "x", None],
    7,
    uuid.UUID(int=5),
)


def test_bodies_properties_and_fields_arrive_as_they_were_sent(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port) as connection:
        receiver = connection.create_receiver(topic, credit=20)
        sender = connection.create_sender(topic)
        for body in BODIES:
            sender.send(Message(body=body))
        sent = Message(
            inferred=True, body=b"\x00\xff", id="ID:1", subject="kind", correlation_id="c", priority=7
        )
        sent.properties = {
            "short": short(1),
            "int": int32(2),
            "long": 3,
            "double": 1.5,
            "yes": True,
            "text": "x",
        }
        sent.reply_to, sent.group_id, sent.group_sequence, sent.durable = "back", "g", 4, True
        sent.content_type, sent.ttl = symbol("application/x-own"), 60.0
        sender.send(sent)
        assert bodies(receiver, len(BODIES)) == list(BODIES)
        found = receiver.receive(timeout=ANSWER_S)
        receiver.accept()
        assert (found.inferred, bytes(found.body)) == (True, b"\x00\xff")
        assert found.properties == sent.properties
        assert {name: type(value) for name, value in found.properties.items()} == {
            name: type(value) for name, value in sent.properties.items()
        }
        for field in (
            "id",
            "subject",
            "correlation_id",
            "priority",
            "reply_to",
            "group_id",
            "group_sequence",
        ):
            assert getattr(found, field) == getattr(sent, field), field
        assert (found.durable, str(found.content_type), found.delivery_count) == (
            True,
            "application/x-own",
            0,
        )
        assert 0 < found.ttl <= 60
        assert found.address == topic


def test_messages_of_python_and_of_plain_kafka_arrive_and_those_of_clients_are_read_in_python(
    place: Place, port: int
) -> None:
    topic = place.topic()
    with place.connect_sync(client_id=None) as python, client(port) as connection:
        receiver = connection.create_receiver(topic, credit=10)
        with python.subscribe(topic, durable="python") as subscription, python.producer() as producer:
            producer.publish(topic, b"bytes", properties={"n": 5, "big": 2**40, "half": 0.5}, type="kind")
            found = receiver.receive(timeout=ANSWER_S)
            receiver.accept()
            assert (found.inferred, bytes(found.body), found.subject) == (True, b"bytes", "kind")
            assert found.properties == {"n": int32(5), "big": 2**40, "half": 0.5}
            assert isinstance(found.properties["n"], int32)
            place.publish_values(topic, [b"plain"])
            assert bytes(receiver.receive(timeout=ANSWER_S).body) == b"plain"
            receiver.accept()
            message = Message(body="a text", properties={"n": 1}, id="ID:9", subject="s")
            connection.create_sender(topic).send(message)
            values: dict[bytes | None, kafkadur.sync.Delivery] = {}
            while b"a text" not in values:
                delivery = subscription.receive(LIMIT_S)
                assert delivery is not None
                values[delivery.value] = delivery
            last = values[b"a text"]
            assert (last.properties, last.fields.message_id, last.fields.type) == ({"n": 1}, "ID:9", "s")


def test_a_durable_subscription_keeps_messages_until_it_is_closed(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        sender = connection.create_sender(topic)
        receiver = connection.create_receiver(topic, credit=10, name="dur", options=Source(durable=True))
        sender.send(Message(body="first"))
        assert bodies(receiver, 1) == ["first"]
        detach(receiver)
        for body in ("second", "third"):
            sender.send(Message(body=body))
    with client(port, "app") as connection:
        again = connection.create_receiver(topic, credit=10, name="dur", options=Source(durable=True))
        assert bodies(again, 2) == ["second", "third"]
        again.close()  # which deletes it
        with pytest.raises(LinkDetached, match="amqp:not-found"):
            connection.create_receiver(None, name="dur", options=Source(null=True))


@pytest.mark.long
def test_x1_a_null_source_finds_a_durable_subscription_and_closing_deletes_it(
    place: Place, port: int
) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        receiver = connection.create_receiver(topic, credit=1, name="dur", options=Source(durable=True))
        with client(port) as other, pytest.raises(LinkDetached, match="amqp:not-found"):
            other.create_receiver(None, name="dur|global", options=Source(null=True))
        detach(receiver)
        connection.create_receiver(None, name="dur", options=Source(null=True)).close()
        with pytest.raises(LinkDetached, match="amqp:not-found"):
            connection.create_receiver(None, name="dur", options=Source(null=True))


def test_consumers_share_a_durable_subscription(place: Place, port: int) -> None:
    topic = place.topic()
    shared = Source(durable=True, capabilities=("topic", "shared", "global"))
    with client(port) as one, client(port) as two:
        first = one.create_receiver(topic, credit=1, name="work|global", options=shared)
        second = two.create_receiver(f"{topic}::work", credit=1)
        sender = one.create_sender(topic)
        for body in range(10):
            sender.send(Message(body=body))
        seen = {1: bodies(first, 1), 2: bodies(second, 1)}
        assert len(seen[1] + seen[2]) == 2
        first.close()
        first_half = [*seen[1], *seen[2]]
        assert sorted(first_half + bodies(second, 8)) == list(range(10))


def test_c1_one_client_id_has_one_connection(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        connection.create_sender(topic)
        with pytest.raises(ConnectionException, match="amqp:invalid-field"), client(port, "app"):
            pass
    with client(port, "app") as connection:  # it is free again
        connection.create_sender(topic)


def test_u7_a_selector_and_no_local_leave_messages_out(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "one") as one, client(port, "two") as two:
        chosen = one.create_receiver(topic, credit=10, options=selecting("n > 2"))
        remote = one.create_receiver(topic, credit=10, name="remote", options=not_local())
        sender = one.create_sender(topic)
        for n in range(5):
            sender.send(Message(body=n, properties={"n": n}))
        two.create_sender(topic).send(Message(body=9, properties={"n": 9}))
        assert bodies(chosen, 3) == [3, 4, 9]
        assert bodies(remote, 1) == [9]
        with pytest.raises(LinkDetached, match="amqp:invalid-field"):
            one.create_receiver(topic, name="wrong", options=selecting("n >"))


@pytest.mark.long
def test_u4_a_durable_subscription_with_another_selector_begins_anew(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        options = [Source(durable=True), selecting("n = 1")]
        detach(connection.create_receiver(topic, name="dur", options=options))
        sender = connection.create_sender(topic)
        sender.send(Message(body="lost", properties={"n": 1}))
        other = connection.create_receiver(
            topic, credit=5, name="dur", options=[Source(durable=True), selecting("n = 2")]
        )
        sender.send(Message(body="kept", properties={"n": 2}))
        assert bodies(other, 1) == ["kept"]


def test_what_a_client_says_of_a_message_decides_what_becomes_of_it(place: Place, port: int) -> None:
    topic = place.topic()
    dead = f"{topic}.dead"
    with client(port) as connection:
        make(place, dead)
        receiver = connection.create_receiver(topic, credit=1)
        letters = connection.create_receiver(dead, credit=5)
        sender = connection.create_sender(topic)
        sender.send(Message(body="m"))
        counts: list[tuple[int, bool]] = []
        for outcome, failed in (
            (Delivery.RELEASED, False),
            (Delivery.MODIFIED, True),
            (Delivery.MODIFIED, False),
        ):
            message = receiver.receive(timeout=ANSWER_S)
            counts.append((message.delivery_count, message.first_acquirer))
            settle(receiver, outcome, failed=failed)
            receiver.link.flow(1)
        assert [count for count, _ in counts] == [0, 1, 1]
        assert receiver.receive(timeout=ANSWER_S).delivery_count == 1
        settle(receiver, Delivery.REJECTED)
        assert bodies(letters, 1) == ["m"]


def make(place: Place, topic: str) -> None:
    """Create a topic of this name."""
    from confluent_kafka.admin import NewTopic

    from kafkadur.stack.kafka import quiet_admin

    admin = quiet_admin(place.stack.kafka)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(LIMIT_S)


def settle(receiver: Any, outcome: Any, *, failed: bool = False) -> None:
    """Settle the message that was received last."""
    delivery = receiver.fetcher.unsettled.pop()
    delivery.local.failed = failed
    delivery.update(outcome)
    delivery.settle()


def test_what_cannot_be_used_is_refused_with_a_reason(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        for address, options, condition in (
            ("nowhere", (), "amqp:not-found"),
            (f"queue://{topic}::work", (), "amqp:invalid-field"),
            (f"{topic}?type=none", (), "amqp:invalid-field"),
            (f"{topic}?color=red", (), "amqp:invalid-field"),
            (f"{topic}::", (), "amqp:invalid-field"),
            ("kafkadur.journal.default", (), "amqp:not-found"),
            ("__consumer_offsets", (), "amqp:not-found"),
        ):
            with pytest.raises(LinkDetached, match=condition):
                connection.create_receiver(address, options=options)
        with pytest.raises(LinkDetached, match="amqp:not-found"):
            connection.create_sender("nowhere")
        for own in ("kafkadur.journal.default", "__consumer_offsets"):
            with pytest.raises(LinkDetached, match="amqp:not-found"):
                connection.create_sender(own)
        relay = connection.create_sender(None)
        relay.send(Message(body="to a topic", address=topic))
        with pytest.raises(SendException):
            relay.send(Message(body="to no topic", address="nowhere"))
        connection.create_receiver(topic, name="dur", options=Source(durable=True))
        with client(port) as other:
            shared = Source(durable=True, capabilities=("shared", "global"))
            other.create_receiver(topic, name="work|global", options=shared)
            unsubscribing = connection.create_receiver(None, name="work|global", options=Source(null=True))
            unsubscribing.close()
            assert unsubscribing.link.remote_condition.name == "amqp:resource-locked"


def test_a_drain_is_answered_when_it_is_certain_that_nothing_waits(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port) as connection:
        receiver = connection.create_receiver(topic)
        sender = connection.create_sender(topic)
        drained(receiver, 5)
        assert not receiver.fetcher.has_message
        for round_ in range(5):
            sender.send(Message(body=round_))
            drained(receiver, 2)
            assert bodies(receiver, 1) == [round_]


def test_s8_messages_of_a_lost_client_come_again_and_count_an_attempt(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port) as connection:
        sender = connection.create_sender(topic)
        first = BlockingConnection(
            f"amqp://127.0.0.1:{port}", timeout=ANSWER_S, reconnect=False, allowed_mechs="ANONYMOUS"
        )
        receiver = first.create_receiver(f"{topic}::work", credit=5)
        sender.send(Message(body="m"))
        assert receiver.receive(timeout=ANSWER_S).delivery_count == 0
        cut(first)
        again = connection.create_receiver(f"{topic}::work", credit=5)
        assert again.receive(timeout=ANSWER_S).delivery_count == 1
        again.accept()


def cut(connection: Any) -> None:
    """Cut a connection off: its socket is closed at once."""
    selectable = connection.conn.transport._selectable  # noqa: SLF001 - Proton has no way to lose a connection
    selectable._delegate.shutdown(socket.SHUT_RDWR)  # noqa: SLF001 - as above
    with pytest.raises(ConnectionException):
        connection.wait(lambda: False)


@pytest.mark.long
def test_a_message_that_is_too_large_ends_its_link_only(gateway: Callable[..., int], place: Place) -> None:
    topic = place.topic()
    with client(gateway(most_message_bytes=10_000)) as connection:
        sender, other = connection.create_sender(topic), connection.create_sender(topic, name="other")
        with pytest.raises((LinkDetached, SendException)):
            sender.send(Message(body="x" * 20_000))
        other.send(Message(body="x" * 5_000))


def test_settings_of_producers_may_be_given(place: Place) -> None:
    topic = place.topic()
    kafka = {"bootstrap.servers": place.stack.kafka, "message.max.bytes": 2_000_000, "linger.ms": 0}
    with running_with(place.settings(kafka=kafka)) as port, client(port) as connection:
        receiver = connection.create_receiver(topic, credit=1)
        connection.create_sender(topic).send(Message(body="m"))
        assert bodies(receiver, 1) == ["m"]
        replies = connection.create_receiver(None, dynamic=True, credit=1)
        connection.create_sender(replies.link.remote_source.address).send(Message(body="reply"))
        assert bodies(replies, 1) == ["reply"]


def test_a_message_is_accepted_only_when_kafka_has_it(place: Place, port: int) -> None:
    topic = place.topic(max_message_bytes=1_000)
    with client(port) as connection:
        sender = connection.create_sender(topic)
        sender.send(Message(body="small"))
        with pytest.raises(SendException):  # the broker refuses it, not the gateway
            sender.send(Message(body="x" * 5_000))


@pytest.mark.long
def test_each_link_keeps_the_order_of_its_messages(place: Place, port: int) -> None:
    topic = place.topic(partitions=4)
    with client(port) as connection:
        receiver = connection.create_receiver(topic, credit=500)
        senders = [connection.create_sender(topic, name=f"sender {n}") for n in range(3)]
        for number in range(40):
            for n, sender in enumerate(senders):
                sender.send(Message(body=[n, number]))
        seen: dict[int, list[int]] = {n: [] for n in range(3)}
        for n, number in bodies(receiver, 120):
            seen[n].append(number)
        assert seen == {n: list(range(40)) for n in range(3)}


def test_a_gateway_that_stops_says_so_and_its_messages_come_again(
    gateway: Callable[..., int], place: Place
) -> None:
    from tests.integration.gateway.running import running

    topic = place.topic()
    with running(place) as first, client(first, "app") as connection:
        detach(connection.create_receiver(topic, name="dur", options=Source(durable=True)))
        connection.create_sender(topic).send(Message(body="m"))
    with client(gateway(), "app") as connection:
        again = connection.create_receiver(topic, credit=5, name="dur", options=Source(durable=True))
        assert bodies(again, 1) == ["m"]


@pytest.mark.long
def test_links_beyond_the_limit_are_refused(gateway: Callable[..., int], place: Place) -> None:
    topic = place.topic()
    with client(gateway(most_links=2)) as connection:
        for name in ("a", "b"):
            connection.create_sender(topic, name=name)
        with pytest.raises(LinkDetached, match="amqp:resource-limit-exceeded"):
            connection.create_sender(topic, name="c")


@pytest.mark.long
def test_connections_leave_nothing_behind(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        for _ in range(3):
            connection.create_receiver(topic, credit=1).close()
    with place.connect_sync(client_id=None) as python:
        wait_until(lambda: python.known("anything") is None, "the connection to answer")


def test_a_refused_attach_deletes_nothing(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        detach(connection.create_receiver(topic, name="dur", options=Source(durable=True)))
        connection.create_sender(topic).send(Message(body="kept"))
        session = connection.conn.session()
        session.open()
        link = session.receiver("dur")
        link.source.address, link.source.durability = topic, link.source.DELIVERIES
        selecting("n >").apply(link)  # the subscription itself refuses it
        link.open()
        refusal(connection, link, "amqp:invalid-field")
        link.close()
        connection.create_receiver(topic, name="other")  # when it is attached, the close was handled
        link.free()
        again = connection.create_receiver(topic, credit=1, name="dur", options=Source(durable=True))
        assert bodies(again, 1) == ["kept"]


def refusal(connection: Any, link: Any, condition: str) -> None:
    """Wait until a link is refused with this condition."""
    with pytest.raises(LinkDetached):
        connection.wait(lambda: link.remote_condition is not None)
    assert link.remote_condition.name == condition


def test_a_client_that_waits_for_no_answer_is_served(place: Place, port: int) -> None:
    topic = place.topic()

    class Pipelining(MessagingHandler):
        """Opens, begins and attaches at once; sends when both links are attached."""

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[object] = []
            self.attached: set[str] = set()
            self.connection: Any = None
            self.sender: Any = None
            self.limit: Any = None

        def on_start(self, event: Any) -> None:
            self.connection = event.container.connect(f"amqp://127.0.0.1:{port}", allowed_mechs="ANONYMOUS")
            event.container.create_receiver(self.connection, topic, name="receiving")
            event.container.create_sender(self.connection, topic, name="sending")
            self.limit = event.container.schedule(ANSWER_S, self)

        def on_link_opened(self, event: Any) -> None:
            self.attached.add(event.link.name)
            if event.link.is_sender:
                self.sender = event.link
            if self.attached == {"receiving", "sending"}:
                self.sender.send(Message(body="m"))

        def on_message(self, event: Any) -> None:
            self.seen.append(event.message.body)
            self.end()

        def on_timer_task(self, _event: Any) -> None:
            self.end()

        def end(self) -> None:
            self.limit.cancel()
            self.connection.close()

    handler = Pipelining()
    Container(handler).run()
    assert handler.seen == ["m"]


def test_any_credit_is_good(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port) as connection:
        receiver = connection.create_receiver(topic, credit=2**29)
        connection.create_sender(topic).send(Message(body="m"))
        assert bodies(receiver, 1) == ["m"]


def test_a_link_that_ends_while_it_attaches_leaves_no_consumer(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        session = connection.conn.session()
        session.open()
        link = session.receiver("dur")
        link.source.address, link.source.durability = topic, link.source.DELIVERIES
        link.open()
        session.close()
        connection.wait(lambda: not session.state & Endpoint.REMOTE_ACTIVE)
        again = attached_at_last(connection, topic)
        connection.create_sender(topic).send(Message(body="m"))
        assert bodies(again, 1) == ["m"]


def attached_at_last(connection: Any, topic: str) -> Any:
    """Attach to an exclusive subscription as soon as it has no other consumer."""
    for number in itertools.count():
        try:
            name, options = ("dur", Source(durable=True))
            return connection.create_receiver(topic, credit=1, name=name, options=options)
        except LinkDetached:
            if number == 50:
                raise
    return None
