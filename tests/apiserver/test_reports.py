"""Reports on a real API server, with tokens like those of the kubelet: which ones are accepted and rejected."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.api.job import KIND
from allranks.core.facts import rank_reports
from allranks.core.objects.report_env import AUDIENCE
from allranks.operator.app import Operator
from allranks.operator.timing import Clock
from allranks.telemetry.server import PATH
from support import live
from support.api import ApiError, Manifest, path
from support.controlplane import ControlPlane, free_ports
from support.kubelet import Hand
from support.live import eventually, job, phase

URL = "http://allranks.allranks-system.svc:8081/v1/report"
OURS = (AUDIENCE,)


class World:
    """A namespace with its own operator."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane, self.api, self.namespace = control_plane, control_plane.api, namespace
        self.connection = live.connection(control_plane)
        self.hand = Hand(self.api, namespace, Clock().now, lambda _: Clock().now())

    @contextlib.contextmanager
    def operator(self, **settings: Any) -> Iterator[Operator]:
        with live.operator(
            self.connection, self.namespace, report_url=URL, report_port=0, pools=False, **settings
        ) as operator:
            yield operator

    def runs(self, name: str = "demo", attempt: int = 0) -> None:
        """A job of two ranks."""
        if not self.api.find(KIND, self.namespace, name):
            self.api.create(job(name), self.namespace)
        for role in ("master", "worker"):
            pod = f"{name}-{role}-0-{attempt}"
            eventually(lambda pod=pod: self.api.find("Pod", self.namespace, pod))
            self.hand.place(pod, "node-a")
            self.hand.start(pod)
        eventually(lambda: phase(self.control_plane, self.namespace, name) == "Running")

    def token(self, pod: str = "demo-worker-0-0", audiences: tuple[str, ...] = OURS, bound: bool = True) -> str:
        """Requests a token like the kubelet for a projected volume."""
        reference = {"apiVersion": "v1", "kind": "Pod", "name": pod}
        if bound:
            reference["uid"] = self.api.get("Pod", self.namespace, pod)["metadata"]["uid"]
        spec = {"audiences": [*audiences], "expirationSeconds": 600, **({"boundObjectRef": reference} if bound else {})}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        where = path("ServiceAccount", self.namespace, "default", "token")
        return self.api.request("POST", where, request)["status"]["token"]

    def progress(self, name: str = "demo") -> Manifest:
        return self.api.get(KIND, self.namespace, name)["status"].get("progress") or {}


def report(operator: Operator, token: str, **message: Any) -> int:
    return answer(operator, token, **message)[0]


def answer(operator: Operator, token: str, **message: Any) -> tuple[int, dict[str, str], Any]:
    assert operator.reports
    connection = http.client.HTTPConnection("127.0.0.1", operator.reports.port, timeout=300)
    try:
        connection.request("POST", PATH, json.dumps(message), {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), json.loads(response.read())
    finally:
        connection.close()


def ready(operator: Operator) -> None:
    eventually(lambda: operator.session and operator.session.leading)


def listens(operator: Operator) -> None:
    """Also on a standby."""
    eventually(lambda: operator.reports and operator.reports.port)


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str) -> World:
    return World(control_plane, namespace)


def test_a_report_reaches_the_status_of_its_job_and_no_other(world: World) -> None:
    with world.operator() as operator:
        world.runs()
        world.runs("other")
        code, _, body = answer(operator, world.token(), rank=1, step=7, totalSteps=10, metrics={"loss": 0.5})
        assert (code, body) == (200, {"interval": 5.0, "stacks": "", "checkpoint": 0, "record": True})
        eventually(lambda: world.progress().get("step") == 7)
        assert report(operator, world.token("other-worker-0-0"), rank=1, step=3, totalSteps=10) == 200
        eventually(lambda: world.progress("other").get("step") == 3)
        assert world.progress()["step"] == 7
        [container] = world.api.get("Pod", world.namespace, "demo-worker-0-0")["spec"]["containers"]
        assert {"name": "ALLRANKS_REPORT_URL", "value": URL} in container["env"]


def test_ranks_are_asked_for_their_stacks_when_the_job_is_annotated(world: World) -> None:
    with world.operator() as operator:
        world.runs()
        token = world.token()
        assert report(operator, token, rank=1, step=7) == 200
        request = rank_reports.new_stack_request(0, Clock().now(), 7)
        change = {"metadata": {"annotations": {rank_reports.STACKS_ANNOTATION: request}}}
        world.api.request("PATCH", path(KIND, world.namespace, "demo"), change, "application/merge-patch+json")
        asked = f"requested {request}"
        eventually(lambda: answer(operator, token, rank=1, step=8)[2].get("stacks") == asked)


