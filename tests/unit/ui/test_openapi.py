"""The OpenAPI document of the REST interface, and that answers have the types that it describes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from allranks.client.queues import Queue
from allranks.kube.cluster import Where
from allranks.ui.app import application
from allranks.ui.openapi import DistributedTraining, ObjectList, TrainingSweep
from allranks.ui.routes.capacity import Node
from allranks.ui.routes.compare import Comparison
from allranks.views.format.cost import Cost
from allranks.views.report.model import Report
from allranks.views.report.timeline import Attempt
from allranks.views.usage import UsageGroup
from support.job_api import JobApi
from support.sweep_samples import with_gpu_time
from support.ui_samples import (
    a_job,
    a_run,
    failure,
    pods_of,
    progress,
    serve_queues,
    stamp,
    times,
    with_data,
    write_run,
)
from support.ui_server import UiServer
from unit.views.test_sweep_report import finished

Schema = dict[str, Any]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    folder = tmp_path_factory.mktemp("document")
    return application(Where(None, None, str(folder / "none")), all_namespaces=True, runs=folder, token="").openapi()


def test_it_describes_each_route(document: Schema):
    assert document["openapi"].startswith("3.")
    routes = {(verb.upper(), path) for path, verbs in document["paths"].items() for verb in verbs}
    item = "/api/v1/{source}/{group}/{name}"
    parts = ("attempts", "ranks", "pods", "events", "report", "report.html", "logs", "stacks", "files", "files/{path}")
    assert routes == {
        *(("GET", f"/api/v1/{name}") for name in ("jobs", "runs", "stream", "queues", "nodes", "history", "compare")),
        ("GET", "/api/v1/curves"),
        ("GET", "/api/v1/archive"),
        ("GET", item),
        ("DELETE", item),
        *(("GET", f"{item}/{part}") for part in parts),
        ("GET", "/api/v1/sweeps"),
        ("GET", "/api/v1/sweeps/archive"),
        *(("GET", f"/api/v1/sweeps/{{source}}/{{group}}/{{name}}{part}") for part in ("", "/events", "/report.html")),
        ("POST", "/api/v1/jobs"),
        *(("POST", f"{item}/{action}") for action in ("suspend", "resume", "scale", "stacks", "resubmit")),
    }
    for verbs in document["paths"].values():
        for operation in verbs.values():
            assert operation["summary"]
            assert set(operation["responses"]["default"]["content"]) == {"application/problem+json"}
            assert "422" not in operation["responses"], "a mistake is a problem as well"
    operations = [operation["operationId"] for verbs in document["paths"].values() for operation in verbs.values()]
    assert len(set(operations)) == len(operations)
    assert {"get_jobs", "create_job", "get_job_logs", "ask_job_for_stacks", "get_sweep"} < set(operations)
    job = document["components"]["schemas"]["DistributedTraining"]
    assert job["properties"]["status"]["anyOf"][0] == {"$ref": "#/components/schemas/Status"}


def test_every_answer_in_json_has_a_type(document: Schema):
    untyped = []
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            for status, answer in operation["responses"].items():
                for kind, content in answer.get("content", {}).items():
                    places = list(unknown_parts(document, content.get("schema", {}), f"{verb} {path} {status} {kind}"))
                    untyped += [place for place in places if kind.endswith("json") or place.endswith(kind)]
    assert untyped == []


def unknown_parts(document: Schema, schema: Schema, place: str, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """Places of values of which the schema says nothing. The types of the CRDs have such fields on purpose."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        if name not in inside and name not in ("DistributedTraining", "TrainingSweep", "ProgressStatus"):
            yield from unknown_parts(
                document, document["components"]["schemas"][name], f"{place} {name}", (*inside, name)
            )
        return
    for choices in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf")):
        for choice in choices or ():
            yield from unknown_parts(document, choice, place, inside)
    if schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return
    if schema.get("type") == "array":
        yield from unknown_parts(document, schema.get("items", {}), f"{place}[]", inside)
    elif schema.get("type") == "object" and "properties" in schema:
        for name, part in schema["properties"].items():
            yield from unknown_parts(document, part, f"{place}.{name}", inside)
    elif schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        yield from unknown_parts(document, schema["additionalProperties"], f"{place}.*", inside)
    elif schema.get("type") in (None, "object") and "const" not in schema and "enum" not in schema:
        yield place


def test_the_check_finds_values_without_a_type(document: Schema):
    free = {"type": "object", "additionalProperties": True}
    wrong = {"type": "object", "properties": {"a": {"type": "array", "items": free}, "b": {}, "c": {"type": "string"}}}
    assert list(unknown_parts(document, wrong, "x")) == ["x.a[]", "x.b"]


# --- answers have the types of the document --------------------------------------------------------------------------


