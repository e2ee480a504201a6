"""The page of a new job, and stacks on demand, in Chromium."""

from __future__ import annotations

import re

import pytest

from allranks.core.facts.rank_reports import STACKS_ANNOTATION
from browser.helpers import JOB, answer_with_stacks, expect, see
from support.live import eventually

pytestmark = pytest.mark.nightly

NEW = "/new?namespace=team"


MANIFEST, PROBLEMS = "#manifest", "#problems"


def type_instead(page, before: str, after: str) -> None:
    page.fill(MANIFEST, page.input_value(MANIFEST).replace(before, after))


def test_mistakes_are_shown_with_their_lines_while_somebody_types(open_page, api):
    page = open_page(NEW)
    see(page, "The manifest has no mistakes", PROBLEMS)
    type_instead(page, "replicas: 2", "replicas: two")
    see(page, "spec.roles.worker.replicas: must be a whole number", PROBLEMS)
    page.click(f"{PROBLEMS} a")
    selected = "(({value, selectionStart, selectionEnd}) => value.slice(selectionStart, selectionEnd))"
    line = page.evaluate(f"{selected}(document.activeElement)")
    assert line == "      replicas: two  # pods"
    type_instead(page, "replicas: two", "a: b: c")
    see(page, "the text is not YAML", PROBLEMS)
    type_instead(page, "a: b: c", "replicas: 2")
    see(page, "The manifest has no mistakes", PROBLEMS)
    assert "train" not in api.jobs


def test_a_job_is_made_from_a_template_also_typed_quickly(open_page, api):
    page = open_page(NEW)
    page.click("nav.templates >> text=jax")
    expect(page.locator(MANIFEST)).to_have_value(re.compile("framework: jax"))
    type_instead(page, "name: train", "name: otters")
    page.click("button:has-text('Check on the cluster')")
    see(page, "otters can be created in namespace team", PROBLEMS)
    type_instead(page, "maxRestarts: 3", "maxRestarts: 7")
    page.click("button:has-text('Create')")  # before the check has begun
    expect(page).to_have_url(re.compile("/jobs/team/otters$"))
    assert api.jobs["otters"]["spec"]["restart"] == {"maxRestarts": 7}


def test_a_new_job_is_made_without_a_script(open_page, api):
    page = open_page(NEW, java_script_enabled=False, lost=True)
    type_instead(page, "replicas: 2", "replicas: two")
    page.click("button:has-text('Create')")
    see(page, "spec.roles.worker.replicas: must be a whole number", PROBLEMS)
    type_instead(page, "replicas: two", "replicas: 4")
    page.click("button:has-text('Create')")
    expect(page).to_have_url(re.compile("/jobs/team/train$"))
    assert api.jobs["train"]["spec"]["roles"]["worker"]["replicas"] == 4


def test_the_page_says_when_the_server_does_not_answer_and_keeps_the_text(open_page, server):
    page = open_page(NEW, lost=True)
    server.stop()
    type_instead(page, "train:dev", "me/other:1")
    see(page, "The manifest is not checked", "#connection")
    server.start()
    type_instead(page, "me/other:1", "me/other:2")
    expect(page.locator("#connection")).to_be_hidden()
    assert "image: me/other:2" in page.input_value(MANIFEST)


def test_the_page_asks_before_typed_text_is_left(open_page):
    page = open_page(NEW)
    questions = []
    page.on("dialog", lambda dialog: (questions.append(dialog.type), dialog.dismiss()))
    page.click(MANIFEST)
    page.keyboard.type("# mine")
    page.click("nav.templates >> text=jax", no_wait_after=True)
    assert eventually(lambda: page.evaluate("1") and questions == ["beforeunload"])
    assert "# mine" in page.input_value(MANIFEST)


def test_ranks_are_asked_for_their_stacks_and_answers_appear(open_page, api):
    page = open_page(JOB)
    page.click("nav.tabs >> text=Stacks")
    see(page, "The program continues.")
    page.click("button:has-text('Ask the ranks')")
    see(page, "waiting for 3 ranks")
    request = api.jobs["penguins"]["metadata"]["annotations"][STACKS_ANNOTATION]
    answer_with_stacks(api, request)
    see(page, "3 processes have answered")  # without a click
    see(page, "line 40 in load_batch", "section.stacks >> nth=1")  # ranks 0 and 1 share a section
    expect(page.locator("#live")).not_to_have_attribute("data-refresh", re.compile(".*"))


def test_a_user_without_rights_cannot_ask_for_stacks_and_reads_why(open_page, api):
    page = open_page(f"{JOB}/stacks", lost=True)
    api.forbidden = {"distributedtrainings"}
    page.click("button:has-text('Ask the ranks')")
    see(page, "me may not patch distributedtrainings in namespace team: ask an admin")


def test_stacks_of_ranks_that_do_not_report_say_so(open_page, api):
    job = api.jobs["penguins"]
    api.put({**job, "status": {key: value for key, value in job["status"].items() if key != "progress"}})
    page = open_page(f"{JOB}/stacks")
    assert eventually(lambda: "the ranks do not report, so they cannot be asked" in page.inner_text("main"))
    assert page.locator("button:has-text('Ask the ranks')").count() == 0
