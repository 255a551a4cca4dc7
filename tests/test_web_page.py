"""The web page in a real browser: jobs that come and go, leaders that die, moments of the past, commands, themes,
phones, keys."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from bench.fleet import Child
from events.embedded import EmbeddedBroker
from tests.browser import a_browser, a_page
from tests.logs import until
from tests.scenes import Scene, a_scene, numbers
from tests.web import Web, a_web

pytestmark = pytest.mark.broker
expect.set_options(timeout=30_000)
SHOTS = os.environ.get("DETENT_SHOTS")  # a directory for pictures, for people to look at


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as made:
        yield made


@pytest.fixture(scope="module")
def scene(browser: Browser, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """After the browser: where there is none, nothing else is started."""
    with a_scene(broker.bootstrap_servers, tmp_path_factory.mktemp("page"), judged=False) as made:
        yield made


@pytest.fixture(scope="module")
def web(scene: Scene) -> Iterator[Web]:
    with a_web(scene.cluster, scene.fleet.directory) as made:
        yield made


def submit(web: Web, scene: Scene, job: str, rows: int = -1, parallelism: int = 2, **env: Any) -> None:
    body = scene.body(job, numbers("in", rows, parallelism=parallelism, rate=500), **env)
    assert web.submit(job, body)["state"] == "ACCEPTED"


def state(page: Page) -> Any:
    return page.locator(".title .pill").first


def shoot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png")


def test_a_job_is_seen_to_come_run_and_end(browser: Browser, web: Web, scene: Scene) -> None:
    with a_page(browser, web.base) as page:
        page.goto("/")
        expect(page.locator("#live")).to_have_text("Live")
        submit(web, scene, "comes-and-goes", 3000)  # some seconds, so that it is seen to run
        row = page.get_by_role("link", name=re.compile("^comes-and-goes, "))
        expect(row).to_contain_text("Running")
        expect(row).to_contain_text("Finished")
        row.click()
        expect(page.get_by_role("heading", name="comes-and-goes", level=1)).to_be_visible()
        expect(state(page)).to_have_text("Finished")
        expect(page.locator(".figure", has_text="Rows published")).to_contain_text("3,000")
        expect(page.get_by_role("img", name=re.compile("^Graph: in is a source; out reads in"))).to_be_visible()
        expect(page.get_by_role("img", name="States of 2 tasks over time")).to_be_visible()
        expect(page.get_by_role("region", name="Transitions, newest first")).to_contain_text("reports/0@")


def test_the_page_goes_on_when_the_leader_dies(browser: Browser, web: Web, scene: Scene) -> None:
    submit(web, scene, "outlives-leaders")
    with a_page(browser, web.base) as page:
        page.goto("/#/jobs/outlives-leaders")
        expect(state(page)).to_have_text("Running")
        checkpoints = page.locator("section", has=page.get_by_role("heading", name="Checkpoints")).locator("td").nth(2)

        def newest() -> int:
            said = checkpoints.text_content() or ""
            return int(said.replace(",", "")) if re.fullmatch("[0-9,]+", said) else 0

        until(newest, "a checkpoint on the page")
        takeover = scene.kill_leader()
        before = newest()
        until(lambda: newest() > before + 1, "checkpoints after the leader's death")
        expect(page.locator("#live")).to_have_text("Live")
        page.goto("/#/cluster")
        expect(page.locator(".shard")).to_contain_text(takeover.by)
        expect(page.locator(".takeover").first).to_contain_text(f"{takeover.by}, epoch {takeover.epoch}")
        expect(page.locator(".takeover").first).to_contain_text("fenced")
        shoot(page, "cluster")
    web.send("outlives-leaders", {"type": "cancel"})


def test_it_says_so_when_its_server_is_away_and_comes_back(browser: Browser, scene: Scene, tmp_path: Path) -> None:
    with a_web(scene.cluster, tmp_path) as first:
        base, port = first.base, first.base.rpartition(":")[2]
        with a_page(browser, base) as page:
            page.goto("/")
            expect(page.locator("#live")).to_have_text("Live")
            first.child.stop()
            expect(page.locator("#live")).to_have_text("Connection lost, trying again")
            with a_web(scene.cluster, tmp_path, web__port=port):
                expect(page.locator("#live")).to_have_text("Live")


def test_canceling_asks_first(browser: Browser, web: Web, scene: Scene) -> None:
    submit(web, scene, "to-be-canceled")
    with a_page(browser, web.base) as page:
        page.goto("/#/jobs/to-be-canceled")
        expect(state(page)).to_have_text("Running")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Keep as it is").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert web.get("/jobs/to-be-canceled")["job"]["state"] == "RUNNING"
        page.keyboard.press("x")
        page.get_by_label("Why, for the record").fill("it was a trial")
        page.get_by_role("button", name="Cancel the job").click()
        expect(state(page)).to_have_text("Canceled")
        expect(page.get_by_role("button", name="Restart")).to_be_enabled()
    found = web.get("/jobs/to-be-canceled")
    assert found["job"]["reason"] == "it was a trial"
    assert found["commands"][-1]["by"] == "web from 127.0.0.1"


def test_what_is_pressed_or_selected_outlives_a_redraw(browser: Browser, web: Web, scene: Scene) -> None:
    submit(web, scene, "held")
    with a_page(browser, web.base) as page:
        page.goto("/#/jobs/held")
        expect(state(page)).to_have_text("Running")
        story = page.get_by_text("The whole story")
        story.click()
        history = page.get_by_role("region", name="Transitions, newest first")
        offset = history.locator("tbody tr").first.locator("td").last
        page.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")

        def redrawn() -> None:
            before = offset.text_content() or ""
            expect(offset).not_to_have_text(before)

        redrawn()
        assert page.evaluate("getSelection().toString()") == "held"
        expect(page.locator("details", has=story)).to_have_attribute("open", "")
        history.evaluate("history => { history.scrollTop = 40; history.focus({ preventScroll: true }); }")
        button = page.get_by_role("button", name="Cancel")
        button.hover()
        page.mouse.down()
        redrawn()
        page.mouse.up()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.get_by_role("button", name="Keep as it is").click()
        redrawn()
        assert history.evaluate("history => history.scrollTop") > 0
        offsets = [int(one.replace(",", "")) for one in history.locator("tbody td:last-child").all_text_contents()]
        assert offsets == sorted(set(offsets), reverse=True), "each transition is there once, the newest first"
    web.send("held", {"type": "cancel"})


def test_an_opened_story_stays_open_when_the_job_gets_well(browser: Browser, web: Web, scene: Scene) -> None:
    submit(web, scene, "convalescent")
    seen = {"health": "UNHEALTHY"}

    def altered(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        found["job"] |= seen
        route.fulfill(response=answer, json=found)

    with a_page(browser, web.base) as page:
        page.route("**/api/v1/jobs/convalescent", altered)
        page.goto("/#/jobs/convalescent")
        page.get_by_text("The whole story").click()
        for health, title in (("HEALTHY", "In words"), ("UNHEALTHY", "What went wrong")):
            seen["health"] = health
            expect(page.get_by_role("region", name=title).locator("details")).to_have_attribute("open", "")
        page.unroute_all(behavior="ignoreErrors")
    web.send("convalescent", {"type": "cancel"})


def test_a_savepoint_and_a_restart(browser: Browser, web: Web, scene: Scene) -> None:
    submit(web, scene, "kept")
    with a_page(browser, web.base) as page:
        page.goto("/#/jobs/kept")
        expect(state(page)).to_have_text("Running")
        page.get_by_role("button", name="Savepoint").click()
        page.get_by_label("Name").fill("before-lunch")
        page.get_by_role("button", name="Take it").click()
        saved = page.locator("section", has=page.get_by_role("heading", name="Commands and savepoints"))
        expect(saved.locator("tr", has_text="before-lunch").first).to_contain_text("Kept")
        page.keyboard.press("x")
        page.get_by_role("button", name="Cancel the job").click()
        expect(state(page)).to_have_text("Canceled")
        page.get_by_role("button", name="Restart").click()
        page.get_by_label(re.compile("Savepoint")).fill("before-lunch")
        page.get_by_role("button", name="Restart", exact=True).last.click()
        expect(state(page)).to_have_text("Running")
    assert "before-lunch" in web.get("/jobs/kept")["job"]["origin"]
    web.send("kept", {"type": "cancel"})


def test_the_slider_shows_the_whole_cluster_as_it_was(browser: Browser, web: Web, scene: Scene) -> None:
    submit(web, scene, "past-and-gone")
    web.until_job("past-and-gone", "RUNNING")
    began = web.get("/jobs/past-and-gone")["job"]["startedAt"]
    until(lambda: web.get("/jobs/past-and-gone")["job"]["lastCheckpointId"], "a checkpoint")
    web.outcome(web.send("past-and-gone", {"type": "cancel"}))
    ended = web.until_job("past-and-gone", "CANCELED")["job"]["endedAt"]
    with a_page(browser, web.base) as page:
        page.goto("/#/jobs/past-and-gone")
        expect(state(page)).to_have_text("Canceled")
        slide(page, (began + ended) // 2)
        expect(page.locator("#past")).to_contain_text("As it was on")
        expect(state(page)).to_have_text("Running")
        expect(page.locator("#live")).to_have_text("Paused")
        expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
        page.get_by_role("link", name="Jobs", exact=True).first.click()
        row = page.get_by_role("link", name=re.compile("^past-and-gone, "))
        expect(row).to_contain_text("Running")
        shoot(page, "past")
        page.get_by_role("link", name="Cluster").click()
        expect(page.locator(".shard")).to_contain_text("Epoch")
        page.goto("/#/jobs/past-and-gone")
        slide(page, began - 1)
        expect(page.locator("main")).to_contain_text(re.compile("It was not there|Created|Scheduled"))
        page.get_by_role("button", name="Play from here").click()
        expect(state(page)).to_have_text("Running")
        page.get_by_role("button", name="Back to now").click()
        expect(state(page)).to_have_text("Canceled")
        expect(page.locator("#live")).to_have_text("Live")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#past")).to_be_visible()
        page.keyboard.press("n")
        expect(page.locator("#past")).to_be_hidden()


def slide(page: Page, at: int) -> None:
    """To a moment, as a hand would: the slider's input."""
    slider = page.get_by_role("slider", name="Moment of the log")
    expect(page.locator("#dock .bars rect").first).to_be_attached()
    slider.evaluate("(slider, at) => slider.dispatchEvent(new CustomEvent('goto', { detail: at }))", at)


