"""The pages of `allranks ui` in Chromium: each view, each action, restarts, lost connections, accessibility."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urljoin

import pytest

from browser.helpers import JOB, WAIT_MS, answer_with_stacks, expect, see, serve_a_sweep
from support.chromium import DESK, PHONE, findings, take_picture
from support.live import eventually
from support.ui_samples import (
    HOSTILE,
    a_job,
    a_run,
    condition,
    event,
    failure,
    pods_of,
    progress,
    serve_queues,
    stamp,
)
from support.ui_server import TOKEN, UiServer
from unit.ui.test_views import NODES

pytestmark = pytest.mark.nightly

VIEWS = {
    "jobs": "/",
    "job": JOB,
    "failed-job": "/jobs/team/translate",
    "logs": f"{JOB}/logs",
    "events": f"{JOB}/events",
    "manifest": f"{JOB}/manifest",
    "suspend": f"{JOB}/actions/suspend",
    "scale": f"{JOB}/actions/scale",
    "delete": f"{JOB}/actions/delete",
    "queues": "/queues",
    "stacks": f"{JOB}/stacks",
    "new": "/new?namespace=team&from=translate",
    "sweeps": "/sweeps",
    "sweep": "/sweeps/runs/search/20260304-100000",
    "sweep-of-cluster": "/sweeps/jobs/team/herd",
    "nodes": "/nodes",
    "history": "/history?by=week&runs=true",
    "compare": "/compare?job=jobs/team/penguins&job=jobs/team/translate&job=runs/hello/20260304-101500",
    "run": "/runs/hello",
    "chosen-columns": "/?column=param:lr&column=metric:loss&sort=-metric:loss&where=lr%3C1",
    "files": "/runs/hello/20260304-101500/files",
    "run-logs": "/runs/hello/20260304-101500/logs",
    "problem": "/jobs/team/nothing",
}
SHOWN = dict.fromkeys(
    (
        *("jobs", "failed-job", "logs", "stacks", "suspend", "queues"),
        *("new", "nodes", "history", "compare", "sweep"),
    ),
    "light",
) | {"job": "dark"}
"""The views in the documentation, and their colours."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_accessible_and_fits_on_a_desk_and_on_a_phone(open_page, api, view, scheme):
    serve_queues(api, "vision")
    api.queues["/api/v1/nodes"] = {"items": NODES}
    if view in ("sweeps", "sweep-of-cluster"):
        serve_a_sweep(api)
    if view == "stacks":
        answer_with_stacks(api)
    for viewport in (DESK, PHONE):
        lost = view == "problem"  # Chromium reports the status 404 as an error
        page = open_page(VIEWS[view], viewport=viewport, color_scheme=scheme, lost=lost)
        page.wait_for_load_state("load")
        assert findings(page) == []
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"], f"{view} is {width} pixels wide"
        if viewport is DESK and SHOWN.get(view) == scheme:
            take_picture(page, view)


def test_a_stranger_finds_out_why_a_job_failed_in_three_clicks(open_page, api):
    api.jobs["translate"]["status"]["attempt"] = 0
    api.pods += pods_of(api.jobs["translate"])
    api.logs["translate-worker-2-0"] = [f"{stamp(700)[:19]}.000000000Z the whole log of rank 2\n".encode()]
    page = open_page("/")
    clicks = []
    page.expose_function("clicked", lambda text: clicks.append(text))
    page.add_init_script("addEventListener('click', (event) => clicked(event.target.textContent), true)")
    page.reload()
    page.click("nav.top >> text=Jobs")  # 1: all jobs, from wherever one is
    page.click("tr:has-text('Failed') >> th a")  # 2: which rank, where, how, and its last lines
    see(page, "First failure: worker-2 (rank 2) in attempt 0")
    see(page, "on node node-7", "section.failure")
    see(page, "torch.OutOfMemoryError: CUDA out of memory.", "section.failure")
    page.click("text=Log of this rank")  # 3: everything that it wrote
    expect(page).to_have_url(re.compile(r"/logs\?replica=worker-2&attempt=0"))
    see(page, "the whole log of rank 2", "#log")
    assert [text.strip() for text in clicks] == ["Jobs", "translate", "Log of this rank"]


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_the_last_line_of_the_first_failure_is_in_view(open_page, api, viewport):
    lines = [*(f"step {step}" for step in range(60)), "ValueError: the reason"]
    api.jobs["translate"]["status"]["lastFailure"]["message"] = "\n".join(lines)
    page = open_page("/jobs/team/translate", viewport=viewport)
    see(page, "ValueError: the reason", "section.failure pre")
    below = """pre => {
        const text = document.createRange();
        text.selectNodeContents(pre);
        return text.getBoundingClientRect().bottom - pre.getBoundingClientRect().bottom;
    }"""
    box = page.locator("section.failure pre")
    assert box.evaluate(below) <= 0
    assert box.evaluate("pre => pre.scrollHeight > pre.clientHeight")
    box.focus()
    page.keyboard.press("Home")  # and the first ones are within reach
    page.wait_for_function("pre => Math.abs(pre.scrollTop) > 100", arg=box.element_handle())


