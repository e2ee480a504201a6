"""The form of a new job, and stacks on demand, in Chromium."""

from __future__ import annotations

import re

import pytest
import yaml

from allranks.core.facts.stack_requests import ANNOTATION
from browser.helpers import JOB, WAIT_MS, answer_with_stacks, expect, see
from support.live import eventually

pytestmark = pytest.mark.nightly

NEW = "/new?namespace=team"


def manifest(page) -> dict:
    return yaml.safe_load(page.input_value("#manifest"))


def field(page, path: str):
    return page.locator(f"[name='field:spec.{path}']")


def test_fields_and_manifest_are_in_step_and_checked_as_one_types(open_page, api):
    page = open_page(NEW)
    field(page, "roles.worker.replicas").fill("-3")
    expect(page.locator("#manifest")).to_have_value(re.compile("replicas: -3"), timeout=WAIT_MS)
    see(page, "spec.roles.worker.replicas: ", "#verdict")
    expect(field(page, "roles.worker.replicas")).to_have_attribute("aria-invalid", "true")
    field(page, "roles.worker.replicas").fill("3")
    see(page, "The manifest has no mistakes", "#verdict")
    assert manifest(page)["spec"]["roles"]["worker"]["replicas"] == 3
    page.fill("#manifest", page.input_value("#manifest").replace("replicas: 3", "replicas: 5  # five"))
    expect(field(page, "roles.worker.replicas")).to_have_value("5", timeout=WAIT_MS)
    assert "# five" in page.input_value("#manifest")
    assert "my-job" not in api.jobs


def test_a_job_is_made_with_fields_alone_also_typed_quickly(open_page, api):
    page = open_page(NEW)
    page.fill("[name='field:metadata.name']", "otters")
    field(page, "framework").select_option("jax")
    field(page, "image").fill("me/otters:2")
    field(page, "command").fill("python\ntrain.py")
    page.click("summary:text-is('restart')")
    field(page, "restart.maxRestarts").fill("7")
    expect(page.locator("#manifest")).to_have_value(re.compile("maxRestarts: 7"), timeout=WAIT_MS)
    found = manifest(page)
    assert found["metadata"]["name"] == "otters"
    assert (found["spec"]["framework"], found["spec"]["image"]) == ("jax", "me/otters:2")
    assert (found["spec"]["command"], found["spec"]["restart"]) == (["python", "train.py"], {"maxRestarts": 7})
    expect(field(page, "restart.maxRestarts")).to_be_visible()  # what was opened stays open
    page.click("summary:text-is('jax')")  # its options have come
    field(page, "restart.backoffSeconds").fill("4")
    page.click("button:has-text('Create')")  # before the manifest has it
    expect(page).to_have_url(re.compile("/jobs/team/otters$"))
    assert api.jobs["otters"]["spec"]["restart"] == {"maxRestarts": 7, "backoffSeconds": 4}


def test_a_manifest_that_is_not_yaml_keeps_the_fields(open_page):
    page = open_page(NEW)
    text = page.input_value("#manifest")
    page.fill("#manifest", f"{text}a: b: c")
    see(page, "this is not YAML", "#verdict")
    expect(field(page, "framework")).to_have_value("pytorch")
    page.fill("#manifest", text)
    see(page, "The manifest has no mistakes", "#verdict")


def test_the_form_says_when_the_server_does_not_answer(open_page, server):
    page = open_page(NEW, lost=True)
    server.stop()
    field(page, "image").fill("me/other:1")
    see(page, "The fields and the manifest are not in step", "#connection")
    server.start()
    field(page, "image").fill("me/other:2")
    expect(page.locator("#manifest")).to_have_value(re.compile("image: me/other:2"), timeout=WAIT_MS)
    expect(page.locator("#connection")).to_be_hidden()


def test_the_form_works_with_the_keyboard(open_page):
    page = open_page(NEW)
    field(page, "framework").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#manifest")).to_have_value(re.compile("framework: tensorflow"), timeout=WAIT_MS)
    assert page.evaluate("document.activeElement.name") == "field:spec.framework"


def test_ranks_are_asked_for_their_stacks_and_answers_appear(open_page, api):
    page = open_page(JOB)
    page.click("nav.tabs >> text=Stacks")
    see(page, "The program continues.")
    page.click("button:has-text('Ask the ranks')")
    see(page, "waiting for 3 ranks")
    request = api.jobs["penguins"]["metadata"]["annotations"][ANNOTATION]
    answer_with_stacks(api, request)
    see(page, "3 processes have answered")  # without a click
    see(page, "line 40 in load_batch", "section.stacks >> nth=2")
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
