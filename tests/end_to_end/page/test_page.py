"""The page in a real browser, on a real stack: what a person sees, clicks and is asked.

Needs Chromium (Debian and Ubuntu: apt-get install chromium).
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

import kafkadur.sync
from kafkadur.service.access import Role, add_token, read_tokens
from kafkadur.settings import Settings
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.serve.test_reading import is_recorded, prepared
from tests.integration.subscriptions.helpers import wait_until
from tests.serving import Api, served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Provide a browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Provide a page that must not have an error of its own."""
    context = browser.new_context(viewport=WIDE)  # type: ignore[arg-type]  # a plain dictionary
    page = context.new_page()
    page.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


@pytest.fixture
def invoices(connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory) -> str:
    """Provide a subscription with a backlog of three and one dead letter; its topic."""
    topic = kafkadur_topic()
    prepared(connection, topic, "invoices")
    return topic


def test_a_person_finds_a_subscription_and_what_it_waits_for(page: Page, address: str, invoices: str) -> None:
    page.goto(address)
    row = page.get_by_role("row", name="invoices")
    expect(row).to_contain_text("waits: no member is attached")
    expect(row).to_contain_text(invoices)
    page.get_by_label("Search name").fill("nothing of this name")
    expect(page.get_by_text("No subscription matches.")).to_be_visible()
    page.get_by_label("Search name").fill("INVOICES")
    page.get_by_role("link", name="invoices").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("invoices")
    page.get_by_role("button", name="Explain the first unsettled messages").click()
    expect(page.get_by_text(f"{invoices}[0]@1")).to_be_visible()
    page.get_by_label("Offset", exact=True).fill("0")
    page.get_by_role("button", name="Explain", exact=True).click()
    expect(page.get_by_text("is acknowledged")).to_be_visible()
    api = Api(address)
    with api.client:
        wait_until(lambda: is_recorded(api), "the history with all deliveries")
    page.get_by_label("Message (partition:offset)").fill("0:1")
    page.get_by_role("button", name="Show deliveries").click()
    expect(page.get_by_text("rolled back, again in 10 min")).to_be_visible()
    page.get_by_role("button", name="Show messages that wait").click()
    page.locator("summary", has_text='"order": 1').click()
    page.get_by_label("Show the value as").first.select_option("hex")
    expect(page.get_by_text("7b 22 6f 72 64 65 72 22 3a 20 31 7d")).to_be_visible()


def test_a_click_is_not_lost_when_the_list_is_read_between_press_and_release(
    page: Page, address: str, invoices: str
) -> None:
    del invoices
    page.goto(address)
    page.get_by_role("link", name="invoices").hover()
    page.mouse.down()
    for _ in range(2):  # the second is asked for after the first was handled
        with page.expect_response(lambda response: "/subscriptions?" in response.url) as asked:
            pass
        asked.value.finished()
    page.mouse.up()
    expect(page.get_by_role("heading", level=1)).to_have_text("invoices")


@pytest.mark.long
def test_a_person_pauses_and_resumes(page: Page, address: str, invoices: str) -> None:
    del invoices
    page.goto(f"{address}/#/s/invoices")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused: nothing is handed out")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_text("waits: no member is attached")).to_be_visible()
    page.get_by_role("link", name="Acts").click()
    expect(page.get_by_role("row", name="resume").first).to_contain_text("local (admin)")


def test_a_person_sees_what_a_redrive_would_do(page: Page, address: str, invoices: str) -> None:
    page.goto(f"{address}/#/s/invoices")
    page.get_by_role("button", name="Show dead letters").click()
    expect(page.get_by_text(f"{invoices}[0]@2")).to_be_visible()
    page.get_by_role("button", name="Redrive").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Redrive")).to_be_disabled()
    dialog.get_by_role("button", name="Show what it would do").click()
    expect(dialog).to_contain_text("Would redrive 1 dead letter of invoices.")
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.get_by_text("There are no dead letters.")).to_be_visible()


