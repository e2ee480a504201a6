"""The inputs and outputs of a job in its report: text, JSON and pages."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from allranks.api.data import InputStatus, OutputStatus
from allranks.views.description import describe_job
from allranks.views.format.table import Grid
from allranks.views.report.forms import rendered
from support import reported
from support.reported import at

SUM = "ab" * 32
INPUTS = [
    {"name": "birds", "from": "s3://birds/penguins", "path": "/data"},
    {"name": "base", "from": "hf://models/owner/base", "path": "/base", "revision": "main"},
    {"name": "words", "from": "https://me:sesame-open@host.example/words.txt", "path": "/words"},
    {"name": "maps", "from": "claim://maps/2026", "path": "/maps"},
]
OUTPUTS = [
    {"name": "model", "to": "s3://models/penguins", "path": "/out"},
    {"name": "steps", "to": "s3://models/steps", "path": "/steps", "when": "Checkpoint"},
]
STATUS = {
    "inputs": [
        {"name": "birds", "state": "Ready", "revision": "8c1f", "sha256": SUM, "bytes": 1536, "cached": True},
        {"name": "base", "state": "Fetching"},
        {"name": "words", "state": "Failed"},
        {"name": "maps", "state": "Ready"},
    ],
    "outputs": [
        {"name": "model", "state": "Failed", "message": "s3://models: access denied"},
        {"name": "steps", "state": "Uploading", "step": 600, "uploadedStep": 400, "bytes": 2048, "files": 3},
    ],
}


def a_job(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    job = reported.finished()
    return {**job, "spec": {**job["spec"], **spec}, "status": {**job["status"], **(status or {})}}


def text(job: dict[str, Any], form: str = "text") -> str:
    return rendered(job, form, at(5000))


def test_the_report_says_where_data_is_from_and_where_it_goes():
    page = text(a_job(STATUS, inputs=INPUTS, outputs=OUTPUTS))
    found = [" ".join(line.split()) for line in page.partition("\nInputs\n")[2].splitlines()]
    assert found[:10] == [
        "NAME STATE SIZE REVISION FROM",
        "birds Ready, from the cache 1.5 KiB 8c1f s3://birds/penguins",
        "base Fetching main hf://models/owner/base",
        "words Failed https://<masked>@host.example/words.txt",
        "maps a volume claim://maps/2026",
        "",
        "Outputs",
        "NAME STATE SIZE PROGRESS TO",
        "model Failed s3://models: access denied s3://models/penguins",
        "steps Uploading 3 files, 2.0 KiB step 400 is uploaded, step 600 follows s3://models/steps",
    ]


@pytest.mark.parametrize(
    ("location", "state"),
    [("Node", "each node fetches it"), ("Pod", "each pod fetches it"), ("Claim", "Ready, from the cache")],
)
def test_the_report_says_if_the_pods_fetch_an_input(location: str, state: str):
    ready = {"inputs": [{**STATUS["inputs"][0], "location": location}]}
    found = text(a_job(ready, inputs=INPUTS[:1])).partition("\nInputs\n")[2].splitlines()
    assert " ".join(found[1].split()) == f"birds {state} 1.5 KiB 8c1f s3://birds/penguins"


def test_hashes_are_short_and_empty_columns_are_left_out():
    ready = {"inputs": [{"name": "birds", "state": "Ready", "sha256": SUM}]}
    found = text(a_job(ready, inputs=INPUTS[:1])).partition("\nInputs\n")[2].splitlines()
    assert [line.split() for line in found[:2]] == [
        ["NAME", "STATE", "REVISION", "FROM"],
        ["birds", "Ready", SUM[:12], "s3://birds/penguins"],
    ]


def test_its_json_has_the_same_and_no_password():
    report = json.loads(text(a_job(STATUS, inputs=INPUTS, outputs=OUTPUTS), "json"))
    assert report["inputs"][0] == {
        "name": "birds",
        "from": "s3://birds/penguins",
        "path": "/data",
        "state": "Ready",
        "mounted": False,
        "revision": "8c1f",
        "sha256": SUM,
        "bytes": 1536,
        "cached": True,
        "location": None,
    }
    assert report["inputs"][3] | {"mounted": True, "bytes": None} == report["inputs"][3]
    assert report["outputs"][1] == {
        "name": "steps",
        "to": "s3://models/steps",
        "path": "/steps",
        "when": "Checkpoint",
        "state": "Uploading",
        "step": 600,
        "uploadedStep": 400,
        "files": 3,
        "bytes": 2048,
        "message": "",
    }
    assert "sesame-open" not in json.dumps(report)


def test_before_the_status_has_them_they_are_pending():
    report = json.loads(text(a_job(inputs=INPUTS, outputs=OUTPUTS), "json"))
    assert {one["state"] for one in report["inputs"] + report["outputs"]} == {"Pending"}
    assert report["inputs"][1]["revision"] == "main"


def test_the_report_has_each_field_of_the_status():
    """A new field of status.inputs or status.outputs must be shown, or be named here."""
    report = json.loads(text(a_job(STATUS, inputs=INPUTS, outputs=OUTPUTS), "json"))
    for kind, model in ("inputs", InputStatus), ("outputs", OutputStatus):
        keys = {to_camel(field.name) for field in fields(model)}
        assert keys - report[kind][0].keys() <= {"startTime", "checkpointTime"}


def test_describe_has_the_same_tables():
    job = a_job(STATUS, inputs=INPUTS, outputs=OUTPUTS)
    job["metadata"] = {**job["metadata"], "uid": "u"}
    found = list(describe_job(job, [], "", [], at(5000)))
    for title in ("Inputs:", "Outputs:"):
        table = found[found.index(title) + 1]
        assert isinstance(table, Grid)
        assert [row[0] for row in table.rows] in (["birds", "base", "words", "maps"], ["model", "steps"])
    assert "Inputs:" not in list(describe_job({**job, "spec": reported.finished()["spec"]}, [], "", [], at(5000)))


@pytest.mark.parametrize("form", ["text", "html"])
def test_a_job_without_data_has_no_section_for_it(form: str):
    page = text(a_job(), form)
    assert "Inputs" not in page
    assert "Outputs" not in page


@pytest.mark.parametrize("given", [None, "s3://a", [None, 7, {}, {"name": ""}], {"name": "a"}])
def test_a_manifest_of_another_shape_has_no_data(given: Any):
    report = json.loads(text(a_job(inputs=given, outputs=given), "json"))
    assert (report["inputs"], report["outputs"]) == ([], [])


def test_the_page_has_both_tables_and_hostile_texts_stay_text():
    hostile = [{"name": "<b>x</b>", "from": "<script>alert(1)</script>\x1b[31m", "path": "/a"}]
    page = text(a_job(inputs=hostile, outputs=OUTPUTS), "html")
    assert "<h2>Inputs</h2>" in page
    assert "<h2>Outputs</h2>" in page
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page


def test_the_report_has_the_condition_of_the_uploads_without_passwords():
    message = "model is not uploaded: https://me:sesame-open@host.example: access is denied"
    condition = {
        "type": "OutputsUploaded",
        "status": "False",
        "reason": "Failed",
        "message": message,
        "lastTransitionTime": "2026-03-04T10:00:00Z",
    }
    job = a_job({**STATUS, "conditions": [condition]}, outputs=OUTPUTS)
    line = "Failed: model is not uploaded: https://<masked>@host.example: access is denied"
    assert f"\nOutputs     {line}\n" in text(job)
    assert json.loads(text(job, "json"))["uploads"] == line
    assert "sesame-open" not in text(job, "html")


def test_the_time_of_uploads_is_a_part_of_its_own_at_the_end_of_the_last_attempt():
    job = a_job()
    last, times = job["status"]["history"][-1], job["status"]["times"]
    job["status"]["history"] = [*job["status"]["history"][:-1], {**last, "productiveSeconds": 200.0}]
    job["status"]["times"] = {**times, "productive": times["productive"] - 60, "uploading": 60.0}
    found = json.loads(text(job, "json"))
    assert found["times"]["uploading"] == 60
    parts = [(part["kind"], part["seconds"]) for part in found["attempts"][-1]["segments"]]
    assert parts[-2:] == [("productive", 200.0), ("uploading", 60.0)]
    lines = text(job)
    assert "  ▲ uploading " in lines
    assert "(productive / all but queued and uploading, by reports)" in lines
    page = text(job, "html")
    assert '<th scope="col">Uploading</th>' in page
    assert "Uploading" not in text(a_job(), "html")
