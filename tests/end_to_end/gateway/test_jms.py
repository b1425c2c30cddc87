"""Scenarios with Apache Qpid JMS, the client that users of Jakarta Messaging have."""

import contextlib
import queue
import random
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")


import redis
import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from kafkadur import Redelivery
from kafkadur.gateway.permissions import parse_permissions
from kafkadur.stack import embedded
from tests.end_to_end.gateway.jms import SCENARIO_S, Jms
from tests.integration.gateway.running import Serving, running_with
from tests.integration.gateway.test_topics import make
from tests.integration.subscriptions.helpers import Place, place_on
from tests.integration.transactions.helpers import committed

#: Messages that are moved while gateways are killed, and how often.
_MOVED, _KILLS = 1_000, 8
EXAMPLE = Path(__file__).parents[3] / "examples/java/src/main/java/example/Billing.java"
_RECONNECT = "failover.initialReconnectDelay=100&failover.maxReconnectAttempts=100"


def url(port: int) -> str:
    return f"amqp://127.0.0.1:{port}"


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def start(stack: ExitStack, command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a program that is killed at the end."""
    process = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    stack.callback(process.kill)
    return process


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_messages_of_all_kinds(jms: Jms, port: int, place: Place) -> None:
    jms.run("messages", url(port), place.topic())


def test_durable_subscriptions(jms: Jms, port: int, place: Place) -> None:
    jms.run("durable", url(port), place.topic())


def test_queues(jms: Jms, port: int, place: Place) -> None:
    jms.run("queues", url(port), place.topic(partitions=2))


def test_transacted_sessions(jms: Jms, port: int, place: Place) -> None:
    jms.run("transacted", url(port), place.topic(), place.topic())


@pytest.mark.long
def test_a_message_is_moved_exactly_once_whenever_its_gateway_is_killed(jms: Jms, place: Place) -> None:
    """Two gateways are killed and started in turn, at any moment of a transaction, while two clients move."""
    topic, out = place.topic(partitions=2), place.topic()
    randomly = random.Random(20)
    with ExitStack() as stack:
        gateways = [stack.enter_context(Serving(place)) for _ in range(2)]
        where = ",".join(url(each.port) for each in gateways)
        few = "jms.prefetchPolicy.all=20"  # messages that a client has are stale when the other one is killed
        command = jms.command("moving", f"failover:({where})?{_RECONNECT}&{few}", topic, out)
        movers = [start(stack, command) for _ in range(2)]
        for mover in movers:
            assert line(mover) == "attached"
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        for mover in movers:
            threading.Thread(target=pass_on, args=(mover, lines), daemon=True).start()
        jms.run("queue", url(gateways[0].port), topic, str(_MOVED))
        kills = 0
        while any(mover.poll() is None for mover in movers):
            for _ in range(randomly.randrange(1, 9)):
                with contextlib.suppress(queue.Empty):
                    lines.get(timeout=1)
            if kills < _KILLS:
                gateways[kills % 2].kill()
                gateways[kills % 2].start()
                kills += 1
        assert [mover.wait() for mover in movers] == [0, 0]
        assert kills == _KILLS
        assert Counter(committed(place, out)) == Counter(range(_MOVED))


@pytest.mark.long
def test_tls_with_a_certificate_of_the_client_and_with_a_password(
    jms: Jms, gateway: Callable[..., int], place: Place, tmp_path: Path
) -> None:
    authority, word = trustme.CA(), "changeit"
    own = authority.issue_cert("client.test", common_name="ada")
    trusted, store = tmp_path / "trusted.p12", tmp_path / "own.p12"
    encryption = BestAvailableEncryption(word.encode())
    root = load_pem_x509_certificate(authority.cert_pem.bytes())
    trusted.write_bytes(
        pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(root, b"root")], encryption)
    )
    key: Any = load_pem_private_key(own.private_key_pem.bytes(), None)
    certificate = load_pem_x509_certificate(own.cert_chain_pems[0].bytes())
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"ada", key, certificate, None, encryption))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    rules = parse_permissions(["ada publish,consume *"], owner="rules")
    trust = (
        f"transport.trustStoreLocation={trusted}&transport.trustStorePassword={word}"
        "&transport.trustStoreType=PKCS12"
    )
    password = gateway(
        anonymous=False,
        tls=context,
        permissions=rules,
        check_password=lambda *said: said == ("ada", "secret"),
    )
    jms.run(
        "messages",
        f"amqps://127.0.0.1:{password}?{trust}&jms.username=ada&jms.password=secret",
        place.topic(),
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    certified = gateway(anonymous=False, tls=context, permissions=rules)
    keys = (
        f"transport.keyStoreLocation={store}&transport.keyStorePassword={word}"
        "&transport.keyStoreType=PKCS12&amqp.saslMechanisms=EXTERNAL"
    )
    jms.run("messages", f"amqps://127.0.0.1:{certified}?{trust}&{keys}", place.topic())


@pytest.mark.long
def test_redis_is_wiped_while_clients_work(jms: Jms) -> None:
    """Nothing is lost: each message is received at least once."""
    with (
        embedded() as stack,
        place_on(stack) as own,
        running_with(own.settings()) as port,
        ExitStack() as more,
    ):
        topic = own.topic()
        workers = [start(more, jms.command("work", url(port), topic, "-1")) for _ in range(2)]
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        for process in workers:
            assert line(process) == "attached"
            threading.Thread(target=pass_on, args=(process, lines), daemon=True).start()
        for _ in range(3):
            jms.run("publish", url(port), topic, "200")
            with redis.Redis.from_url(stack.redis) as server:
                server.flushall()
        received: Counter[str] = Counter()
        while len(received) < 200 or min(received.values()) < 3:
            received[lines.get(timeout=SCENARIO_S).split()[0]] += 1


@pytest.mark.long
def test_the_example_project(jms: Jms, port: int, place: Place) -> None:
    """The program of the Maven project, with the same client."""
    for topic in ("billing-orders", "billing-invoices"):
        make(place, topic)
    jms.compile(EXAMPLE)
    command = jms.program("example.Billing", url(port))
    done = subprocess.run(command, capture_output=True, text=True, timeout=SCENARIO_S, check=True)
    assert sorted(done.stdout.splitlines()) == [f"invoice for the order of {amount}" for amount in (250, 300)]


@pytest.mark.long
def test_request_and_reply_at_two_gateways(jms: Jms, gateway: Callable[..., int], place: Place) -> None:
    jms.run("asking", url(gateway()), url(gateway()), place.topic())


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["selecting", "sharing", "nondurable", "context"])
def test_consumers(jms: Jms, port: int, place: Place, scenario: str) -> None:
    jms.run(scenario, url(port), place.topic())


@pytest.mark.long
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
def test_a_durable_subscription_goes_on_at_another_gateway(
    jms: Jms, gateway: Callable[..., int], place: Place, *, killed: bool
) -> None:
    topic, second = place.topic(), gateway()
    with ExitStack() as stack:
        gone = stack.enter_context(Serving(place))
        where = f"failover:({url(gone.port)},{url(second)})?{_RECONNECT}"
        process = start(stack, jms.command("reattach", where, topic))
        assert line(process) == "attached"
        if killed:
            gone.kill()
        else:
            gone.stop()
        jms.run("publish", url(second), topic, "1")
        tell(process)
        assert line(process) == "[0, after]"
        assert process.wait(SCENARIO_S) == 0


@pytest.mark.long
def test_client_ids_are_free_after_a_kill(jms: Jms, port: int, place: Place) -> None:
    topic = place.topic()
    with ExitStack() as stack:
        process = start(stack, jms.command("clientIds", url(port), topic))
        assert line(process) == "ready"
        holder = start(stack, jms.command("reattach", f"{url(port)}?jms.clientID=killed", topic))
        assert line(holder) == "attached"
        tell(process)
        assert line(process) == "refused"
        holder.kill()
        tell(process)
        assert process.wait(SCENARIO_S) == 0


@pytest.mark.long
def test_workers_on_two_gateways_share_and_a_killed_one_loses_nothing(
    jms: Jms, gateway: Callable[..., int], place: Place
) -> None:
    topic = place.topic()
    ports = (gateway(), gateway())
    with ExitStack() as stack:
        dying = start(stack, jms.command("work", url(ports[0]), topic, "3"))
        others = [start(stack, jms.command("work", url(port), topic, "-1")) for port in ports]
        for process in (dying, *others):
            assert line(process) == "attached"
        jms.run("publish", url(ports[0]), topic, "60")
        told: list[str] = []
        while (said := line(dying)) != "holding":
            told.append(said)
        dying.kill()
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        for process in others:
            threading.Thread(target=pass_on, args=(process, lines), daemon=True).start()
        seen, redelivered = set(told), 0
        while len(seen) < 60:
            said = lines.get(timeout=SCENARIO_S)
            seen.add(said.split()[0])
            redelivered += said.endswith("redelivered")
        assert redelivered > 0
        assert seen == {str(number) for number in range(60)}


def pass_on(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Read the lines of a program until it ends."""
    while said := line(process):
        lines.put(said)


@pytest.mark.long
def test_many_unacknowledged_messages(jms: Jms, port: int, place: Place) -> None:
    jms.run("acknowledging", url(port), place.topic(), "5000")


@pytest.mark.long
def test_a_listener_that_always_fails(jms: Jms, gateway: Callable[..., int], place: Place) -> None:
    topic = place.topic()
    dead = f"{topic}.dead"
    make(place, dead)
    port = gateway(counts_released=True, redelivery=Redelivery(max_attempts=3))
    assert jms.run("listening", url(port), topic, dead) == ["[1, 2, 3]"]
