"""`allranks plan` on a real API server: nodes and pods that the test makes, for an administrator and for a user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.builders import manifest
from support.commands import Commands, kubeconfig_of_service_account, stamp
from support.live import eventually

GUIDE = Path(__file__).parents[2] / "docs/guides/cluster.md"
LABEL = "tests.allranks.dev/plan"


@pytest.fixture
def nodes(control_plane, namespace) -> Iterator[list[str]]:
    """Two nodes with 8 GPUs each, which only pods of these tests select. One has the image."""
    api, names = control_plane.api, [f"{namespace}-{letter}" for letter in "ab"]
    for name in names:
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {LABEL: namespace}}})
        images = [{"names": ["docker.io/me/train:2"], "sizeBytes": 3 << 30}] if name == names[0] else []
        amounts = {"cpu": "16", "memory": "64Gi", "pods": "20", "nvidia.com/gpu": "8"}
        ready = [{"type": "Ready", "status": "True", "lastTransitionTime": stamp(), "lastHeartbeatTime": stamp()}]
        status = {"allocatable": amounts, "capacity": amounts, "conditions": ready, "images": images}
        api.request(
            "PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, "application/strategic-merge-patch+json"
        )
        api.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, "application/merge-patch+json")
    yield names
    for name in names:
        api.delete("Node", None, name)


@pytest.fixture
def file(tmp_path: Path, namespace: str) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(training(namespace, "train", gpus=8)))
    return file


def training(namespace: str, name: str, gpus: int = 8, workers: int = 2, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"nodeSelector": {LABEL: namespace}, "containers": [{"name": "trainer"}]}}
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    fields = {"image": "me/train:2", "command": ["python", "train.py"], "resources": resources, "template": template}
    job = manifest("pytorch", {"worker": workers}, name, **fields, **spec)
    return {**job, "metadata": {"name": name}}


BEGIN = datetime.now(UTC)


def ago(seconds: float) -> str:
    return (BEGIN - timedelta(seconds=seconds)).isoformat(timespec="seconds").replace("+00:00", "Z")


def planned(result: Any, status: int = 0) -> dict[str, Any]:
    assert (result.exit_code, result.stderr) == (status, ""), result
    [plan] = json.loads(result.stdout)
    return plan


def occupy(control_plane: Any, namespace: str, node: str, job: str) -> None:
    """Creates a pod of a job on a node."""
    labels = {"allranks.dev/job-name": job}
    container = {"name": "trainer", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    pod = {"metadata": {"name": job, "labels": labels}, "spec": {"nodeName": node, "containers": [container]}}
    control_plane.api.create({"apiVersion": "v1", "kind": "Pod", **pod}, namespace)


def stored(control_plane: Any, namespace: str, name: str, **status: Any) -> None:
    """Creates a job of the same program, with a status as the operator writes it."""
    api = control_plane.api
    api.create(training(namespace, name, args=["--lr", "0.1"]), namespace)
    where = f"/apis/allranks.dev/v1alpha1/namespaces/{namespace}/distributedtrainings/{name}/status"
    api.request("PATCH", where, {"status": status}, "application/merge-patch+json")


def test_a_plan_says_whether_pods_have_room_now_later_or_never(allranks, control_plane, namespace, nodes, file):
    plan = planned(allranks("plan", str(file), "-o", "json"))
    assert (plan["rejected"], plan["pods"], plan["gpus"], plan["begin"]) == ("", 2, 16, "Now")
    assert plan["roles"] == [{"role": "worker", "pods": 2, "gpus": 8, "nodes": 2, "room": 2, "roomNow": 2}]
    [image] = plan["images"]
    assert image == {"image": "me/train:2", "nodes": 2, "present": 1, "bytes": 3 << 30}

    occupy(control_plane, namespace, nodes[1], "other")
    plan = planned(allranks("plan", str(file), "-o", "json"))
    assert (plan["roles"][0]["roomNow"], plan["begin"]) == (1, "Unknown"), "nothing says when the other job ends"
    running(control_plane, namespace, "other", 7200)
    plan = planned(allranks("plan", str(file), "-o", "json"))
    assert (plan["begin"], plan["beginSeconds"]) == ("Later", 7200)
    assert plan["beginReason"] == f"when {namespace}/other ends, by its own estimate"

    plan = planned(allranks("plan", str(file), "-o", "json", "--set", "roles.worker.replicas=3"), status=1)
    assert (plan["begin"], plan["roles"][0]["room"]) == ("NoRoom", 2)


def test_a_quota_of_the_namespace_decides_as_well(allranks, control_plane, namespace, nodes, file):
    api = control_plane.api
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}}
    api.create({**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "20", "pods": "50"}}}, namespace)
    assert planned(allranks("plan", str(file), "-o", "json"))["begin"] == "Now"
    where = f"/api/v1/namespaces/{namespace}/resourcequotas/team"
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    spec = {"containers": [{"name": "other", "image": "other:1", "resources": limits}]}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}, "spec": spec}, namespace)
    counted = {"requests.nvidia.com/gpu": "8", "pods": "1"}
    eventually(lambda: api.request("GET", where)["status"].get("used") == counted, 120)
    plan = planned(allranks("plan", str(file), "-o", "json"))
    text = "quota team of the namespace: requests.nvidia.com/gpu 20, the job requests 16, and 8 are in use"
    assert (plan["begin"], plan["beginReason"]) == ("Unknown", text)
    api.request("PATCH", where, {"spec": {"hard": {"requests.nvidia.com/gpu": "12"}}}, "application/merge-patch+json")
    plan = planned(allranks("plan", str(file), "-o", "json"), status=1)
    text = "quota team of the namespace: requests.nvidia.com/gpu 12, the job requests 16"
    assert (plan["begin"], plan["beginReason"]) == ("NoRoom", text)


def earlier_jobs(control_plane: Any, namespace: str, file: Path) -> None:
    """Creates three jobs that succeeded and one that failed, and gives the job of the file a pool with a price."""
    pool = {"nodeSelector": {LABEL: namespace}, "price": {"gpuHour": "2.50", "currency": "EUR"}}
    named = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingPool", "metadata": {"name": namespace}}
    file.write_text(yaml.safe_dump_all([training(namespace, "train", pool=namespace), {**named, "spec": pool}]))
    for name, seconds in (("first", 3500), ("second", 7100), ("third", 3600)):
        times = {"queued": 500, "starting": 100, "productive": seconds - 100, "lost": 0, "category": "Finished"}
        stored(
            control_plane,
            namespace,
            name,
            phase="Succeeded",
            completionTime=stamp(),
            times={**times, "since": stamp(), "measured": True},
            checkpoints=[{"step": step, "time": ago(age)} for step, age in ((10, 1300), (20, 700), (30, 100))],
        )
    stored(control_plane, namespace, "failed", phase="Failed", completionTime=stamp())


def running(control_plane: Any, namespace: str, name: str, eta: float) -> None:
    now = stamp()
    progress = {"step": 5, "totalSteps": 10, "etaSeconds": eta, "lastReport": now}
    stored(control_plane, namespace, name, phase="Running", attemptTime=now, progress=progress)


def test_duration_cost_and_risk_come_from_earlier_jobs(allranks, control_plane, namespace, nodes, file):
    earlier_jobs(control_plane, namespace, file)
    plan = planned(allranks("plan", str(file), "-o", "json"))
    duration = plan["duration"]
    assert (duration["jobs"], duration["shortest"], duration["median"], duration["longest"]) == (3, 3500, 3600, 7100)
    assert duration["starting"] == 100
    assert (plan["cost"], plan["currency"]) == ([38.89, 40.0, 78.89], "EUR")
    assert plan["atRiskSeconds"] == 600


def test_roles_with_pools_of_their_own_are_planned_on_their_nodes_at_their_prices(
    allranks, control_plane, namespace, nodes, file
):
    earlier_jobs(control_plane, namespace, file)
    job, dear = yaml.safe_load_all(file.read_text())
    cheap = {
        **dear,
        "metadata": {"name": f"{namespace}-cheap"},
        "spec": {"price": {"gpuHour": "0.50", "currency": "EUR"}},
    }
    roles = job["spec"]["roles"]
    del job["spec"]["pool"]
    job["spec"]["roles"] = {"worker": {**roles["worker"], "pool": f"{namespace}-cheap"}}
    file.write_text(yaml.safe_dump_all([job, dear, cheap]))
    plan = planned(allranks("plan", str(file), "-o", "json"))
    assert (plan["cost"], plan["currency"]) == ([7.78, 8.0, 15.78], "EUR")
    job["spec"]["roles"] = {"worker": {**roles["worker"], "pool": f"{namespace}-nowhere"}}
    file.write_text(yaml.safe_dump_all([job, dear, cheap]))
    plan = planned(allranks("plan", str(file), "-o", "json"))
    assert plan["beginReason"] == f'the job waits for TrainingPool "{namespace}-nowhere", which does not exist'


def test_the_guide_shows_what_is_printed(allranks, control_plane, namespace, nodes, file):
    earlier_jobs(control_plane, namespace, file)
    occupy(control_plane, namespace, nodes[1], "whales")
    running(control_plane, namespace, "whales", 7200)
    result = allranks("plan", str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"$ allranks plan job.yaml\n{result.stdout.replace(namespace, 'vision')}```" in GUIDE.read_text()


def test_what_is_rejected_or_missing_is_said(allranks, namespace, nodes, file):
    result = allranks("plan", str(file), "--set", "pool=nowhere", "-o", "json")
    plan = planned(result)
    assert plan["begin"] == "Unknown"
    assert plan["beginReason"] == 'the job waits for TrainingPool "nowhere", which does not exist'
    assert allranks("plan", str(file), "--set", "roles.worker.replicas=-1").exit_code == 2
    elsewhere = allranks("plan", str(file), "--set", "metadata.namespace=nowhere", "-o", "json")
    assert elsewhere.exit_code in (1, 2)


def test_a_user_without_rights_on_nodes_learns_what_is_unknown(control_plane, namespace, file, tmp_path):
    config = kubeconfig_of_service_account(control_plane, namespace, tmp_path)
    result = Commands(config, namespace)("plan", str(file), "-o", "json")
    plan = planned(result, status=1)
    assert f"system:serviceaccount:{namespace}:default may not create distributedtrainings" in plan["rejected"]
    assert (plan["begin"], plan["roles"][0]["nodes"]) == ("Unknown", None)
    assert "you have no right to list the nodes" in plan["unknown"]