def test_a_token_for_another_audience_or_pod_is_rejected(world: World) -> None:
    with world.operator() as operator:
        world.runs()
        plain = {"containers": [{"name": "x", "image": "x"}]}
        stranger = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}, "spec": plain}
        world.api.create(stranger, world.namespace)
        labelled = {"name": "labelled", "labels": {"allranks.dev/job-name": "demo", "allranks.dev/role": "worker",
                    "allranks.dev/index": "0", "allranks.dev/attempt": "0"}}  # fmt: skip
        world.api.create({**stranger, "metadata": labelled}, world.namespace)
        assert operator.session
        pods = operator.session.pods
        eventually(lambda: pods.get(world.namespace, "labelled"))
        right = world.token()
        head, payload, signature = right.split(".")
        other = world.token("demo-master-0-0").split(".")
        refused = {
            "for the API server": (world.token(audiences=("https://kubernetes.default.svc",)), 401),
            "for another audience": (world.token(audiences=("vault",)), 401),
            "without a pod": (world.token(bound=False), 401),
            "of a pod without a job": (world.token("stranger"), 403),
            "of a pod with forged labels": (world.token("labelled"), 403),
            "with a wrong signature": (f"{head}.{payload}.{signature[::-1]}", 401),
            "with the signature of another token": (f"{head}.{payload}.{other[2]}", 401),
            "of the administrator": (world.control_plane.admin_token, 401),
        }
        assert {name: report(operator, token, step=1) for name, (token, _) in refused.items()} == {
            name: code for name, (_, code) in refused.items()
        }
        assert report(operator, right, step=1) == 200
        eventually(lambda: world.progress().get("step") == 1)


def test_a_token_becomes_invalid_when_its_pod_is_deleted(world: World) -> None:
    with world.operator() as operator:
        world.runs()
        cached, uncached = world.token(), world.token()
        assert report(operator, cached, step=1) == 200
        world.api.patch(KIND, world.namespace, "demo", {"spec": {"suspend": True}})
        world.hand.end("demo-worker-0-0", 143, "Error")
        with contextlib.suppress(ApiError):  # the operator may have deleted it already
            world.api.delete("Pod", world.namespace, "demo-worker-0-0", grace=0)
        assert operator.session
        pods = operator.session.pods
        eventually(lambda: pods.get(world.namespace, "demo-worker-0-0") is None)
        assert (report(operator, cached, step=2), report(operator, uncached, step=2)) == (403, 403)


def test_a_report_of_a_former_attempt_gets_409(world: World) -> None:
    with world.operator() as operator:
        world.runs()
        token = world.token("demo-master-0-0")
        assert report(operator, token, step=100) == 200
        world.hand.end("demo-worker-0-0", 137, "Error")
        world.runs(attempt=1)
        # The old pod is terminating.
        assert world.api.get("Pod", world.namespace, "demo-master-0-0")["metadata"]["deletionTimestamp"]
        assert report(operator, token, step=101) == 409
        assert report(operator, world.token("demo-master-0-1"), step=60) == 200


@pytest.mark.nightly
def test_while_the_api_server_is_unavailable_cached_tokens_are_accepted_and_new_ones_get_503(world: World) -> None:
    with world.operator() as operator:
        world.runs()
        cached, uncached = world.token(), world.token("demo-master-0-0")
        assert report(operator, cached, step=1) == 200
        world.control_plane.stop_api_server()
        try:
            assert report(operator, cached, step=2) == 200
            code, headers, _ = answer(operator, uncached, step=2)
            assert (code, headers["Retry-After"], headers["Connection"]) == (503, "5", "close")
        finally:
            world.control_plane.start_api_server()
        eventually(lambda: report(operator, uncached, step=3) == 200)


def test_a_restarted_operator_accepts_reports_of_the_same_ranks(world: World) -> None:
    with world.operator() as operator:
        world.runs()
        token = world.token()
        assert report(operator, token, step=5, totalSteps=10) == 200
        eventually(lambda: world.progress().get("step") == 5)
    with world.operator() as operator:
        ready(operator)
        assert report(operator, token, step=6, totalSteps=10) == 200
        eventually(lambda: world.progress().get("step") == 6)


