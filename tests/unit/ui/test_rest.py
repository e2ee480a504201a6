"""The REST interface, with an API server in memory."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from allranks.local import run_directories
from support.live import eventually
from support.some_api import SomeApi
from support.ui_samples import a_job, a_run, failure, pods_of, write_run
from support.ui_server import UiServer

LOG = b"".join(b"2026-03-04T10:00:%02d.000000000Z line %d of worker-0\n" % (n, n) for n in range(30))


def names(answer) -> list[str]:
    assert answer.status == 200, answer.text
    return [item["metadata"]["name"] for item in answer.json["items"]]


def test_jobs_are_a_list_as_get_prints_it(server, api):
    found = server.get("/api/v1/jobs").json
    assert (found["apiVersion"], found["kind"]) == ("v1", "List")
    assert found["items"] == [api.jobs["penguins"], api.jobs["broken"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["penguins", "broken"]),
        ("phase=Failed", ["broken"]),
        ("namespace=team", ["penguins", "broken"]),
        ("namespace=other", []),
        ("label=team%3Dnlp", ["penguins", "broken"]),
        ("label=team!%3Dnlp", []),
        ("label=stage", []),
        ("label=!stage,team+in+(nlp,+vision)", ["penguins", "broken"]),
        ("label=team+notin+(nlp)", []),
    ],
)
def test_jobs_are_filtered(server, query, expected):
    assert names(server.get(f"/api/v1/jobs?{query}")) == expected


def test_a_job_that_the_api_server_returns_is_returned_unchanged(server, api):
    assert server.get("/api/v1/jobs/team/penguins").json == api.jobs["penguins"]


def test_attempts_are_those_of_the_report(server):
    [attempt] = server.get("/api/v1/jobs/team/penguins/attempts").json
    assert attempt["number"] == 0
    assert {segment["kind"] for segment in attempt["segments"]} >= {"queued", "productive"}
    assert server.get("/api/v1/jobs/team/penguins/report").json["attempts"][0]["number"] == 0


def test_ranks_have_their_pods_and_what_they_report(server):
    ranks = server.get("/api/v1/jobs/team/penguins/ranks").json
    assert [(one["rank"], one["pod"], one["node"], one["state"]) for one in ranks] == [
        (0, "penguins-worker-0-0", "node-7", "Running"),
        (1, "penguins-worker-1-0", "node-8", "Running"),
        (2, "penguins-worker-2-0", "node-9", "Running"),
    ]
    assert (ranks[1]["step"], ranks[1]["lag"], ranks[2]["slowdown"]) == (1199, 1, 1.8)


def test_events_are_those_of_the_job_and_of_its_pods(server):
    found = server.get("/api/v1/jobs/team/penguins/events").json["items"]
    assert [event["reason"] for event in found] == ["Started", "BackOff"]


def test_the_report_is_a_page_without_script(server):
    answer = server.get("/api/v1/jobs/team/penguins/report.html")
    assert "<h1>penguins" in answer.text
    assert "script" not in answer.headers["content-security-policy"].replace("default-src", "")
    assert "sandbox" in answer.headers["content-security-policy"]


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("jobs/team/pengins", 404, "there is no job pengins in namespace team"),
        ("jobs?label=team%3D%3D%3Da", 400, "label: 'team===a' is not a label selector: use for example"),
        ("runs/penguins/now", 404, "there is no run penguins/now in"),
        ("jobs/team/penguins/logs?tail=100000", 422, "tail: Input should be less than or equal to 10000"),
        ("jobs/team/penguins/logs?rank=9", 404, "penguins has no rank 9"),
        ("nothing", 404, "GET /api/v1/nothing: not found"),
    ],
)
def test_an_error_is_a_problem_that_says_what_is_wrong(server, path, status, detail):
    answer = server.get(f"/api/v1/{path}")
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json
    assert (problem["type"], problem["status"]) == ("about:blank", status)
    assert problem["detail"].startswith(detail)


def test_a_user_without_rights_gets_a_sentence(api, tmp_path):
    api.forbidden = {"distributedtrainings"}
    with UiServer(api.kubeconfig, tmp_path) as server:
        answer = server.get("/api/v1/jobs")
        assert answer.status == 503
        assert "me may not list distributedtrainings in namespace team: ask an admin" in answer.json["detail"]
        assert "me may not list distributedtrainings" in server.get("/").text


def test_without_rights_for_pods_ranks_and_logs_say_so_and_the_pages_are_shown(server, api):
    api.forbidden = {"pods"}
    for part in ("ranks", "logs"):
        answer = server.get(f"/api/v1/jobs/team/penguins/{part}")
        assert (answer.status, answer.json["title"]) == (403, "Forbidden")
    for path in ("", "/logs"):
        page = server.get(f"/jobs/team/penguins{path}")
        assert page.status == 200
        assert "me may not list pods in namespace team" in page.text
        assert 'href="/jobs/team/penguins/events"' in page.text


def test_without_a_cluster_there_are_the_runs_of_this_machine(tmp_path):
    a_run(tmp_path, "penguins", "20260304-101500", "Succeeded")
    with UiServer(tmp_path / "no-kubeconfig", tmp_path) as server:
        assert names(server.get("/api/v1/runs")) == ["penguins"]
        answer = server.get("/api/v1/jobs")
        assert answer.status == 404
        assert "no-kubeconfig: there is no such file" in answer.json["detail"]
        assert "no-kubeconfig: there is no such file" in server.get("/").text


def test_a_job_of_another_namespace_names_the_option(api, tmp_path):
    with UiServer(api.kubeconfig, tmp_path) as server:
        answer = server.get("/api/v1/jobs/other/penguins")
    assert answer.status == 404
    assert answer.json["detail"].startswith(
        "this server shows namespace team: allranks ui -n other shows that of penguins"
    )


# --- changes ---------------------------------------------------------------------------------------------------------


def test_the_stream_sends_changes_of_jobs(server, api):
    server.get("/api/v1/jobs")
    with server.events("/api/v1/stream?objects=true") as events:
        assert next(events) == ("status", {"current": True, "problem": ""})
        api.put(
            {**api.jobs["penguins"], "status": {**api.jobs["penguins"]["status"], "phase": "Restarting", "attempt": 1}}
        )
        kind, data = next(events)
        assert (kind, data["name"], data["phase"], data["attempt"]) == ("changed", "penguins", "Restarting", 1)
        assert data["object"]["status"]["phase"] == "Restarting"
        api.delete("broken")
        kind, data = next(events)
        assert (kind, data["name"]) == ("deleted", "broken")


def test_the_stream_of_a_job_has_no_changes_of_others(server, api):
    server.get("/api/v1/jobs")
    with server.events("/api/v1/stream?source=jobs&group=team&name=penguins") as events:
        assert next(events)[0] == "status"
        api.put({**api.jobs["broken"]})
        api.put({**api.jobs["penguins"]})
        kind, data = next(events)
        assert (kind, data["name"]) == ("changed", "penguins")
        assert "object" not in data


def test_all_viewers_share_one_watch_and_one_reading_of_the_pods(server, api):
    server.get("/api/v1/jobs")
    with server.events("/api/v1/stream") as one, server.events("/api/v1/stream") as other:
        assert next(one)[0] == next(other)[0] == "status"
        for _ in range(5):
            server.get("/jobs/team/penguins")
    assert api.count("distributedtrainings?") == 2  # the list and the watch
    assert api.count("watch=1") == 1
    assert api.count("/pods?") <= 2


def test_after_a_lost_connection_to_the_api_server_the_jobs_are_current_again(server, api):
    server.get("/api/v1/jobs")
    eventually(lambda: api.watches, what="a watch")
    api.drop_watches()
    eventually(lambda: api.watches, what="a new watch")
    api.put(a_job("new", "Pending"))
    eventually(lambda: "new" in names(server.get("/api/v1/jobs")), what="the new job")


def test_the_page_says_when_the_jobs_are_not_current(tmp_path):
    with ExitStack() as outlives_the_api:
        with SomeApi(tmp_path, a_job("penguins", "Running")) as api:
            server = outlives_the_api.enter_context(UiServer(api.kubeconfig, tmp_path))
            assert names(server.get("/api/v1/jobs")) == ["penguins"]
            events = outlives_the_api.enter_context(server.events("/api/v1/stream"))
            assert next(events)[1]["current"] is True
        kind, data = next(events)
        assert (kind, data["current"]) == ("status", False)
        assert "penguins" in server.get("/").text
        assert "Not current: " in server.get("/").text


def test_changes_of_runs_are_sent(api, tmp_path):
    folder = a_run(tmp_path / "runs", "digits", "20260304-101500", "Running")
    with UiServer(api.kubeconfig, tmp_path / "runs") as server:
        assert [item["status"]["phase"] for item in server.get("/api/v1/runs").json["items"]] == ["Interrupted"]
        with server.events("/api/v1/stream?source=runs") as events:
            assert next(events)[0] == "status"
            job = json.loads((folder / "job.json").read_text())
            write_run(folder, {**job, "status": {**job["status"], "phase": "Failed"}})
            kind, data = next(events)
    assert (kind, data["source"], data["phase"]) == ("changed", "runs", "Failed")


def test_a_run_whose_process_has_ended_is_interrupted(tmp_path):
    a_run(tmp_path, "digits", "20260304-101500", "Running", lastFailure=failure(), attempt=1)
    with UiServer(tmp_path / "none", tmp_path) as server:
        assert "Interrupted" in server.get("/").text
        assert names(server.get("/api/v1/runs?phase=Interrupted")) == ["digits"]
        listed = server.get("/api/v1/runs").json["items"]
        assert [item["status"]["phase"] for item in listed] == ["Interrupted"]
        assert server.get("/api/v1/runs/digits/20260304-101500").json == listed[0]
        with (
            run_directories.in_use(tmp_path / "digits" / "20260304-101500"),
            UiServer(tmp_path / "none", tmp_path) as new,
        ):
            assert new.get("/api/v1/runs/digits/20260304-101500").json["status"]["phase"] == "Running"
        report = server.get("/api/v1/runs/digits/20260304-101500/report").json
        page = server.get("/runs/digits/20260304-101500").text
    verdict = "digits was interrupted after 1:40: all its processes have ended"
    assert (report["phase"], report["verdict"], report["over"]) == ("Interrupted", verdict, True)
    assert report["attempts"][-1]["reason"] == "Interrupted"
    assert verdict in page
    assert "First failure before the last restart" in page
    assert "so far" not in page
    assert "Conditions, as last recorded" in page


# --- actions ---------------------------------------------------------------------------------------------------------


def test_suspend_and_resume_write_the_spec_and_return_the_job(server, api):
    answer = server.request("POST", "/api/v1/jobs/team/penguins/suspend", {})
    assert (answer.status, answer.json["message"]) == (200, "penguins suspended")
    assert answer.json["job"]["spec"]["suspend"] is True
    eventually(lambda: server.get("/api/v1/jobs/team/penguins").json["spec"].get("suspend"), what="the watch")
    answer = server.request("POST", "/api/v1/jobs/team/penguins/resume", {})
    assert answer.json["message"] == "penguins resumed"
    assert api.jobs["penguins"]["spec"]["suspend"] is False


def test_scale_changes_the_number_of_workers(server, api):
    answer = server.request("POST", "/api/v1/jobs/team/penguins/scale", {"replicas": 5})
    assert answer.json["message"].startswith(
        "penguins scaled from 3 to 5 workers: it is not elastic, so all ranks restart"
    )
    assert api.jobs["penguins"]["spec"]["roles"]["worker"]["replicas"] == 5


def test_delete_deletes_the_job_that_was_shown_and_no_other(server, api):
    answer = server.request("DELETE", "/api/v1/jobs/team/penguins?uid=another")
    assert (answer.status, "penguins" in api.jobs) == (409, True)
    answer = server.request("DELETE", "/api/v1/jobs/team/penguins?uid=uid-penguins")
    assert (answer.json["message"], "penguins" in api.jobs) == ("penguins deleted", False)


@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        ("broken/suspend", {}, 409, "broken is Failed: there is nothing to suspend"),
        ("penguins/scale", {"replicas": -1}, 422, "replicas: Input should be greater than or equal to 0"),
        ("penguins/scale", {}, 422, "replicas: Field required"),
        ("broken/scale", {"replicas": 2}, 409, "broken is Failed: submit a new job with the size you want"),
    ],
)
def test_an_action_that_is_not_possible_says_why(server, path, body, status, detail):
    answer = server.request("POST", f"/api/v1/jobs/team/{path}", body)
    assert (answer.status, answer.json["detail"]) == (status, detail)


def test_an_action_without_rights_says_which_right_is_missing(server, api):
    server.get("/api/v1/jobs")
    api.forbidden = {"distributedtrainings"}
    answer = server.request("POST", "/api/v1/jobs/team/penguins/suspend", {})
    assert answer.status == 403
    assert answer.json["detail"].startswith("me may not patch distributedtrainings in namespace team")


def test_a_run_cannot_be_changed(tmp_path):
    a_run(tmp_path, "digits", "20260304-101500", "Succeeded")
    with UiServer(tmp_path / "none", tmp_path) as server:
        answer = server.request("DELETE", "/api/v1/runs/digits/20260304-101500")
    assert (answer.status, answer.json["title"]) == (409, "Conflict")
    assert (tmp_path / "digits").exists()


# --- logs ------------------------------------------------------------------------------------------------------------


def texts(answer) -> list[str]:
    assert answer.status == 200, answer.text
    return [line["line"] for line in answer.json["lines"]]


def test_logs_of_all_ranks_are_merged_by_time(server, api):
    api.logs["penguins-worker-0-0"] = [LOG]
    api.logs["penguins-worker-1-0"] = [b"2026-03-04T10:00:28.500000000Z in between\n"]
    api.logs["penguins-worker-2-0"] = []
    found = server.get("/api/v1/jobs/team/penguins/logs?tail=3")
    assert texts(found) == ["line 28 of worker-0", "in between", "line 29 of worker-0"]
    assert found.json["lines"][1] == {
        "time": "2026-03-04T10:00:28.500000000Z",
        "role": "worker",
        "index": 1,
        "rank": 1,
        "attempt": 0,
        "line": "in between",
    }
    assert found.json["after"] == "2026-03-04T10:00:29.000000000Z"


def test_logs_of_a_rank_are_searched(server, api):
    api.logs["penguins-worker-0-0"] = [LOG]
    assert texts(server.get("/api/v1/jobs/team/penguins/logs?rank=0&search=LINE+7")) == ["line 7 of worker-0"]


def test_logs_of_a_deleted_attempt_say_where_their_last_lines_are(server):
    [note] = server.get("/api/v1/jobs/team/penguins/logs?attempt=3").json["notes"]
    assert note.startswith("the pods of attempt 3 are deleted, and their logs with them")


def test_logs_are_followed_across_a_restart_until_the_job_ends(server, api):
    api.logs["penguins-worker-0-0"] = [LOG]
    api.logs["penguins-worker-1-0"] = api.logs["penguins-worker-2-0"] = []
    after = server.get("/api/v1/jobs/team/penguins/logs?rank=0").json["after"]
    with server.events(f"/api/v1/jobs/team/penguins/logs?rank=0&follow=true&after={after}") as events:
        api.logs["penguins-worker-0-0"].append(b"2026-03-04T10:01:00.000000000Z <b>last</b> \x1b[2Jstep\n")
        kind, [line] = next(events)
        assert (kind, line["line"]) == ("lines", "<b>last</b> step")
        api.ended.add("penguins-worker-0-0")
        job = api.jobs["penguins"]
        api.logs["penguins-worker-0-1"] = [b"2026-03-04T10:02:00.000000000Z again\n"]
        api.pods = pods_of(job, attempt=1)
        api.put({**job, "status": {**job["status"], "attempt": 1, "ready": "2/3"}})
        kind, [line] = next(events)
        assert (kind, line["line"], line["attempt"], line["rank"]) == ("lines", "again", 1, 0)
        api.ended.add("penguins-worker-0-1")
        api.put(
            {
                **job,
                "status": {
                    **job["status"],
                    "attempt": 1,
                    "phase": "Succeeded",
                    "completionTime": "2026-03-04T10:03:00Z",
                },
            }
        )
        assert next(events) == ("end", {})


def test_the_log_of_a_run_is_that_of_the_first_failure(tmp_path):
    logs = {"digits-worker-0-0": b"fine\n", "digits-worker-1-0": b"one\nValueError: bad\n"}
    a_run(tmp_path, "digits", "20260304-101500", "Failed", logs, lastFailure=failure())
    with UiServer(tmp_path / "none", tmp_path) as server:
        path = "/api/v1/runs/digits/20260304-101500/logs"
        assert texts(server.get(path)) == ["one", "ValueError: bad"]
        assert texts(server.get(f"{path}?rank=0")) == ["fine"]
        assert texts(server.get(f"{path}?replica=worker-1&search=error")) == ["ValueError: bad"]
        with server.events(f"{path}?follow=true&rank=0&after=2") as events:
            assert [(kind, [line["line"] for line in data]) for kind, data in [next(events)]] == [("lines", ["ne"])]
            assert next(events) == ("end", {})
