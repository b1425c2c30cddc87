"""State that the version before has written: it is used as it is, and a change stores it anew."""

from collections.abc import Callable

import pytest

from kafkadur_coordinators.interface import PartitionReport, Settled
from kafkadur_coordinators.redis.coordinator import STATE_VERSION, STATE_VERSION_BEFORE
from kafkadur_sharing.definition import Definition
from kafkadur_sharing.errors import SubscriptionActive
from kafkadur_sharing.keys import SubscriptionKey
from tests.integration.coordinators.party import Party, say
from tests.integration.coordinators.world import rolled_back

TopicFactory = Callable[..., str]
DELAY_MS = 50_000


def unchanged(definition: Definition) -> Definition:
    return definition


def versions(party: Party) -> tuple[int, int]:
    """Version of the state, and how often it was installed."""
    known = party.known()
    assert known is not None
    return known.state_version, known.version


@pytest.fixture
def old(party: Callable[..., Party]) -> Party:
    """Provide a process whose new subscriptions are of the version before."""
    return party(version=STATE_VERSION_BEFORE)


@pytest.fixture
def topic(old: Party, kafkadur_topic: TopicFactory) -> str:
    """Provide the topic of a subscription of the version before, with settled and waiting messages."""
    name = kafkadur_topic(2)
    member = old.attach(name)
    reports = [PartitionReport(partition=p, readable_end=9) for p in range(2)]
    tokens = {grant.partition: grant.token for grant in say(member, 1, *reports, credit=20).grants}
    settled = PartitionReport(partition=0, settled=[Settled(tokens[0], (0, 3, 5, 7))])
    waiting = PartitionReport(partition=1, returned=[rolled_back(tokens[1], 0, 4, DELAY_MS)])
    say(member, 2, settled, waiting, credit=0)
    old.leave(member)
    return name


def test_a_new_process_works_with_state_of_the_version_before(
    old: Party, party: Callable[..., Party], topic: str
) -> None:
    new = party()
    member = new.attach(topic)
    reply = say(member, 1, PartitionReport(partition=0, readable_end=9), credit=20)
    assert [3, 5, 7, 9] in [list(grant.stretch) for grant in reply.grants]
    assert versions(new)[0] == STATE_VERSION_BEFORE
    assert versions(old) == versions(new)


def test_a_change_of_the_definition_stores_it_anew(
    old: Party, party: Callable[..., Party], topic: str
) -> None:
    new = party()
    known = old.known()
    assert known is not None
    before = old.lifecycle.settlements(old.key(), known)
    assert [(w.start, w.end, w.attempts) for w in before[1].waiting if w.due] == [(0, 4, 1)]
    new.lifecycle.amend(new.key(), unchanged)
    assert versions(new)[0] == STATE_VERSION
    assert new.stored() == {"def", "seal"}, "all that the version before stored is gone"
    found = new.known()
    assert found is not None
    assert (found.id, new.lifecycle.settlements(new.key(), found)) == (known.id, before)
    member = new.attach(topic)
    reply = say(member, 1, PartitionReport(partition=0, readable_end=9), credit=20)
    assert [3, 5, 7, 9] in [list(grant.stretch) for grant in reply.grants]


def test_it_is_not_stored_anew_while_a_member_is_attached(
    old: Party, party: Callable[..., Party], topic: str
) -> None:
    old.attach(topic)
    with pytest.raises(SubscriptionActive):
        party().lifecycle.amend(old.key(), unchanged)
    assert versions(old)[0] == STATE_VERSION_BEFORE


def test_a_rebuild_and_a_new_subscription_are_of_the_version_that_is_asked_for(
    old: Party, party: Callable[..., Party], topic: str
) -> None:
    new = party()
    for process, version in ((new, STATE_VERSION), (old, STATE_VERSION_BEFORE)):
        address = process.lifecycle.address(process.key())
        for key in process.stored():
            process.coordinator.command("UNLINK", address.root + key)
        assert versions(process)[0] == version
    other = SubscriptionKey(namespace=new.namespace, client_id="c", name="other")
    new.subscribe(other, topic)
    known = new.lifecycle.known(other)
    assert known is not None
    assert known.state_version == STATE_VERSION
