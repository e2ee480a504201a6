"""A typed client, generated from the OpenAPI document, against the server: each kind of answer has its type."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from allranks.kube.cluster import Where
from allranks.ui.app import application
from support import tools
from support.live import eventually
from support.ui_samples import serve_queues
from support.ui_server import TOKEN, UiServer

pytestmark = pytest.mark.nightly

CLIENT = "generated_allranks_client"
ROOT = Path(__file__).parents[3]
OF_PENGUINS = {"source": "jobs", "group": "team", "name": "penguins"}
LINE = b"2026-03-04T10:00:01.000000000Z hello\n"


@pytest.fixture(scope="module")
def client_package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The package, which openapi-python-client has generated without a warning."""
    programs = tools.built("openapi-client.sh")
    folder = tmp_path_factory.mktemp("client")
    app = application(Where(None, None, str(folder / "none")), all_namespaces=True, runs=folder, token="")
    (folder / "openapi.json").write_text(json.dumps(app.openapi()))
    arguments = ["generate", "--path", "openapi.json", "--meta", "none", "--output-path", CLIENT, "--fail-on-warning"]
    done = subprocess.run(
        [programs / "openapi-python-client", *arguments],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},  # its formatter is ruff
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield importlib.import_module(CLIENT)
    sys.path.remove(str(folder))


@pytest.fixture
def call(client_package: ModuleType, server: UiServer) -> Callable[..., Any]:
    """Calls the function of an operation, with a connection of its own."""
    models = importlib.import_module(f"{CLIENT}.models")

    def called(operation: str, **arguments: Any) -> Any:
        module = importlib.import_module(f"{CLIENT}.api.default.{operation}")
        if "source" in arguments:
            kind = "".join(part.title() for part in operation.split("_")) + "Source"
            arguments["source"] = getattr(models, kind)(arguments["source"])
        with client_package.AuthenticatedClient(base_url=server.url, token=TOKEN) as client:
            return module.sync(client=client, **arguments)

    return called


def model(name: str) -> Any:
    return getattr(importlib.import_module(f"{CLIENT}.models"), name)


def test_jobs_have_the_types_of_the_crd(call):
    found = call("get_jobs", namespace="team")
    penguins = next(job for job in found.items if job.metadata.name == "penguins")
    assert isinstance(penguins, model("DistributedTraining"))
    assert penguins.spec.roles["worker"].replicas == 3
    assert (penguins.status.phase, penguins.status.progress.step) == ("Running", 1200)
    one = call("get_job", **OF_PENGUINS)
    assert one.status.progress.metrics["loss"] == 0.31
    assert (one.status.times.productive, one.status.progress.stragglers[0].replica) == (2900.0, "worker-2")


def test_the_parts_of_a_job(call, api):
    api.logs = {f"penguins-worker-{place}-0": [LINE] for place in range(3)}
    ranks = call("get_job_ranks", **OF_PENGUINS)
    assert [(one.rank, one.node, one.state) for one in ranks][:2] == [
        (0, "node-7", "Running"),
        (1, "node-8", "Running"),
    ]
    [attempt] = call("get_job_attempts", **OF_PENGUINS)
    assert isinstance(attempt, model("Attempt"))
    assert (attempt.number, attempt.cause, attempt.segments[0].kind) == (0, None, "queued")
    assert {item["reason"] for item in call("get_job_events", **OF_PENGUINS).items} == {"Started", "BackOff"}
    assert [pod["spec"]["nodeName"] for pod in call("get_job_pods", **OF_PENGUINS).items] == [
        "node-7",
        "node-8",
        "node-9",
    ]
    report = call("get_job_report", **OF_PENGUINS)
    assert isinstance(report, model("Report"))
    assert (report.progress.step, list(report.points[-1].metrics.additional_properties)) == (1200, ["loss"])
    assert "penguins" in call("get_job_report_html", **OF_PENGUINS)
    logs = call("get_job_logs", **OF_PENGUINS, rank=1)
    assert [(line.rank, line.line) for line in logs.lines] == [(1, "hello")]


def test_views_of_many_jobs(call, api):
    serve_queues(api, "broken")
    api.queues["/api/v1/nodes"] = {"items": []}
    [queue] = call("get_queues", namespace="team")
    assert (queue.name, queue.running[0].job, queue.waiting[0].job) == ("gpus", "penguins", "broken")
    assert queue.quota["nvidia.com/gpu"] == ["6", "8"]
    assert {node.name for node in call("get_nodes")} >= {"node-7", "node-8", "node-9"}
    assert [(group.name, group.jobs) for group in call("get_history")] == [("team", 2)]
    compared = call("get_compare", job=["jobs/team/penguins", "jobs/team/broken"])
    assert [report.name for report in compared.reports] == ["penguins", "broken"]
    assert call("get_runs").items == []


def test_a_job_is_created_changed_and_deleted(call, api):
    written = {**api.jobs["broken"], "metadata": {"name": "whales"}}
    del written["status"]
    call("get_jobs")
    body = model("DistributedTraining").from_dict(written)
    made = call("create_job", body=body, namespace="team", dry_run=True)
    assert (made.message, "whales" in api.jobs) == ("whales can be created in namespace team", False)
    assert call("create_job", body=body, namespace="team").job.metadata.name == "whales"
    assert api.jobs["whales"]["spec"] == written["spec"]
    again = call("resubmit_job", source="jobs", group="team", name="whales")
    assert again.message == "whales-2 created"
    assert call("suspend_job", **OF_PENGUINS).message == "penguins suspended"
    assert eventually(lambda: call("get_job", **OF_PENGUINS).spec.suspend)
    assert call("resume_job", **OF_PENGUINS).message == "penguins resumed"
    scaled = call("scale_job", **OF_PENGUINS, body=model("Replicas")(replicas=4))
    assert scaled.message.startswith("penguins scaled from 3 to 4 workers")
    assert call("delete_job", **OF_PENGUINS, uid="uid-penguins").message == "penguins deleted"


def test_stacks_are_asked_for(call, api):
    api.logs = {f"penguins-worker-{place}-0": [LINE] for place in range(3)}
    asked = call("ask_job_for_stacks", **OF_PENGUINS)
    found = call("get_job_stacks", **OF_PENGUINS, request=asked.request)
    assert (found.request, found.waiting, found.over) == (asked.request, ["worker-0", "worker-1", "worker-2"], False)


def test_an_error_is_a_problem(call, api):
    problem = call("get_job", source="jobs", group="team", name="nothing")
    assert isinstance(problem, model("ProblemDetails"))
    assert (problem.status, problem.detail) == (404, "there is no job nothing in namespace team")
    api.forbidden = {"distributedtrainings"}
    assert call("suspend_job", **OF_PENGUINS).status == 403
