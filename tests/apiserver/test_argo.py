"""Repeats what the `resource` step of an Argo workflow does, with the same permissions and client (kubectl).

Argo's controller needs nodes: tests/e2e/test_argo.py runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from allranks.api.job import KIND
from support import live
from support.controlplane import ControlPlane
from support.kubelet import Program
from support.live import eventually

EXAMPLES = Path(__file__).parents[2] / "examples" / "argo"
WORKFLOW = yaml.safe_load((EXAMPLES / "workflow.yaml").read_text())
[STEP] = [template for template in WORKFLOW["spec"]["templates"] if "resource" in template]


def test_a_retried_workflow_step_creates_one_job_and_observes_its_end(
    control_plane: ControlPlane, namespace: str
) -> None:
    def kubectl(*arguments: str, text: str | None = None) -> str:
        account = f"--as=system:serviceaccount:{namespace}:{WORKFLOW['spec']['serviceAccountName']}"
        done = control_plane.kubectl(*arguments, "-n", namespace, account, input=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    control_plane.kubectl("apply", "-n", namespace, "-f", str(EXAMPLES / "rbac.yaml"))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "workflow"}}
    workflow = control_plane.api.create(owner, namespace)  # stands for the Workflow: an owner that is not ours
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "workflow", "uid": workflow["metadata"]["uid"]}
    manifest = yaml.safe_load(STEP["resource"]["manifest"].replace("{{workflow.name}}", "train-x7k2p"))
    manifest["metadata"]["ownerReferences"] = [{**reference, "controller": True}]

    connection = live.connection(control_plane)
    with live.operator(connection, namespace), live.kubelet(connection, Program(seconds=0.5), namespace=namespace):
        eventually(lambda: control_plane.kubectl("auth", "can-i", "create", "dt", "-n", namespace,
                   f"--as=system:serviceaccount:{namespace}:train").returncode == 0)  # fmt: skip
        for _ in range(2):
            kubectl("apply", "-f", "-", text=json.dumps(manifest))

        def current() -> dict[str, Any]:
            return json.loads(kubectl("get", "dt", "train-x7k2p", "-o", "json"))

        eventually(lambda: holds(STEP["resource"]["successCondition"], current()))
        assert not holds(STEP["resource"]["failureCondition"], current())
        kubectl("apply", "-f", "-", text=json.dumps(manifest))  # retried after its end: nothing is restarted
        assert len(control_plane.api.list(KIND, namespace)) == 1
        assert len(control_plane.api.list("Pod", namespace)) == 4
        for parameter in STEP["outputs"]["parameters"]:
            path = parameter["valueFrom"]["jsonPath"]
            assert kubectl("get", "dt", "train-x7k2p", f"-o=jsonpath={path}") != ""

        control_plane.api.delete("ConfigMap", namespace, "workflow", propagation="Background")
        eventually(lambda: not control_plane.api.list(KIND, namespace) and not control_plane.api.list("Pod", namespace))


def holds(condition: str, found: dict[str, Any]) -> bool:
    """As Argo reads it: a label selector `path == value`, of a scalar that is a valid label value."""
    path, wanted = condition.split(" == ")
    value: Any = found
    for part in path.split("."):
        value = value.get(part, {})
    return value == wanted and wanted.isalpha()
