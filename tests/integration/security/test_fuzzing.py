"""Hostile input: whatever bytes come, what raises is an error of ours, soon, and nothing is done with them.

`make test` looks at some hundred examples of each, `make test-all` at many more. What was found once stands
as an example of its own.
"""

from __future__ import annotations

import json
import logging
import math
import re
import struct
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import hypothesis.strategies as st
import msgpack
import pytest
from confluent_kafka import Message
from hypothesis import HealthCheck, example, given, reject
from hypothesis import settings as profile
from typer.testing import CliRunner

from kafkadur.admin.dead_letters import _letter as read_letter
from kafkadur.cli.application import app
from kafkadur.cli.output import clock
from kafkadur.cli.recovery import _record as recovery_record
from kafkadur.message.headers import decode
from kafkadur.runtime.dead_letters import HEADERS, Cause, Letter, headers_of
from kafkadur.settings import Settings, settings
from kafkadur_coordinators.changes import content_of, origins_of
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.journal import checkpoints, records, recovery_reports
from kafkadur_coordinators.journal.origins import Origin
from kafkadur_coordinators.journal.records import Change, by_tag, in_force, last_incarnation
from kafkadur_coordinators.journal.recovery_reports import Cause as Lost
from kafkadur_coordinators.journal.recovery_reports import PartitionRecovery, Recovery, may_come_again
from kafkadur_coordinators.settlement_states import SettlementState, Waiting, cut_off, earliest, packed
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import InvalidSelector, KafkadurError, SubscriptionActive
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.readable_text import plain
from kafkadur_sharing.selector import MAX_LENGTH, Selector

#: Examples of each test in `make test`, and in `make test-all`.
FEW, MANY = 200, 2_000
#: Seconds that one call may take; seconds of the processor where it does no I/O.
SOON_S = 2.0

Test = Callable[..., None]


