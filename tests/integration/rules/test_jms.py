"""The facade in the names of Jakarta Messaging, and rules K1 to K7: what its modes acknowledge when."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from kafkadur import (
    ConnectionClosed,
    IllegalState,
    InternalError,
    InvalidClientId,
    InvalidDestination,
    InvalidSubscriptionSharing,
    KafkadurError,
    LeaseLost,
    Redelivery,
    SubscriptionActive,
)
from kafkadur.jms import AcknowledgeMode, Connection, ConnectionFactory, Message, MessageConsumer
from kafkadur.sync import Delivery
from kafkadur_sharing.definition import SubscriptionType
from tests.integration.subscriptions.helpers import LIMIT_S, SILENCE_S, Place, speaks, wait_until

AUTO, CLIENT = AcknowledgeMode.AUTO_ACKNOWLEDGE, AcknowledgeMode.CLIENT_ACKNOWLEDGE
DUPS_OK, INDIVIDUAL = AcknowledgeMode.DUPS_OK_ACKNOWLEDGE, AcknowledgeMode.INDIVIDUAL_ACKNOWLEDGE
MANUAL = (CLIENT, INDIVIDUAL)

Connect = Callable[..., Connection]


@pytest.fixture
def connect(place: Place) -> Iterator[Connect]:
    """Provide connections that are started: `connect(**settings)`."""
    made: list[Connection] = []

    def connect(**more: Any) -> Connection:
        factory = {name: more.pop(name) for name in ("sharing_policy", "redelivery") if name in more}
        connection = ConnectionFactory(**factory, **place.settings(**more)).create_connection()
        made.append(connection)
        connection.start()
        return connection

    yield connect
    for connection in made:
        connection.close()


def texts(consumer: MessageConsumer, count: int) -> list[str | None]:
    """The texts of so many messages."""
    found: list[str | None] = []
    for _ in range(count):
        message = consumer.receive(LIMIT_S)
        assert message is not None, f"{len(found)} of {count} came"
        found.append(message.text)
    return found


def check_shared(place: Place, topic: str, consumers: list[MessageConsumer]) -> None:
    """Check that every consumer gets messages, and every message comes once.

    A consumer that came first may have reserved the next four offsets, so there are twice as many messages.
    """
    wait_until(
        lambda: all(consumer.subscription.statistics()["promised"] > 0 for consumer in consumers),
        "a reservation of each consumer",
    )
    place.publish(topic, range(1, 9))
    found = [texts(consumer, 1)[0] for consumer in consumers]

    def all_came() -> bool:
        more = [consumer.receive_no_wait() for consumer in consumers]
        found.extend(message.text for message in more if message is not None)
        return len(found) >= 8

    wait_until(all_came, "all messages")
    assert sorted(map(str, found)) == ["1", "2", "3", "4", "5", "6", "7", "8"]


def wait_told(consumer: MessageConsumer, waits: threading.Event) -> Callable[..., bool]:
    """The session's way to wait, telling that somebody does."""
    wait = consumer._session.wait_for_start  # noqa: SLF001 - to know when it waits

    def told(of: MessageConsumer, timeout: float | None) -> bool:
        waits.set()
        return wait(of, timeout)

    return told


def fill(connection: Connection, topic: str, *bodies: str) -> None:
    with connection.create_session().create_producer(topic) as producer:
        for body in bodies:
            producer.send(body)


# -- the surface


def test_fields_travel(place: Place, connect: Connect) -> None:
    topic = place.topic()
    connection = connect()
    session = connection.create_session()
    consumer = session.create_consumer(topic, "n > 1 AND JMSPriority = 7")
    assert consumer.message_selector == "n > 1 AND JMSPriority = 7"
    producer = session.create_producer()
    producer.send("no", topic=topic, properties={"n": 2})
    producer.send(
        "yes",
        topic=topic,
        key="k",
        properties={"n": 2, "raw": b"\x00"},
        correlation_id="c",
        jms_type="order",
        priority=7,
        delivery_mode="NON_PERSISTENT",
    )
    message = consumer.receive(LIMIT_S)
    assert message is not None
    assert (message.text, message.body, message.properties) == ("yes", b"yes", {"n": 2, "raw": b"\x00"})
    assert (message.jms_correlation_id, message.jms_type, message.jms_priority) == ("c", "order", 7)
    assert (message.jms_delivery_mode, message.jms_destination) == ("NON_PERSISTENT", topic)
    assert message.jms_message_id is not None
    assert message.jms_timestamp > 0
    assert not message.jms_redelivered
    assert consumer.receive_no_wait() is None
    assert "yes" not in repr(message)