def test_keys(browser: Browser, web: Web, scene: Scene) -> None:
    submit(web, scene, "by-key", 10)
    with a_page(browser, web.base, color_scheme="light") as page:
        page.goto("/")
        expect(page.get_by_role("link", name=re.compile("^by-key, "))).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("by-key")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name=re.compile("^by-key, "))).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="by-key", level=1)).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("c")
        expect(page.get_by_role("heading", name="Cluster", level=1)).to_be_visible()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("Search jobs")
        page.keyboard.press("Escape")
        page.keyboard.press("t")
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        page.reload()
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark", "it is remembered"
        page.keyboard.press("Tab")
        focused = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(focused) == "solid", "where the focus is can be seen"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_and_names_what_can_be_pressed(
    browser: Browser, web: Web, scene: Scene, theme: str, width: int
) -> None:
    name = f"fits-{theme}-{width}"
    submit(web, scene, name, 4000)
    with a_page(browser, web.base, width=width, color_scheme=theme) as page:
        for number, (path, there) in enumerate({"/": "Jobs", f"/#/jobs/{name}": name, "/#/cluster": "Cluster"}.items()):
            page.goto(path)
            expect(page.get_by_role("heading", name=there, level=1)).to_be_visible()
            expect(page.locator("main .card").first).to_be_visible()
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{path} is {wide} wide"
            assert page.evaluate(UNNAMED) == [], path
            shoot(page, f"{theme}-{width}-{number}")
    web.send(name, {"type": "cancel"})


