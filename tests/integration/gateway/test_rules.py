"""The rules of subscriptions (docs/reference/rules.md), tried by links as Qpid JMS attaches them."""

from typing import Any

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from proton.utils import LinkDetached

from tests.integration.gateway.running import (
    ANSWER_S,
    Message,
    Source,
    bodies,
    client,
    detach,
    drained,
    running_with,
    selecting,
)
from tests.integration.subscriptions.helpers import Place

pytestmark = pytest.mark.long

LOCKED, NOT_ALLOWED, NOT_FOUND = "amqp:resource-locked", "amqp:not-allowed", "amqp:not-found"


def consumer(
    connection: Any,
    topic: str,
    name: str,
    *,
    durable: bool = False,
    shared: bool = False,
    selector: str | None = None,
    credit: int = 10,
) -> Any:
    """Attach a consumer; the name of a shared one says whether it is global, and which of several it is."""
    kinds = ("topic", "shared", "global") if "global" in name else ("topic", "shared")
    options: list[Any] = [Source(durable=durable, capabilities=kinds if shared else ("topic",))]
    if selector is not None:
        options.append(selecting(selector))
    return connection.create_receiver(topic, name=name, credit=credit, options=options)


def refused(connection: Any, condition: str, topic: str, name: str, **more: Any) -> None:
    """A consumer that cannot attach, for this reason."""
    with pytest.raises(LinkDetached, match=condition):
        consumer(connection, topic, name, **more)


def unsubscribe(connection: Any, name: str) -> None:
    """Delete a durable subscription as `Session.unsubscribe` of Qpid JMS does."""
    link = connection.create_receiver(None, name=name, options=Source(null=True))
    link.close()
    with pytest.raises(LinkDetached, match=NOT_FOUND):
        connection.create_receiver(None, name=name, options=Source(null=True))


def empty(receiver: Any) -> bool:
    """Whether no message waits for a consumer."""
    drained(receiver, 1)
    return not receiver.fetcher.incoming


def test_u1_an_exclusive_durable_subscription_needs_a_client_id(place: Place, port: int) -> None:
    with client(port) as connection:
        refused(connection, NOT_ALLOWED, place.topic(), "dur", durable=True)