def test_a_connection_begins_stopped(place: Place) -> None:
    topic = place.topic([1, 2])
    with ConnectionFactory(**place.settings()).create_connection() as connection:
        consumer = connection.create_session().create_durable_consumer(topic, "d")
        place.publish(topic, [3, 4])
        assert consumer.receive(SILENCE_S) is None
        connection.start()
        assert texts(consumer, 1) == ["3"]
        connection.stop()
        assert consumer.receive(SILENCE_S) is None
        connection.start()
        assert texts(consumer, 1) == ["4"]


def test_what_comes_while_it_is_stopped_is_kept_until_it_is_started(place: Place) -> None:
    """A receive that was under way when the connection was stopped hands out nothing."""
    topic = place.topic()
    with ConnectionFactory(**place.settings()).create_connection() as connection:
        connection.start()
        consumer = connection.create_session(CLIENT).create_durable_consumer(topic, "d")
        found: list[Message | None] = []
        waiting = threading.Thread(target=lambda: found.append(consumer.receive(LIMIT_S)))
        waiting.start()
        connection.stop()
        place.publish(topic, [1])
        waiting.join(SILENCE_S)
        assert found == []
        connection.start()
        waiting.join()
        assert [message.text for message in found if message is not None] == ["1"]


def test_closing_wakes_who_waits(place: Place) -> None:
    with ConnectionFactory(**place.settings()).create_connection() as connection:
        for started in (False, True):
            if started:
                connection.start()
            consumer = connection.create_session().create_consumer(place.topic())
            waits = threading.Event()
            consumer._session.wait_for_start = wait_told(consumer, waits)  # type: ignore[method-assign]  # noqa: SLF001
            with ThreadPoolExecutor(1) as threads:
                found = threads.submit(consumer.receive)
                assert waits.wait(LIMIT_S)
                consumer.close()
                assert found.result(LIMIT_S) is None
            with pytest.raises(ConnectionClosed):
                consumer.receive(0)


def test_c4_the_client_id_is_set_first(place: Place) -> None:
    with ConnectionFactory(**place.settings(client_id=None)).create_connection() as connection:
        connection.client_id = "me"
        assert connection.client_id == "me"
        with pytest.raises(IllegalState):
            connection.client_id = "you"


def test_c1_a_second_connection_is_refused(place: Place) -> None:
    factory = ConnectionFactory(**place.settings(client_id="me", client_id_policy="restricted"))
    with factory.create_connection(), pytest.raises(InvalidClientId):
        factory.create_connection()


def test_u1_u5_durable_consumers(place: Place, connect: Connect) -> None:
    topic = place.topic()
    with pytest.raises(IllegalState):
        connect(client_id=None).create_session().create_durable_consumer(topic, "d")
    session = connect().create_session()
    consumer = session.create_durable_consumer(topic, "d")
    assert consumer.subscription.definition.definition.type is SubscriptionType.EXCLUSIVE
    with pytest.raises(SubscriptionActive):
        connect().create_session().create_durable_consumer(topic, "d")
    with pytest.raises(InvalidSubscriptionSharing):
        session.create_shared_durable_consumer(topic, "d")
    with pytest.raises(SubscriptionActive):
        session.unsubscribe("d")
    consumer.close()
    session.unsubscribe("d")
    with pytest.raises(InvalidDestination):
        session.unsubscribe("d")


@pytest.mark.parametrize("durable", [True, False])
def test_s2_n2_shared_consumers(place: Place, connect: Connect, *, durable: bool) -> None:
    topic = place.topic()
    sessions = [connect(client_id=None).create_session() for _ in range(2)]
    consumers = [
        (session.create_shared_durable_consumer if durable else session.create_shared_consumer)(topic, "s")
        for session in sessions
    ]
    check_shared(place, topic, consumers)


def test_v1_u7_consumers_of_their_own(place: Place, connect: Connect) -> None:
    topic = place.topic()
    connection = connect()
    session = connection.create_session()
    plain, remote = session.create_consumer(topic), session.create_consumer(topic, no_local=True)
    durable = session.create_durable_consumer(topic, "d", no_local=True)
    fill(connection, topic, "mine")
    fill(connect(client_id="other"), topic, "theirs")
    assert texts(plain, 2) == ["mine", "theirs"]
    assert texts(remote, 1) == texts(durable, 1) == ["theirs"]


