"""Who may connect: anonymous clients, users with passwords, certificates; and the command of the gateway."""

import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

import trustme
from proton import ConnectionException, SSLDomain

from kafkadur.gateway.users import add_user, read_users
from tests.integration.gateway.running import ANSWER_S, BlockingConnection, Message, bodies, client
from tests.integration.subscriptions.helpers import LIMIT_S, Place


def refused(port: int, **more: Any) -> str:
    """Connect in vain; returns the reason."""
    with pytest.raises(ConnectionException) as refusal, client(port, reconnect=False, **more):
        pass
    return str(refusal.value)


def test_users_have_passwords(gateway: Callable[..., int], place: Place, tmp_path: Path) -> None:
    add_user(tmp_path / "users", "ada", "secret")
    topic = place.topic()
    port = gateway(anonymous=False, check_password=read_users(tmp_path / "users").has_password)
    known: dict[str, Any] = {"allowed_mechs": "PLAIN", "allow_insecure_mechs": True}
    with client(port, user="ada", password="secret", **known) as connection:
        receiver = connection.create_receiver(topic, credit=1)
        connection.create_sender(topic).send(Message(body="m"))
        message = receiver.receive(timeout=ANSWER_S)
        assert (message.body, bytes(message.user_id)) == ("m", b"ada")
        receiver.accept()
    assert refused(port, user="ada", password="wrong", **known)
    assert refused(port, user="eve", password="secret", **known)
    assert refused(port, allowed_mechs="ANONYMOUS")


def test_certificates_of_clients_are_their_names(
    gateway: Callable[..., int], place: Place, tmp_path: Path
) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    port = gateway(anonymous=False, tls=context)
    own = authority.issue_cert("client.test", common_name="the client")
    certificate, key, trusted = tmp_path / "cert", tmp_path / "key", tmp_path / "ca"
    own.cert_chain_pems[0].write_to_path(certificate)
    own.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(trusted)
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(trusted))
    domain.set_credentials(str(certificate), str(key), None)
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
    connection = BlockingConnection(
        f"amqps://127.0.0.1:{port}", timeout=ANSWER_S, ssl_domain=domain, allowed_mechs="EXTERNAL"
    )
    topic = place.topic()
    receiver = connection.create_receiver(topic, credit=1)
    connection.create_sender(topic).send(Message(body="m"))
    assert bytes(receiver.receive(timeout=ANSWER_S).user_id) == b"the client"
    connection.close()
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as plain:
        plain.sendall(b"AMQP\x03\x01\x00\x00")
        assert not plain.recv(8).startswith(b"AMQP")


def test_the_command(place: Place, tmp_path: Path) -> None:
    topic = place.topic()
    users = tmp_path / "users"
    command = [sys.executable, "-m", "kafkadur.cli"]
    added = subprocess.run(
        [*command, "gateway-user", "ada", "--users", str(users)],
        input="secret\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (added.returncode, "Added ada" in added.stderr + added.stdout) == (0, True)
    where = ["--kafka", place.stack.kafka, "--redis", place.stack.redis, "--namespace", place.namespace]
    wide = subprocess.run(
        [*command, "gateway", "--host", "0.0.0.0", *where], capture_output=True, text=True, check=False
    )
    assert (wide.returncode, "--users FILE" in wide.stderr) == (1, True)
    bare = subprocess.run(
        [*command, "gateway", "--host", "0.0.0.0", "--users", str(users), *where],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (bare.returncode, "--plain-text" in bare.stderr) == (1, True)
    with subprocess.Popen(
        [*command, "gateway", "--port", "0", "--users", str(users), *where], stderr=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stderr is not None
            said = serving.stderr.readline()
            found = re.search(r"amqp://127\.0\.0\.1:(\d+)", said)
            assert found is not None, said
            port = int(found[1])
            known: dict[str, Any] = {"allowed_mechs": "PLAIN", "allow_insecure_mechs": True}
            with client(port, user="ada", password="secret", **known) as connection:
                receiver = connection.create_receiver(topic, credit=1)
                connection.create_sender(topic).send(Message(body="m"))
                assert bodies(receiver, 1) == ["m"]
            serving.send_signal(signal.SIGTERM)
            assert serving.wait(LIMIT_S) == 0
        finally:
            serving.kill()
