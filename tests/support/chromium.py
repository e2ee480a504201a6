"""The Chromium of the distribution, headless, with the pages of `allranks ui`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.ui_server import TOKEN

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IMAGES = Path(os.environ["SCREENSHOTS"]).resolve() if "SCREENSHOTS" in os.environ else None
"""A folder for the pictures of the documentation: SCREENSHOTS=docs/guides/images."""
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
REBOUND = "rebound.example"
"""A name of another site that leads to this machine."""
SHORT = frozenset({"queues", "suspend", "nodes", "sweeps", "history"})
"""Pages that do not fill the screen."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser. Skips the test without one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    # Chromium's own sandbox needs user namespaces, which root in a container may not have.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    arguments.append(f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield running
        running.close()


@contextmanager
def opened_pages(browser: Any, url: str) -> Iterator[Callable[..., Any]]:
    """Opens a page in a new context that has the cookie. At the end nothing was blocked and no script has failed.

    `lost`: the browser may report errors.
    """
    contexts, problems = [], []

    def noted(message: Any) -> None:
        if message.type == "error":
            problems.append(f"{message.text} {message.location}")

    def opened(path: str = "/", *, lost: bool = False, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        if not lost:
            page.on("console", noted)
        page.goto(f"{url}/?token={TOKEN}")
        page.wait_for_selector("#content")
        page.goto(f"{url}{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def findings(page: Any) -> list[str]:
    """What axe-core finds, as `rule: element`."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found for node in rule["nodes"]]


def take_picture(page: Any, view: str) -> None:
    """Writes the picture of a view for the documentation, if pictures are wanted."""
    if IMAGES:
        IMAGES.mkdir(parents=True, exist_ok=True)
        page.evaluate("document.activeElement.blur()")
        (page.locator("body") if view in SHORT else page).screenshot(path=str(IMAGES / f"ui-{view}.png"))