def fuzz(*, share: float = 1.0, **strategies: st.SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Give a test examples of its arguments: a few always, many in `make test-all`.

    `share` of those, where one takes long.
    """

    def decorate(check: Test) -> Test:
        @pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
        def test(examples: int) -> None:
            most = max(1, round(examples * share))
            limits = profile(max_examples=most, deadline=None, suppress_health_check=[HealthCheck.too_slow])
            limits(given(**strategies)(check))()  # a function takes settings once: a new one each time

        test.__name__ = check.__name__
        test.__doc__ = check.__doc__
        return test

    return decorate


def outcome(call: Callable[[], Any]) -> tuple[Any, KafkadurError | None]:
    """What a call returns, or the error of ours that it raises; any other is a find."""
    try:
        return call(), None
    except KafkadurError as refused:
        return None, refused


# -- any JSON value, hostile ones included

NUMBERS = (
    st.integers()
    | st.sampled_from([-1, 0, 1, 2**31, 2**48, 2**53, 2**63, 10**400, True, False])
    | st.floats()
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


# -- headers

NAMES = st.text(max_size=12) | st.sampled_from(
    ["kafkadur-types", "kafkadur-client-id", "JMSPriority", "JMSDeliveryMode", "JMSMessageID", "a", "\x1b[2J"]
)
RAW = (
    st.none()
    | st.binary(max_size=40)
    | st.sampled_from(
        [
            b"a=i;b=f;a=x;=b;;;",
            b"a=i" * 3_000,
            b"9" * 5_000,
            b"1e999999999",
            b"nan",
            b"-0",
            b"\xff",
            b"true",
            b"",
        ]
    )
)


@fuzz(headers=st.none() | st.lists(st.tuples(NAMES, RAW), max_size=8))
@example(headers=[("kafkadur-types", b"a=f"), ("a", b"1" * 1_000_000 + b"x")])
def test_headers_are_always_read(headers: list[tuple[str, bytes | None]] | None) -> None:
    started = time.thread_time()
    found = decode(headers, {"a": "int", "b": "float"})
    assert time.thread_time() - started < SOON_S
    for name, value in found.properties.items():
        assert not name.startswith(("JMS", "kafkadur-"))
        assert value is None or isinstance(value, (str, int, float, bool, bytes))
        assert not isinstance(value, int) or -(2**63) <= value < 2**63
    assert 0 <= found.fields.priority <= 9


@fuzz(headers=st.lists(st.tuples(NAMES, RAW), max_size=6), reason=st.text(max_size=2_000))
@example(headers=[], reason="\ud800")
def test_dead_letters_of_any_message_can_be_written_and_read(
    headers: list[tuple[str, bytes | None]], reason: str
) -> None:
    key = SubscriptionKey(namespace="n", name="d")
    raw: Any = headers
    letter = Letter(
        topic="t.dead",
        message=Message(topic="t", value=b"x", headers=raw),
        subscription=str(key),
        cause=Cause.REJECTED,
        reason=reason,
        attempts=1,
        written=lambda: None,
    )
    own: Any = headers_of(letter)
    found = read_letter(Message(topic="t.dead", value=b"x", headers=own), key)
    assert found is not None
    assert found.attempts == 1


@fuzz(values=st.dictionaries(st.sampled_from(HEADERS), RAW, max_size=6))
@example(values={"kafkadur-dead-attempts": b"many", "kafkadur-dead-timestamp": "\u0664".encode()})
@example(values={"kafkadur-dead-attempts": b"9" * 5_000})
def test_what_says_it_is_a_dead_letter_is_read(values: dict[str, bytes | None]) -> None:
    key = SubscriptionKey(namespace="n", name="d")
    headers: Any = [*values.items(), ("kafkadur-dead-subscription", str(key).encode())]
    found = read_letter(Message(topic="t.dead", value=b"x", headers=headers), key)
    assert found is not None
    assert found.passes(Selector("_attempts >= 0 AND _timestamp >= 0"))


# -- selectors

WORDS = st.sampled_from(
    [
        *re.findall(
            r"\S+", "a b AND OR NOT BETWEEN IN LIKE ESCAPE IS NULL TRUE FALSE ( ) , = <> < > <= >= + -"
        ),
        *re.findall(
            r"\S+", "'x' '%' '_' 'it''s' 1 9223372036854775807 9223372036854775808 1.5 1e999 .5 1L 2F ;"
        ),
        *('"', "'", "'\\'", chr(0x212A), chr(0), chr(0xD800)),
    ]
)
SELECTORS = (
    st.text(max_size=60)
    | st.lists(WORDS, max_size=30).map(" ".join)
    | st.tuples(WORDS, st.integers(1, 5_000)).map(lambda pair: f"{pair[0]} " * pair[1])
)
VALUES = st.none() | st.booleans() | NUMBERS | st.text(max_size=20) | st.binary(max_size=5)


@fuzz(text=SELECTORS, properties=st.dictionaries(st.sampled_from(["a", "b", "JMSPriority"]), VALUES))
@example(text="(" * 4_096, properties={})
@example(text="NOT " * 1_000 + "a", properties={})
@example(text="- " * 2_000 + "1 = 1", properties={})
@example(text=" AND ".join(["a = a"] * 400), properties={"a": 1})
@example(text=" + ".join(["a"] * 1_000) + " > 0", properties={"a": 2**62})
@example(text="a LIKE '" + "%a" * 1_000 + "b'", properties={"a": "a" * 20_000})
@example(text="a LIKE '" + "_%" * 1_000 + "'", properties={"a": "x" * 20_000})
@example(text="a IN (" + ", ".join(["'x'"] * 600) + ")", properties={"a": "y"})
def test_selectors_are_read_or_refused(text: str, properties: dict[str, Any]) -> None:
    started = time.thread_time()
    selector, refused = outcome(lambda: Selector(text))
    if refused is not None:
        assert isinstance(refused, InvalidSelector)
        assert len(str(refused)) < 600
        assert plain(str(refused)) == str(refused)
    else:
        assert len(text) <= MAX_LENGTH
        assert selector.matches(properties) in (True, False, None)
    assert time.thread_time() - started < SOON_S


# -- the journal

KEY = SubscriptionKey(namespace="n", client_id="c", name="d")
CHANGE = Change(
    tag=KEY.tag,
    key={"namespace": "n", "durable": True, "client_id": "c", "policy": "restricted", "name": "d"},
    expected=0,
    under=0,
    definition=Definition(type=SubscriptionType.SHARED, topic="t").to_record(),
    id=None,
    topic_id="x",
    starts={0: 5, 1: 6},
)
BODY = json.loads(records.encode_change(CHANGE))["body"]


def sealed(body: object) -> bytes:
    """A record with a checksum that fits."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return json.dumps({"body": body, "sum": zlib.crc32(text.encode(errors="replace"))}).encode()


def install(value: bytes) -> None:
    """Do with a record what is done with those of a journal, up to what is sent to Redis."""
    entry = records.decode(7, value)
    if entry is None:
        return
    assert last_incarnation([entry], KEY.tag) in (0, 8)
    assert by_tag([entry]) if entry.change else not by_tag([entry])
    cut_off(SettlementState(next=5), min(entry.cuts.values(), default=0))
    found = in_force([entry], KEY.tag, 3)
    if entry.change is not None:
        found = found or in_force([entry], entry.change.tag, 3)
    if found is None:
        return
    content = json.loads(content_of(found))
    origins_of(content)
    starts = [
        [p, start, 0, packed(SettlementState(next=start)), -1] for p, start in found.change.starts.items()
    ]
    try:
        SubscriptionKey.from_record(found.change.key)
        definition = (
            None if found.change.definition is None else Definition.from_record(found.change.definition)
        )
    except KafkadurError:
        definition = None
    policy = () if definition is None else definition.policy
    msgpack.packb([found.id, found.version, found.change.epoch, starts, policy], use_bin_type=False)


FIELDS = st.dictionaries(st.sampled_from([*sorted(BODY), "tags", "cuts", "kind"]), JSON, max_size=3)
PARTS = st.dictionaries(st.sampled_from(sorted(BODY["definition"])), JSON, max_size=3)
KEYS = st.dictionaries(st.sampled_from([*sorted(BODY["key"]), "more"]), JSON, max_size=3)


@fuzz(value=st.binary(max_size=200) | JSON.map(lambda item: json.dumps(item).encode()) | JSON.map(sealed))
@example(value=b"[" * 100_000)
@example(value=b'{"a":' * 100_000)
@example(value=b'{"body":' + b"[" * 900 + b"]" * 900 + b',"sum":1}')
@example(value=b'{"body":1' + b"0" * 5_000 + b',"sum":1}')
@example(value=b'{"body":NaN,"sum":Infinity}')
@example(value=b'{"body":{"a":"\\ud800"},"sum":1}')
def test_any_bytes_are_a_record_or_none(value: bytes) -> None:
    started = time.thread_time()
    install(value)
    assert time.thread_time() - started < SOON_S


@fuzz(fields=FIELDS, parts=PARTS, keys=KEYS)
@example(fields={"starts": {"0": 2**60}}, parts={}, keys={})
@example(fields={"starts": {"0": math.nan}}, parts={}, keys={})
@example(fields={"expected": "1"}, parts={}, keys={})
@example(fields={"kind": "incarnation", "tags": [[]]}, parts={}, keys={})
@example(fields={"kind": "incarnation", "tags": KEY.tag}, parts={}, keys={})
@example(fields={"kind": "incarnation", "cuts": {"0": "5"}}, parts={}, keys={})
@example(fields={"kind": "incarnation", "cuts": [0]}, parts={}, keys={})
@example(fields={"kind": "incarnation", "cuts": {"-1": 5}}, parts={}, keys={})
@example(fields={"key": []}, parts={}, keys={})
@example(fields={}, parts={"redelivery": {"backoff": 10**30}}, keys={})
@example(fields={}, parts={"ack_level": []}, keys={})
@example(fields={}, parts={"redelivery": {"max_attempts": -(2**70)}}, keys={})
@example(fields={}, parts={"key_lanes": 10**400, "type": "key-ordered"}, keys={})
@example(fields={}, parts={}, keys={"more": 1})
@example(fields={}, parts={}, keys={"policy": "none such"})
def test_a_well_sealed_record_with_wrong_things_inside(
    fields: dict[str, Any], parts: dict[str, Any], keys: dict[str, Any]
) -> None:
    body = {**BODY, "definition": {**BODY["definition"], **parts}, "key": {**BODY["key"], **keys}, **fields}
    install(sealed(body))


@fuzz(at=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.integers(0, 10_000))
def test_a_damaged_record_is_none_or_what_it_was(at: int, byte: int, cut: int) -> None:
    written = bytearray(records.encode_change(CHANGE))
    written[at % len(written)] = byte
    install(bytes(written))
    install(bytes(written[: cut % len(written)]))


# -- checkpoints

ORIGIN = Origin("3.7", 0, "x~2")
CHECKPOINT = checkpoints.key_of(ORIGIN, 1, "writer", 9)
#: Format, next, seen, what waits, marks of that.
STANDING: list[Any] = [1, 40, 50, [3, 2, 4, 3], [[1, 2, 3, 77]]]


def checkpoint(body: object, floor: int = 3) -> bytes:
    """A checkpoint with checksums that fit; what msgpack does not know is left out."""
    try:
        content = cast("bytes", msgpack.packb(body))
    except (ValueError, OverflowError):
        reject()
    head = struct.pack(">2sBQ", b"KC", 1, floor)
    return head + zlib.crc32(head).to_bytes(4, "big") + zlib.crc32(content).to_bytes(4, "big") + content


def believe(key: bytes, value: bytes) -> SettlementState | None:
    """Do with a checkpoint what a rebuild and a collection do, up to what is sent to Redis."""
    found = checkpoints.decode(key, value, 5)
    if found is None:
        return None
    assert found.lane >= 0
    assert found.incarnation >= 0
    assert 0 <= found.settlement.floor <= found.settlement.next < 2**48
    for lost in ([], [(found.incarnation + 1, {found.lane: 7})]):
        settlements = checkpoints.united([found, found], found.origin, lost)
        for settlement in settlements.values():
            runs, due = packed(settlement), earliest(settlement)
            msgpack.packb([found.lane, settlement.next, settlement.seen, runs, due], use_bin_type=False)
            again = checkpoints.decode(key, checkpoints.encode(settlement))
            assert again is not None
            assert again.settlement == settlement
        may_come_again(settlements, 1)
    assert checkpoints.superseded([found], (), 2**50) == [key]
    return found.settlement


CHECKPOINT_KEYS = st.binary(max_size=60).map(lambda end: checkpoints.KEY_PREFIX + end) | st.lists(
    st.text(max_size=8) | st.integers().map(str), min_size=6, max_size=6
).map(lambda parts: checkpoints.KEY_PREFIX + ":".join(parts).encode(errors="replace"))


@fuzz(key=CHECKPOINT_KEYS, value=st.binary(max_size=200) | JSON.map(checkpoint))
@example(key=b"settled/3.7:0:x:-1:w:9", value=checkpoint(STANDING))
@example(key=b"settled/3.7:0:x:1_0:w:-9", value=checkpoint(STANDING))
@example(key=b"settled/3.7:0:x:1:w:" + b"9" * 5_000, value=checkpoint(STANDING))
@example(key=CHECKPOINT, value=checkpoint(None, floor=2**63))
@example(key=CHECKPOINT, value=checkpoint(None)[:-1] + b"\x91" * 5_000)
def test_any_bytes_are_a_checkpoint_or_none(key: bytes, value: bytes) -> None:
    started = time.thread_time()
    believe(key, value)
    believe(CHECKPOINT, value)
    assert time.thread_time() - started < SOON_S


@fuzz(wrong=st.dictionaries(st.integers(0, 4), JSON, max_size=2), marks=st.lists(JSON, max_size=5))
@example(wrong={1: "x"}, marks=[])
@example(wrong={1: None}, marks=[])
@example(wrong={1: 40.5, 2: math.nan}, marks=[])
@example(wrong={2: -1}, marks=[])
@example(wrong={3: [1.5, 2]}, marks=[])
@example(wrong={3: {"a": 1}}, marks=[])
@example(wrong={3: [0, 2**48]}, marks=[])
@example(wrong={}, marks=[-1, 0, 0, 0])
@example(wrong={}, marks=[0, 32_768, 0, 0])
@example(wrong={}, marks=[0, 1, 0, 2**48])
@example(wrong={}, marks=[0, 1, -1, 0])
@example(wrong={}, marks=["0", "%s", "%s", "0"])
def test_a_well_sealed_checkpoint_with_wrong_things_inside(wrong: dict[int, Any], marks: list[Any]) -> None:
    body: list[Any] = [wrong.get(at, value) for at, value in enumerate(STANDING)]
    if marks:
        body[4] = [marks]
    assert believe(CHECKPOINT, checkpoint(body)) is not None, "the floor is left"


def test_the_checkpoint_that_is_spoilt_here_is_good() -> None:
    settlement = believe(CHECKPOINT, checkpoint(STANDING))
    assert settlement is not None
    assert settlement == SettlementState(
        40, 50, (Waiting(3, 5), Waiting(9, 12, 2, redelivered=True, due=77, suspect=True))
    )
    assert checkpoints.encode(settlement) == checkpoint(STANDING)


@fuzz(at=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.integers(0, 10_000))
def test_a_damaged_checkpoint_is_none_or_less(at: int, byte: int, cut: int) -> None:
    good = bytearray(checkpoint(STANDING))
    good[at % len(good)] = byte
    for value in (bytes(good), bytes(good[: cut % len(good)])):
        assert believe(CHECKPOINT, value) in (
            None,
            SettlementState(next=3),
            believe(CHECKPOINT, checkpoint(STANDING)),
        )


# -- reports of recoveries

RECOVERY = Recovery(
    key=KEY.to_record(),
    tag=KEY.tag,
    id="3.7",
    incarnation=9,
    at=1_700_000_000_000,
    cause=Lost.LOST,
    partitions=(PartitionRecovery(partition=0, floor=3, ranges=((3, 5),), offsets=2),),
)
REPORT = json.loads(recovery_reports.encode(RECOVERY))["body"]


def tell(value: bytes) -> Recovery | None:
    """Do with a report what the command line does."""
    found = recovery_reports.decode(value)
    if found is not None:
        told = json.dumps(recovery_record(found)) + clock(found.at) + str(found.subscription)
        told.encode()
        assert plain(told) == told
        assert found.offsets >= 0
    return found


@fuzz(value=st.binary(max_size=200) | JSON.map(lambda item: json.dumps(item).encode()) | JSON.map(sealed))
@example(value=b"[" * 100_000)
def test_any_bytes_are_a_report_or_none(value: bytes) -> None:
    tell(value)


REPORTED = st.dictionaries(st.sampled_from(sorted(REPORT)), JSON, max_size=3)
PARTITION = st.dictionaries(st.sampled_from(sorted(REPORT["partitions"][0])), JSON, max_size=3)


@fuzz(fields=REPORTED, parts=PARTITION, keys=KEYS)
@example(fields={"at": 2**53}, parts={}, keys={})
@example(fields={"at": 10**400}, parts={}, keys={})
@example(fields={"id": "\ud800", "tag": "\x1b[2J"}, parts={}, keys={})
@example(fields={}, parts={"ranges": [[5, 3], [-1, 0]]}, keys={})
@example(fields={}, parts={"offsets": 10**400}, keys={})
@example(fields={}, parts={}, keys={"more": 1})
@example(fields={}, parts={}, keys={"name": "a b"})
@example(fields={}, parts={}, keys={"durable": "\ud800"})
def test_a_well_sealed_report_with_wrong_things_inside(
    fields: dict[str, Any], parts: dict[str, Any], keys: dict[str, Any]
) -> None:
    partitions = [{**REPORT["partitions"][0], **parts}]
    tell(sealed({**REPORT, "key": {**REPORT["key"], **keys}, "partitions": partitions, **fields}))


def test_the_report_that_is_spoilt_here_is_good() -> None:
    assert tell(sealed(REPORT)) == RECOVERY


# -- settings and names

GIVEN = st.dictionaries(
    st.sampled_from([*sorted(Settings.model_fields), "kafka_config", "colour"]),
    JSON | st.binary(max_size=5) | st.text(max_size=300) | st.timedeltas(),
    max_size=4,
)


@fuzz(given_settings=GIVEN)
@example(given_settings={"redis": "redis://[::1"})
@example(given_settings={"redis": "redis://h:99999999/0"})
@example(given_settings={"redis": "redis+sentinel://[::1"})
@example(given_settings={"redis": "redis://h?max_connections=0"})
@example(given_settings={"redis": "redis+sentinel://h/s?protocol=9"})
@example(given_settings={"redis": "unix:///h?socket_keepalive=1"})
@example(given_settings={"redis": "redis+sentinel://h:\u0664/s"})
@example(given_settings={"redis": "redis+sentinel://h:1/s/" + "9" * 5_000})
@example(given_settings={"session_timeout": "1e400"})
@example(given_settings={"session_timeout": "nan"})
@example(given_settings={"redis_timeout": timedelta(-1)})
@example(given_settings={"kafka_config": "a\x00b"})
def test_settings_are_taken_or_refused(given_settings: dict[str, Any]) -> None:
    chosen, refused = outcome(lambda: settings({"kafka": "host:1", **given_settings}, {}))
    assert plain(str(refused)) == str(refused)
    assert repr(chosen)


@fuzz(environment=st.dictionaries(
    st.sampled_from([f"KAFKADUR_{name.upper()}" for name in (*Settings.model_fields, "kafka_config")]),
    st.text(st.characters(blacklist_characters="\x00"), max_size=40), max_size=4,
))  # fmt: skip
def test_the_environment_is_taken_or_refused(environment: dict[str, str]) -> None:
    _, refused = outcome(lambda: settings({"kafka": "host:1"}, environment))
    assert plain(str(refused)) == str(refused)


TEXTS = st.text(max_size=30) | st.sampled_from(
    [
        "..",
        "a/b/c",
        "/",
        "a" * 300,
        "--help",
        "-",
        "\x1b[31m",
        "a\nINFO: all is well",
        "{tag}",
        "*",
        "\u202eevil",
    ]
)
COMMANDS: list[Callable[[str], list[str]]] = [
    lambda text: ["sub", "info", "--", text],
    lambda text: ["--namespace", text, "sub", "ls"],
    lambda text: ["--client-id", text, "sub", "info", "d"],
    lambda text: ["acl", "redis", "--user", text],
    lambda text: ["acl", "redis", "--namespace", text],
    lambda text: ["acl", "kafka", "--principal", text, "--topic", "t"],
    lambda text: ["acl", "kafka", "--principal", "User:a", "--topic", text],
    lambda text: ["acl", "kafka", "--principal", "User:a", "--role", "producer", "--transactional-id", text],
    lambda text: ["sub", "seek", "--", "d", text],
    lambda text: ["consume", "--durable", text, "--", "t"],
    lambda text: ["--kafka-config", text, "sub", "ls"],
]


@fuzz(share=0.2, command=st.sampled_from(COMMANDS), text=TEXTS)
def test_arguments_of_the_command_line(command: Callable[[str], list[str]], text: str) -> None:
    """Redis is not there, so what gets that far ends there."""
    environment = {"KAFKADUR_KAFKA": "127.0.0.1:1", "KAFKADUR_REDIS": "redis://127.0.0.1:1", "COLUMNS": "200"}
    started = time.monotonic()
    ended = CliRunner().invoke(app, command(text), env=environment)
    assert time.monotonic() - started < 5 * SOON_S
    assert ended.exception is None or isinstance(ended.exception, SystemExit), repr(ended.exception)
    assert ended.exit_code in (0, 1, 2)
    assert "Traceback" not in ended.output
    for line in (ended.stdout + ended.stderr).splitlines():
        assert "INFO: all is well" not in line or not line.startswith("INFO")
    assert "\x1b" not in ended.stdout + ended.stderr
    assert "\u202e" not in ended.stdout


# -- what is told


@fuzz(text=st.text(max_size=60))
@example(text="\r\nERROR all is lost\x1b[2J\x9b\u2028\u202e\ud800")
def test_nothing_told_begins_a_line_of_its_own(text: str) -> None:
    for told in (
        str(KafkadurError(text, state=text, owner=text, remedy=text)),
        str(SubscriptionActive(holders=(text,))),
        plain(text),
    ):
        assert len(told.splitlines()) <= 1
        told.encode()
        assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in told)
    assert plain(json.dumps(text, ensure_ascii=False)) == plain(plain(json.dumps(text, ensure_ascii=False)))
    assert json.loads(plain(json.dumps(text, ensure_ascii=False))) == text


def test_what_kafkas_client_logs_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="kafkadur.kafka"):
        client_log.warning(
            "%s [%s] %s", "FAIL", f"rdkafka#{time.monotonic_ns()}", "down\nERROR:root:all is lost"
        )
    assert next(line for line in caplog.messages if "all is lost" in line).count("\n") == 0
