"""Workflows that train: Argo's own controller runs the example in a namespace that admits only restricted pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from . import argo
from .cluster import IMAGE, REPOSITORY, Cluster
from .jobs import Manifest, Team, namespace, of_tests

EXAMPLES = REPOSITORY / "examples" / "argo"
ALONE = {"worker": {"replicas": 1}}


@pytest.fixture(scope="module", autouse=True)
def controller(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with argo.installed(cluster, tmp_path_factory.mktemp("argo")):
        yield


# All three workflows start at once: most of their time is Argo's, which polls every five seconds.


@pytest.fixture(scope="module")
def trains(cluster: Cluster) -> Iterator[Team]:
    with namespace(cluster) as team:
        submit(team)
        yield team


@pytest.fixture(scope="module")
def fails(cluster: Cluster) -> Iterator[Team]:
    with namespace(cluster) as team:
        submit(team, command=["sh", "-c", "exit 1"], restart={"maxRestarts": 0}, roles=ALONE)
        yield team


@pytest.fixture(scope="module")
def waits(cluster: Cluster) -> Iterator[Team]:
    with namespace(cluster) as team:
        submit(team, command=["sh", "-c", "until [ -e /tmp/enough ]; do sleep 0.1; done"], roles=ALONE)
        yield team


@pytest.fixture(scope="module", autouse=True)
def submitted(controller: None, trains: Team, fails: Team, waits: Team) -> None:
    pass


def test_a_workflow_trains_and_passes_the_result_to_its_next_step(trains: Team) -> None:
    team, name = trains, the_workflow(trains)
    workflow = finished(team, name, "Succeeded")

    [train] = nodes(workflow, "Retry", "train")
    assert outputs(train) == {"phase": "Succeeded", "restarts": "0"}
    assert len(nodes(workflow, "Pod", "train")) == 1
    [report] = nodes(workflow, "Pod", "report")
    said = team.kubectl("logs", "-c", "main", "-l", f"{OF_WORKFLOW}={name}", "--tail=-1", "--prefix")
    assert "Succeeded after 0 restarts\n" in said, report
    job = the_job(team)
    assert job["metadata"]["name"] == name
    [owner] = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Workflow", workflow["metadata"]["uid"], True)
    assert "test accuracy" in team.kubectl("logs", f"{name}-worker-0-0")

    team.kubectl("delete", "workflow", name, "--cascade=foreground", timeout=300)
    assert team.kubectl("get", "dt,pods", "-o", "name") == ""


def test_a_failed_job_fails_its_step_and_is_not_created_again(fails: Team) -> None:
    team, name = fails, the_workflow(fails)
    workflow = finished(team, name, "Failed")

    tries = nodes(workflow, "Pod", "train")
    assert [node["phase"] for node in tries] == ["Failed", "Failed", "Failed"]
    assert "failure condition '{status.phase == [Failed]}' evaluated true" in tries[0]["message"]
    assert nodes(workflow, "Pod", "report") == []
    job = the_job(team)
    assert (job["status"]["phase"], job["status"]["attempt"]) == ("Failed", 0)


def test_a_step_that_lost_its_pod_finds_its_job_again(waits: Team) -> None:
    team, name = waits, the_workflow(waits)
    running = ("get", "dt", name, "-n", team.namespace, "-o=jsonpath={.status.phase}")
    team.cluster.eventually(*running, contains="Running")
    uid = the_job(team)["metadata"]["uid"]
    steps = ("-l", f"{OF_WORKFLOW}={name}")
    [first] = json.loads(team.kubectl("get", "pods", *steps, "-o=json"))["items"]
    # Wait until Argo has observed the running pod; otherwise it recreates the pod without counting a retry.
    node = first["metadata"]["annotations"]["workflows.argoproj.io/node-id"]
    phase = f"-o=jsonpath={{.status.nodes.{node}.phase}}"
    team.cluster.eventually("get", "workflow", name, "-n", team.namespace, phase, contains="Running")

    team.kubectl("delete", "pod", first["metadata"]["name"], "--grace-period=0", "--force")
    logs = ("logs", *steps, "-n", team.namespace, "-c", "main", "--tail=-1")
    team.cluster.eventually(*logs, contains="0/1 success conditions matched")
    team.kubectl("exec", f"{name}-worker-0-0", "--", "touch", "/tmp/enough")

    workflow = finished(team, name, "Succeeded")
    assert [node["phase"] for node in nodes(workflow, "Pod", "train")] == ["Error", "Succeeded"]
    job = the_job(team)
    assert (job["metadata"]["uid"], job["status"]["attempt"]) == (uid, 0)


OF_WORKFLOW = "workflows.argoproj.io/workflow"


def submit(team: Team, **spec: Any) -> None:
    """The example with images that the nodes have and changes of the job's spec."""
    workflow = yaml.safe_load(of_tests((EXAMPLES / "workflow.yaml").read_text()))
    templates = {template["name"]: template for template in workflow["spec"]["templates"]}
    resource = templates["train"]["resource"]
    if spec:
        manifest = yaml.safe_load(resource["manifest"])
        resource["manifest"] = yaml.safe_dump({**manifest, "spec": {**manifest["spec"], **spec}})
    templates["report"]["container"]["image"] = IMAGE
    team.kubectl("apply", "-f", str(EXAMPLES / "rbac.yaml"))
    team.kubectl("create", "-f", "-", input=json.dumps(workflow))


def the_workflow(team: Team) -> str:
    """Starts the workflow; returns its name."""
    return team.kubectl("get", "workflows", "-o", "jsonpath={.items[*].metadata.name}")


def finished(team: Team, name: str, phase: str) -> Manifest:
    """Waits for this phase at the end; returns the workflow."""
    team.cluster.wait("--for=condition=Completed", f"workflow/{name}", "-n", team.namespace)
    workflow = team.get("workflow", name)
    assert workflow["status"]["phase"] == phase, json.dumps(workflow["status"], indent=1)
    return workflow


def nodes(workflow: Manifest, kind: str, template: str) -> list[Manifest]:
    """The phases of the nodes of a workflow in the order of their start. Each try is a node of type Pod."""
    found = [node for node in workflow["status"]["nodes"].values()
             if (node["type"], node.get("templateName")) == (kind, template)]  # fmt: skip
    return sorted(found, key=lambda node: (node["startedAt"], node["displayName"]))


def outputs(node: Manifest) -> dict[str, str]:
    return {parameter["name"]: parameter["value"] for parameter in node["outputs"]["parameters"]}


def the_job(team: Team) -> Manifest:
    [job] = json.loads(team.kubectl("get", "dt", "-o", "json"))["items"]
    return dict(job)
