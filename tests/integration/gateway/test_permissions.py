"""What users may do: publish, consume and create, at topics and queues that rules name."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from proton import ConnectionException
from proton.utils import LinkDetached, SendException

from kafkadur.aio.connection import Connection
from kafkadur.gateway.permissions import parse_permissions
from tests.integration.gateway.running import (
    ANSWER_S,
    Message,
    Source,
    bodies,
    client,
    detach,
    drained,
    selecting,
)
from tests.integration.subscriptions.helpers import Place

UNAUTHORIZED = "amqp:unauthorized-access"


@contextmanager
def refused() -> Generator[None]:
    """A link that is refused because the user has no permission."""
    with pytest.raises(LinkDetached, match=UNAUTHORIZED):
        yield


@pytest.fixture
def connect(gateway: Callable[..., int]) -> Callable[..., Any]:
    """Provide connections of users, of whom each may do what rules of `permit` say."""

    def permit(*rules: str) -> Callable[..., Any]:
        port = gateway(
            anonymous=False,
            check_password=lambda _user, _password: True,
            permissions=parse_permissions(["* client-id app", *rules], owner="rules"),
        )
        return lambda user, container=None: client(
            port, container, user=user, password="x", allowed_mechs="PLAIN", allow_insecure_mechs=True
        )

    return permit


def test_publishing_and_consuming_need_permissions_of_their_own(
    connect: Callable[..., Any], place: Place
) -> None:
    topic, other = place.topic(), place.topic()
    users = connect(f"writer publish {topic}", f"reader consume {topic}")
    with users("writer") as writer, users("reader") as reader:
        receiver = reader.create_receiver(topic, credit=1)
        writer.create_sender(topic).send(Message(body="m"))
        assert bodies(receiver, 1) == ["m"]
        with refused():
            reader.create_sender(topic)
        with refused():
            writer.create_receiver(topic)
        with refused():
            writer.create_sender(other)
        relay = writer.create_sender(None)
        relay.send(Message(body="relayed", address=topic))
        with pytest.raises(SendException):  # the message is rejected
            relay.send(Message(body="lost", address=other))
        receiver.flow(1)
        assert bodies(receiver, 1) == ["relayed"]


def test_a_durable_subscription_is_created_changed_and_deleted_with_a_permission(
    connect: Callable[..., Any], place: Place
) -> None:
    topic, other = place.topic(), place.topic()
    users = connect(f"owner create,consume {topic}", f"* consume {topic}", f"* consume {other}")

    def attach(connection: Any, at: str = topic, *filters: Any) -> Any:
        return connection.create_receiver(at, name="dur", credit=1, options=[Source(durable=True), *filters])

    with users("user", "app") as connection, refused():
        attach(connection)
    with users("owner", "app") as connection:
        detach(attach(connection))
    with users("owner", "app") as connection, pytest.raises(LinkDetached, match="amqp:not-allowed"):
        attach(connection, other)  # it would be one of the other topic
    place.publish(topic, [1])
    with users("user", "app") as connection, pytest.raises(LinkDetached, match="amqp:not-allowed"):
        attach(connection, topic, selecting("n = 1"))
    with users("user", "app") as connection:
        receiver = attach(connection)
        receiver.close()  # this would delete the subscription
        assert receiver.link.remote_condition.name == UNAUTHORIZED
    with users("user", "app") as connection, refused():
        connection.create_receiver(None, name="dur", options=Source(null=True))
    with users("owner", "app") as connection:
        assert len(bodies(attach(connection), 1)) == 1
    with users("owner", "app") as connection:
        connection.create_receiver(None, name="dur", options=Source(null=True)).close()
    with users("owner", "app") as connection, pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_receiver(None, name="dur", options=Source(null=True))


def test_a_queue_is_created_with_a_permission(connect: Callable[..., Any], place: Place) -> None:
    topic = place.topic()
    users = connect(f"owner create,publish {topic}", f"user publish,consume {topic}")
    with users("user") as user, users("owner") as owner:
        with refused():
            user.create_sender(f"queue://{topic}")
        with refused():
            user.create_receiver(f"queue://{topic}", name="refused")
        owner.create_sender(f"queue://{topic}").send(Message(body="m"))
        with refused():
            owner.create_receiver(f"queue://{topic}")
        assert bodies(user.create_receiver(f"queue://{topic}", credit=1), 1) == ["m"]


def test_client_ids_need_a_permission(connect: Callable[..., Any], place: Place) -> None:
    users = connect(f"user publish {place.topic()}")
    with users("user", "app"):
        pass
    with pytest.raises(ConnectionException, match=UNAUTHORIZED), users("user", "other"):
        pass


def test_a_link_that_was_attached_before_deletes_only_what_its_user_may(
    connect: Callable[..., Any], place: Place
) -> None:
    """The subscription of its name is deleted, and made anew on a topic that the user has no rule for."""
    own, foreign = place.topic(), place.topic()
    users = connect(f"user consume,create {own}")
    with users("user") as connection, place.connect_sync(client_id=None) as python:
        python.create("work", own, type="shared")
        null = connection.create_receiver(None, name="work|global", options=Source(null=True))
        python.unsubscribe("work")
        python.create("work", foreign, type="shared")
        null.close()
        assert null.link.remote_condition.name == "amqp:not-found"
        assert python.known("work") is not None


def test_a_subscription_that_goes_meanwhile_is_not_created_without_a_permission(
    connect: Callable[..., Any], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = place.topic()
    users = connect(f"user consume {topic}")
    with users("user") as connection, place.connect_sync(client_id=None) as python:
        python.create("work", topic, type="shared")
        known = Connection.known

        async def known_and_deleted(self: Connection, name: str) -> Any:
            found = await known(self, name)
            await self.unsubscribe(name)
            return found

        monkeypatch.setattr(Connection, "known", known_and_deleted)
        with pytest.raises(LinkDetached, match="amqp:not-found"):
            connection.create_receiver(f"{topic}::work")
        monkeypatch.undo()
        assert python.known("work") is None


def test_refusals_tell_nothing_of_other_topics(connect: Callable[..., Any], place: Place) -> None:
    own, foreign = place.topic(), place.topic()
    users = connect(f"user consume,create {own}")
    with users("user") as connection, place.connect_sync(client_id=None) as python:
        python.create("work", foreign, type="shared", selector="secret = 1")
        for address, name, options in (
            (f"{own}::work", "one", None),
            (None, "work|global", Source(null=True)),
        ):
            with pytest.raises(LinkDetached, match=UNAUTHORIZED) as refusal:
                connection.create_receiver(address, name=name, options=options)
            assert "secret" not in str(refusal.value)
            assert foreign not in str(refusal.value)


def test_temporary_destinations_need_no_permission(connect: Callable[..., Any]) -> None:
    with connect("other publish t")("user") as connection:
        replies = connection.create_receiver(None, dynamic=True)
        connection.create_sender(replies.link.remote_source.address).send(Message(body="m"))
        replies.flow(1)
        assert replies.receive(timeout=ANSWER_S).body == "m"
        replies.accept()
        drained(replies, 1)
