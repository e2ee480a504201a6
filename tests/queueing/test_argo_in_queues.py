"""The job of an Argo workflow waits in a queue of a real Kueue. The test does what the workflow's `resource` step does,
with its permissions and its client (kubectl)."""

from __future__ import annotations

import json

import pytest
import yaml

from apiserver.test_argo import EXAMPLES, STEP, WORKFLOW, holds
from support.api import Manifest
from support.controlplane import ControlPlane
from support.live import eventually
from support.simulator.kubelets import Program

from .test_jobs_in_queues import job, message, phase, pods, queue, running  # noqa: F401 (queue is a fixture)


@pytest.mark.nightly
def test_a_workflows_job_waits_for_quota_and_its_step_ends_with_it(
    control_plane: ControlPlane,
    queue: str,  # noqa: F811
) -> None:
    account = f"--as=system:serviceaccount:{queue}:{WORKFLOW['spec']['serviceAccountName']}"

    def kubectl(*arguments: str, text: str | None = None) -> str:
        done = control_plane.kubectl(*arguments, "-n", queue, account, input=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ended(condition: str) -> bool:
        found: Manifest = json.loads(kubectl("get", "dt", "train-x7k2p", "-o", "json"))
        return holds(STEP["resource"][condition], found)

    control_plane.kubectl("apply", "-n", queue, "-f", str(EXAMPLES / "rbac.yaml"))
    manifest = yaml.safe_load(STEP["resource"]["manifest"].replace("{{workflow.name}}", "train-x7k2p"))
    manifest["spec"] |= {"scheduling": {"queue": queue}, "resources": {"requests": {"cpu": "500m"}}}
    with running(control_plane, queue, Program(seconds=60)):
        eventually(lambda: not control_plane.kubectl("auth", "can-i", "create", "dt", "-n", queue, account).returncode)
        control_plane.api.create(job(queue, "first", cpus=3), queue)
        eventually(lambda: pods(control_plane, queue, "first"), what="the first job is admitted")
        kubectl("apply", "-f", "-", text=json.dumps(manifest))
        eventually(lambda: "insufficient" in message(control_plane, queue, "train-x7k2p"), what="Kueue's message")
        assert phase(control_plane, queue, "train-x7k2p") == "Queued"
        assert pods(control_plane, queue, "train-x7k2p") == []
        assert not ended("successCondition")
        assert not ended("failureCondition")
        kubectl("apply", "-f", "-", text=json.dumps(manifest))  # the step is retried: the job keeps its place
        control_plane.api.delete("DistributedTraining", queue, "first")
        eventually(lambda: ended("successCondition"), what="the job runs after the first one")
        assert control_plane.api.get("DistributedTraining", queue, "train-x7k2p")["status"]["queue"]["evictions"] == 0
