"""Passwords are nowhere to be seen: not in logs, errors, tracebacks, reprs, or what commands print."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import traceback
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import kafkadur
import kafkadur.sync
from kafkadur.admin.kafka_access import Role, kafka_rules
from kafkadur.settings import settings, visible
from kafkadur_coordinators.redis.server import shown
from kafkadur_sharing.errors import IllegalState
from tests.integration.security.secured import LIMIT_S, SECRET, Secured

#: The password as it may stand anywhere: as it is, in a URL, and what Python's repr makes of it.
FORMS = (SECRET, quote(SECRET, safe=""), repr(SECRET)[1:-1], SECRET[:11])


def clean(*texts: str) -> None:
    """Nothing of the password is in these texts."""
    for text in texts:
        for form in FORMS:
            assert form not in text


@pytest.fixture
def shop(guarded_stack: Secured) -> str:
    """Provide a user who may work in a topic and namespace of the same name."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    guarded_stack.make_topic(name)
    guarded_stack.allow(guarded_stack.add_user(name), kafka_rules(list(Role), namespace=name, topics=[name]))
    return name


def test_settings_show_no_secret(guarded_stack: Secured) -> None:
    kafka = guarded_stack.kafka("app", ssl_key_password=SECRET, ssl_key_pem=SECRET)
    kafka["sasl.oauthbearer.client.secret"] = kafka["sasl.oauthbearer.config"] = SECRET
    kafka["sasl.oauthbearer.assertion.private.key.passphrase"] = SECRET
    chosen = settings({"kafka": kafka, "redis": f"{guarded_stack.redis()}&password={quote(SECRET, safe='')}"})
    clean(repr(chosen), str(chosen), f"{chosen!r:>20}", repr({"x": [chosen]}))
    assert "sasl.username" in repr(chosen)
    assert "rediss://127.0.0.1" in repr(chosen)
    assert pickle.loads(pickle.dumps(chosen)) == chosen, "the secrets are only hidden"
    assert visible(kafka)["bootstrap.servers"] == kafka["bootstrap.servers"]
    clean(repr(kafkadur.Connection(chosen)), repr(kafkadur.sync.Connection(chosen)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"redis": f"redis://user:{SECRET}@host:port/0"},
        {"redis": f"redis://user:{SECRET}@host:6379/0"},
        {"redis": f"http://user:{SECRET}@host:6379/0"},
        {"redis": f"redis+sentinel://user:{SECRET}@host:1,host:2/service"},
        {"redis": f"rediss+sentinel://user:12/{SECRET}@host/service"},
        {"redis": f"redis+sentinel://host:{SECRET}/service"},
        {"redis": f"redis+sentinel://host/service/{quote(SECRET, safe='')}"},
        {"redis": f"redis://user@host/0?password={quote(SECRET, safe='')}&socket_timeout=x"},
        {"kafka": 17, "redis": f"redis://:{SECRET}@h"},
        {"kafka": {"sasl.password": SECRET}, "session_timeout": timedelta(0)},
        {"kafka": {"sasl.password": SECRET}, "colour": SECRET},
        {"kafka": {"sasl.password": SECRET}, "namespace": "a b"},
    ],
)
def test_wrong_settings_are_told_without_a_secret(wrong: dict[str, Any]) -> None:
    with pytest.raises(kafkadur.KafkadurError) as caught:
        settings({"kafka": "host:1", **wrong}, {})
    clean("".join(traceback.format_exception(caught.value)), str(caught.value))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host:1/0", "redis://host:1/0"),
        ("redis://user:word@host:1/0", "redis://host:1/0"),
        ("redis://host/0?password=word", "redis://host/0"),
        ("rediss://user:word@[::1]:1?ssl_keyfile=f&ssl_password=word", "rediss://[::1]:1"),
        ("unix://user:word@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("redis://user:wo/rd@host:1", "redis://..."),
        ("redis://user:wo?rd@host:1", "redis://..."),
        ("redis://user:wo#rd@host:1", "redis://..."),
        ("redis://user:wo@rd@host:1", "redis://host:1"),
        ("redis+sentinel://user:word@a:1,b:2/s/0?sentinel_password=word", "redis+sentinel://a:1,b:2/s/0"),
        ("rediss+sentinel://user:wo/rd@a:1/s", "rediss+sentinel://..."),
        ("user:word@host", "Redis"),
        ("", "Redis"),
    ],
)
def test_of_a_url_its_address_is_shown(url: str, address: str) -> None:
    assert shown(url) == address