def restarted(name: str) -> Schema:
    """A job of which each part of its report has a value."""
    past = {
        "attempt": 0,
        "startTime": stamp(3500),
        "endTime": stamp(1800),
        "reason": "OOMKilled",
        "counted": True,
        "failure": failure(),
        "firstStep": 0,
        "lastStep": 500,
        "lostSeconds": 310.0,
    }
    alone = {"worker-1": {"count": 1, "counted": True, "restartTime": stamp(900), "failure": failure(attempt=1)}}
    seconds = {"productive": 2900.0, "starting": 90.0, "waiting": 30.0, "lost": 310.0}
    cost = {"gpuSeconds": seconds, "spent": {kind: value / 1000 for kind, value in seconds.items()}}
    job = a_job(
        name,
        "Running",
        attempt=1,
        attemptTime=stamp(1700),
        progress=progress(1200, attempt=1),
        times=times(),
        history=[past],
        replicaRestarts=alone,
        lastFailure=failure(),
        cost={**cost, "gpus": 3, "price": "2.40", "currency": "EUR"},
        avoidedNodes=["node-7"],
    )
    return with_data(job)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[JobApi]:
    with JobApi(tmp_path, restarted("penguins"), a_job("broken", "Failed", lastFailure=failure())) as api:
        api.pods = pods_of(api.jobs["penguins"], attempt=1)
        serve_queues(api)
        api.queues["/api/v1/nodes"] = {"items": []}
        yield api


OF_REPORTS = ("attempts", "restarts", "points", "inputs", "outputs")


def test_a_report_has_exactly_the_fields_of_its_type(server: UiServer):
    found = server.get("/api/v1/jobs/team/penguins/report").json
    assert_has_type(found, Report)
    assert all(found[part] for part in OF_REPORTS), "a part without a value is not compared"
    assert found["cost"]["spent"]
    assert found["attempts"][0]["cause"]
    assert_has_type(server.get("/api/v1/jobs/team/penguins/attempts").json, list[Attempt])
    assert_has_type(server.get("/api/v1/jobs/team/broken/report").json, Report)


def test_answers_on_many_jobs_have_exactly_the_fields_of_their_types(server: UiServer):
    [queue] = server.get("/api/v1/queues?namespace=team").json
    assert queue["running"]
    assert queue["waiting"]
    assert queue["preempted"]
    assert_has_type([queue], list[Queue])
    nodes = server.get("/api/v1/nodes").json
    assert next(node for node in nodes if node["name"] == "node-7")["avoidedBy"] == ["team/penguins"]
    assert_has_type(nodes, list[Node])
    history = server.get("/api/v1/history?by=team").json
    assert history[0]["spent"]["EUR"] > 3
    assert_has_type(history, list[UsageGroup])
    compared = server.get("/api/v1/compare?job=jobs/team/penguins&job=jobs/team/broken").json
    assert compared["differences"][0] == {"field": "spec.inputs[birds].name", "values": ["birds", ""]}
    assert_has_type(compared, Comparison)


def test_pods_and_events_have_the_types_that_the_document_names(server: UiServer, api: JobApi):
    pods = server.get("/api/v1/jobs/team/penguins/pods").json
    assert len(TypeAdapter(ObjectList).validate_python(pods).items) == 3
    assert_has_type(pods, ObjectList)


def test_a_sweep_and_its_job_have_the_types_that_the_document_names(server: UiServer, tmp_path: Path, document: Schema):
    directory = tmp_path / "runs" / "search" / "20260304-100000"
    directory.mkdir(parents=True)
    (directory / "sweep.json").write_text(json.dumps(finished()))
    trial = directory / "trials" / "search-0"
    trial.mkdir(parents=True)
    (trial / "job.json").write_text(json.dumps(with_gpu_time(a_job("search-0", "Succeeded"), 10)))
    found = server.get("/api/v1/sweeps/runs/search/20260304-100000").json
    read = TypeAdapter(TrainingSweep).validate_json(json.dumps(found))
    assert_has_type(found["cost"], Cost)
    assert_has_type(found["trialCosts"], dict[str, Cost])
    cost = document["components"]["schemas"]["TrainingSweep"]["properties"]["cost"]
    assert cost["anyOf"][0] == {"$ref": "#/components/schemas/Cost"}
    assert set(read.importances or {}) == set(found["spec"]["parameters"])
    job = server.get("/api/v1/jobs/team/penguins").text
    assert TypeAdapter(DistributedTraining).validate_json(job).status.attempt == 1


def assert_has_type(found: Any, expected: Any) -> None:
    """Each field of the answer is one of the type, and the other way round. Objects of Kubernetes may have more."""
    adapter = TypeAdapter(expected)
    read = adapter.validate_json(json.dumps(found), strict=True)
    assert adapter.dump_python(read, mode="json", by_alias=True, exclude_unset=True) == found


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_null(tmp_path: Path, number: float):
    folder = a_run(tmp_path, "digits", "20260304-101500", "Succeeded", progress=progress(100))
    job = json.loads((folder / "job.json").read_text())
    job["status"]["progress"]["curve"][-1]["value"] = number
    write_run(folder, job)
    path = "/api/v1/runs/digits/20260304-101500"
    with UiServer(tmp_path / "none", tmp_path) as server:
        report = server.get(f"{path}/report")
        last = report.json["points"][-1]
        assert (report.status, last["value"], last["metrics"]) == (200, None, {"loss": None})
        assert_has_type(report.json | {"progress": None}, Report)  # its types leave out what is null
        assert server.get(path).json["status"]["progress"]["curve"][-1]["value"] is None
        [listed] = server.get("/api/v1/runs").json["items"]
        assert listed["status"]["progress"]["curve"][-1]["value"] is None
        assert server.get("/runs/digits/20260304-101500").status == 200
        assert server.get("/compare?job=runs/digits/20260304-101500").status == 200
