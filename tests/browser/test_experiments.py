"""The list of jobs as a table of experiments, rows that are selected to be compared, and the files of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from browser.helpers import WAIT_MS, expect, see
from support.chromium import DESK, PHONE, findings
from support.ui_samples import a_job

pytestmark = pytest.mark.nightly

TABLET = {"width": 820, "height": 1180}
RUN = "/runs/hello/20260304-101500"
# The smallest PNG: a pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c626001000000ffff03000006000557"
    "bfabd40000000049454e44ae426082"
)


def names(page) -> list[str]:
    return page.locator("section:has(h1) tbody th a").all_inner_texts()


def test_jobs_are_sorted_by_a_metric_and_chosen_by_a_parameter(open_page):
    page = open_page("/")
    head = page.locator("section:has(h1) thead")
    head.get_by_role("link", name="lr", exact=True).click()
    expect(head.locator("th[aria-sort=ascending]")).to_have_text("lr ↑")
    page.wait_for_url(re.compile("sort=param"))
    assert names(page) == ["penguins", "digits", "translate", "vision"], "vision has no such parameter"
    page.fill("input[name=where]", "lr<0.1, batch-size=64")
    page.click("button:text-is('Filter')")
    page.wait_for_url(re.compile("where="))
    assert names(page) == ["penguins"]
    page.click("summary:text-is('Columns')")
    page.check("input[name=column][value='metric:accuracy']")
    page.click("button:text-is('Filter')")
    page.wait_for_url(re.compile("column="))
    assert page.locator("section:has(h1) thead th.value").all_inner_texts() == ["accuracy", "lr ↑"]


def test_selected_rows_stay_selected_while_the_list_changes_and_are_compared(open_page, api):
    page = open_page("/")
    for name in ("penguins", "translate"):
        page.check(f"input[aria-label='Select team/{name}']")
    api.put(a_job("newcomer", "Running"))
    page.wait_for_selector("tr:has-text('newcomer')", timeout=WAIT_MS)
    selected = page.locator("input[name=job]:checked")
    assert sorted(box.get_attribute("value") for box in selected.all()) == ["jobs/team/penguins", "jobs/team/translate"]
    page.click("button:text-is('Compare the selected')")
    see(page, "Parameters and metrics side by side")
    cells = page.locator(
        "section:has(h2:text-is('Parameters and metrics side by side')) tr:has-text('lr') >> css=th, td"
    )
    assert cells.all_inner_texts()[:3] == ["lr", "0.01", "0.1"]
    expect(page.locator("#curves .chart").first).to_be_visible(timeout=WAIT_MS)


@pytest.mark.parametrize("viewport", [DESK, TABLET, PHONE], ids=["desk", "tablet", "phone"])
def test_the_menu_is_one_row_and_everything_in_it_is_in_view(open_page, viewport):
    for path in ("/", f"{RUN}/files"):
        page = open_page(path, viewport=viewport)
        links = [link.bounding_box() for link in page.locator("nav.top a:visible").all()]
        assert len({box["y"] for box in links}) == 1
        assert max(box["x"] + box["width"] for box in links) <= viewport["width"]
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert findings(page) == []


def test_the_files_of_a_run_are_looked_at_and_downloaded(open_page, runs: Path):
    folder = runs / "hello" / "20260304-101500"
    (folder / "loss.png").write_bytes(PNG)
    (folder / "page.html").write_text("<script>document.title = 'run'</script>")
    page = open_page(RUN)
    page.click("nav.tabs >> text=Files")
    page.wait_for_function("() => document.querySelector('img')?.naturalWidth === 1")
    with page.expect_download() as begun:
        page.click("a:text-is('page.html')")
    assert Path(begun.value.path()).read_text() == (folder / "page.html").read_text()
    page.click("a:text-is('logs/')")
    with page.expect_download() as begun:
        page.click("a:text-is('hello-worker-1-0.log')")
    assert begun.value.suggested_filename == "hello-worker-1-0.log"
    assert b"ValueError: bad" in Path(begun.value.path()).read_bytes()