def test_the_page_of_a_job_has_its_data_and_follows_an_upload(open_page, api):
    page = open_page(JOB)
    cells = page.locator("section:has(h2:text-is('Inputs')) tr:has-text('birds') >> css=th, td")
    shown = ["birds", "Ready, from the cache", "3.0 GiB", "5e1c5e1c5e1c", "s3://birds/penguins"]
    assert cells.all_inner_texts() == shown
    outputs = "section:has(h2:text-is('Outputs')) tr:has-text('checkpoints') td >> nth=2"
    see(page, "step 500 is uploaded, step 1000 follows", outputs)
    job = api.jobs["penguins"]
    model, steps = job["status"]["outputs"]
    done = {**steps, "state": "Uploaded", "uploadedStep": 1000}
    api.put({**job, "status": {**job["status"], "outputs": [model, done]}})
    expect(page.locator(outputs)).to_have_text("step 1000 is uploaded", timeout=WAIT_MS)
    page = open_page("/jobs/team/translate")
    see(page, "First failure")
    assert page.locator("h2:text-is('Inputs'), h2:text-is('Outputs')").count() == 0


def test_filters_are_in_the_address(open_page):
    page = open_page("/")
    page.select_option("select[name=phase]", "Failed")
    page.click("text=Filter")
    expect(page).to_have_url(re.compile("phase=Failed"))
    expect(page.locator("table.jobs").first.locator("tbody tr")).to_have_count(1)
    page.go_back()
    expect(page.locator("table.jobs").first.locator("tbody tr")).to_have_count(4)


