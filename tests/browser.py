"""Chromium for tests of the web page: the one that is installed, without a display."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


def chromium() -> str:
    """Where it is. Skips the test where there is none; fails where there must be one."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        missing = "there is no chromium to show the page; install it (Debian: apt-get install chromium)"
        if os.environ.get("CI") or os.environ.get("DETENT_REQUIRE_CHROMIUM"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@contextmanager
def a_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def a_page(browser: Browser, base: str, *, width: int = 1280, height: int = 860, **options: Any) -> Iterator[Page]:
    """A page with a profile of its own. At its end: it asked nobody but its server, and nothing went wrong in it."""
    context = browser.new_context(base_url=base, viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(30_000)
    page = context.new_page()
    strange, wrong = list[str](), list[str]()
    page.on("request", lambda request: strange.append(request.url) if _is_foreign(request.url, base) else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" and _matters(said.text) else None)
    try:
        yield page
        assert not strange, f"the page asked others: {strange}"
        assert not wrong, f"in the page: {wrong}"
    finally:
        context.close()


def _is_foreign(url: str, base: str) -> bool:
    return not url.startswith("data:") and urlsplit(url).netloc != urlsplit(base).netloc


def _matters(text: str) -> bool:
    """A server that is away, or that refuses, is the browser's error too; tests look at what the page makes of it."""
    return "Failed to load resource" not in text and "net::ERR" not in text