async def test_nothing_that_is_logged_shows_a_secret(
    guarded_stack: Secured, shop: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """At the most talkative level, with refusals on the way, and all that Kafka's client says of security."""
    caplog.set_level(logging.DEBUG)
    kafka = guarded_stack.kafka(shop, debug="security,broker,conf")
    async with (
        kafkadur.connect(
            kafka=kafka, redis=guarded_stack.redis(), namespace=shop, client_id="c", journal_partitions=2
        ) as connection,
        await connection.subscribe(shop, durable="d", start="earliest") as subscription,
    ):
        async with connection.producer() as producer:
            await producer.send(shop, "1")
        delivery = await subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        texts = [repr(item) for item in (connection, subscription, delivery, producer)]
        texts.append(str(subscription.statistics()))
        guarded_stack.redis_tls.cut()
        await delivery.ack()
    with pytest.raises(kafkadur.KafkadurError) as caught:
        async with kafkadur.connect(
            kafka={**kafka, "sasl.password": f"{SECRET}?"},
            redis=guarded_stack.redis(),
            namespace=f"{shop}-2",
            kafka_timeout=timedelta(seconds=3),
        ) as connection:
            await connection.subscribe(shop, durable="d")
    texts.append("".join(traceback.format_exception(caught.value)))
    said = capfd.readouterr()
    assert any("SASL" in line or "sasl" in line for line in caplog.messages), "security was spoken of"
    clean(caplog.text, said.out, said.err, *texts)


def test_no_command_prints_a_secret(guarded_stack: Secured, shop: str, tmp_path: Path) -> None:
    """In processes of their own: what they write to both outputs."""
    file = tmp_path / "client.properties"
    environment = {
        **os.environ,
        "KAFKADUR_KAFKA_CONFIG": str(file),
        "KAFKADUR_REDIS": guarded_stack.redis(),
        "KAFKADUR_NAMESPACE": shop,
        "KAFKADUR_JOURNAL_PARTITIONS": "2",
        "KAFKADUR_KAFKA_TIMEOUT": "8",
        "KAFKADUR_REDIS_TIMEOUT": "3",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "KAFKADUR_ACL_PASSWORD": SECRET,
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in guarded_stack.kafka(shop).items()))

    def run(code: int, *arguments: str, **more: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "kafkadur.cli", *arguments],
            env={**environment, **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        clean(ended.stdout, ended.stderr)
        assert ended.returncode == code, ended.stderr
        return ended.stdout + ended.stderr

    run(0, "publish", shop, "1", "--json")
    run(0, "consume", shop, "--durable", "d", "--start", "earliest", "--count", "1", "--json")
    run(0, "sub", "info", "d", "--json")
    run(0, "acl", "redis", "--json")
    run(0, "acl", "redis")
    assert "user or password" in run(
        1, "sub", "ls", KAFKADUR_REDIS=guarded_stack.redis().replace("app:", "x:")
    )
    assert "TLS" in run(
        1, "sub", "ls", KAFKADUR_REDIS=guarded_stack.redis().replace("127.0.0.1", "localhost")
    )
    assert "percent-encode" in run(1, "sub", "ls", KAFKADUR_REDIS=f"redis://u:{SECRET}@h:1")
    file.write_text(file.read_text().replace(f"={shop}", "=nobody"))
    assert "sasl.password" in run(1, "publish", shop, "1", "--json")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"no equals sign\n"])
def test_a_file_of_settings_that_cannot_be_read_is_told(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "client.properties"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(IllegalState, match=r"(cannot be read|has no '=')") as caught:
        settings({"kafka_config": str(file)}, {})
    assert "no equals sign" not in str(caught.value), "it may be a password"


def test_what_is_given_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# a comment\n\nbootstrap.servers = one:1\nsasl.password = a=b \n")
    assert settings({}, {"KAFKADUR_KAFKA_CONFIG": str(file)}).kafka == {
        "bootstrap.servers": "one:1",
        "sasl.password": "a=b",
    }
    assert settings({"kafka": "two:2", "kafka_config": file}, {}).kafka == {
        "bootstrap.servers": "two:2",
        "sasl.password": "a=b",
    }