# What can be pressed or filled and has no name that a screen reader could say.
UNNAMED = """() => [...document.querySelectorAll('button, a[href], input, select, [role=img]')]
    .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)"""


def test_ten_thousand_jobs_are_a_list_of_what_is_in_sight(browser: Browser, web: Web, scene: Scene) -> None:
    submit(web, scene, "pattern", 1)
    (line,) = web.get("/jobs", search="pattern")["items"]

    def many(route: Route) -> None:
        asked = parse_qs(urlsplit(route.request.url).query)
        start, limit = int(asked["start"][0]), int(asked["limit"][0])
        items = [line | {"id": f"job-{number:05d}"} for number in range(start, min(10_000, start + limit))]
        page_of = {"items": items, "total": 10_000, "start": start, "counts": {"RUNNING": 10_000}}
        route.fulfill(content_type="application/json", body=json.dumps(page_of))

    with a_page(browser, web.base) as page:
        page.route("**/api/v1/jobs?*", many)
        page.goto("/")
        expect(page.get_by_role("link", name=re.compile("^job-00000, "))).to_be_visible()
        assert page.locator(".row").count() < 60
        page.locator(".viewport").evaluate("element => { element.scrollTop = element.scrollHeight }")
        expect(page.get_by_role("link", name=re.compile("^job-09999, "))).to_be_visible()
        assert page.locator(".row").count() < 60