def test_p_the_sharing_policy_of_weblogic(place: Place, connect: Connect) -> None:
    topic = place.topic()
    sharable = {"mode": "weblogic", "sharing_policy": "sharable"}
    with pytest.raises(IllegalState, match="no sharing policy"):
        connect(sharing_policy="sharable")
    with pytest.raises(IllegalState, match="no sharing policy"):
        connect(mode="weblogic", sharing_policy="shy")
    consumers = [connect(**sharable).create_session().create_durable_consumer(topic, "d") for _ in range(2)]
    with pytest.raises(InvalidSubscriptionSharing):
        connect(mode="weblogic").create_session().create_durable_consumer(topic, "d")
    check_shared(place, topic, consumers)


def test_what_is_wrong_is_said(place: Place, connect: Connect) -> None:
    connection = connect()
    session = connection.create_session()
    with pytest.raises(IllegalState, match="acknowledgement mode 7"):
        connection.create_session(7)
    with pytest.raises(InvalidDestination):
        session.create_producer().send("x")
    topic = place.topic()
    with pytest.raises(IllegalState) as refused:
        session.create_producer(topic).send("x", topic="other")
    speaks(refused.value, topic)
    consumer = session.create_consumer(topic)
    consumer.message_listener = print
    with pytest.raises(IllegalState, match="listener"):
        consumer.receive(0)
    session.close()
    session.close()
    with pytest.raises(ConnectionClosed):
        session.create_consumer(topic)
    with pytest.raises(ConnectionClosed):
        consumer.message_listener = print
    connection.close()
    for closed in (connection.start, connection.stop, connection.create_session):
        with pytest.raises(ConnectionClosed):
            closed()


# -- acknowledging


def waiting(connection: Connection, topic: str) -> list[str | None]:
    """What waits in the durable subscription d, as a consumer after it finds it."""
    session = connection.create_session(CLIENT)
    with session.create_durable_consumer(topic, "d") as consumer:
        found: list[str | None] = []
        while (message := consumer.receive(SILENCE_S * 2)) is not None:
            found.append(message.text)
        session.close()
        return found


def durable(connection: Connection, mode: AcknowledgeMode, topic: str) -> MessageConsumer:
    return connection.create_session(mode).create_durable_consumer(topic, "d")


def test_k1_client_acknowledges_all_that_the_session_delivered(place: Place, connect: Connect) -> None:
    topic, other = place.topic(), place.topic()
    connection = connect()
    session = connection.create_session(CLIENT)
    consumer = session.create_durable_consumer(topic, "d")
    second = session.create_shared_durable_consumer(other, "e")
    place.publish(topic, range(1, 6))
    place.publish(other, [6, 7])
    assert texts(second, 1) == ["6"]
    messages = [consumer.receive(LIMIT_S) for _ in range(3)]
    assert messages[1] is not None
    messages[1].acknowledge()
    session.close()
    assert waiting(connection, topic) == ["4", "5"]
    again = connection.create_session().create_shared_durable_consumer(other, "e")
    assert texts(again, 1) == ["7"]


@pytest.mark.parametrize("mode", [AUTO, DUPS_OK])
def test_k2_auto_acknowledges_what_receive_returned(
    place: Place, connect: Connect, mode: AcknowledgeMode
) -> None:
    topic = place.topic()
    connection = connect()
    consumer = durable(connection, mode, topic)
    place.publish(topic, range(1, 6))
    message = consumer.receive(LIMIT_S)
    assert message is not None
    message.acknowledge()  # nothing is left to do
    assert texts(consumer, 2) == ["2", "3"]
    consumer.close()
    assert waiting(connection, topic) == ["4", "5"]


def test_k2_auto_acknowledges_what_a_listener_returned_from(place: Place, connect: Connect) -> None:
    topic = place.topic()
    connection = connect(redelivery=Redelivery(backoff=timedelta(0)))
    consumer = durable(connection, AUTO, topic)
    heard: list[tuple[str | None, int]] = []

    def listen(message: Message) -> None:
        heard.append((message.text, message.jmsx_delivery_count))
        if len(heard) == 2:
            raise ValueError(message.text)

    consumer.message_listener = listen
    place.publish(topic, range(1, 4))
    wait_until(lambda: len(heard) == 4, "three messages, one of them twice")
    consumer.close()
    assert sorted(heard) == [("1", 1), ("2", 1), ("2", 2), ("3", 1)]
    assert waiting(connection, topic) == []


