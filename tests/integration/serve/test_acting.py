"""What the service changes, and that each act is recorded."""

from typing import Any

import kafkadur.sync
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.serve.test_reading import prepared
from tests.serving import Api


def acts(api: Api) -> list[tuple[str, str]]:
    """The acts, the oldest first, and their phases."""
    return [(each["action"], each["phase"]) for each in reversed(api.get("audit"))]


def test_pause_resume_and_drain_are_done_and_recorded(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    prepared(connection, kafkadur_topic(), "invoices")
    assert api.post("subscriptions/invoices/pause") == {"subscription": "invoices", "paused": True}
    assert api.get("subscriptions/invoices")["words"].startswith("paused")
    assert api.post("subscriptions/invoices/resume")["paused"] is False
    drained = api.post("subscriptions/invoices/drain", timeout=30, resume=True)
    assert (drained["drained"], drained["in_flight"], drained["paused"]) == (True, 0, False)
    recorded = api.get("audit")
    assert sorted(acts(api)) == sorted(
        (each, phase) for each in ("pause", "resume", "drain") for phase in ("begun", "done")
    )
    assert {each["who"] for each in recorded} == {"local"}
    assert recorded[0]["before"]["backlog"] == 3
    assert len({each["id"] for each in recorded}) == 3


def test_a_move_is_shown_before_it_is_made(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    prepared(connection, kafkadur_topic(), "invoices")
    taken = api.get("subscriptions/invoices/snapshot")
    shown = api.post("subscriptions/invoices/seek", to="latest")
    assert (shown["moved"], [each["skipped"] for each in shown["partitions"]]) == (False, [3])
    assert api.get("subscriptions/invoices")["backlog"] == 3
    assert api.get("audit") == []
    assert api.post("subscriptions/invoices/seek", to="latest", dry_run=False)["moved"]
    assert api.get("subscriptions/invoices")["backlog"] == 0
    assert api.post("subscriptions/invoices/seek", to={"0": 4}, dry_run=False)["moved"]
    assert api.get("subscriptions/invoices")["backlog"] == 1
    back = api.post("subscriptions/invoices/restore", snapshot=taken, dry_run=False)
    assert sum(each["again"] for each in back["partitions"]) == 2
    assert api.get("subscriptions/invoices")["backlog"] == 3
    parameters = [each["parameters"] for each in api.get("audit") if each["phase"] == "done"]
    assert parameters == [{"taken": taken["taken"]}, {"to": {"0": 4}}, {"to": "latest"}]


def test_a_definition_is_altered_copied_and_deleted(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    prepared(connection, kafkadur_topic(), "invoices")
    changes = {"max_attempts": 7, "selector": "amount > 1"}
    shown = api.post("subscriptions/invoices/alter", changes=changes)
    assert (shown["altered"], shown["before"]["selector"], shown["after"]["selector"]) == (
        False,
        None,
        "amount > 1",
    )
    assert api.get("subscriptions/invoices")["selector"] is None
    assert api.post("subscriptions/invoices/alter", changes=changes, dry_run=False)["altered"]
    assert api.get("subscriptions/invoices")["selector"] == "amount > 1"
    assert api.post("subscriptions/invoices/fork", new="copy") == {"subscription": "invoices", "fork": "copy"}
    assert api.post("subscriptions/copy/unsubscribe")["deleted"] is False
    assert api.post("subscriptions/copy/unsubscribe", dry_run=False)["deleted"]
    assert api.client.get("/api/v1/subscriptions/copy").status_code == 404


def test_dead_letters_are_redriven_and_purged(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    prepared(connection, kafkadur_topic(), "invoices")
    assert api.post("subscriptions/invoices/dead/redrive")["letters"] == 1
    assert len(api.get("subscriptions/invoices/dead")["entries"]) == 1
    none = api.post("subscriptions/invoices/dead/purge", where="amount = 0", dry_run=False)
    assert (none["letters"], none["done"]) == (0, 0)
    done = api.post("subscriptions/invoices/dead/redrive", dry_run=False)
    assert (done["letters"], done["done"]) == (1, 1)
    assert api.get("subscriptions/invoices/dead")["entries"] == []
    assert api.get("subscriptions/invoices")["backlog"] == 4


REFUSED: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("seek", {"to": "nowhere", "dry_run": False}, 409),
    ("seek", {"to": {"0": 99}, "dry_run": False}, 404),
    ("seek", {"to": 17}, 422),
    ("alter", {"changes": {"colour": 1}, "dry_run": False}, 422),
    ("alter", {"changes": {"key_lanes": 4}, "dry_run": False}, 409),
    ("alter", {"changes": {"header_types": 5}}, 422),
    ("alter", {"changes": {"header_types": {"a-b": "int"}}, "dry_run": False}, 400),
    ("alter", {"changes": {"redelivery": {}}, "dry_run": False}, 422),
    ("alter", {"changes": {"selector": "a ="}}, 400),
    ("fork", {"new": "invoices"}, 409),
    ("fork", {"new": "a b"}, 422),
    ("drain", {"timeout": 1e9}, 422),
    ("unsubscribe", {"colour": 1}, 422),
)


def test_what_cannot_be_done_is_refused_and_changes_nothing(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    prepared(connection, kafkadur_topic(), "invoices")
    before = api.get("subscriptions/invoices")
    for verb, order, status in REFUSED:
        answer = api.client.post(
            f"/api/v1/subscriptions/invoices/{verb}", json=order, headers={"X-Kafkadur-Write": "yes"}
        )
        assert answer.status_code == status, (verb, order, answer.text)
        after = api.get("subscriptions/invoices")
        assert {name: after[name] for name in ("version", "backlog", "definition")} == {
            name: before[name] for name in ("version", "backlog", "definition")
        }
    assert {phase for _, phase in acts(api)} == {"begun", "failed"}


def test_an_attached_subscription_is_not_moved(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    with connection.subscribe(kafkadur_topic(), durable="invoices", start="earliest", type="shared"):
        answer = api.client.post(
            "/api/v1/subscriptions/invoices/seek",
            json={"to": "latest", "dry_run": False},
            headers={"X-Kafkadur-Write": "yes"},
        )
        assert (answer.status_code, answer.json()["error"]) == (409, "SubscriptionActive")
        assert acts(api) == [("seek", "begun"), ("seek", "failed")]
