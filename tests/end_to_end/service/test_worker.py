"""`kafkadur run`: handlers at work, how a worker stops, what its port and its logs tell."""

import json
import re
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kafkadur
from kafkadur.settings import settings
from kafkadur.stack.proxy import TcpProxy
from kafkadur.worker.loading import load
from kafkadur.worker.worker import Worker
from kafkadur_sharing.errors import IllegalState
from tests.end_to_end.service.helpers import Shop, eventually
from tests.integration.embedded.helpers import alive

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"
SHARED = """
    app = kafkadur.App()

    @app.subscription(TOPIC, durable="d", start="earliest", concurrency=2)
    async def handle(message):
        note(message)
"""


def test_an_app_has_one_handler_for_a_subscription() -> None:
    app = kafkadur.App()

    @app.subscription("t", durable="d")
    def first(message: kafkadur.Delivery) -> None:
        raise AssertionError(message)

    with pytest.raises(IllegalState, match="a second handler for 'd' of topic 't'"):
        app.subscription("t", durable="d")(first)
    app.subscription("t", durable="other")(first)
    assert [each.name for each in app.declared] == ["d", "other"]


async def test_an_app_without_a_handler_is_no_worker() -> None:
    with pytest.raises(IllegalState, match=r"decorate one with @app.subscription"):
        Worker(kafkadur.App(), settings({"kafka": "127.0.0.1:1"}))


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nowhere_to_be_found:app", "There is no module 'nowhere_to_be_found'"),
        ("app_under_test:other", "'other' of module 'app_under_test' is no app.\n  state: it is not there"),
        ("app_under_test:handle", "state: it is function"),
        ("app_under_test.app", "There is no module 'app_under_test.app'"),
        ("", "'' names no app"),
        (":app", "':app' names no app"),
        (".app_under_test:app", "'.app_under_test:app' names no app"),
    ],
)
def test_what_is_no_app_is_explained(shop: Shop, target: str, told: str) -> None:
    shop.write(SHARED)
    process = shop.start(module=target)
    assert process.ended() == 1
    assert told in process.said
    assert "Traceback" not in process.said


def test_a_module_that_its_module_misses_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.write("import not_installed_anywhere", name="module_that_misses_one")
    monkeypatch.syspath_prepend(shop.folder)
    with pytest.raises(IllegalState, match="No module named 'not_installed_anywhere'") as refused:
        load("module_that_misses_one", shop.folder)
    assert (refused.value.state or "").startswith("module_that_misses_one.py, line ")


def test_the_line_is_one_of_the_app_and_not_of_a_library_below_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / ".venv" / "lib" / "site-packages"
    library.mkdir(parents=True)
    (library / "library_below.py").write_text("def fail():\n    raise OSError('no')", encoding="utf-8")
    text = "import library_below\n\nlibrary_below.fail()"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder, name in ((tmp_path, "module_above_a_library"), (elsewhere, "module_from_elsewhere")):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(folder)
    monkeypatch.syspath_prepend(library)
    for name in ("module_above_a_library", "module_from_elsewhere"):
        with pytest.raises(IllegalState, match=rf"{name}\.py, line 3: OSError: no"):
            load(name, tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import json\njson.loads('{')", "line 2: JSONDecodeError: Expecting property name"),
        ("def f(:", "SyntaxError: invalid syntax (module_that_fails.py, line 1)"),
        ("\neval('1 +')", "line 2: SyntaxError: invalid syntax (<string>, line 1)"),
        (
            'import kafkadur\nkafkadur.App().subscription("t", type="shared", priority=5)',
            "line 2: IllegalState: A subscription of the type shared has no priority.",
        ),
    ],
)
def test_where_a_module_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "module_that_fails.py").write_text(text, encoding="utf-8")
    caplog.set_level("DEBUG", "kafkadur.worker")
    with pytest.raises(IllegalState, match="Module 'module_that_fails' failed") as refused:
        load("module_that_fails", tmp_path)
    assert told in (refused.value.state or "")
    assert "Traceback" in caplog.text