def test_k2_listeners_of_a_session_are_called_one_at_a_time(place: Place, connect: Connect) -> None:
    topics = [place.topic() for _ in range(3)]
    session = connect().create_session()
    inside, most, heard = [0], [0], [0]

    def listen(_: Message) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.002)  # so that others would be called now
        heard[0] += 1
        inside[0] -= 1

    for topic in topics:
        session.create_consumer(topic).message_listener = listen
    for topic in topics:
        place.publish(topic, range(30))
    wait_until(lambda: heard[0] == 90, "all were heard")
    assert most[0] == 1


@pytest.mark.parametrize("mode", MANUAL)
def test_k3_k4_recover_brings_again_what_was_not_acknowledged(
    place: Place, connect: Connect, mode: AcknowledgeMode
) -> None:
    topic = place.topic()
    connection = connect()
    session = connection.create_session(mode)
    consumer = session.create_durable_consumer(topic, "d")
    place.publish(topic, range(1, 4))
    first = consumer.receive(LIMIT_S)
    assert first is not None
    assert (first.jms_redelivered, first.jmsx_delivery_count) == (False, 1)
    first.acknowledge()
    assert texts(consumer, 2) == ["2", "3"]
    session.recover()
    again = [consumer.receive(LIMIT_S) for _ in range(2)]
    assert sorted((m.text, m.jms_redelivered, m.jmsx_delivery_count) for m in again if m is not None) == [
        ("2", True, 2),
        ("3", True, 2),
    ]


@pytest.mark.parametrize("mode", MANUAL)
def test_k5_closing_a_consumer_acknowledges_nothing_and_leaves_it_possible(
    place: Place, connect: Connect, mode: AcknowledgeMode
) -> None:
    topic = place.topic()
    connection = connect()
    session = connection.create_session(mode)
    consumer = session.create_durable_consumer(topic, "d")
    place.publish(topic, range(1, 4))
    messages = [consumer.receive(LIMIT_S) for _ in range(2)]
    consumer.close()
    with pytest.raises(SubscriptionActive):  # X4: the application still has to
        session.unsubscribe("d")
    for message in messages:
        assert message is not None
        message.acknowledge()
        if mode is CLIENT:
            break
    assert waiting(connection, topic) == ["3"]


@pytest.mark.parametrize("mode", MANUAL)
def test_k6_closing_a_session_acknowledges_nothing(
    place: Place, connect: Connect, mode: AcknowledgeMode
) -> None:
    topic = place.topic()
    connection = connect()
    with connection.create_session(mode) as session:
        consumer = session.create_durable_consumer(topic, "d")
        place.publish(topic, range(1, 4))
        assert texts(consumer, 2) == ["1", "2"]
    assert waiting(connection, topic) == ["1", "2", "3"]


def test_k7_what_is_acknowledged_never_comes_again(place: Place, connect: Connect) -> None:
    topic = place.topic()
    connection = connect()
    for number in range(1, 4):
        session = connection.create_session(INDIVIDUAL)
        consumer = session.create_durable_consumer(topic, "d")
        if number == 1:
            place.publish(topic, range(1, 7))
        messages = [consumer.receive(LIMIT_S) for _ in range(3 if number < 3 else 2)]
        assert messages[1] is not None
        messages[1].acknowledge()
        session.recover()
        session.close()
    assert waiting(connection, topic) == ["1", "5", "6"]


def test_a_consumer_that_cannot_go_on_is_told(place: Place, connect: Connect) -> None:
    topic = place.topic()
    connection = connect(client_id="me", client_id_policy="restricted")
    told: list[KafkadurError] = []
    connection.exception_listener = told.append
    consumer = connection.create_session().create_consumer(topic)
    consumer.message_listener = print
    lost = IllegalState("It is over.")
    consumer.subscription._member.fail(lost)  # noqa: SLF001 - whatever ended it
    consumer.subscription._signal.set()  # noqa: SLF001 - as above
    wait_until(lambda: told == [lost], "the exception listener is told")


