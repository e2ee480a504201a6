"""`allranks validate` refuses of pod templates only what a real API server refuses."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.authoring.checks.schema import kubernetes
from allranks.authoring.manifests import Loaded, load, load_documents
from allranks.cli.commands.render import rendered
from allranks.core.facts.strategic_merge import merge
from allranks.errors import InvalidManifest
from support.api import ApiError, path
from support.builders import manifest, table
from support.controlplane import ControlPlane

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
Template = dict[str, Any]


@pytest.fixture(scope="module")
def namespace(control_plane: ControlPlane) -> str:
    """One for all tests, as nothing is stored."""
    with contextlib.suppress(ApiError):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        control_plane.api.create(account, "default")
    return "default"


def pod(**spec: Any) -> Template:
    return {"spec": spec}


def trainer(**fields: Any) -> Template:
    return pod(containers=[{"name": "trainer", **fields}])


def volume(source: dict[str, Any], **more: Any) -> Template:
    return pod(volumes=[{"name": "data", **source}], **more)


def limits(**amounts: Any) -> Template:
    return trainer(
        resources={"limits": {name.replace("__", "/").replace("_", "."): of for name, of in amounts.items()}}
    )


def field(path: str) -> dict[str, Any]:
    return {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def node_affinity(**expression: Any) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", **expression}]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


MOUNT = {"name": "data", "mountPath": "/data"}

GOOD: list[tuple[str, Template]] = [
    ("an empty service account", pod(serviceAccountName="")),
    (
        "a field and a resource as variables",
        trainer(
            env=[
                field("metadata.labels['a']"),
                {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            ]
        ),
    ),
    ("an affinity to nodes", pod(affinity=node_affinity(operator="In", values=["h100"]))),
    ("an empty projection", volume({"projected": {"sources": [{}]}})),
    ("an empty template", {}),
    ("an empty spec", {"spec": {}}),
    ("null fields", {"metadata": None, "spec": {"nodeSelector": None}}),
    ("node selection", pod(nodeSelector={"gpu": "h100"}, tolerations=[{"key": "gpu", "operator": "Exists"}])),
    ("a toleration of every taint", pod(tolerations=[{"operator": "Exists"}])),
    (
        "an affinity",
        pod(
            affinity={
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
                    ]
                }
            }
        ),
    ),
    ("a mounted claim", merge(trainer(volumeMounts=[MOUNT]), volume({"persistentVolumeClaim": {"claimName": "a"}}))),
    ("a volume without a source is an emptyDir", volume({})),
    (
        "a projected volume",
        volume({"projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "b"}}]}}),
    ),
    (
        "an ephemeral claim",
        volume(
            {
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
                    }
                }
            }
        ),
    ),
    ("amounts", limits(cpu="500m", memory="64Gi", nvidia_com__gpu=8)),
    ("amounts with an exponent", limits(cpu="1e1", memory="1e9")),
    ("amounts as numbers", limits(cpu=2, memory=68719476736)),
    ("huge pages", trainer(resources={"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}})),
    ("a request without a limit", trainer(resources={"requests": {"cpu": "1"}})),
    ("a sidecar", pod(containers=[{"name": "logger", "image": "x"}])),
    ("a native sidecar", pod(initContainers=[{"name": "proxy", "image": "x", "restartPolicy": "Always"}])),
    ("a variable of a secret", trainer(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}])),
    ("variables of a config map", trainer(envFrom=[{"configMapRef": {"name": "a"}, "prefix": "X_"}])),
    ("a probe", trainer(livenessProbe={"exec": {"command": ["true"]}, "periodSeconds": 5})),
    (
        "a probe by port name",
        trainer(ports=[{"name": "http", "containerPort": 80}], readinessProbe={"httpGet": {"port": "http"}}),
    ),
    ("a hook", trainer(lifecycle={"preStop": {"sleep": {"seconds": 1}}})),
    ("labels", {"metadata": {"labels": {"team": "a", "example.com/x": ""}, "annotations": {"a": "any text"}}}),
    (
        "a security context",
        merge(
            pod(securityContext={"runAsUser": 1, "fsGroup": 2}),
            trainer(securityContext={"capabilities": {"add": ["IPC_LOCK"]}}),
        ),
    ),
]

BAD: list[tuple[str, Template]] = [
    ("a misspelt field of the pod", pod(nodeSelectr={"a": "b"})),
    ("a misspelt field of a container", trainer(volumeMount=[MOUNT])),
    ("a misspelt field of a volume", volume({"emptyDir": {"sizeLimits": "1Gi"}})),
    ("a field of the pod in the template", {"nodeSelector": {"a": "b"}}),
    ("a field of the pod in a container", trainer(volumes=[])),
    ("a field of a container in the pod", pod(image="x")),
    ("a field of the pod's security context in a container's", trainer(securityContext={"fsGroup": 1})),
    ("limits directly in a container", trainer(limits={"cpu": 1})),
    ("a device without limits", trainer(resources={"nvidia.com/gpu": 1})),
    ("4GB", limits(memory="4GB")),
    ("4 Gi", limits(memory="4 Gi")),
    ("64gi", limits(memory="64gi")),
    ("lots of CPUs", limits(cpu="lots")),
    ("two cores", limits(cpu="2 cores")),
    ("a negative amount", limits(cpu=-1)),
    ("an empty amount", limits(cpu="")),
    ("a device without a vendor", limits(gpu=1)),
    ("a nickname of memory", limits(mem="1Gi")),
    ("half a GPU", limits(nvidia_com__gpu="500m")),
    ("an amount that is no quantity in a volume", volume({"emptyDir": {"sizeLimit": "1GB"}})),
    ("a mount without a volume", trainer(volumeMounts=[MOUNT])),
    ("two volumes with a name", pod(volumes=[{"name": "a"}, {"name": "a", "emptyDir": {}}])),
    ("a sidecar without an image", pod(containers=[{"name": "logger"}])),
    ("a number as a label's value", pod(nodeSelector={"gpus": 8})),
    ("true as a label's value", {"metadata": {"labels": {"a": True}}}),
    ("a string for a boolean", pod(hostNetwork="true")),
    ("a string for a number", pod(terminationGracePeriodSeconds="30")),
    ("a list for a mapping", pod(nodeSelector=["gpu"])),
    ("a mapping for a list", pod(tolerations={"key": "a"})),
    ("a string for a command", trainer(command="python x.py")),
    ("a policy in lower case", trainer(imagePullPolicy="always")),
    ("an unknown effect close to one", pod(tolerations=[{"operator": "Exists", "effect": "NoSchedules"}])),
    (
        "a term of an affinity without its key",
        pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}}),
    ),
    ("a secret's key without its name", trainer(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a"}}}])),
    ("a claim without its name", volume({"persistentVolumeClaim": {}})),
]

NEWER: list[tuple[str, Template]] = [
    ("a field that this version does not have", pod(gpuType="h100")),
    ("a value that this version does not have", trainer(imagePullPolicy="Sometimes")),
]


def verdicts(template: Template) -> set[str]:
    """The severities of our problems."""
    try:
        loaded = load_documents([("-", manifest(template=template))])
    except InvalidManifest:
        return {"error"}
    assert isinstance(loaded, Loaded)
    return {severity for severity, _ in loaded.notes()} - {"note"}


def refusal(api: Any, namespace: str, template: Template) -> str:
    """Why the API server does not create a pod of this template; empty if it does."""
    spec = template.get("spec") or {}
    containers = spec.get("containers") or []
    if not any(container["name"] == "trainer" for container in containers):
        containers = [{"name": "trainer"}, *containers]
    containers = [{"image": "x", **one} if one["name"] == "trainer" else one for one in containers]
    metadata = {**(template.get("metadata") or {}), "generateName": "pod-"}
    body = {**template, "metadata": metadata, "spec": {**spec, "containers": containers}}
    return post(api, namespace, {"apiVersion": "v1", "kind": "Pod", **body})


def post(api: Any, namespace: str, body: dict[str, Any]) -> str:
    try:
        api.request("POST", f"{path(body['kind'], namespace)}?dryRun=All&fieldValidation=Strict", body)
    except ApiError as error:
        if error.code not in (400, 422):
            raise
        return str(error)
    return ""


@table(*GOOD)
def test_a_good_template(control_plane: ControlPlane, namespace: str, case):
    [template] = case
    assert refusal(control_plane.api, namespace, template) == ""
    assert verdicts(template) == set()


@table(*BAD)
def test_a_bad_template(control_plane: ControlPlane, namespace: str, case):
    [template] = case
    assert refusal(control_plane.api, namespace, template) != ""
    assert verdicts(template) == {"error"}


@table(*NEWER)
def test_what_a_newer_version_may_have_is_a_warning(control_plane: ControlPlane, namespace: str, case):
    [template] = case
    assert refusal(control_plane.api, namespace, template) != ""
    assert verdicts(template) == {"warning"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_the_examples(control_plane: ControlPlane, namespace: str, file: Path):
    loaded = load([str(file)], pools_suffice=True, sweeps_suffice=True)
    assert [text for severity, text in loaded.notes() if severity != "note"] == []
    for job in loaded.jobs:
        for body in rendered(job, pools={pool.name: pool.spec for pool in loaded.pools}):
            body["metadata"] = {key: value for key, value in body["metadata"].items() if key != "ownerReferences"}
            body["metadata"]["namespace"] = namespace
            if body["kind"] == "Pod":
                assert post(control_plane.api, namespace, body) == "", yaml.safe_dump(body)


def test_the_stored_types_are_those_of_the_api_server(control_plane: ControlPlane):
    if control_plane.has_nodes:
        pytest.skip("another cluster may have another version of Kubernetes")
    sys.path.insert(0, str(ROOT / "tools"))
    import pod_schema

    version = control_plane.api.request("GET", "/version")["gitVersion"]
    schema = pod_schema.compact(control_plane.api.request("GET", pod_schema.OPEN_API), version)
    assert pod_schema.FILE.read_text() == pod_schema.text(schema), "run tools/pod_schema.py"
    assert version.startswith(f"v{kubernetes().version}.")