def test_handlers_of_both_kinds_work_and_settle(shop: Shop) -> None:
    shop.place.publish(shop.topic, range(20))
    shop.write("""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="awaited", start="earliest", concurrency=4)
        async def awaited(message):
            await asyncio.sleep(0)
            if message.value == b"3":
                raise kafkadur.Reject("no three")
            if message.value == b"5" and message.attempt == 1:
                raise ValueError("secret-in-hands")
            note(message, "awaited")

        @app.subscription(TOPIC, durable="plain", type="exclusive", start="earliest")
        def plain(message):
            note(message, "plain")
    """)
    worker = shop.start("--log-format", "json", KAFKADUR_CLIENT_ID="c")
    assert {int(note.value) for note in shop.until(19, "awaited")} == {*range(20)} - {3}
    assert [int(note.value) for note in shop.until(20, "plain")] == [*range(20)]
    worker.ready()
    assert worker.states() == {"awaited": "attached", "plain": "attached"}
    assert worker.get("/livez")[0] == 200
    assert worker.get("/elsewhere")[0] == 404
    own = {"namespace": shop.place.namespace, "subscription": "awaited", "topic": shop.topic}
    measured = [
        sample
        for family in text_string_to_metric_families(worker.get("/metrics")[1])
        for sample in family.samples
        if own.items() <= sample.labels.items()
    ]
    outcomes = {x.labels["outcome"]: x.value for x in measured if x.name.endswith("handled_messages_total")}
    assert outcomes == {"returned": 19.0, "rejected": 1.0, "raised": 1.0, "cancelled": 0.0}
    found = {x.name: x.value for x in measured}
    assert found["kafkadur_worker_handler_seconds_count"] == 21.0
    assert found["kafkadur_worker_attached"] == 1.0
    assert found["kafkadur_worker_in_hands_messages"] == 0.0
    assert {label for x in measured for label in x.labels} == {*own, "outcome", "le"}
    assert worker.stop() == 0
    assert shop.unsettled("awaited", KAFKADUR_CLIENT_ID="c") == 0
    records = [json.loads(line) for line in worker.said.splitlines() if line.startswith("{")]
    attached = [each for each in records if each["message"] == "attached"]
    assert {each["subscription"] for each in attached} == {"awaited", "plain"}
    assert {each["level"] for each in records} >= {"INFO"}
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in records)
    assert records[0]["message"].startswith("Worker of")
    assert len(records) == len(worker.said.splitlines()), "every line is an object"


def test_a_line_of_text_says_which_subscription(shop: Shop) -> None:
    shop.write(SHARED)
    worker = shop.start()
    worker.ready()
    assert worker.stop() == 0
    [attached] = [line for line in worker.said.splitlines() if "attached" in line]
    assert f"topic {shop.topic}, member " in attached


def test_members_of_a_distributed_topic_are_told_apart() -> None:
    """As `kafkadur metrics` names them."""
    app = kafkadur.App()
    for member in ("east", "west"):
        app.subscription("orders", durable="d", topic_member=member)(print)
    app.subscription("orders", durable="d")(print)
    assert [each.name for each in app.declared] == ["d@east", "d@west", "d"]


ORDERS = kafkadur.DistributedTopic(
    name="orders",
    members=(
        kafkadur.TopicMember(name="east", topic="orders-east"),
        kafkadur.TopicMember(name="west", topic="orders-west"),
    ),
)


def test_a_handler_of_a_distributed_topic_has_a_subscription_on_each_member() -> None:
    app = kafkadur.App()
    app.subscription(ORDERS, durable="d")(print)
    app.subscription(ORDERS, durable="one", topic_member="west")(print)
    told = [(each.name, each.topic) for each in app.declared]
    assert told == [("d@east", "orders-east"), ("d@west", "orders-west"), ("one@west", "orders-west")]
    with pytest.raises(IllegalState, match="a second handler for 'd@west' of topic 'orders-west'"):
        app.subscription(ORDERS, durable="d", topic_member="west")(print)
    with pytest.raises(kafkadur.InvalidDestination, match="no member 'north'"):
        app.subscription(ORDERS, durable="d", topic_member="north")


def test_a_worker_serves_all_members_of_a_distributed_topic(shop: Shop) -> None:
    """One of them is on a cluster that cannot be reached: the others are served."""
    other = shop.place.topic()
    shop.place.publish(shop.topic, [1, 2])
    shop.place.publish(other, [3])
    shop.write(f"""
        ORDERS = kafkadur.DistributedTopic(
            name="orders",
            members=(
                kafkadur.TopicMember(name="east", topic=TOPIC),
                kafkadur.TopicMember(name="west", topic={other!r}),
                kafkadur.TopicMember(
                    name="far", topic="far-orders", kafka={{"bootstrap.servers": "127.0.0.1:1"}}
                ),
            ),
        )
        app = kafkadur.App()

        @app.subscription(ORDERS, durable="d", start="earliest")
        async def handle(message):
            note(message)
    """)
    worker = shop.start(KAFKADUR_KAFKA_TIMEOUT="1")
    eventually(lambda: len(shop.notes()) == 3, "all messages")
    assert sorted(note.value for note in shop.notes()) == ["1", "2", "3"]
    assert worker.states() == {"d@east": "attached", "d@west": "attached", "d@far": "starting"}
    assert worker.stop() == 0
    assert "127.0.0.1:1" in worker.said


