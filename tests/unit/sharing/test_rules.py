"""The rules of attaching and unsubscribing, row by row: every case carries the id of its rule."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from kafkadur_sharing.decisions import (
    OTHER_PARTS,
    START,
    Attach,
    Convert,
    Create,
    Delete,
    Existing,
    Mode,
    OnChange,
    Refuse,
    Replace,
    Request,
    UnsubscribeRequest,
    decide,
    decide_unsubscribe,
    told,
)
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import (
    IllegalState,
    InvalidDestination,
    InvalidSubscriptionSharing,
    KafkadurError,
    SubscriptionActive,
    SubscriptionDiffers,
    SubscriptionTypeMismatch,
)
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.redelivery_policy import Redelivery

EXCLUSIVE, SHARED, SERIAL = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED, SubscriptionType.SERIAL
PRIORITY, KEY_ORDERED = SubscriptionType.PRIORITY, SubscriptionType.KEY_ORDERED


def a(
    kind: SubscriptionType, *, topic: str = "orders", selector: str | None = None, no_local: bool = False
) -> Definition:
    return Definition(type=kind, topic=topic, selector=selector, no_local=no_local)


def inactive(definition: Definition, *, unsettled: bool = False) -> Existing:
    return Existing(definition=definition, unsettled=unsettled)


def awaited(definition: Definition) -> Existing:
    return Existing(definition=definition, awaited=True)


def active(definition: Definition, *holders: str) -> Existing:
    holders = holders or ("host-1",)
    return Existing(definition=definition, members=len(holders), holders=holders)


def request(
    definition: Definition,
    *,
    client_id: str | None = "client",
    durable: bool = True,
    mode: Mode = "jms",
    allow_conversion: bool = False,
    on_change: OnChange | None = None,
    given: Iterable[str] = (),
) -> Request:
    key = SubscriptionKey(namespace="ns", durable=durable, client_id=client_id, name="invoices")
    return Request(
        key=key,
        definition=definition,
        mode=mode,
        allow_conversion=allow_conversion,
        on_change=on_change,
        given=frozenset(given),
    )


# --- attaching ----------------------------------------------------------------------------------------------

ACCEPTED = [
    # Unshared durable.
    pytest.param(None, request(a(EXCLUSIVE)), Create, "U2", id="U2"),
    pytest.param(inactive(a(EXCLUSIVE)), request(a(EXCLUSIVE)), Attach, "U3", id="U3"),
    pytest.param(inactive(a(EXCLUSIVE), unsettled=True), request(a(EXCLUSIVE)), Attach, "U3", id="U9"),
    pytest.param(
        inactive(a(EXCLUSIVE)),
        request(a(EXCLUSIVE, topic="t2"), on_change="replace"),
        Replace,
        "U4",
        id="U4-topic",
    ),
    pytest.param(
        inactive(a(EXCLUSIVE)),
        request(a(EXCLUSIVE, selector="a = 1"), on_change="replace"),
        Replace,
        "U4",
        id="U4-selector",
    ),
    pytest.param(
        inactive(a(EXCLUSIVE)),
        request(a(EXCLUSIVE, no_local=True), on_change="replace"),
        Replace,
        "U4",
        id="U4-no_local",
    ),
    # Shared durable.
    pytest.param(None, request(a(SHARED)), Create, "S1", id="S1"),
    pytest.param(None, request(a(SHARED), client_id=None), Create, "S1", id="S1-no-client-id"),
    pytest.param(None, request(a(SERIAL), client_id=None), Create, "S1", id="S1-serial"),
    pytest.param(None, request(a(PRIORITY), client_id=None), Create, "S1", id="S1-priority"),
    pytest.param(None, request(a(KEY_ORDERED), client_id=None), Create, "S1", id="S1-key-ordered"),
    pytest.param(active(a(SHARED)), request(a(SHARED)), Attach, "S2", id="S2"),
    pytest.param(active(a(SERIAL)), request(a(SERIAL)), Attach, "S2", id="S2-serial"),
    pytest.param(active(a(SHARED)), request(a(SHARED, no_local=True)), Attach, "S2", id="D4"),
    pytest.param(inactive(a(SHARED)), request(a(SHARED)), Attach, "S10", id="S10"),
    pytest.param(
        inactive(a(SHARED)), request(a(SHARED, topic="t2"), on_change="replace"), Replace, "S3", id="S3-topic"
    ),
    pytest.param(
        inactive(a(SERIAL)),
        request(a(SERIAL, selector="a = 1"), on_change="replace"),
        Replace,
        "S3",
        id="S3-selector",
    ),
    # Non-durable.
    pytest.param(None, request(a(SHARED), durable=False), Create, "N1", id="N1"),
    pytest.param(inactive(a(SERIAL)), request(a(SHARED), durable=False), Replace, "N1", id="N1-leftover"),
    pytest.param(active(a(SHARED)), request(a(SHARED), durable=False), Attach, "N2", id="N2"),
    pytest.param(awaited(a(SHARED)), request(a(SHARED), durable=False), Attach, "N2", id="N2-awaited"),
    pytest.param(None, request(a(EXCLUSIVE), durable=False, client_id=None), Create, "V1", id="V1"),
    # Conversion on request.
    pytest.param(
        inactive(a(EXCLUSIVE)), request(a(SHARED), allow_conversion=True), Convert, "L3", id="L3-to-shared"
    ),
    pytest.param(
        inactive(a(SHARED)), request(a(EXCLUSIVE), allow_conversion=True), Convert, "L3", id="L3-to-unshared"
    ),
    pytest.param(inactive(a(SHARED)), request(a(SERIAL), allow_conversion=True), Convert, "L3", id="L3-type"),
    # WebLogic mode.
    pytest.param(inactive(a(EXCLUSIVE)), request(a(SHARED), mode="weblogic"), Convert, "P7", id="P7"),
    pytest.param(inactive(a(SHARED)), request(a(EXCLUSIVE), mode="weblogic"), Convert, "P7", id="P7-back"),
    pytest.param(
        inactive(a(SHARED)),
        request(a(SHARED, topic="t2"), mode="weblogic", on_change="replace"),
        Replace,
        "P8",
        id="P8",
    ),
    pytest.param(
        inactive(a(SHARED)),
        request(a(SHARED, no_local=True), mode="weblogic", on_change="replace"),
        Replace,
        "P8",
        id="P8-no_local",
    ),
    pytest.param(
        inactive(a(EXCLUSIVE)),
        request(a(SHARED, topic="t2"), mode="weblogic", on_change="replace"),
        Replace,
        "P8",
        id="P8-policy",
    ),
    pytest.param(active(a(SHARED)), request(a(SHARED), mode="weblogic"), Attach, "S2", id="S2-weblogic"),
]

REFUSED = [
    # Other details, unless `on_change` says what becomes of what waits.
    pytest.param(
        inactive(a(EXCLUSIVE)),
        request(a(EXCLUSIVE, topic="t2")),
        SubscriptionDiffers,
        "U4",
        id="U4-topic-refused",
    ),
    pytest.param(
        inactive(a(EXCLUSIVE)),
        request(a(EXCLUSIVE, selector="a = 1")),
        SubscriptionDiffers,
        "U4",
        id="U4-selector-refused",
    ),
    pytest.param(
        inactive(a(EXCLUSIVE)),
        request(a(EXCLUSIVE, no_local=True)),
        SubscriptionDiffers,
        "U4",
        id="U4-no_local-refused",
    ),
    pytest.param(
        inactive(a(SHARED)), request(a(SHARED, topic="t2")), SubscriptionDiffers, "S3", id="S3-topic-refused"
    ),
    pytest.param(
        inactive(a(SERIAL)),
        request(a(SERIAL, selector="a = 1")),
        SubscriptionDiffers,
        "S3",
        id="S3-selector-refused",
    ),
    pytest.param(
        inactive(a(SHARED)),
        request(a(SHARED, topic="t2"), mode="weblogic"),
        SubscriptionDiffers,
        "P8",
        id="P8-refused",
    ),
    pytest.param(
        inactive(a(SHARED)),
        request(a(SHARED, no_local=True), mode="weblogic"),
        SubscriptionDiffers,
        "P8",
        id="P8-no_local-refused",
    ),
    pytest.param(
        inactive(a(EXCLUSIVE)),
        request(a(SHARED, topic="t2"), mode="weblogic"),
        SubscriptionDiffers,
        "P8",
        id="P8-policy-refused",
    ),
    # Unshared durable.
    pytest.param(None, request(a(EXCLUSIVE), client_id=None), IllegalState, "U1", id="U1"),
    pytest.param(
        inactive(a(EXCLUSIVE)), request(a(EXCLUSIVE), client_id=None), IllegalState, "U1", id="U1-exists"
    ),
    pytest.param(
        None, request(a(EXCLUSIVE), client_id=None, mode="weblogic"), IllegalState, "U1", id="U1-weblogic"
    ),
    pytest.param(active(a(EXCLUSIVE)), request(a(EXCLUSIVE)), SubscriptionActive, "U5", id="U5"),
    pytest.param(
        active(a(EXCLUSIVE)), request(a(EXCLUSIVE, topic="t2")), SubscriptionActive, "U5", id="U5-details"
    ),
    pytest.param(inactive(a(SHARED)), request(a(EXCLUSIVE)), InvalidSubscriptionSharing, "U6", id="U6"),
    pytest.param(active(a(SERIAL)), request(a(EXCLUSIVE)), InvalidSubscriptionSharing, "U6", id="U6-active"),
    pytest.param(
        inactive(a(SHARED)),
        request(a(EXCLUSIVE, topic="t2")),
        InvalidSubscriptionSharing,
        "U6",
        id="U6-details",
    ),
    # Shared durable.
    pytest.param(active(a(SHARED)), request(a(SHARED, topic="t2")), SubscriptionActive, "S4", id="S4"),
    pytest.param(
        active(a(SERIAL)), request(a(SERIAL, selector="a = 1")), SubscriptionActive, "S4", id="S4-selector"
    ),
    pytest.param(inactive(a(EXCLUSIVE)), request(a(SHARED)), InvalidSubscriptionSharing, "S5", id="S5"),
    pytest.param(active(a(EXCLUSIVE)), request(a(SERIAL)), InvalidSubscriptionSharing, "S5", id="S5-active"),
    # The type belongs to the definition.
    pytest.param(inactive(a(SHARED)), request(a(SERIAL)), SubscriptionTypeMismatch, "type", id="type"),
    pytest.param(active(a(SHARED)), request(a(SERIAL)), SubscriptionTypeMismatch, "type", id="type-active"),
    pytest.param(
        inactive(a(SERIAL)),
        request(a(SHARED, topic="t2")),
        SubscriptionTypeMismatch,
        "type",
        id="type-details",
    ),
    pytest.param(
        active(a(SHARED)),
        request(a(SERIAL), allow_conversion=True),
        SubscriptionTypeMismatch,
        "type",
        id="L3-active",
    ),
    pytest.param(
        inactive(a(SHARED)),
        request(a(SERIAL, selector="a = 1"), allow_conversion=True),
        SubscriptionTypeMismatch,
        "type",
        id="L3-details",
    ),
    pytest.param(
        inactive(a(EXCLUSIVE, no_local=True)),
        request(a(SHARED), allow_conversion=True),
        InvalidSubscriptionSharing,
        "S5",
        id="L3-no_local",
    ),
    pytest.param(
        active(a(EXCLUSIVE)),
        request(a(SHARED), allow_conversion=True),
        InvalidSubscriptionSharing,
        "S5",
        id="L3-S5",
    ),
    # Non-durable.
    pytest.param(
        active(a(SHARED)), request(a(SHARED, topic="t2"), durable=False), SubscriptionActive, "N3", id="N3"
    ),
    pytest.param(
        awaited(a(SHARED)),
        request(a(SHARED, selector="a = 1"), durable=False),
        SubscriptionActive,
        "N3",
        id="N3-awaited",
    ),
    # WebLogic mode.
    pytest.param(
        active(a(EXCLUSIVE)), request(a(SHARED), mode="weblogic"), InvalidSubscriptionSharing, "P3", id="P3"
    ),
    pytest.param(
        active(a(EXCLUSIVE)),
        request(a(EXCLUSIVE), mode="weblogic"),
        InvalidSubscriptionSharing,
        "P3",
        id="P3-same",
    ),
    pytest.param(
        active(a(SHARED)), request(a(EXCLUSIVE), mode="weblogic"), InvalidSubscriptionSharing, "P4", id="P4"
    ),
    pytest.param(
        active(a(SHARED)),
        request(a(SHARED, topic="t2"), mode="weblogic"),
        InvalidSubscriptionSharing,
        "P5",
        id="P5",
    ),
    pytest.param(
        active(a(SHARED)),
        request(a(SHARED, no_local=True), mode="weblogic"),
        InvalidSubscriptionSharing,
        "P5",
        id="P5-no_local",
    ),
]


@pytest.mark.parametrize(("existing", "wanted", "outcome", "rule"), ACCEPTED)
def test_attaching_accepted(existing: Existing | None, wanted: Request, outcome: type, rule: str) -> None:
    decision = decide(existing, wanted)
    assert type(decision) is outcome
    assert decision.rule == rule


@pytest.mark.parametrize(("existing", "wanted", "outcome", "rule"), ACCEPTED)
def test_without_create_nothing_is_made_or_changed(
    existing: Existing | None, wanted: Request, outcome: type, rule: str
) -> None:
    decision = decide(existing, replace(wanted, create=False))
    if outcome is Attach:
        assert decision == decide(existing, wanted)
        return
    assert isinstance(decision, Refuse)
    assert type(decision.error) is (InvalidDestination if existing is None else SubscriptionDiffers)
    assert decision.rule == rule


@pytest.mark.parametrize(("existing", "wanted", "error", "rule"), REFUSED)
def test_attaching_refused(
    existing: Existing | None, wanted: Request, error: type[KafkadurError], rule: str
) -> None:
    decision = decide(existing, wanted)
    assert isinstance(decision, Refuse)
    assert type(decision.error) is error
    assert decision.rule == rule
    assert decision.error.state
    assert decision.error.remedy


def test_attaching_keeps_the_definition_in_force() -> None:
    have = Definition(type=SHARED, topic="orders", start="earliest", header_types={"amount": "int"})
    decision = decide(inactive(have), request(a(SHARED)))
    assert decision == Attach(definition=have, rule="S10")


def test_replacing_names_what_goes_and_what_comes() -> None:
    have, want = a(SHARED), a(SHARED, topic="t2")
    assert decide(inactive(have), request(want, on_change="replace")) == Replace(
        definition=want, replaced=have, rule="S3"
    )


@pytest.mark.parametrize("kind", SubscriptionType)
@pytest.mark.parametrize("mode", ["jms", "weblogic"])
def test_altering_keeps_the_messages_and_all_that_was_not_asked_for(
    kind: SubscriptionType, mode: Mode
) -> None:
    have = Definition(type=kind, topic="orders", ack_level="journal", redelivery=Redelivery(max_attempts=5))
    want = Definition(type=kind, topic="orders", selector="a = 1", redelivery=Redelivery(max_attempts=7))
    asked = request(want, mode=mode, on_change="alter", given=["redelivery"])
    decision = decide(inactive(have), asked)
    assert isinstance(decision, Convert)
    assert decision.definition == replace(have, selector="a = 1", redelivery=want.redelivery)


def test_altering_changes_the_sharing_too_where_the_mode_allows_it() -> None:
    have = Definition(type=EXCLUSIVE, topic="orders", ack_level="journal")
    asked = request(a(SHARED, selector="a = 1"), mode="weblogic", on_change="alter")
    want = Definition(type=SHARED, topic="orders", selector="a = 1", ack_level="journal")
    assert decide(inactive(have), asked) == Convert(definition=want, rule="P8")


def test_the_topic_cannot_be_altered() -> None:
    decision = decide(inactive(a(SHARED)), request(a(SHARED, topic="t2"), on_change="alter"))
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, SubscriptionDiffers)
    assert decision.error.differences == (("topic", "'orders'", "'t2'"),)
    assert "alter" not in str(decision.error)


def test_a_refusal_names_what_differs_how_much_waits_and_what_to_do() -> None:
    have, want = a(SHARED, selector="a = 1"), a(SHARED)
    decision = decide(inactive(have), request(want))
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, SubscriptionDiffers)
    error = decision.error.with_waiting(1_312)
    assert error.waiting == 1_312
    text = str(error)
    for part in ("selector is 'a = 1', asked for is None", "1,312 messages wait", "on_change='alter'"):
        assert part in text


#: Parts of a definition that are neither details nor the type.
OTHER = {
    "start": "earliest",
    "header_types": {"a": "int"},
    "redelivery": Redelivery(max_attempts=7, backoff=timedelta(seconds=3)),
    "strict_order": True,
    "scope": "partition",
    "ack_level": "journal",
    "max_consumers": 3,
    "key_lanes": 5,
    "history": timedelta(days=7),
}


def test_every_part_of_a_definition_can_be_compared() -> None:
    parts = {part.name for part in fields(Definition)}
    assert parts == {"type", "topic", "selector", "no_local", *OTHER_PARTS}
    assert OTHER.keys() == set(OTHER_PARTS)


@pytest.mark.parametrize("part", OTHER_PARTS)
def test_another_part_stays_unless_on_change_says_so(part: str) -> None:
    kind = {"scope": SERIAL, "max_consumers": SHARED}.get(part, KEY_ORDERED)
    changes: dict[str, Any] = {part: OTHER[part]}
    have, want = a(kind), replace(a(kind), **changes)
    not_given = decide(inactive(have), request(want))
    assert not_given == Attach(definition=have, rule="S10"), "what was not asked for is as it is"
    default = decide(inactive(have), request(want, given=[part]))
    assert isinstance(default, Attach)
    assert default.definition == have
    assert [difference[0] for difference in default.differences] == [part]
    refused = decide(inactive(have), request(want, given=[part], on_change="refuse"))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, SubscriptionDiffers)
    altered = decide(inactive(have), request(want, given=[part], on_change="alter"))
    expected = default if part == START else Convert(definition=want, rule="S10")
    assert altered == expected, "where it starts has no effect any more"
    replaced = decide(inactive(have), request(want, given=[part], on_change="replace"))
    assert replaced == default, "messages are dropped for other details only"
    active_ = decide(active(have), request(want, given=[part], on_change="alter"))
    assert active_ == replace(default, rule="S2")


def test_of_a_redelivery_policy_only_the_fields_that_differ_are_named() -> None:
    have = Redelivery(max_attempts=5)
    want = Redelivery(max_attempts=5, backoff=timedelta(seconds=3))
    assert told([("redelivery", have, want)]) == (("backoff", "0 s", "3 s"),)


def test_converting_changes_the_type_and_nothing_else() -> None:
    have = Definition(type=EXCLUSIVE, topic="orders", selector="a = 1", header_types={"a": "int"})
    decision = decide(inactive(have), request(a(SHARED, selector="a = 1"), allow_conversion=True))
    want = Definition(type=SHARED, topic="orders", selector="a = 1", header_types={"a": "int"})
    assert decision == Convert(definition=want, rule="L3")


@pytest.mark.parametrize("wanted", [request(a(EXCLUSIVE)), request(a(EXCLUSIVE, topic="t2"))])
def test_refusal_names_the_holder(wanted: Request) -> None:
    decision = decide(active(a(EXCLUSIVE), "host-7/1234"), wanted)
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, SubscriptionActive)
    assert decision.error.holder == "host-7/1234"
    assert "host-7/1234" in str(decision.error)


def test_sharing_refusal_names_the_holders() -> None:
    decision = decide(active(a(SHARED), "m-1", "m-2"), request(a(EXCLUSIVE)))
    assert isinstance(decision, Refuse)
    assert decision.error.owner == "m-1, m-2"


def test_an_active_durable_subscription_is_never_changed() -> None:
    """Over all combinations: with a consumer attached, nothing is deleted, replaced or converted."""
    definitions = [
        a(kind, topic=topic, no_local=no_local)
        for kind, topic, no_local in itertools.product(SubscriptionType, ["orders", "t2"], [False, True])
    ]
    modes: tuple[Mode, ...] = ("jms", "weblogic")
    for have, want, mode, convert, durable in itertools.product(
        definitions, definitions, modes, [False, True], [False, True]
    ):
        on_change: OnChange = "alter" if convert else "replace"
        wanted = request(want, mode=mode, allow_conversion=convert, durable=durable, on_change=on_change)
        decision = decide(active(have), wanted)
        assert isinstance(decision, (Attach, Refuse))
        if isinstance(decision, Attach):
            assert decision.definition == have
            assert have.type is want.type is not EXCLUSIVE
            assert have.details == want.details


# --- unsubscribing ------------------------------------------------------------------------------------------


def unsubscribe(*, durable: bool = True) -> UnsubscribeRequest:
    return UnsubscribeRequest(
        key=SubscriptionKey(namespace="ns", durable=durable, client_id="client", name="invoices")
    )


@pytest.mark.parametrize(
    "existing",
    [pytest.param(inactive(a(kind)), id=f"X1-{kind}") for kind in SubscriptionType],
)
def test_unsubscribing_accepted(existing: Existing) -> None:
    assert decide_unsubscribe(existing, unsubscribe()) == Delete(rule="X1")


@pytest.mark.parametrize(
    ("existing", "wanted", "error", "rule"),
    [
        pytest.param(None, unsubscribe(), InvalidDestination, "X2", id="X2"),
        pytest.param(active(a(EXCLUSIVE)), unsubscribe(), SubscriptionActive, "X3", id="X3"),
        pytest.param(
            active(a(SHARED), "m-1", "m-2"), unsubscribe(), SubscriptionActive, "X3", id="X3-shared"
        ),
        pytest.param(inactive(a(SHARED), unsettled=True), unsubscribe(), IllegalState, "X4", id="X4"),
        pytest.param(active(a(SHARED)), unsubscribe(durable=False), InvalidDestination, "X5", id="X5"),
        pytest.param(None, unsubscribe(durable=False), InvalidDestination, "X5", id="X5-unknown"),
    ],
)
def test_unsubscribing_refused(
    existing: Existing | None, wanted: UnsubscribeRequest, error: type[KafkadurError], rule: str
) -> None:
    decision = decide_unsubscribe(existing, wanted)
    assert isinstance(decision, Refuse)
    assert type(decision.error) is error
    assert decision.rule == rule
    assert decision.error.remedy


def test_unsubscribing_refused_names_the_holders() -> None:
    decision = decide_unsubscribe(active(a(SHARED), "m-1", "m-2"), unsubscribe())
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, SubscriptionActive)
    assert decision.error.holders == ("m-1", "m-2")
