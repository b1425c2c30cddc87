"""What the service tells of subscriptions, against what applications did to them."""

import json

import pytest

import kafkadur.sync
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.subscriptions.helpers import wait_until
from tests.serving import Api

NAMES = ("name-x", "name-y", "name-z")


def prepared(connection: kafkadur.sync.Connection, topic: str, durable: str) -> None:
    """Publish five messages; acknowledge one, roll one back for long, reject one."""
    with connection.subscribe(
        topic, durable=durable, start="earliest", type="shared", window=5, history=3_600, name="ann"
    ) as subscription:
        with connection.producer() as producer:
            for number in range(5):
                value = json.dumps({"order": number}).encode()
                producer.publish(topic, value, key=b"k", properties={"amount": number})
        held = [subscription.receive(timeout=60) for _ in range(3)]
        assert None not in held
        first, second, third = (each for each in held if each is not None)
        first.ack()
        second.rollback(delay=600)
        third.reject(reason="not wanted")


def test_the_list_has_what_is_there(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    prepared(connection, topic, "invoices")
    connection.subscribe(kafkadur_topic(), durable="ledger", type="key-ordered", start="latest").close()
    entries = api.listed(
        lambda found: len(found) == 2 and found[0]["backlog"] == 3 and found[0]["dead_letters"] == 1
    )
    invoices, ledger = entries
    assert (invoices["name"], invoices["id"], invoices["topic"]) == ("invoices", "invoices", topic)
    assert (invoices["words"], invoices["state"]) == ("waits: no member is attached", "inactive")
    assert invoices["oldest_s"] is not None
    assert (ledger["type"], ledger["backlog"], ledger["words"]) == ("key-ordered", 0, "all settled")


def test_the_list_is_sorted_searched_filtered_and_cut(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    topics = [kafkadur_topic() for _ in range(3)]
    for name, topic, kind in zip(NAMES, topics, ("shared", "serial", "shared"), strict=True):
        connection.subscribe(topic, durable=name, type=kind, start="earliest").close()  # type: ignore[call-overload]
    with connection.producer() as producer:
        producer.publish(topics[1], b"one")
    api.listed(lambda found: [each["backlog"] for each in found] == [0, 1, 0])

    def names(**query: object) -> list[str]:
        return [each["name"] for each in api.get("subscriptions", **query)["entries"]]

    assert names() == [*NAMES]
    assert names(descending=True) == [*reversed(NAMES)]
    assert names(sort="backlog", descending=True)[0] == "name-y"
    assert names(search="NAME-Y") == ["name-y"]
    assert names(search=topics[2]) == ["name-z"]
    assert names(type="shared") == ["name-x", "name-z"]
    assert names(state="waits") == ["name-y"]
    assert names(state="active") == []
    assert names(limit=1, offset=1) == ["name-y"]
    cut = api.get("subscriptions", search="name", limit=1)
    assert (cut["total"], cut["matching"], len(cut["entries"])) == (3, 3, 1)
    assert api.client.get("/api/v1/subscriptions", params={"sort": "colour"}).status_code == 422


def test_one_subscription_with_its_messages_and_letters(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    prepared(connection, topic, "invoices")
    found = api.get("subscriptions/invoices")
    assert (found["backlog"], found["exceptions"], found["definition"]["topic"]) == (3, 1, topic)
    assert [each["partition"] for each in found["partitions"]] == [0]
    (holes,) = api.get("subscriptions/invoices/holes")
    assert [(each["start"], each["end"], each["attempts"]) for each in holes["ranges"]] == [(1, 2, 1)]
    assert holes["ranges"][0]["due"] > 0
    (why,) = api.get("subscriptions/invoices/why")
    assert (why["offset"], why["state"], why["attempt"]) == (1, "ready", 2)
    assert why["due"] is not None
    explained = api.get("subscriptions/invoices/explain", partition=0, offset=0)
    assert explained["state"] == "settled"
    waiting = api.get("subscriptions/invoices/messages")
    assert not waiting["more"]
    assert [(e["offset"], e["value"], e["properties"], e["hidden"]) for e in waiting["entries"]] == [
        (n, json.dumps({"order": n}), {"amount": n}, False) for n in (1, 3, 4)
    ]
    (letter,) = api.get("subscriptions/invoices/dead")["entries"]
    assert (letter["cause"], letter["reason"], letter["origin"]) == (
        "rejected",
        "not wanted",
        f"{topic}[0]@2",
    )
    whole = api.get(f"subscriptions/invoices/dead/{letter['letter']}")
    assert (whole["value"], whole["key"], whole["properties"]) == ('{"order": 2}', "k", {"amount": 2})
    assert api.get("subscriptions/invoices/dead", where="amount > 2")["entries"] == []
    assert api.get("subscriptions/invoices/messages", limit=2)["more"]
    assert api.get("subscriptions/invoices/snapshot")["topic"] == topic


def is_recorded(api: Api) -> bool:
    """Say whether what `prepared` does is in the history of `invoices`."""
    answer = api.client.get("/api/v1/subscriptions/invoices/history")
    return answer.status_code == 200 and len(answer.json()["entries"]) == 3


def test_deliveries_are_listed(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    prepared(connection, topic, "invoices")
    path = "subscriptions/invoices/history"
    wait_until(lambda: is_recorded(api), "the history with all deliveries")
    whole = api.get(path)
    assert (whole["more"], whole["missing"]) == (False, 0)
    assert [(e["start"], e["outcome"], e["name"], e["attempt"]) for e in whole["entries"]] == [
        (0, "acknowledged", "ann", 1),
        (1, "rolled back", "ann", 1),
        (2, "dead letter", "ann", 1),
    ]
    assert [(e["delay_ms"], e["cause"]) for e in whole["entries"]] == [
        (None, None),
        (600_000, None),
        (None, "rejected"),
    ]
    (one,) = api.get(path, partition=0, offset=1)["entries"]
    assert one == whole["entries"][1]
    assert api.get(path, limit=1) == {"entries": whole["entries"][2:], "more": True, "missing": 0}
    assert api.get(path, member="eve")["entries"] == []
    assert api.client.get(f"/api/v1/{path}", params={"offset": 1}).status_code == 409
    connection.subscribe(topic, durable="ledger").close()
    refused = api.client.get("/api/v1/subscriptions/ledger/history")
    assert (refused.status_code, "sub alter" in refused.json()["remedy"]) == (404, True)


def test_samples_and_events_come_with_each_look(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    prepared(connection, kafkadur_topic(), "invoices")
    api.listed(lambda found: len(found) == 1 and found[0]["backlog"] == 3)
    samples = api.get("subscriptions/invoices/samples")
    assert len(samples) >= 1
    assert samples[0]["at"] > 0
    assert api.get("subscriptions/unknown/samples") == []
    with api.client.stream("GET", "/api/v1/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = [json.loads(line[6:]) for line in _some(answer.iter_lines(), 2)]
    assert told[1]["number"] > told[0]["number"]
    assert told[0]["total"] == 1


def _some(lines: object, number: int) -> list[str]:
    found: list[str] = []
    for line in lines:  # type: ignore[attr-defined]
        if line.startswith("data: "):
            found.append(line)
        if len(found) == number:
            break
    return found


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("subscriptions/nothing", 404, "InvalidDestination"),
        ("subscriptions/nothing/dead?where=a%20%3D", 400, "InvalidSelector"),
        ("subscriptions/nothing/dead/0:0", 404, "InvalidDestination"),
    ],
)
def test_an_error_says_what_to_do(api: Api, path: str, status: int, error: str) -> None:
    answer = api.client.get(f"/api/v1/{path}")
    assert answer.status_code == status
    told = answer.json()
    assert told["error"] == error
    assert told["message"]


def test_health_metrics_and_the_description(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    prepared(connection, kafkadur_topic(), "invoices")
    api.listed()
    assert api.client.get("/livez").json()["ready"]
    assert api.client.get("/readyz").json() == {"ready": True, "problem": None}
    assert "kafkadur_subscription_backlog_messages{" in api.client.get("/metrics").text
    described = api.client.get("/openapi.json").json()
    assert "/api/v1/subscriptions/{id}/seek" in described["paths"]
    me = api.get("me")
    assert (me["name"], me["role"]) == ("local", "admin")