def test_all_it_measures_is_documented(shop: Shop) -> None:
    shop.write(SHARED)
    worker = shop.start()
    worker.ready()
    told = set(re.findall(r"^# TYPE (kafkadur_\w+) ", worker.get("/metrics")[1], re.MULTILINE))
    documented = re.findall(r"^\| `(kafkadur_worker_\w+)` \|", DOCS.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(told)


def test_a_lifespan_is_entered_with_the_connection_and_left(shop: Shop) -> None:
    shop.place.publish(shop.topic, range(3))
    shop.write("""
        import contextlib

        here = {}

        @contextlib.asynccontextmanager
        async def lifespan(connection):
            async with connection.producer() as producer:
                here["producer"] = producer
                yield
            print("left", flush=True)

        app = kafkadur.App(lifespan=lifespan)

        @app.subscription(TOPIC, durable="d", start="earliest", selector="again IS NULL")
        async def handle(message):
            await here["producer"].send(TOPIC, b"copy " + message.value, properties={"again": 1})
            note(message)

        @app.subscription(TOPIC, durable="copies", start="earliest", selector="again = 1")
        async def copies(message):
            note(message, "copy")
    """)
    worker = shop.start()
    assert sorted(note.value for note in shop.until(3, "copy")) == ["copy 0", "copy 1", "copy 2"]
    assert worker.stop() == 0
    assert "left" in worker.said
    assert len(shop.notes()) == 3


def test_what_is_begun_ends_before_the_worker_does(shop: Shop) -> None:
    shop.place.publish(shop.topic, range(50))
    shop.write("""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="d", start="earliest", concurrency=3)
        def handle(message):
            note(message, "begun")
            time.sleep(0.3)
            note(message)
    """)
    worker = shop.start()
    shop.until(3, "begun")
    assert worker.stop() == 0
    begun, done = shop.notes("begun"), shop.notes()
    assert {note.place for note in begun} == {note.place for note in done}
    assert len(done) < 50
    assert shop.unsettled("d") == 50 - len(done)
    second = shop.start()
    shop.until(50)
    assert second.stop() == 0
    assert [note.attempt for note in shop.notes()] == [1] * 50, "what was given back was not counted"


@pytest.mark.parametrize("kind", ["async def", "def"])
def test_what_has_not_ended_at_the_deadline_is_given_back(shop: Shop, kind: str) -> None:
    shop.place.publish(shop.topic, range(2))
    shop.write(f"""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="d", start="earliest")
        {kind} handle(message):
            note(message, "begun")
            {"await asyncio.sleep(600)" if kind == "async def" else "time.sleep(600)"}
    """)
    worker = shop.start("--deadline", "0.5")
    shop.until(1, "begun")
    assert worker.stop() == 1
    assert "had handlers at work at the deadline" in worker.said
    assert shop.unsettled("d") == 2
    shop.write(SHARED)
    second = shop.start()
    assert [note.attempt for note in shop.until(2)] == [1, 1]
    assert second.stop() == 0


def test_a_second_signal_ends_it_at_once(shop: Shop) -> None:
    shop.place.publish(shop.topic, range(1))
    shop.write("""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="d", start="earliest")
        async def handle(message):
            note(message, "begun")
            await asyncio.sleep(600)
    """)
    worker = shop.start("--deadline", "600")
    shop.until(1, "begun")
    worker.tell(signal.SIGINT)
    eventually(lambda: "stopping" in worker.said, "the beginning of its end")
    assert worker.get("/readyz")[0] == 503
    worker.tell(signal.SIGINT)
    assert worker.ended() == 130


def test_a_loop_that_is_blocked_does_not_live(shop: Shop) -> None:
    shop.place.publish(shop.topic, range(1))
    shop.write("""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="d", start="earliest")
        async def handle(message):
            note(message, "begun")
            while not os.path.exists("go-on"):
                time.sleep(0.01)  # in the loop
    """)
    worker = shop.start("--silence", "1")
    shop.until(1, "begun")
    eventually(lambda: worker.get("/livez")[0] == 503, "notice of the blocked loop")
    (shop.folder / "go-on").touch()
    eventually(lambda: worker.get("/livez")[0] == 200, "notice that it runs again")
    assert worker.stop() == 0


def test_a_worker_stands_by_until_the_holder_leaves(shop: Shop) -> None:
    shop.write("""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="d", type="exclusive", start="earliest")
        async def handle(message):
            note(message)
    """)
    policy = {"KAFKADUR_CLIENT_ID": "c", "KAFKADUR_CLIENT_ID_POLICY": "unrestricted"}
    first = shop.start(**policy)
    first.ready()
    second = shop.start(**policy)
    second.ready()
    assert second.states() == {"d": "standing by"}
    assert json.loads(second.get("/readyz")[1])["subscriptions"][0]["reason"]
    shop.place.publish(shop.topic, range(2))
    assert {note.pid for note in shop.until(2)} == {first.pid}
    assert first.stop() == 0
    shop.place.publish(shop.topic, range(2, 4))
    assert {note.pid for note in shop.until(4)[2:]} == {second.pid}
    assert second.states() == {"d": "attached"}


def test_a_worker_waits_for_redis(shop: Shop) -> None:
    shop.place.publish(shop.topic, range(2))
    shop.write(SHARED)
    target = urlsplit(shop.place.stack.redis)
    with TcpProxy((target.hostname or "", target.port or 0)) as proxy:
        proxy.cut(refuse=True)
        worker = shop.start(
            KAFKADUR_REDIS=shop.place.stack.redis.replace(f"127.0.0.1:{target.port}", proxy.address)
        )
        eventually(lambda: "starting:" in worker.said, "its complaint")
        assert worker.get("/readyz")[0] == 503
        assert worker.get("/livez")[0] == 200
        proxy.resume()
        shop.until(2)
        worker.ready()
        assert worker.stop() == 0


def test_what_cannot_be_served_ends_the_worker(shop: Shop) -> None:
    shop.write("""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="good")
        async def good(message):
            note(message)

        @app.subscription(TOPIC, durable="bad", no_local=True)
        async def bad(message):
            note(message)
    """)
    worker = shop.start()
    assert worker.ended() == 1
    assert f"(subscription bad, topic {shop.topic})" in worker.said
    assert "A subscription of the type shared has no no_local" in worker.said
    assert "Traceback" not in worker.said


def test_it_is_started_anew_when_its_module_changes(shop: Shop) -> None:
    shop.write(SHARED)
    worker = shop.start("--reload")
    worker.ready()
    shop.place.publish(shop.topic, range(1))
    (first,) = shop.until(1)
    assert first.pid != worker.pid
    shop.write(SHARED.replace("note(message)", "note(message, 'changed')"))
    eventually(lambda: worker.said.count("Worker of") == 2, "the second start")
    shop.place.publish(shop.topic, range(1, 2))
    (second,) = shop.until(1, "changed")
    assert second.pid not in (worker.pid, first.pid)
    worker.tell(signal.SIGINT)
    assert worker.ended() == 0
    assert not any(alive(note.pid) for note in (*shop.notes(), *shop.notes("changed")))


@pytest.mark.long
def test_three_workers_are_restarted_one_after_the_other_under_load(shop: Shop) -> None:
    """Nothing is lost, and nothing is repeated: each confirms what it has before it leaves."""
    shop.write("""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="d", start="earliest", concurrency=4, window=20)
        async def handle(message):
            await asyncio.sleep(0.002)
            note(message)
    """)
    workers = [shop.start() for _ in range(3)]
    for worker in workers:
        worker.ready()
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            shop.place.raw.produce(shop.topic, str(sent).encode(), partition=sent % 2)
            sent += 1
        shop.place.raw.flush(60)

    def send_until(worked: int) -> None:
        """Send messages until so many processes have handled some."""

        def look() -> bool:
            send(100)
            return len({note.pid for note in shop.notes()}) >= worked

        eventually(look, f"{worked} processes that handled messages")

    send_until(3)
    for number in range(3):
        send(500)
        shop.until(sent - 400)
        workers[number].tell()
        send(500)
        assert workers[number].ended() == 0
        workers[number] = shop.start()
        workers[number].ready()
        send_until(4 + number)
    done = shop.until(sent)
    for worker in workers:
        assert worker.stop() == 0
    assert sorted(int(note.value) for note in shop.notes()) == [*range(sent)]
    assert len({note.pid for note in done}) == 6, "all six worked"
    again = [note for note in done if note.attempt > 1]
    assert not again, [again, *(log.read_text() for log in sorted(shop.folder.glob("log-*")))]
    assert shop.unsettled("d") == 0
