"""The manifests of examples/, adapted for tests."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from images import building

from .cluster import REPOSITORY, Cluster

GIVEN = os.environ.get("ALLRANKS_E2E_IMAGES", "")
"""PREFIX:TAG of images that the cluster can pull."""
PREFIX, TAG = (GIVEN or f"ghcr.io/allranks:{building.TAG}").rsplit(":", 1)

Manifest = dict[str, Any]

PENGUINS = """
trap 'exit 143' TERM
trap 'exit 138' USR1
trap 'exec python3 -c "b = bytearray(8 << 30)"' USR2
torchrun train/penguins_pytorch.py --epochs=@EPOCHS@ --pause=1 &
wait $!
"""
KILL_RANK = """
import glob, os
for file in glob.glob("/proc/[0-9]*/cmdline"):
    if "-u\\0train/" in open(file).read():
        os.kill(int(file.split("/")[2]), 9)
"""
SECOND_TIME = """
if [ "$ALLRANKS_ATTEMPT" -gt 0 ]; then exit 0; fi
trap 'exit 138' USR1
trap 'exit 143' TERM
echo ready
sleep 600 & wait
"""
"""Waits in the first attempt and succeeds in the second."""


def image(name: str) -> str:
    return f"{PREFIX}/{name}:{TAG}"


def of_tests(text: str) -> str:
    """The text of a manifest with the images of the tests instead of the published ones."""
    return re.sub(r"\bghcr\.io/allranks/(\w+):[\w.]+", rf"{PREFIX}/\1:{TAG}", text)


def example(name: str, **spec: Any) -> list[Manifest]:
    """The documents of an example with the images of the tests and changes of the job's spec."""
    text = of_tests((REPOSITORY / "examples" / f"{name}.yaml").read_text())
    documents = [document for document in yaml.safe_load_all(text) if document]
    for document in documents:
        if document["kind"] == "DistributedTraining":
            document["spec"] |= spec
    return documents


def claim_of(name: str) -> Manifest:
    """A volume claim that all pods of the namespace can use."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def training(name: str, *command: str, claim: str | None = None, **spec: Any) -> list[Manifest]:
    """A job with one PyTorch pod that runs a command, and its claim."""
    fields = {"framework": "pytorch", "image": image("pytorch"), "command": list(command), "roles": {"master": {}}}
    metadata = {"name": name}
    job = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": metadata}
    out: list[Manifest] = [{**job, "spec": {**fields, **spec}}]
    if claim:
        out[0]["spec"]["checkpoint"] = {"claim": claim}
        out.insert(0, claim_of(claim))
    return out


def penguins(name: str, epochs: int, **pods: Any) -> list[Manifest]:
    """The unmodified program, spread over nodes, with ways to make it exit with 138 or allocate memory."""
    spread = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"allranks.dev/job-name": name}},
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",  # do not spread to a lost node
    }
    fields = {
        "roles": {"master": {"replicas": 1}, "worker": {"replicas": 1}},
        "resources": {"requests": {"memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "restart": {"maxRestarts": 3, "backoffSeconds": 1},
        "template": {"spec": {"topologySpreadConstraints": [spread], **pods}},
    }
    return training(name, "sh", "-c", PENGUINS.replace("@EPOCHS@", str(epochs)), claim=name, **fields)


@contextmanager
def namespace(cluster: Cluster, name: str = "", enforce: str = "restricted") -> Iterator[Team]:
    """Creates a namespace that enforces a Pod Security Standard.

    Does not wait for its deletion, unless it has a name that the next test may use again.
    """
    again, name = bool(name), name or f"e2e-{uuid.uuid4().hex[:8]}"
    metadata = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": enforce}}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    try:
        yield Team(cluster, name)
    finally:
        cluster.kubectl("delete", "namespace", name, f"--wait={str(again).lower()}")


class Team:
    """The namespace of a test."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def kubectl(self, *arguments: str, **options: Any) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, **options)

    def start(self, documents: list[Manifest]) -> str:
        """Applies the documents; returns the name of the job."""
        self.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
        [job] = [document["metadata"]["name"] for document in documents if document["kind"] == "DistributedTraining"]
        return str(job)

    def get(self, kind: str, name: str) -> Manifest:
        return dict(json.loads(self.kubectl("get", kind, name, "-o", "json")))

    def status(self, job: str) -> Manifest:
        return dict(self.get("dt", job).get("status") or {})

    def wait(self, *arguments: str) -> None:
        self.cluster.wait(*arguments, "-n", self.namespace)

    def completes(self, job: str) -> Manifest:
        """Waits until the job is Complete; returns its status. Fails at once if the job fails."""
        self.wait(f"dt/{job}", "--for=jsonpath={.status.completionTime}")
        status = self.status(job)
        assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
        return status

    def attempt(self, job: str, number: int) -> None:
        """Waits until this attempt of the job runs."""
        self.wait(f"dt/{job}", f"--for=jsonpath={{.status.attempt}}={number}")
        self.wait(f"dt/{job}", "--for=condition=Running")

    def says(self, pod: str, words: str) -> str:
        """Waits until the log of a pod contains the words; returns the log."""
        return self.cluster.eventually("logs", pod, "-n", self.namespace, contains=words)

    def reports(self, job: str, words: str) -> str:
        """Waits until the status of the job contains the words."""
        asked = ("get", "dt", job, "-o", "jsonpath={.status}", "-n", self.namespace)
        return self.cluster.eventually(*asked, contains=words)

    def run(self, pod: str, *command: str) -> str:
        """The output of a command in the training container of the pod."""
        return self.kubectl("exec", pod, "-c", "trainer", "--", *command)

    def signal(self, pod: str, name: str) -> None:
        """Sends a signal to the first process of the training container. kubectl exec may fail because the container
        ends."""
        self.cluster.ask("-n", self.namespace, "exec", pod, "-c", "trainer", "--", "sh", "-c", f"kill -{name} 1")

    def pods(self, job: str) -> list[Manifest]:
        """The pods of a job."""
        text = self.kubectl("get", "pods", "-l", f"allranks.dev/job-name={job}", "-o", "json")
        return list(json.loads(text)["items"])

    def left_of(self, job: str) -> str:
        """Names of objects with the job's label."""
        kinds = "pods,services,configmaps,secrets"
        return self.kubectl("get", kinds, "-l", f"allranks.dev/job-name={job}", "-o", "name")