def test_a_token_is_asked_for_and_who_may_only_look_can_not_press(
    browser: Browser, scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "read").write_text("read-only-0123456789abcdef")
    (tmp_path / "operate").write_text("operate-0123456789abcdef")
    tokens = {"web__token_file": tmp_path / "operate", "web__read_token_file": tmp_path / "read"}
    with a_web(scene.cluster, tmp_path, **tokens) as web, a_page(browser, web.base) as page:
        submit(web, scene, "watched")
        page.goto("/#/jobs/watched")
        page.get_by_role("textbox", name="Token").fill("read-only-0123456789abcdef")
        page.get_by_role("button", name="Go on").click()
        expect(state(page)).to_have_text("Running")
        expect(page.locator("#live")).to_have_text("Live")
        expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
        page.evaluate("sessionStorage.setItem('detent-token', 'operate-0123456789abcdef')")
        page.reload()
        expect(page.get_by_role("button", name="Cancel")).to_be_enabled()
        web.send("watched", {"type": "cancel"})


def test_nothing_that_a_user_wrote_is_markup(browser: Browser, web: Web, scene: Scene) -> None:
    nasty = "<img src=x onerror=alert(1)><b>bold</b>"
    submit(web, scene, nasty.replace("/", ""), 1)
    with a_page(browser, web.base) as page:
        page.goto("/")
        expect(page.locator(".row", has_text="<img src=x").first).to_be_visible()
        page.locator(".row", has_text="<img src=x").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x")
        assert page.locator("main img, main b b").count() == 0


def test_the_process_ends_in_good_order_with_views_open(browser: Browser, scene: Scene, tmp_path: Path) -> None:
    with a_web(scene.cluster, tmp_path) as web, a_page(browser, web.base) as page:
        page.goto("/")
        expect(page.locator("#live")).to_have_text("Live")
        child: Child = web.child
        assert child.stop() == 0
        assert "Traceback" not in child.said()