def test_everything_is_reached_with_the_keyboard(open_page):
    page = open_page("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "penguins":
            break
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/jobs/team/penguins$"))
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Suspend":
            break
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/actions/suspend$"))
    see(page, "The work since the last checkpoint of step 1000")


def test_a_job_that_restarts_is_shown_while_one_looks(open_page, api):
    page = open_page(JOB)
    see(page, "Running", "h1")
    page.click("summary >> nth=0")  # a table that was opened stays open
    job = api.jobs["penguins"]
    status = {**job["status"], "phase": "Restarting", "lastFailure": failure(0, 1, "RuntimeError: NCCL error")}
    api.put({**job, "status": status})
    see(page, "Restarting", "h1")
    see(page, "RuntimeError: NCCL error", "section.failure")
    api.pods = pods_of(job, attempt=2)
    api.put({**job, "status": {**status, "phase": "Running", "attempt": 2, "progress": progress(1300, attempt=2)}})
    see(page, "1300/5000")
    expect(page).to_have_title(re.compile("penguins: Running"))
    assert page.evaluate("document.querySelector('details').open") is True


def test_jobs_appear_and_disappear_in_the_list(open_page, api):
    page = open_page("/")
    api.put(a_job("new-job", "Pending"))
    see(page, "new-job")
    api.delete("new-job")
    expect(page.locator("text=new-job")).to_have_count(0, timeout=WAIT_MS)


def test_after_a_lost_connection_the_page_says_so_and_is_current_again(open_page, server, api):
    page = open_page("/", lost=True)
    see(page, "penguins")
    server.stop()
    see(page, "The connection to allranks ui is lost", "#connection")
    see(page, "penguins")
    api.put(a_job("meanwhile", "Running"))
    server.start()
    see(page, "meanwhile")
    expect(page.locator("#connection")).to_be_hidden(timeout=WAIT_MS)


def test_a_page_of_a_server_that_ended_says_what_to_do(open_page, server):
    page = open_page("/", lost=True)
    see(page, "penguins")
    page.context.clear_cookies()  # as after a start with another token
    server.stop()
    see(page, "The connection to allranks ui is lost", "#connection")
    server.start()
    see(page, "This page belongs to a server that has ended", "#connection")


def test_logs_follow_the_ranks_and_are_searched(open_page, api):
    page = open_page(f"{JOB}/logs?replica=worker-0")
    see(page, "epoch 3 step 39", "#log")
    api.logs["penguins-worker-0-1"].append(b"2100-01-01T00:00:00.000000000Z <b>bold</b> step 40\n")
    see(page, "<b>bold</b> step 40", "#log")
    assert page.locator("#log b:text-is('bold')").count() == 0
    assert page.evaluate("log.scrollHeight - log.scrollTop - log.clientHeight") < 40
    page.fill("input[name=search]", "step 7 ")
    page.press("input[name=search]", "Enter")
    expect(page.locator("#log > div")).to_have_count(1)
    see(page, "epoch 3 step 7 loss", "#log")
    page.select_option("select[name=attempt]", "0")
    page.click("text=Show")
    see(page, "the pods of attempt 0 are deleted, and their logs with them")


def test_logs_return_after_a_lost_connection(open_page, server, api):
    page = open_page(f"{JOB}/logs?replica=worker-0", lost=True)
    see(page, "epoch 3 step 39", "#log")
    server.stop()
    see(page, "The connection to allranks ui is lost", "#connection")
    api.logs["penguins-worker-0-1"].append(b"2100-01-01T00:00:00.000000000Z while away\n")
    server.start()
    see(page, "while away", "#log")
    api.logs["penguins-worker-0-1"].append(b"2100-01-01T00:00:01.000000000Z after the return\n")
    see(page, "after the return", "#log")
    assert page.locator("#log >> text=while away").count() == 1


def test_suspend_says_what_it_does_and_cancel_does_nothing(open_page, api):
    page = open_page(JOB)
    page.click(".actions >> text=Suspend")
    see(page, "The operator deletes its 3 pods")
    page.click("text=Cancel")
    expect(page).to_have_url(re.compile("penguins$"))
    assert not api.jobs["penguins"]["spec"].get("suspend")
    page.click(".actions >> text=Suspend")
    page.click("button:has-text('Suspend penguins')")
    expect(page).to_have_url(re.compile("penguins$"))
    assert api.jobs["penguins"]["spec"]["suspend"] is True
    page.click(".actions >> text=Resume")
    page.click("button:has-text('Resume penguins')")
    expect(page).to_have_url(re.compile("penguins$"))
    assert api.jobs["penguins"]["spec"]["suspend"] is False


def test_scale_asks_for_the_number_of_workers(open_page, api):
    page = open_page(f"{JOB}/actions/scale")
    see(page, "all ranks restart at the new size")
    page.fill("input[name=replicas]", "5")
    page.click("button:has-text('Scale penguins')")
    expect(page).to_have_url(re.compile("penguins$"))
    assert api.jobs["penguins"]["spec"]["roles"]["worker"]["replicas"] == 5


def test_a_failed_job_runs_again_with_a_change_after_mistakes_are_shown(open_page, api):
    page = open_page("/jobs/team/translate", lost=True)  # Chromium reports the status 422 as an error
    page.click("text=Run again")
    see(page, "The manifest is that of translate, with a new name")
    text = page.input_value("#manifest")
    page.fill("#manifest", text.replace("replicas: ", "replicas: -"))
    with page.expect_navigation():  # the verdict while one types is the same
        page.click("button:has-text('Create')")
    see(page, "spec.roles.worker.replicas: ")
    page.fill("#manifest", text)
    with page.expect_navigation():
        page.click("button:has-text('Check')")
    see(page, "translate-2 can be created in namespace team")
    page.click("button:has-text('Create')")
    expect(page).to_have_url(re.compile("/jobs/team/translate-2$"))
    assert api.jobs["translate-2"]["spec"] == api.jobs["translate"]["spec"]


def test_delete_leads_to_the_list(open_page, api):
    page = open_page(f"{JOB}/actions/delete")
    page.click("button:has-text('Delete penguins')")
    expect(page).to_have_url(re.compile("/$"))
    assert "penguins" not in api.jobs
    expect(page.locator("text=penguins")).to_have_count(0, timeout=WAIT_MS)


def test_a_user_without_rights_sees_a_sentence(open_page, api):
    page = open_page(f"{JOB}/actions/delete", lost=True)
    api.forbidden = {"distributedtrainings"}
    page.click("button:has-text('Delete penguins')")
    see(page, "me may not delete distributedtrainings in namespace team: ask an admin")
    assert "penguins" in api.jobs


def test_hostile_content_runs_no_script(open_page, api):
    job = api.jobs["penguins"]
    hostile = {**job["status"], "lastFailure": failure(message=HOSTILE), "progress": progress(5) | {"summary": HOSTILE}}
    hostile["conditions"] = [condition("Running", HOSTILE, HOSTILE)]
    line = f"{stamp(5)[:19]}.000000000Z {HOSTILE}\n".encode()
    api.logs["penguins-worker-0-1"] = [line]
    api.events.append(event("penguins", HOSTILE, HOSTILE, HOSTILE, "Warning", uid="uid-penguins"))
    labels = {"team": HOSTILE, HOSTILE: HOSTILE}
    api.put({**job, "metadata": {**job["metadata"], "labels": labels}})
    api.put(a_job(HOSTILE, "Failed", lastFailure=failure(message=HOSTILE) | {"node": HOSTILE, "reason": HOSTILE}))
    page = open_page(JOB)
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    api.put({**job, "status": hostile, "metadata": {**job["metadata"], "labels": labels}})
    see(page, "<script>alert(1)</script>", "section.failure")
    for path in ("/", f"{JOB}/events", f"{JOB}/manifest", "/history?by=team", "/nodes", "/compare", f"{JOB}/logs"):
        page.goto(absolute(page, path))
        see(page, "<script>alert(1)</script>")
        assert page.locator("main img, main script").count() == 0, path
    page.goto(absolute(page, f"{JOB}/logs?replica=worker-0"))
    see(page, "<script>alert(1)</script>", "#log")
    api.logs["penguins-worker-0-1"].append(f"2100-01-01T00:00:00.000000000Z new {HOSTILE}\n".encode())
    see(page, "new <script>alert(1)</script>", "#log")
    assert page.locator("main img, main script").count() == 0
    assert dialogs == []


def absolute(page, path: str) -> str:
    return urljoin(page.url, path)


def test_a_page_of_another_site_can_neither_act_nor_show_the_pages(open_page, server, api, browser, tmp_path):
    page = open_page("/")
    form = f'<form method="post" action="{server.site}{JOB}/actions/delete"><button>Win</button></form>'
    frame = f'<iframe src="{server.site}/"></iframe>'
    other = page.context.new_page()
    other.route("http://evil.example/", lambda route: route.fulfill(body=form + frame, content_type="text/html"))
    other.goto("http://evil.example/")
    assert eventually(lambda: len(other.frames) == 2)
    assert "penguins" not in (other.frames[1].content())
    other.click("text=Win")
    other.wait_for_load_state("load")
    assert "allranks" in other.content()
    assert "penguins" in api.jobs


def test_the_report_opens_as_a_page(open_page):
    page = open_page(JOB)
    page.click(".actions >> text=Report")
    see(page, "penguins", "h1")
    see(page, "Where the time went")


def test_the_run_that_fails_is_shown_without_a_cluster(browser, tmp_path, runs):
    with UiServer(tmp_path / "none", runs) as server:
        page = browser.new_page()
        page.goto(f"{server.site}/runs/hello?token={TOKEN}")
        see(page, "First failure: worker-1")
        page.click("nav.tabs >> text=Logs")
        see(page, "ValueError: bad", "#log")
        page.close()


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_a_run_whose_process_was_killed_says_so_and_how_long_it_has_run(browser, tmp_path, viewport):
    times = {"category": "Productive", "productive": 60.0, "since": stamp(3400), "measured": True}
    a_run(tmp_path, "quiet", "20260304-103000", "Running", times=times, conditions=[])
    with UiServer(tmp_path / "none", tmp_path) as server:
        page = browser.new_page(viewport=viewport)
        page.goto(f"{server.site}/runs/quiet?token={TOKEN}")
        see(page, "quiet was interrupted after 3:20: all its processes have ended")
        see(page, "Interrupted", "h1")
        assert findings(page) == []
        page.click("nav.top >> text=Jobs")
        expect(page.locator("tr:has-text('Interrupted') td >> nth=2")).to_have_text("3:10")
        page.close()


def test_jobs_are_chosen_for_a_comparison_with_the_keyboard_and_the_mouse(open_page):
    page = open_page("/compare")
    page.check("input[value='jobs/team/penguins']")
    page.focus("input[value='jobs/team/translate']")
    page.keyboard.press("Space")
    page.click("form.compare button")
    expect(page).to_have_url(re.compile("job=jobs%2Fteam%2Fpenguins&job=jobs%2Fteam%2Ftranslate"))
    expect(page.locator("polyline.line-0")).not_to_have_count(0)
    expect(page.locator("polyline.line-1")).not_to_have_count(0)


def test_the_history_is_grouped_as_one_chooses(open_page):
    page = open_page("/history")
    see(page, "team")
    page.select_option("select[name=by]", "week")
    page.click("text=Show")
    expect(page).to_have_url(re.compile("by=week"))
    expect(page.locator("table").first.locator("tbody th").first).to_contain_text("-W")


def stored_values(runs, values: int = 200) -> str:
    """Two runs with the curves of a training with an evaluation after every tenth step."""
    for time in ("20260304-101500", "20260304-101600"):
        folder = a_run(runs, "curves", time, "Succeeded", progress=progress(values))
        began = datetime.now(UTC) - timedelta(minutes=50)
        with (folder / "progress.jsonl").open("w") as file:
            for step in range(1, values + 1):
                metrics = {"loss": 2 / step, **({"val_loss": 2.2 / step} if step % 10 == 0 else {})}
                at = (began + timedelta(seconds=2 * step)).isoformat()
                epoch = {"epoch": step // 10} if step % 10 == 0 else {}
                file.write(json.dumps({"time": at, "attempt": 0, "step": step, "metrics": metrics, **epoch}) + "\n")
    return "/compare?job=runs/curves/20260304-101500&job=runs/curves/20260304-101600"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_curves_have_axes_values_zoom_and_scales_and_are_accessible(open_page, runs, scheme):
    stored_values(runs)
    for viewport in (DESK, PHONE):
        page = open_page("/runs/curves/20260304-101500", viewport=viewport, color_scheme=scheme)
        expect(page.locator(".chart h2")).to_have_text(["loss", "accuracy"])
        assert findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert page.locator(".of-metric:visible").count() == 0, "the same curves without a script"
    chart = page.locator(".chart").first
    chart.scroll_into_view_if_needed()
    expect(chart).to_have_attribute("aria-label", "loss by step: loss, val_loss")
    chart.focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".chart >> nth=0 >> .u-value")).to_have_text(["10", "0.2", "0.22"])
    if viewport is PHONE and scheme == "light":
        take_picture(page, "curves")
    for name, first in (("time", "m"), ("epoch", "1")):
        page.select_option(".curves select", name)
        expect(chart).to_have_attribute("aria-label", f"loss by {name}: loss, val_loss")
        chart.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".chart >> nth=0 >> .u-value").first).to_contain_text(first)
    page.locator(".curves input[type=range]").fill("0.9")
    expect(chart).to_have_attribute("aria-label", "loss by epoch: loss, smoothed, val_loss, smoothed")
    page.check(".curves input[type=checkbox]")


