"""`allranks ui` on a real API server: its watch, pods, Events, actions, and rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.commands import failure, kubeconfig_of_service_account
from support.live import eventually
from support.ui_server import UiServer


@pytest.fixture
def server(control_plane, namespace, tmp_path: Path) -> Iterator[UiServer]:
    with UiServer(control_plane.kubeconfig, tmp_path, namespace) as server:
        yield server


def test_a_job_is_shown_with_its_pods_and_changes_are_sent(server, job, namespace):
    job.status(ready="3/3")
    names = job.pods(node="node-1")
    job.run(*names)
    path = f"/api/v1/jobs/{namespace}/penguins"

    def shown() -> Any:
        answer = server.get(path)
        return answer.status == 200 and answer.json.get("status", {}).get("ready") == "3/3" and answer.json

    found = eventually(shown, what="the job with its status")
    assert found["metadata"]["uid"] == job.uid
    ranks = eventually(
        lambda: (
            [one for one in server.get(f"{path}/ranks").json if one["state"] == "Running"][2:]
            and server.get(f"{path}/ranks").json
        )
    )
    assert [(one["rank"], one["pod"], one["node"]) for one in ranks] == [
        (place, name, "node-1") for place, name in enumerate(names)
    ]
    with server.events(f"/api/v1/stream?namespace={namespace}") as events:
        assert next(events) == ("status", {"current": True, "problem": ""})
        job.status(phase="Failed", lastFailure=failure())
        kind, data = next(events)
        assert (kind, data["name"], data["phase"]) == ("changed", "penguins", "Failed")
    page = server.get(f"/jobs/{namespace}/penguins").text
    assert "ValueError: negative learning rate" in page
    assert server.get(f"/jobs/{namespace}/penguins/events").status == 200
    assert server.get(f"/jobs/{namespace}/penguins/logs").status == 200


def test_actions_change_the_job(server, job, namespace, control_plane):
    path = f"/api/v1/jobs/{namespace}/penguins"
    eventually(lambda: server.get(path).status == 200, what="the job")

    def spec() -> dict:
        return control_plane.api.find("DistributedTraining", namespace, "penguins")["spec"]

    assert server.request("POST", f"{path}/suspend", {}).json["message"] == "penguins suspended"
    assert spec()["suspend"] is True
    eventually(lambda: server.get(path).json["spec"].get("suspend"), what="the change")
    assert server.request("POST", f"{path}/resume", {}).json["message"] == "penguins resumed"
    assert server.request("POST", f"{path}/scale", {"replicas": 5}).status == 200
    assert (spec()["suspend"], spec()["roles"]["worker"]["replicas"]) == (False, 5)
    assert server.request("DELETE", f"{path}?uid={job.uid}").json["message"] == "penguins deleted"
    eventually(lambda: server.get(path).status == 404, what="the deletion")


def test_a_user_without_rights_sees_which_right_is_missing(control_plane, namespace, job, tmp_path):
    config = kubeconfig_of_service_account(control_plane, namespace, tmp_path)
    with UiServer(config, tmp_path, namespace) as server:
        detail = server.get("/api/v1/jobs").json["detail"]
        assert f"default may not list distributedtrainings in namespace {namespace}" in detail
        assert "may not list distributedtrainings" in server.get("/").text
