"""JSON with a schema registry: confluent-kafka's own serializers, and a small registry over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, assert_type, cast

import pytest
from confluent_kafka.serialization import SerializationContext

import kafkadur
from kafkadur import Undecodable, Unencodable
from tests.integration.subscriptions.helpers import LIMIT_S, Place, dead_letters, next_of
from tests.integration.subscriptions.test_redelivery import headers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its HTTP client, whichever is installed
    from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

SCHEMA = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
    }
)


class Registry:
    """A schema registry as far as JSON needs it: register, look up, by id and guid."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.asked: list[str] = []
        #: answers nothing but 503
        self.is_down = False
        self._clients = ExitStack()
        registry = self

        class Answers(BaseHTTPRequestHandler):
            """What it answers."""

            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.asked.append(f"GET {self.path}")
                self._answer(registry.found(self.path))

            def do_POST(self) -> None:
                registry.asked.append(f"POST {self.path}")
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(registry.registered(self.path, body["schema"]))

            def _answer(self, found: dict[str, Any] | None) -> None:
                status = 503 if registry.is_down else 404 if found is None else 200
                body = found if status == 200 else {"error_code": status, "message": "no"}
                raw = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def client(self) -> SchemaRegistryClient:
        """A client that is closed with the registry."""
        made = SchemaRegistryClient({"url": self.url, "max.retries": 0})
        self._clients.callback(made.close)
        return made

    def _answer_of(self, number: int, path: str) -> dict[str, Any]:
        subject = path.split("/")[2] if path.startswith("/subjects") else "s"
        return {
            "id": number,
            "guid": f"00000000-0000-0000-0000-{number:012d}",
            "version": 1,
            "subject": subject,
            "schemaType": "JSON",
            "schema": self.schemas[number - 1],
        }

    def registered(self, path: str, schema: str) -> dict[str, Any]:
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self._answer_of(self.schemas.index(schema) + 1, path)

    def found(self, path: str) -> dict[str, Any] | None:
        last = path.partition("?")[0].rpartition("/")[2].rpartition("-")[2]
        number = int(last) if last.isdigit() else 0
        return self._answer_of(number, path) if 1 <= number <= len(self.schemas) else None

    def close(self) -> None:
        self._clients.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Provide a registry of the test's own."""
    made = Registry()
    yield made
    made.close()


def serializer(registry: Registry, **conf: object) -> Callable[[int, SerializationContext], bytes | None]:
    """Numbers as orders."""
    make: Any = JSONSerializer  # made by a method that is not called __init__
    made: Callable[[int, SerializationContext], bytes | None] = make(
        SCHEMA, registry.client(), lambda number, _: {"number": number}, conf=dict(conf) or None
    )
    return made


def deserializer(registry: Registry) -> Callable[[bytes | None, SerializationContext], int]:
    """Orders as numbers."""
    make: Any = JSONDeserializer  # as above
    made = make(None, lambda order, _: int(order["number"]), registry.client())
    return cast("Callable[[bytes | None, SerializationContext], int]", made)


@pytest.mark.parametrize("in_header", [False, True])
async def test_json_with_a_schema_there_and_back(
    place: Place, registry: Registry, *, in_header: bool
) -> None:
    topic = place.topic()
    conf = {"schema.id.serializer": header_schema_id_serializer} if in_header else {}
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", start="earliest", value_deserializer=deserializer(registry)
        ) as subscription,
    ):
        assert_type(subscription, kafkadur.Subscription[int, bytes | None])
        async with connection.producer(value_serializer=serializer(registry, **conf)) as producer:
            assert_type(producer, kafkadur.Producer[int])
            for number in (1, 2):
                await producer.send(topic, number)
            wrong: Any = "text"
            with pytest.raises(Unencodable) as caught:
                producer.publish(topic, wrong)
            assert not caught.value.transient
        first, second = await next_of(subscription), await next_of(subscription)
        assert (first.value, second.value) == (1, 2)
        framed = first.raw_value or b""
        assert framed.startswith(b"{" if in_header else b"\x00\x00\x00\x00\x01")
        assert ("__value_schema_id" in dict(first.headers)) is in_header
        await first.ack()
        await second.ack()
    assert any(asked.startswith(f"POST /subjects/{topic}-value/versions") for asked in registry.asked)
    assert any(asked.startswith("GET /schemas/") for asked in registry.asked)


async def test_a_registry_that_is_down_makes_no_dead_letters(place: Place, registry: Registry) -> None:
    """Three messages: one without a schema is a dead letter, the others wait until the registry answers."""
    topic = place.topic()
    async with place.connect() as connection:
        async with connection.producer(value_serializer=serializer(registry)) as producer:
            producer.publish(topic, 1)
        place.publish_values(topic, [b"no schema", b"\x00\x00\x00\x00\x63{}"])
        registry.is_down = True
        transient: list[bool] = []
        seen: list[int] = []
        healed = asyncio.Event()
        async with await connection.subscribe(
            topic, durable="d", start="earliest", value_deserializer=deserializer(registry)
        ) as subscription:

            def handle(delivery: kafkadur.Delivery[int]) -> None:
                try:
                    seen.append(delivery.value)
                    healed.set()
                except Undecodable as error:
                    transient.append(error.transient)
                    if transient.count(True) == 4:
                        registry.is_down = False
                    raise

            running = asyncio.create_task(subscription.run(handle, on_undecodable="reject", retry_delay=0.02))
            letters = await asyncio.to_thread(dead_letters, place, topic, 2)
            async with asyncio.timeout(LIMIT_S):
                await healed.wait()
            subscription.stop()
            await running
    assert seen == [1]
    assert transient.count(True) >= 4
    assert transient.count(False) == 2
    assert {letter.value() for letter in letters} == {b"no schema", b"\x00\x00\x00\x00\x63{}"}
    assert {headers(letter)["kafkadur-dead-cause"] for letter in letters} == {"undecodable"}
