"""A gateway whose Redis or Kafka is away for a while, or whose Redis loses everything: no client notices it.

Their connections stay, what they publish is accepted when Kafka has it, and no message is lost.
"""

from collections.abc import Generator
from typing import Any

import pytest
import redis

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from proton import Delivery, Timeout

from kafkadur.stack import Stack, embedded
from kafkadur.stack.proxy import TcpProxy
from tests.integration.gateway.running import ANSWER_S, Message, client, detach, drained, running_with
from tests.integration.subscriptions.helpers import Place, place_on

pytestmark = pytest.mark.long

#: Seconds without a sign of life after which a consumer counts as dead.
SESSION_S = 3.0


@pytest.fixture(scope="module")
def own_stack() -> Generator[Stack]:
    """Provide servers that are reached through proxies."""
    with embedded(proxy=True) as stack:
        yield stack


@pytest.fixture
def place(own_stack: Stack) -> Generator[Place]:
    """Provide a namespace and topics on them."""
    with place_on(own_stack) as found:
        yield found


@pytest.fixture(params=["redis", "kafka"])
def link(own_stack: Stack, request: pytest.FixtureRequest) -> Generator[TcpProxy]:
    """Provide the way to one of the servers; it is whole again after the test."""
    proxy = own_stack.redis_proxy if request.param == "redis" else own_stack.kafka_proxies[0]
    assert proxy is not None
    yield proxy
    proxy.resume()


class Busy:
    """A client that publishes to a queue and consumes it; it has one connection."""

    def __init__(self, connection: Any, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._receiver = connection.create_receiver(f"queue://{topic}", credit=5)
        self._sender = connection.create_sender(f"queue://{topic}").link
        self._sent: list[Any] = []
        self.received: list[int] = []

    def send(self, count: int) -> None:
        """Send as many messages, the next numbers, without waiting for their acceptance."""
        for _ in range(count):
            self._connection.wait(lambda: self._sender.credit > 0, msg="credit")
            self._sent.append(self._sender.send(Message(body=str(len(self._sent)))))

    def receive(self, count: int) -> None:
        """Receive and accept until so many different messages have come."""
        while len(set(self.received)) < count:
            self.received.append(int(self._receiver.receive(timeout=ANSWER_S).body))
            self._receiver.accept()

    def check(self) -> None:
        """All that was sent is accepted and was received, and nothing waits any more."""
        self._connection.wait(lambda: all(each.settled for each in self._sent), msg="all are accepted")
        assert {each.remote_state for each in self._sent} == {Delivery.ACCEPTED}
        detach(self._receiver)  # Proton gives credit of its own to it, which ends a drain
        last = self._connection.create_receiver(f"queue://{self._topic}", name="last")
        drained(last, 1)
        while last.fetcher.incoming:  # what was in flight when the server was away comes again
            self.received.append(int(last.receive(timeout=ANSWER_S).body))
            last.accept()
            drained(last, 1)
        assert sorted(set(self.received)) == list(range(len(self._sent)))


@pytest.mark.parametrize("sessions", [0.5, 2], ids=["short", "long"])
def test_a_server_is_away_for_a_while(place: Place, link: TcpProxy, sessions: float) -> None:
    topic = place.topic()
    with running_with(place.settings(session_timeout=SESSION_S)) as port, client(port) as connection:
        busy = Busy(connection, topic)
        busy.send(10)
        busy.receive(3)
        link.cut(refuse=True)
        busy.send(10)
        with pytest.raises(Timeout):  # nothing ends the connection for as long as the server is away
            connection.wait(lambda: False, timeout=sessions * SESSION_S)
        link.resume()
        busy.send(10)
        busy.receive(30)
        busy.check()


def test_redis_loses_everything(place: Place) -> None:
    topic = place.topic()
    with running_with(place.settings(session_timeout=SESSION_S)) as port, client(port) as connection:
        busy = Busy(connection, topic)
        for rounds in range(1, 4):
            busy.send(20)
            busy.receive(rounds * 20 - 10)
            with redis.Redis.from_url(place.stack.redis) as server:
                server.flushall()
        busy.receive(60)
        busy.check()