def test_a_standby_rejects_reports_and_the_leader_accepts_them(world: World) -> None:
    lease = {"leader_election": True, "lease_namespace": world.namespace, "lease_seconds": 600}
    with world.operator(**lease) as first:
        ready(first)
        world.runs()
        token = world.token()
        with world.operator(**lease) as second:
            listens(second)
            code, headers, _ = answer(second, token, step=1)
            assert (code, headers["Retry-After"], headers["Connection"]) == (503, "1", "close")
            assert report(first, token, step=1) == 200
    # Both are gone. Their Lease would expire in ten minutes.
    world.api.patch("Lease", world.namespace, "allranks-operator", {"spec": {"leaseDurationSeconds": 1}})
    with world.operator(**{**lease, "lease_seconds": 3}) as third:
        listens(third)
        eventually(lambda: report(third, token, step=2) == 200)


@pytest.mark.nightly
def test_a_status_for_kubeflow_trainer_is_a_report_of_the_pod_whose_token_it_has(world: World) -> None:
    metrics = [{"name": "loss", "value": "0.5"}, {"name": "current_step", "value": "4"},
               {"name": "total_steps", "value": "10"}]  # fmt: skip
    status = {"trainerStatus": {"progressPercentage": 40, "estimatedRemainingSeconds": 6, "metrics": metrics}}
    with world.operator() as operator:
        world.runs()
        for variables in (trainer_variables(world, f"demo-{role}-0-0") for role in ("master", "worker")):
            assert variables == {"URL": URL, "TOKEN": "/var/run/secrets/allranks.dev/token"}
        token = world.token("demo-master-0-0")
        assert [report(operator, wrong, **status) for wrong in ("x.y.z", world.token(audiences=("vault",)))] == [
            401
        ] * 2
        assert answer(operator, token, **status)[0::2] == (200, {"interval": 5.0, "stacks": "", "checkpoint": 0})
        eventually(lambda: world.progress().get("step") == 4)
        progress = world.progress()
        assert (progress["totalSteps"], progress["metrics"], progress["reporting"]) == (10, {"loss": 0.5}, 1)
        assert report(operator, token, rank=0, step=1, totalSteps=3) == 200
        eventually(lambda: world.progress().get("totalSteps") == 3)
        assert report(operator, token, **status) == 200
        assert report(operator, world.token("demo-worker-0-0"), rank=1, step=2, totalSteps=3) == 200
        eventually(lambda: world.progress().get("reporting") == 2)
        assert (world.progress()["step"], world.progress()["totalSteps"]) == (2, 3)


def trainer_variables(world: World, pod: str) -> dict[str, str]:
    [container] = world.api.get("Pod", world.namespace, pod)["spec"]["containers"]
    prefix = "KUBEFLOW_TRAINER_SERVER_"
    return {v["name"].removeprefix(prefix): v["value"] for v in container["env"] if v["name"].startswith(prefix)}


TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 16) % 64
        return {"input_ids": tokens, "labels": tokens}

small = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**small, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    output_dir="out", max_steps=12, per_device_train_batch_size=4, use_cpu=True, logging_steps=3, save_strategy="no",
    disable_tqdm=True, dataloader_pin_memory=False,
)
Trainer(model=model, args=arguments, train_dataset=Data()).train()
import os
os._exit(0)  # during the shutdown of the interpreter, a thread of gloo sometimes aborts the process
"""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_an_unchanged_trainer_of_hugging_face_reports_to_the_operator(
    world: World, libraries: Path, tmp_path: Path
) -> None:
    """Two real ranks with the variables of the two pods, but for the address: there is no Service here."""
    python = libraries / "bin" / "python"
    (tmp_path / "train.py").write_text(TRAINER)
    with world.operator() as operator:
        world.runs()
        assert operator.reports
        torchrun = [python, "-m", "torch.distributed.run", "--nnodes=2", "--master-addr=127.0.0.1"]
        torchrun += [f"--master-port={free_ports(1)[0]}", "--node-rank"]
        processes = []
        for rank, pod in enumerate(("demo-master-0-0", "demo-worker-0-0")):
            assert trainer_variables(world, pod)
            (tmp_path / pod).write_text(world.token(pod))
            env = {
                "KUBEFLOW_TRAINER_SERVER_URL": f"http://127.0.0.1:{operator.reports.port}{PATH}",
                "KUBEFLOW_TRAINER_SERVER_TOKEN": str(tmp_path / pod),
                "GLOO_SOCKET_IFNAME": "lo",
            }
            command = [*torchrun, str(rank), tmp_path / "train.py"]
            processes.append(subprocess.Popen(command, env=os.environ | env, cwd=tmp_path))
        try:
            assert [process.wait(600) for process in processes] == [0, 0]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        eventually(lambda: world.progress().get("step") == 12)
        progress = world.progress()
        assert (progress["summary"], progress["reporting"]) == ("12/12 100%", 1)
        assert 0 < progress["metrics"]["loss"] < 10
        assert [(rank["rank"], rank["replica"]) for rank in progress["ranks"]] == [(0, "master-0")]