def test_a_zoom_is_kept_while_the_page_is_updated_and_reset_by_a_button(open_page, api, runs):
    page = open_page(stored_values(runs))
    expect(page.locator(".chart h2")).to_have_text(["loss", "accuracy"])
    over = page.locator(".chart .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    expect(page.locator(".chart >> nth=0 >> .u-value").first).not_to_be_empty()
    assert len(page.locator(".chart >> nth=0 >> .u-value").all_inner_texts()) == 5, "step, and two metrics of two runs"
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 50)
    page.mouse.up()
    chart = page.locator(".chart").first
    chart.focus()
    page.evaluate("document.dispatchEvent(new Event('refreshed'))")
    page.mouse.move(box["x"] + 2, box["y"] + 50)
    step = page.locator(".chart >> nth=0 >> .u-value").first
    page.wait_for_function("() => Number(document.querySelector('.chart .u-value').textContent) > 80")
    page.click("text=Reset zoom")
    page.mouse.move(box["x"] + 3, box["y"] + 50)
    page.wait_for_function("() => Number(document.querySelector('.chart .u-value').textContent) < 20")
    expect(step).not_to_be_empty()


def test_without_a_script_the_page_of_a_run_has_its_curves(open_page, runs):
    stored_values(runs)
    page = open_page("/runs/curves/20260304-101500", java_script_enabled=False)
    assert page.locator(".of-metric svg polyline:visible").count() >= 1
    assert page.locator("#curves:visible").count() == 0