def test_a_consumer_that_meets_a_defect_is_told(
    place: Place, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not handed to its listener comes again."""

    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    topic = place.topic()
    connection = connect()
    told: list[KafkadurError] = []
    connection.exception_listener = told.append
    with monkeypatch.context() as patched, connection.create_session() as session:
        patched.setattr(type(session), "call", broken)
        session.create_durable_consumer(topic, "d").message_listener = print
        place.publish(topic, [1])
        wait_until(lambda: len(told) == 1, "the exception listener is told")
    assert isinstance(told[0], InternalError)
    speaks(told[0], "ZeroDivisionError", "again")
    assert texts(connection.create_session().create_durable_consumer(topic, "d"), 1) == ["1"]


def test_k1_what_waits_for_its_listener_is_not_acknowledged(place: Place, connect: Connect) -> None:
    """One listener acknowledges while another one of the session has its turn next."""
    topic, other = place.topic(), place.topic()
    connection = connect()
    session = connection.create_session(CLIENT)
    first, second = (
        session.create_durable_consumer(topic, "first"),
        session.create_durable_consumer(other, "d"),
    )
    done, heard = threading.Event(), threading.Event()

    def acknowledge(message: Message) -> None:
        wait_until(lambda: second.subscription.statistics()["in_hands"] == 1, "the other one has a message")
        message.acknowledge()
        done.set()

    def listen(_: Message) -> None:
        heard.set()

    place.publish(topic, [1])
    first.message_listener = acknowledge
    wait_until(session._calling.locked, "it is called")  # noqa: SLF001 - whose turn it is
    second.message_listener = listen
    place.publish(other, [2])
    assert done.wait(LIMIT_S)
    assert heard.wait(LIMIT_S)
    session.close()
    assert waiting(connection, other) == ["2"]


@pytest.mark.parametrize("own", [True, False])
def test_a_listener_closes_a_consumer(place: Place, connect: Connect, *, own: bool) -> None:
    topic, other = place.topic(), place.topic()
    session = connect().create_session()
    consumers = [session.create_durable_consumer(topic, "d"), session.create_durable_consumer(other, "e")]
    closed: list[BaseException | None] = []

    def close(_: Message) -> None:
        if not own:
            wait_until(lambda: consumers[1].subscription.statistics()["in_hands"] == 1, "it has a message")
        with pytest.raises(IllegalState):
            session.close()
        consumers[0 if own else 1].close()
        closed.append(None)

    place.publish(topic, [1])
    consumers[0].message_listener = close
    if not own:
        wait_until(session._calling.locked, "it is called")  # noqa: SLF001 - whose turn it is
        consumers[1].message_listener = print
        place.publish(other, [2])
    wait_until(lambda: len(closed) == 1, "the listener returned")
    name = "d" if own else "e"
    wait_until(lambda: not session._leaving, "it has left")  # noqa: SLF001 - who waits for verdicts
    session.unsubscribe(name)


def test_a_listener_that_settles_by_itself_is_called_again(place: Place, connect: Connect) -> None:
    topic = place.topic()
    connection = connect()
    session = connection.create_session()
    told: list[KafkadurError] = []
    connection.exception_listener = told.append
    consumer = session.create_durable_consumer(topic, "d")
    heard: list[str | None] = []

    def listen(message: Message) -> None:
        heard.append(message.text)
        message.delivery.ack()
        if message.text == "2":
            raise ValueError

    consumer.message_listener = listen
    place.publish(topic, range(1, 4))
    wait_until(lambda: len(heard) == 3, "all were heard")
    assert told == []
    consumer.close()
    assert waiting(connection, topic) == []


def test_stop_waits_for_a_listener(place: Place, connect: Connect) -> None:
    topic = place.topic()
    connection = connect()
    consumer = connection.create_session().create_durable_consumer(topic, "d")
    heard: list[str | None] = []

    def listen(message: Message) -> None:
        time.sleep(0.05)  # as work would
        heard.append(message.text)

    consumer.message_listener = listen
    place.publish(topic, range(5))
    wait_until(lambda: len(heard) >= 1, "it is at work")
    connection.stop()
    count = len(heard)
    assert consumer.subscription.receive(SILENCE_S) is not None or count >= 4
    assert len(heard) == count


def test_an_acknowledgement_that_is_uncertain_loses_nothing(
    place: Place, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been settled: so the application gets the message."""
    topic = place.topic()
    consumer = durable(connect(), AUTO, topic)

    def uncertain(_: Delivery) -> None:
        raise LeaseLost

    monkeypatch.setattr(Delivery, "ack", uncertain)
    place.publish(topic, [1])
    assert texts(consumer, 1) == ["1"]


# -- transactions


def test_a_listener_of_a_transacted_session_closes_another_consumer(place: Place, connect: Connect) -> None:
    """Its listener, which waits for its turn, comes to its end."""
    first, second = place.topic(), place.topic()
    session = connect().create_session(AcknowledgeMode.SESSION_TRANSACTED)
    one, other = (session.create_durable_consumer(topic, topic) for topic in (first, second))
    closed = threading.Event()

    def close_other(_: Message) -> None:
        other.close()
        session.commit()
        closed.set()

    other.message_listener = lambda _: None
    one.message_listener = close_other
    place.publish(first, [1])
    assert closed.wait(LIMIT_S)
    one.close()


def test_commit_and_rollback(place: Place, connect: Connect) -> None:
    source, out = place.topic(), place.topic()
    connection = connect()
    session = connection.create_session(AcknowledgeMode.SESSION_TRANSACTED)
    consumer = session.create_durable_consumer(source, "d")
    place.publish(source, [1, 2, 3])
    with session.create_producer(out) as producer:
        assert texts(consumer, 2) == ["1", "2"]
        producer.send("one")
        session.commit()
        assert texts(consumer, 1) == ["3"]
        producer.send("two")
        session.rollback()
        again = consumer.receive(LIMIT_S)
        assert again is not None
        assert (again.text, again.jms_redelivered, again.jmsx_delivery_count) == ("3", True, 2)
        again.acknowledge()  # of no effect here
        producer.send("three")
        session.commit()
    assert consumer.receive_no_wait() is None
    reader = connection.create_session().create_durable_consumer(out, "out")
    place.publish(out, [4])
    assert texts(reader, 1) == ["4"], "it began with the live end"
    with pytest.raises(IllegalState) as caught:
        session.recover()
    speaks(caught.value, "transacted")
    with pytest.raises(IllegalState) as caught:
        connection.create_session().commit()
    speaks(caught.value, "SESSION_TRANSACTED")
    with pytest.raises(IllegalState):
        session.create_consumer(source)


def test_only_what_is_committed_is_seen(place: Place, connect: Connect) -> None:
    out = place.topic()
    connection = connect()
    reader = connection.create_session().create_consumer(out)
    session = connection.create_session(AcknowledgeMode.SESSION_TRANSACTED)
    producer = session.create_producer(out)
    producer.send("no")
    session.rollback()
    producer.send("yes")
    assert reader.receive(SILENCE_S) is None
    session.commit()
    assert texts(reader, 1) == ["yes"]


def test_k5_commit_after_the_consumer_was_closed(place: Place, connect: Connect) -> None:
    topic = place.topic()
    connection = connect()
    session = connection.create_session(AcknowledgeMode.SESSION_TRANSACTED)
    consumer = session.create_durable_consumer(topic, "d")
    place.publish(topic, [1, 2])
    assert texts(consumer, 1) == ["1"]
    consumer.close()
    session.commit()
    again = session.create_durable_consumer(topic, "d")
    assert texts(again, 1) == ["2"]
    session.close()  # rolled back
    other = connection.create_session(AcknowledgeMode.SESSION_TRANSACTED)
    assert texts(other.create_durable_consumer(topic, "d"), 1) == ["2"]


def test_a_listener_commits_only_what_listeners_got(place: Place, connect: Connect) -> None:
    """Two listeners of a session; each commit is of the messages that one of them was called with."""
    first, second = place.topic(), place.topic()
    connection = connect()
    session = connection.create_session(AcknowledgeMode.SESSION_TRANSACTED)
    got: list[str | None] = []
    done = threading.Event()

    def listener(message: Message) -> None:
        got.append(message.text)
        session.commit()
        if len(got) == 20:
            done.set()

    for name, topic in (("a", first), ("b", second)):
        session.create_durable_consumer(topic, name).message_listener = listener
    place.publish(first, range(10))
    place.publish(second, range(10, 20))
    assert done.wait(LIMIT_S)
    assert sorted(int(text or "") for text in got) == list(range(20))
    session.close()
    again = connection.create_session(AcknowledgeMode.SESSION_TRANSACTED)
    for name, topic in (("a", first), ("b", second)):
        assert again.create_durable_consumer(topic, name).receive(SILENCE_S) is None


@pytest.mark.parametrize(("mode", "left"), [(CLIENT, []), (INDIVIDUAL, ["1", "3"])])
def test_d9_what_one_acknowledgement_covers(
    place: Place, connect: Connect, mode: AcknowledgeMode, left: list[str]
) -> None:
    topic = place.topic()
    connection = connect()
    session = connection.create_session(mode)
    consumer = session.create_durable_consumer(topic, "d")
    place.publish(topic, range(1, 4))
    messages = [consumer.receive(LIMIT_S) for _ in range(3)]
    assert messages[1] is not None
    messages[1].acknowledge()
    session.close()
    assert waiting(connection, topic) == left