@pytest.mark.long
def test_a_person_sees_what_a_seek_would_skip(page: Page, address: str, invoices: str) -> None:
    del invoices
    page.goto(f"{address}/#/s/invoices")
    page.get_by_role("button", name="Seek").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("latest")
    dialog.get_by_role("button", name="Show what it would do").click()
    expect(dialog).to_contain_text("at most 3 unsettled messages skipped")
    dialog.get_by_role("textbox").fill("nowhere")
    expect(dialog.get_by_role("button", name="Move it")).to_be_disabled()
    dialog.get_by_role("button", name="Show what it would do").click()
    expect(dialog.get_by_role("alert")).to_contain_text("cannot be moved to 'nowhere'")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_a_viewer_signs_in_and_sees_no_payloads(
    page: Page, place: Settings, tmp_path: Path, invoices: str
) -> None:
    del invoices
    token = add_token(tmp_path / "tokens", "eve", Role.VIEWER)
    with served(place, read_tokens(tmp_path / "tokens")) as address:
        page.goto(f"{address}/#/s/invoices")
        page.get_by_label("Token of this service").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("Send a token")
        page.get_by_label("Token of this service").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("eve, viewer")).to_be_visible()
        expect(page.get_by_role("button", name="Seek")).to_be_disabled()
        page.get_by_role("button", name="Show messages that wait").click()
        expect(page.get_by_text("hidden: it needs the role operator").first).to_be_visible()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, address: str, invoices: str, size: dict[str, int], scheme: str
) -> None:
    del invoices
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]  # as above
    page = context.new_page()
    for path in ("", "#/s/invoices", "#/acts"):
        page.goto(f"{address}/{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=60_000)
        page.wait_for_load_state("load")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    context.close()


def test_a_person_is_told_why_there_is_no_longer_chart(page: Page, place: Settings, invoices: str) -> None:
    del invoices
    with served(place, None, prometheus="http://127.0.0.1:1") as address:
        page.goto(f"{address}/#/s/invoices")
        page.get_by_label("Time").select_option("Last week")
        expect(page.get_by_text("Prometheus does not answer")).to_be_visible()
        expect(page.get_by_role("heading", level=1)).to_have_text("invoices")
        page.get_by_label("Time").select_option("Last hour")
        expect(page.get_by_text("Prometheus does not answer")).to_be_hidden()


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(WIDE, "light", id="wide-light"),
        pytest.param(WIDE, "dark", id="wide-dark", marks=LONG),
        pytest.param(NARROW, "light", id="narrow-light", marks=LONG),
        pytest.param(NARROW, "dark", id="narrow-dark", marks=LONG),
    ],
)
def test_everybody_can_use_it(
    browser: Browser, address: str, invoices: str, size: dict[str, int], scheme: str
) -> None:
    """By the rules of axe: names for all controls, contrast, order of headings, and so on."""
    del invoices
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]  # as above
    page = context.new_page()
    page.set_default_timeout(60_000)
    found: dict[str, list[str]] = {}

    def examine(place: str) -> None:
        result = Axe().run(page)
        assert result.response["passes"], "axe has examined something"
        found.update(
            {
                f"{place}: {each['id']}": [node["html"] for node in each["nodes"]]
                for each in result.response["violations"]
            }
        )

    page.goto(address)
    page.get_by_role("row", name="invoices").wait_for()
    examine("list")
    page.goto(f"{address}/#/s/invoices")
    page.get_by_role("button", name="Show messages that wait").click()
    page.locator("summary", has_text='"order": 1').click()
    page.get_by_role("button", name="Show dead letters").click()
    page.get_by_role("button", name="Redrive").wait_for()
    page.get_by_role("button", name="Explain the first unsettled messages").click()
    examine("subscription")
    page.get_by_role("button", name="Seek").click()
    page.get_by_role("dialog").get_by_role("button", name="Show what it would do").wait_for()
    examine("dialog")
    page.keyboard.press("Escape")
    page.goto(f"{address}/#/acts")
    page.get_by_role("heading", level=1).wait_for()
    examine("acts")
    context.close()
    assert found == {}


def test_everybody_can_sign_in(page: Page, place: Settings, tmp_path: Path) -> None:
    add_token(tmp_path / "tokens", "eve", Role.VIEWER)
    with served(place, read_tokens(tmp_path / "tokens")) as address:
        page.goto(address)
        page.get_by_label("Token of this service").wait_for()
        assert Axe().run(page).response["violations"] == []