def test_u2_u3_u9_a_durable_subscription_stays_and_keeps_messages(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        detach(consumer(connection, topic, "dur", durable=True))
        connection.create_sender(topic).send(Message(body="kept"))
        assert bodies(consumer(connection, topic, "dur", durable=True), 1) == ["kept"]


def test_u5_x3_an_active_subscription_has_one_consumer_and_is_not_deleted(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        held = consumer(connection, topic, "dur", durable=True)
        session = connection.conn.session()
        session.open()
        second = session.receiver("dur")
        second.source.address = topic
        Source(durable=True).apply(second)
        second.open()
        with pytest.raises(LinkDetached):
            connection.wait(lambda: second.remote_condition is not None)
        assert second.remote_condition.name == LOCKED
        third = connection.conn.session()
        third.open()
        deleting = third.receiver("dur")
        Source(null=True).apply(deleting)
        deleting.open()
        connection.wait(lambda: bool(deleting.state & deleting.REMOTE_ACTIVE), msg="it is known")
        deleting.close()
        connection.wait(lambda: bool(deleting.state & deleting.REMOTE_CLOSED), msg="it is refused")
        assert deleting.remote_condition.name == LOCKED
        connection.create_sender(topic).send(Message(body="still there"))
        assert bodies(held, 1) == ["still there"]


def test_u6_s5_a_durable_name_is_exclusive_or_shared(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        detach(consumer(connection, topic, "one", durable=True, shared=True))
        refused(connection, NOT_ALLOWED, topic, "one", durable=True)
        detach(consumer(connection, topic, "two", durable=True))
        refused(connection, NOT_ALLOWED, topic, "two", durable=True, shared=True)


def test_u8_u10_topics_of_kafkadur_and_wrong_names_are_refused(place: Place, port: int) -> None:
    with client(port, "app") as connection:
        refused(connection, NOT_FOUND, "kafkadur.journal.default", "dur", durable=True)
        refused(connection, "amqp:invalid-field", place.topic(), "a b", durable=True)
        detach(consumer(connection, place.topic(), "n" * 128, durable=True))


def test_s1_s2_s10_consumers_share_a_durable_subscription_that_stays(place: Place, port: int) -> None:
    topic = place.topic(partitions=2)
    with client(port, "app") as connection:
        first = consumer(connection, topic, "s", durable=True, shared=True, credit=2)
        second = consumer(connection, topic, "s|2", durable=True, shared=True, credit=2)
        sender = connection.create_sender(topic)
        for number in range(4):
            sender.send(Message(body=number))
        come = [first.fetcher.incoming, second.fetcher.incoming]
        connection.wait(lambda: sum(map(len, come)) == 4, msg="they have them")
        assert sorted(bodies(first, len(come[0])) + bodies(second, len(come[1]))) == [0, 1, 2, 3]
        detach(first)
        detach(second)
        sender.send(Message(body="kept"))
        assert bodies(consumer(connection, topic, "s", durable=True, shared=True), 1) == ["kept"]


def test_s3_s4_another_selector_begins_anew_unless_a_consumer_is_attached(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        held = consumer(connection, topic, "s", durable=True, shared=True)
        refused(connection, LOCKED, topic, "s|2", durable=True, shared=True, selector="n = 1")
        detach(held)
        sender = connection.create_sender(topic)
        sender.send(Message(body="lost", properties={"n": 1}))
        anew = consumer(connection, topic, "s", durable=True, shared=True, selector="n = 1")
        sender.send(Message(body="left out", properties={"n": 2}))
        sender.send(Message(body="new", properties={"n": 1}))
        assert bodies(anew, 1) == ["new"]
        assert empty(anew)


def test_s6_a_name_with_and_without_a_client_id_is_two_subscriptions(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        own = consumer(connection, topic, "s", durable=True, shared=True)
        world = consumer(connection, topic, "s|global", durable=True, shared=True)
        connection.create_sender(topic).send(Message(body="both"))
        assert bodies(own, 1) == bodies(world, 1) == ["both"]


def test_s7_s9_messages_go_to_consumers_that_have_credit(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        consumer(connection, topic, "s", durable=True, shared=True, credit=0)
        second = consumer(connection, topic, "s|2", durable=True, shared=True, credit=5)
        sender = connection.create_sender(topic)
        for number in range(3):
            sender.send(Message(body=number))
        assert bodies(second, 3) == [0, 1, 2]


def test_n1_n2_n3_n4_a_shared_subscription_lasts_as_long_as_its_consumers(place: Place, port: int) -> None:
    topic = place.topic()
    with client(port) as connection:
        first = consumer(connection, topic, "s|volatile1", shared=True, credit=0)
        second = consumer(connection, topic, "s|volatile2", shared=True)
        refused(connection, LOCKED, topic, "s|volatile3", shared=True, selector="n = 1")
        sender = connection.create_sender(topic)
        sender.send(Message(body="one"))
        assert bodies(second, 1) == ["one"]
        second.close()
        sender.send(Message(body="undelivered"))
        first.close()
        again = consumer(connection, topic, "s|volatile1", shared=True, selector="n = 1")  # another one
        sender.send(Message(body="new", properties={"n": 1}))
        assert again.receive(timeout=ANSWER_S).body == "new"
        again.accept()
        assert empty(again)


def test_n5_a_durable_and_a_non_durable_subscription_of_a_name_each_get_a_copy(
    place: Place, port: int
) -> None:
    topic = place.topic()
    with client(port, "app") as connection:
        durable = consumer(connection, topic, "s", durable=True, shared=True)
        volatile = consumer(connection, topic, "s|volatile1", shared=True)
        connection.create_sender(topic).send(Message(body="both"))
        assert bodies(durable, 1) == bodies(volatile, 1) == ["both"]


def test_x1_x2_x5_unsubscribing_needs_an_inactive_durable_subscription_of_this_client(
    place: Place, port: int
) -> None:
    topic = place.topic()
    with client(port, "app") as connection, client(port, "other") as other:
        detach(consumer(connection, topic, "dur", durable=True))
        consumer(connection, topic, "s|volatile1", shared=True)
        for asking, name in (
            (other, "dur"),
            (connection, "none"),
            (connection, "s"),
            (connection, "dur|global"),
        ):
            with pytest.raises(LinkDetached, match=NOT_FOUND):
                asking.create_receiver(None, name=name, options=Source(null=True))
        unsubscribe(connection, "dur")


def test_c2_c3_an_unrestricted_client_id_is_another_one(place: Place, port: int) -> None:
    """Two gateways with one policy each: their clients have subscriptions of their own."""
    topic = place.topic()
    with (
        running_with(place.settings(client_id_policy="unrestricted")) as free,
        client(free, "app") as first,
        client(free, "app") as second,
        client(port, "app") as restricted,
    ):
        held = consumer(restricted, topic, "dur", durable=True)
        own = consumer(first, topic, "dur", durable=True)
        refused(second, LOCKED, topic, "dur", durable=True)
        restricted.create_sender(topic).send(Message(body="for both"))
        assert bodies(held, 1) == bodies(own, 1) == ["for both"]
        detach(own)
        detach(held)
    with running_with(place.settings(client_id_policy="unrestricted")) as free, client(free, "app") as first:
        unsubscribe(first, "dur")
    with client(port, "app") as restricted:  # the other one is still there
        unsubscribe(restricted, "dur")


def test_c5_one_consumer_too_many_is_refused_and_nobody_put_out(place: Place, port: int) -> None:
    topic = place.topic()
    with place.connect_sync(client_id=None) as python:
        python.create("few", topic, type="shared", max_consumers=2)
    with client(port) as connection:
        address = f"{topic}::few"
        held = [connection.create_receiver(address, name=f"r{number}", credit=1) for number in range(2)]
        with pytest.raises(LinkDetached, match=r"amqp:resource-limit-exceeded.*max_consumers 2"):
            connection.create_receiver(address, name="r2", credit=1)
        sender = connection.create_sender(topic)
        for _ in held:
            sender.send(Message(body="m"))
        assert [bodies(each, 1) for each in held] == [["m"], ["m"]]
