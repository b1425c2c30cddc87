"""What belongs to the topic before and after it was deleted and created anew."""

from tests.end_to_end.histories.faults import NEW_TOPIC
from tests.end_to_end.histories.history import Injected
from tests.end_to_end.histories.lives import Lives
from tests.end_to_end.histories.plan import Plan

FAULTS = [
    Injected(kind=NEW_TOPIC, subscription="shared", start=10, switched=15, end=20),
    Injected(kind=NEW_TOPIC, subscription="shared", start=30, switched=35, end=40),
    Injected(kind=NEW_TOPIC, subscription="serial", start=12, switched=0, end=90, certain=False),
    Injected(kind="kill", process="shared-1.1", start=5, end=6),
]
PLAN = Plan(seed=0, types=("shared", "serial"), faults=(), minutes=1)


def test_a_life_begins_when_the_administrator_unsubscribes_the_one_before() -> None:
    lives = Lives(FAULTS)
    found = [lives.at("shared", at) for at in (0, 14, 15, 34, 35, 99)]
    assert found == ["shared", "shared", "shared~2", "shared~2", "shared~3", "shared~3"]
    assert lives.last("shared") == "shared~3"
    assert lives.at("serial", 99) == lives.last("serial") == "serial", "it is not certain that it happened"


def test_a_call_is_certain_to_have_seen_one_topic_unless_it_overlaps_the_change() -> None:
    lives = Lives(FAULTS)
    assert [lives.is_certain("shared", *call) for call in ((0, 9), (21, 29), (41, 50))] == [True] * 3
    assert [lives.is_certain("shared", *call) for call in ((9, 10), (20, 21), (0, 50))] == [False] * 3
    assert lives.is_certain("serial", 0, 50)


def test_each_life_is_a_subscription_of_its_own_and_all_but_the_last_have_ended() -> None:
    lives = Lives(FAULTS)
    plan = lives.plan(PLAN)
    assert list(plan.subscriptions) == ["shared", "shared~2", "shared~3", "serial"]
    assert [of.name for of in plan.subscriptions.values()] == list(plan.subscriptions)
    assert lives.ended(PLAN) == {"shared", "shared~2"}
