"""Nodes, history and cost, comparison: as pure functions, in the REST interface and as pages."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from allranks.ui.entries import Entry
from allranks.ui.job_rows import job_row
from allranks.ui.placed_pods import allocatable, placed_pod
from allranks.ui.routes import compare, history
from allranks.ui.routes.capacity import nodes
from support.job_api import JobApi
from support.ui_samples import HOSTILE, a_job, a_run, done, failure, pods_of, progress, times, with_checkpoints
from support.ui_server import UiServer

NOW = datetime.now(UTC)


def entry(job: dict) -> Entry:
    return Entry("jobs", job["metadata"]["namespace"], job["metadata"]["name"], job)


def test_the_times_of_a_run_whose_process_has_ended_count_to_its_last_moment() -> None:
    job = a_job("a", "Running", times=times() | {"since": "2026-03-04T10:00:00Z"}, conditions=[])
    job["status"] |= dict.fromkeys(("startTime", "attemptTime", "runningTime"), "2026-03-04T09:00:00Z")
    runs = [Entry("runs", "a", "20260304-090000", job, active=False)]
    by_name, weeks = history.groupings(runs, ("namespace", "week"), datetime(2026, 5, 1, tzinfo=UTC))
    assert [week.name for week in weeks] == ["2026-W10"]
    assert by_name[0].productive_seconds == 2900
    assert job_row(runs[0], datetime(2026, 5, 1, tzinfo=UTC)).view.took == "1:00:00"


def gpu_pods() -> list[dict]:
    pods = pods_of(a_job("penguins", "Running"))
    for pod in pods:
        pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 4}}
    pods[2]["status"]["phase"] = "Succeeded"
    return pods


NODES = [
    {"metadata": {"name": "node-7"}, "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "64"}}},
    {"metadata": {"name": "node-8"}, "spec": {"unschedulable": True}, "status": {"allocatable": {}}},
]


def dumped(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest).encode()


def test_nodes_have_the_gpus_of_pods_the_failures_and_who_avoids_them() -> None:
    past = {
        "attempt": 0,
        "endTime": "2026-03-04T10:00:00Z",
        "reason": "Error",
        "lostSeconds": 50.0,
        "failure": failure(),
    }
    running = a_job("penguins", "Running", attempt=1, history=[past], lastFailure=failure(), avoidedNodes=["node-7"])
    placed = filter(None, map(placed_pod, map(dumped, gpu_pods())))
    found = {node.name: node for node in nodes([entry(running)], placed, map(allocatable, map(dumped, NODES)))}
    seven = found["node-7"]
    assert (seven.gpus, seven.gpus_used, seven.jobs) == (8, 4, ["team/penguins"])
    # The last failure is that of the attempt in the history: it counts once.
    assert (dict(seven.failures), seven.lost_seconds, seven.avoided_by) == ({"Error": 1}, 50.0, ["team/penguins"])
    assert found["node-8"].unschedulable
    assert "node-9" not in found  # its pod has succeeded


def test_differences_are_fields_with_the_names_of_list_items() -> None:
    one = {
        "framework": "pytorch",
        "args": ["--lr", 1],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    }
    two = {"framework": "pytorch", "args": ["--lr", 2], "env": [{"name": "B", "value": "2"}], "pool": "h100"}
    assert compare.differences([one, two]) == [
        ("spec.args --lr", ["1", "2"]),
        ("spec.env[A].name", ["A", ""]),
        ("spec.env[A].value", ["1", ""]),
        ("spec.pool", ["", "h100"]),
    ]


def test_each_option_of_the_program_is_a_row_of_a_comparison() -> None:
    one = {"command": ["torchrun", "--nproc-per-node=2", "train.py", "data", "--lr=0.1", "--amp"], "args": ["-b", "8"]}
    two = {"command": ["torchrun", "--nproc-per-node=2", "train.py", "data", "--lr", "0.2"], "args": ["-b", "16"]}
    assert compare.differences([one, two]) == [
        ("spec.command --lr", ["0.1", "0.2"]),
        ("spec.command --amp", ["set", ""]),
        ("spec.args -b", ["8", "16"]),
    ]
    launcher = {"command": ["torchrun", "--nproc-per-node=4", "train.py", "data", "--lr", "0.2"], "args": ["-b", "16"]}
    [(path, values)] = compare.differences([two, launcher])
    assert (path, values[1]) == ("spec.command", "torchrun --nproc-per-node=4 train.py data")
    first, second = {"args": ["8", "--lr", "8"]}, {"args": ["9", "--lr", "8"]}
    assert compare.differences([first, second]) == [("spec.args", ["8", "9"])]
    twice, other = {"args": ["--x", "1", "--x", "2"]}, {"args": ["--x", "2", "--x", "1"]}
    assert compare.differences([twice, other]) == [("spec.args", ["--x 1 --x 2", "--x 2 --x 1"])]


def test_the_rest_interface_has_nodes_history_and_comparison(server: UiServer, api: JobApi, tmp_path) -> None:
    api.pods = gpu_pods()
    api.queues["/api/v1/nodes"] = {"metadata": {}, "items": NODES}
    a_run(tmp_path / "runs", "hello", "20260304-101500", "Failed", {}, lastFailure=failure())
    found = {node["name"]: node for node in server.get("/api/v1/nodes").json}
    assert (found["node-7"]["gpus"], found["node-7"]["gpusUsed"]) == (8, 4)
    [group] = server.get("/api/v1/history?by=team").json
    assert (group["name"], group["jobs"], group["failed"]) == ("nlp", 2, 1)
    compared = server.get("/api/v1/compare?job=jobs/team/penguins&job=runs/hello/20260304-101500").json
    assert compared["jobs"] == ["jobs/team/penguins", "runs/hello/20260304-101500"]
    assert {"field": "spec.roles.worker.replicas", "values": ["3", "2"]} in compared["differences"]
    assert [report["name"] for report in compared["reports"]] == ["penguins", "hello"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/history?by=moon", 422),
        ("/api/v1/history?by=label:", 422),
        ("/api/v1/history?days=0", 422),
        ("/api/v1/compare?job=penguins", 422),
        ("/api/v1/compare?job=jobs/team/none", 404),
        ("/api/v1/compare?" + "&".join(["job=jobs/team/penguins"] * 7), 422),
    ],
)
def test_a_wrong_query_is_a_problem(server: UiServer, path: str, status: int) -> None:
    answer = server.get(path)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_pages_show_them(server: UiServer, api: JobApi) -> None:
    api.pods = gpu_pods()
    api.queues["/api/v1/nodes"] = {"metadata": {}, "items": NODES}
    api.put(done("paid"))
    page = server.get("/nodes").text
    assert "4 of 8" in page
    assert '<a href="/jobs/team/penguins">team/penguins</a>' in page
    page = server.get("/history?by=week").text
    assert "7.00 EUR" in page
    assert "OOMKilled" in page
    page = server.get("/history?by=label:team&days=30").text
    assert "<option selected>label:team</option>" in page
    assert "7.00 EUR" not in page  # it ended earlier
    assert [group["jobs"] for group in server.get("/api/v1/history?days=30").json] == [1]  # penguins runs
    assert [group["jobs"] for group in server.get("/api/v1/history").json] == [3]
    page = server.get("/compare?job=jobs/team/penguins&job=jobs/team/broken").text
    assert 'class="curve line-0"' in page
    assert "Their specs are the same" in page


def test_the_page_of_a_job_shows_its_checkpoints_as_the_command_line_does(server: UiServer, api: JobApi) -> None:
    api.put(with_checkpoints(a_job("saved", "Running", attempt=1)))
    page = server.get("/jobs/team/saved").text
    assert "<h2>Checkpoints</h2>" in page
    assert "Attempt 1 resumes from step 800: attempt 0 could not read the one of step 900." in page
    assert "Due every 12m, because a save takes 10.0s and a failure is expected every 8h; next after step 1400." in page
    table = page[page.index("<h2>Checkpoints</h2>") :].partition("</table>")[0]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("<tr")[1:]]
    assert cells[0] == ["Step", "Age", "Complete", "Size", "Resume", "Path"]
    assert [row[0] for row in cells if row[4] == "yes"] == ["1000"]
    assert "<h2>Checkpoints</h2>" not in server.get("/jobs/team/penguins").text


def test_nodes_that_may_not_be_read_are_said_and_the_rest_is_shown(server: UiServer, api: JobApi) -> None:
    api.pods = gpu_pods()
    page = server.get("/nodes").text
    assert "node-7" in page
    assert 'class="detail"' in page


def test_hostile_text_stays_text(server: UiServer, api: JobApi) -> None:
    evil = done("evil", progress=progress(10) | {"metrics": {HOSTILE: 1.0}, "curveMetric": HOSTILE})
    evil["spec"] |= {"pool": HOSTILE, "command": [HOSTILE]}
    evil["metadata"]["labels"] = {"team": HOSTILE, "project": HOSTILE, HOSTILE: "x"}
    evil["metadata"]["annotations"] = {"allranks.dev/user": HOSTILE}
    evil["status"]["avoidedNodes"] = [HOSTILE]
    evil["status"]["lastFailure"] = failure() | {"node": HOSTILE, "reason": HOSTILE[:20]}
    api.put(evil)
    for path in (
        "/nodes",
        "/history?by=pool",
        "/history?by=team",
        "/history?by=user",
        "/history?by=label:project",
        "/compare?job=jobs/team/evil&job=jobs/team/penguins",
    ):
        page = server.get(path)
        assert page.status == 200
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text


MISTAKES = {
    "a container without a name": {"spec": {"containers": [{}]}},
    "no container at all": {"spec": {"containers": [None]}},
    "a pod spec that is a list": {"spec": [1]},
    "metadata that are a text": {"metadata": "x"},
    "labels that are a list": {"metadata": {"labels": ["x"]}},
    "resources that are a text": {"spec": {"containers": [{"name": "trainer", "resources": "x"}]}},
    "a list that patches": {"spec": {"containers": [{"$patch": "replace"}]}},
}


@pytest.mark.parametrize("template", MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("part", ["spec", "role"])
def test_a_template_with_a_mistake_hides_no_job_of_others_in_the_lists(template: Any, part: str):
    job = a_job("penguins", "Running")
    (job["spec"] if part == "spec" else job["spec"]["roles"]["worker"])["template"] = template
    row = job_row(entry(job), NOW)
    assert (row.gpus, row.framework) == (0, "pytorch")
