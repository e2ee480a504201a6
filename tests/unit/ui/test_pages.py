"""The pages as HTML: hostile content, actions, queues, many jobs. tests/browser drives them in Chromium."""

from __future__ import annotations

import html
from html.parser import HTMLParser
from urllib.parse import quote

import pytest

from allranks.ui import rendering
from allranks.ui.entries import Entry
from support.job_api import JobApi
from support.live import eventually
from support.ui_samples import (
    HOSTILE,
    LAST_LINES,
    a_job,
    a_run,
    event,
    failure,
    pods_of,
    progress,
    serve_queues,
    times,
)
from support.ui_server import UiServer


class Elements(HTMLParser):
    """The names of elements and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_hostile_content_of_names_messages_events_and_logs_stays_text(tmp_path):
    job = a_job(
        "penguins",
        "Failed",
        conditions=[{"type": "Failed", "status": "True", "reason": HOSTILE[:20], "message": HOSTILE}],
        lastFailure=failure(message=HOSTILE) | {"node": HOSTILE, "reason": HOSTILE[:20]},
        progress=progress(10) | {"metrics": {HOSTILE: 1.0}, "curveMetric": HOSTILE, "summary": HOSTILE},
        times=times() | {"byReason": {HOSTILE: 3.0}},
    )
    job["status"]["conditions"][0]["lastTransitionTime"] = job["metadata"]["creationTimestamp"]
    job["metadata"]["labels"] = {"team": HOSTILE}
    job["spec"]["image"] = job["spec"]["framework"] = HOSTILE
    job["spec"]["command"] = [HOSTILE]
    job["spec"]["inputs"] = [{"name": HOSTILE, "from": HOSTILE, "path": HOSTILE, "revision": HOSTILE}]
    job["spec"]["outputs"] = [{"name": HOSTILE, "to": HOSTILE, "path": HOSTILE}]
    with JobApi(tmp_path, job) as api:
        api.pods = pods_of(job)
        api.pods[0]["spec"]["nodeName"] = HOSTILE
        api.events = [event("penguins", "DistributedTraining", HOSTILE, HOSTILE, HOSTILE)]
        api.logs["penguins-worker-0-0"] = [f"2026-03-04T10:00:00.000000000Z {HOSTILE}\n".encode()]
        with UiServer(api.kubeconfig, tmp_path / "runs") as server:
            base = "/jobs/team/penguins"
            addresses = [f"/?text={quote(HOSTILE)}", "/", base]
            addresses += [f"{base}/{tab}" for tab in ("events", "manifest", "actions/delete")]
            addresses += [f"{base}/logs?replica=worker-0&search=alert", f"{base}/logs?search={quote(HOSTILE)}"]
            addresses += [f"/jobs/team/{quote(HOSTILE, safe='')}", f"/queues?namespace={quote(HOSTILE, safe='')}"]
            for address in addresses:
                page = server.get(address).text
                found = Elements(page)
                assert found.tags.count("script") == page.count('<script src="/static/'), address
                assert "img" not in found.tags, address
                assert not [name for name, _ in found.attributes if name.startswith("on") or name == "style"], address
                links = [value for name, value in found.attributes if name in ("href", "src", "action")]
                assert all(link.startswith(("/", "#", "?")) and not link.startswith("//") for link in links), address
                assert "\x1b" not in page, address
                assert "\u202e" not in page, address
            assert "<script>alert(1)</script>" in Elements(server.get(base).text).words
            log = server.get(f"{base}/logs?replica=worker-0").text
            assert html.escape("<script>alert(1)</script>") in log


def test_the_page_of_a_failed_job_leads_from_the_list_to_the_log_in_three_clicks(server, api):
    api.logs["broken-worker-1-0"] = []
    page = server.get("/").text
    assert 'href="/jobs/team/broken"' in page
    page = server.get("/jobs/team/broken").text
    assert "First failure: worker-1 (rank 1) in attempt 0, after 1690.0s: exit code 1" in html.unescape(page) or (
        "First failure: worker-1 (rank 1) in attempt 0" in html.unescape(page)
    )
    assert LAST_LINES.splitlines()[-1] in html.unescape(page)
    assert 'href="/jobs/team/broken/logs?replica=worker-1&amp;attempt=0"' in page
    assert server.get("/jobs/team/broken/logs?replica=worker-1&attempt=0").status == 200


@pytest.mark.parametrize(
    ("name", "action", "sentences"),
    [
        (
            "penguins",
            "suspend",
            ["deletes its 3 pods", "The work since the last checkpoint of step 1000, 4m"],
        ),
        ("penguins", "scale", ["The job has 3 workers.", "all ranks restart at the new size"]),
        ("penguins", "delete", ["The job ends.", "Volume claims and checkpoints are kept."]),
        ("broken", "delete", ["The job is deleted with its status"]),
    ],
)
def test_an_action_says_what_it_will_do(server, name, action, sentences):
    page = html.unescape(server.get(f"/jobs/team/{name}/actions/{action}").text)
    for sentence in sentences:
        assert sentence in page


def test_ranks_that_store_checkpoints_on_request_lose_no_work(server, api):
    job = api.jobs["penguins"]
    job["status"]["progress"]["savesOnRequest"] = True
    api.put(job)
    server.get("/api/v1/jobs")
    eventually(lambda: "are asked for a checkpoint first" in server.get("/jobs/team/penguins/actions/suspend").text)


@pytest.mark.parametrize(("name", "action"), [("broken", "suspend"), ("penguins", "resume"), ("penguins", "explode")])
def test_an_action_that_is_not_possible_is_not_offered(server, name, action):
    assert f"actions/{action}" not in server.get(f"/jobs/team/{name}").text
    answer = server.get(f"/jobs/team/{name}/actions/{action}")
    assert answer.status == 409
    assert f"{action} is not possible" in answer.text


def test_a_form_scales_the_job(server, api):
    path = "/jobs/team/penguins/actions/scale"
    answer = server.request("POST", path, "uid=uid-penguins&replicas=5")
    assert (answer.status, answer.headers["location"]) == (303, "/jobs/team/penguins")
    assert api.jobs["penguins"]["spec"]["roles"]["worker"]["replicas"] == 5
    assert server.request("POST", path, "uid=uid-penguins&replicas=many").status == 422
    answer = server.request("POST", path, "x" * 2 * 2**20)
    assert (answer.status, "at most 1024 KiB are read" in answer.text) == (413, True)
    assert server.request("POST", path, "&".join("abc" * 100)).status == 422
    assert server.request("POST", path, "uid=another&replicas=2").status == 409


def test_queues_show_quota_and_who_waits_and_why(server, api):
    serve_queues(api)
    page = html.unescape(server.get("/queues?namespace=team").text)
    assert "nvidia.com/gpu: 6 of 8 in use" in page
    assert '<progress max="1" value="0.7500"' in page
    assert "insufficient quota for gpu" in page
    assert '<a href="/jobs/team/penguins">penguins</a>' in page
    assert "<td>26m</td><td>penguins</td>" in page  # preempted, how long ago, by whom
    [queue] = server.get("/api/v1/queues?namespace=team").json
    assert queue["waiting"][0]["message"] == "insufficient quota for gpu"


def test_without_kueue_the_page_of_queues_says_so(server, api):
    api.queues["/apis"] = {"groups": []}
    assert "this cluster has no queues: Kueue is not installed" in server.get("/queues").text


def test_a_run_is_shown_with_its_curve_and_the_log_of_the_first_failure(tmp_path):
    logs = {"digits-worker-0-0": b"fine\n", "digits-worker-1-0": b"one\nValueError: bad\n"}
    a_run(tmp_path, "digits", "20260304-101500", "Failed", logs, lastFailure=failure(), progress=progress(900))
    with UiServer(tmp_path / "none", tmp_path) as server:
        answer = server.get("/runs/digits")
        assert (answer.status, answer.headers["location"]) == (303, "/runs/digits/20260304-101500")
        page = server.get("/runs/digits/20260304-101500").text
        assert "<polyline" in page
        assert "actions/delete" not in page
        assert "file:" not in page
        log = server.get("/runs/digits/20260304-101500/logs").text
        assert "ValueError: bad" in log
        assert server.get("/runs/digits/20260304-101500/events").status == 200
        assert "framework: pytorch" in server.get("/runs/digits/20260304-101500/manifest").text
        assert server.get("/runs/none").status == 404


def test_the_first_of_many_jobs_are_those_that_run(tmp_path):
    jobs = [
        a_job(f"job-{n:04}", ("Succeeded", "Running")[n == 7], 8, progress=progress(1000, ranks=8)) for n in range(300)
    ]
    with JobApi(tmp_path, *jobs) as api, UiServer(api.kubeconfig, tmp_path / "runs") as server:
        page = server.get("/").text
        assert "300 jobs: 1 Running, 299 Succeeded" in page
        assert page.index("job-0007") < page.index("job-0299")
        assert page.count("<tr id=") == 100
        assert "Page 1 of 3" in page
        assert "job-0000" in server.get("/?page=3").text
        assert server.get("/?page=0").status == 422


def test_the_namespace_is_offered_as_a_filter_only_where_there_may_be_several(tmp_path):
    with JobApi(tmp_path, a_job("one", "Running")) as api:
        with UiServer(api.kubeconfig, tmp_path / "runs") as server:
            page = server.get("/").text
            assert ("in namespace team" in page, 'name="namespace"' in page) == (True, False)
        with UiServer(api.kubeconfig, tmp_path / "runs", all_namespaces=True) as server:
            assert 'name="namespace"' in server.get("/").text


def test_a_job_that_is_too_large_has_a_page_that_says_what_is_missing(tmp_path):
    large = a_job("large", "Pending")
    large["spec"]["template"] = {"spec": {"x": "y" * 1_300_000}}
    with JobApi(tmp_path, large) as api, UiServer(api.kubeconfig, tmp_path / "runs") as server:
        assert "large" in server.get("/").text
        for view in ("", "/manifest"):
            page = server.get(f"/jobs/team/large{view}")
            assert page.status == 200
            assert "Parts of this job are missing here: too large to keep: spec (more than 512 KiB)." in page.text
        assert server.get("/api/v1/jobs/team/large").json["spec"] is None


def test_decoding_a_job_is_done_once_for_all_pages():
    entry = Entry("jobs", "team", "job", a_job("job", "Running", progress=progress(10)))
    assert entry.status is entry.status


def test_what_the_first_request_needs_is_made_before_it(api, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(rendering, "warm_up", lambda: calls.append("begun"))
    with UiServer(api.kubeconfig, tmp_path / "runs"):
        assert eventually(lambda: calls == ["begun"])


def test_without_a_cluster_no_page_is_a_dead_end(tmp_path):
    a_run(tmp_path / "runs", "digits", "20260304-101500", "Succeeded", progress=progress(900))
    with UiServer(tmp_path / "none", tmp_path / "runs") as server:
        for path in ("/queues", "/nodes", "/new"):
            page = server.get(path).text
            assert 'This machine has <a href="/">runs</a>' in page
            assert "<form" not in page
        page = server.get("/").text
        assert "<h1>Runs of this machine</h1>" in page
        assert "<h1>Jobs" not in page
        history = server.get("/history").text
        assert "There are no jobs" not in history
        assert "with runs of this machine" not in history
        assert "Only this machine" in server.get("/sweeps").text


def test_pages_without_runs_say_how_to_make_one(tmp_path):
    with UiServer(tmp_path / "none", tmp_path / "runs") as server:
        assert "allranks run train.py" in server.get("/").text
        assert "allranks sweep" in server.get("/sweeps").text
        page = server.get("/compare").text
        assert "<form" not in page
        assert "There are no jobs and runs yet" in page
        assert "matches the filter" in server.get("/?text=none").text


def test_columns_without_a_value_are_left_out(tmp_path):
    a_run(tmp_path, "digits", "20260304-101500", "Succeeded", progress=progress(900))
    with UiServer(tmp_path / "none", tmp_path) as server:
        assert ">Goodput<" not in server.get("/").text
        a_run(tmp_path, "digits", "20260304-101600", "Succeeded", progress=progress(900), times=times())
        eventually(lambda: ">Goodput<" in server.get("/").text)
        assert ">Cost<" not in server.get("/").text
