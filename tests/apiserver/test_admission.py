"""Admission in the way: policies that reject or change each kind of request. A condition or an Event says why, and the
job continues when the policy is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.api.job import KIND
from support import live
from support.api import Api, ApiError, Manifest, path
from support.controlplane import ControlPlane
from support.kubelet import Program
from support.live import eventually, job, phase

EXAMPLES = Path(__file__).parents[2] / "examples"
LONG = Program(seconds=None)
BRIEF = Program(seconds=0.3)
TIMING = replace(live.TIMING, retry_max=1.0, unavailable_retry_max=1.0, deletion_retry_max=1.0)
GROUP = "admissionregistration.k8s.io"
WHY = "the change freeze says no"
MPI = {
    "framework": "horovod",
    "horovod": {"controller": "MPI"},
    "roles": {"launcher": {"replicas": 1}, "worker": {"replicas": 2}},
}


@contextlib.contextmanager
def admission(api: Api, kind: str, namespace: str, spec: Manifest) -> Iterator[None]:
    """A policy for that namespace, with its binding."""
    version = f"{GROUP}/v1"
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    bound: Manifest = {"policyName": namespace, "matchResources": selector}
    bound |= {"validationActions": ["Deny"]} if kind.startswith("Validating") else {}
    made = [(kind, spec), (f"{kind}Binding", bound)]
    for each, of in made:
        api.create({"apiVersion": version, "kind": each, "metadata": {"name": namespace}, "spec": of})
    try:
        yield
    finally:
        for each, _ in made:
            with contextlib.suppress(ApiError):
                api.delete(each, None, namespace)


def rule(group: str, version: str, operations: list[str], *resources: str) -> Manifest:
    return {"apiGroups": [group], "apiVersions": [version], "operations": operations, "resources": list(resources)}


def rejecting(expression: str) -> Manifest:
    """The spec of a policy that rejects requests unless the expression is true."""
    rules = [
        rule("", "v1", ["CREATE"], "pods", "services", "configmaps", "secrets"),
        rule("networking.k8s.io", "v1", ["CREATE"], "networkpolicies"),
        rule("policy", "v1", ["CREATE"], "poddisruptionbudgets"),
        rule("", "v1", ["DELETE"], "pods"),
        rule("allranks.dev", "v1alpha1", ["UPDATE"], "distributedtrainings/status"),
    ]
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": expression, "message": WHY}],
    }


REJECTED = (
    # The kubelet's deletion has no propagation policy.
    "request.operation == 'DELETE'"
    " ? !(oldObject.metadata.name.startsWith('keep-') && has(request.options.propagationPolicy))"
    " : !object.metadata.name.startsWith('no-' + request.resource.resource)"
)
"""The job `no-pods` gets no pods, `no-services` no Service and so on; `keep-...` keeps its pods."""


def probe(api: Api, namespace: str, kind: str = "ConfigMap", name: str = "no-configmaps-probe") -> Manifest | None:
    """The answer to a creation that is not carried out; None if it is rejected."""
    body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}
    body |= {"spec": {"containers": [{"name": "trainer", "image": "x"}]}} if kind == "Pod" else {}
    try:
        return api.request("POST", f"{path(kind, namespace)}?dryRun=All", body)
    except ApiError as error:
        if WHY not in str(error):
            raise
        return None


def explained(api: Api, namespace: str, name: str, why: str = WHY) -> bool:
    """Whether a condition or an Event of the job says why."""
    found = api.get(KIND, namespace, name)
    conditions = [c.get("message", "") for c in found.get("status", {}).get("conditions", ())]
    events = [e["message"] for e in api.list("Event", namespace) if e["involvedObject"]["name"] == name]
    return any(why in text for text in conditions + events)


def condition(api: Api, namespace: str, name: str, kind: str) -> Any:
    conditions = api.get(KIND, namespace, name)["status"]["conditions"]
    return next((c["status"], c["reason"]) for c in conditions if c["type"] == kind)


def pods(api: Api, namespace: str, name: str) -> set[str]:
    return {p["metadata"]["name"] for p in api.list("Pod", namespace, labelSelector=f"allranks.dev/job-name={name}")}


def test_each_rejected_verb_is_explained_and_the_job_continues_when_the_policy_is_gone(
    control_plane: ControlPlane, namespace: str
) -> None:
    api, connection = control_plane.api, live.connection(control_plane)
    creations = {
        "no-pods": {},
        "no-services": {},
        "no-configmaps": MPI,
        "no-secrets": MPI,
        "no-networkpolicies": {},
        "no-poddisruptionbudgets": {},
        "no-distributedtrainings": {},
    }

    def running(name: str) -> bool:
        return phase(control_plane, namespace, name) == "Running"

    with (
        live.operator(connection, namespace, timing=TIMING, network_policies=True, disruption_budgets=True),
        live.kubelet(connection, LONG, namespace=namespace),
    ):
        for name in ("keep-restarted", "keep-suspended"):
            api.create(job(name), namespace)
        with admission(api, "ValidatingAdmissionPolicy", namespace, rejecting(REJECTED)):
            eventually(lambda: probe(api, namespace) is None)
            for name, spec in creations.items():
                api.create(job(name, **spec), namespace)
            eventually(lambda: running("keep-restarted") and running("keep-suspended"))
            ending = {"phase": "Failed", "containerStatuses": [failed_container()]}
            api.patch("Pod", namespace, "keep-restarted-worker-0-0", {"status": ending}, "status")
            api.patch(KIND, namespace, "keep-suspended", {"spec": {"suspend": True}})
            for name in (*creations, "keep-restarted", "keep-suspended"):
                eventually(lambda name=name: explained(api, namespace, name), what=name)
            assert not any(running(name) for name in creations)
            eventually(lambda: condition(api, namespace, "keep-restarted", "Running") == ("False", "DeletionRefused"))
            eventually(lambda: condition(api, namespace, "keep-suspended", "Suspended") == ("True", "DeletionRefused"))
            # Its two attempts never run at once.
            assert pods(api, namespace, "keep-restarted") == {"keep-restarted-master-0-0", "keep-restarted-worker-0-0"}
        for name in creations:
            eventually(lambda name=name: running(name), what=name)
        eventually(
            lambda: (
                running("keep-restarted")
                and pods(api, namespace, "keep-restarted") == {"keep-restarted-master-0-1", "keep-restarted-worker-0-1"}
            )
        )
        eventually(lambda: not pods(api, namespace, "keep-suspended"))
        eventually(lambda: condition(api, namespace, "keep-suspended", "Suspended") == ("True", "Suspended"))


def failed_container() -> Manifest:
    times = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z"}
    ended = {"exitCode": 1, "reason": "Error", **times}
    return {
        "name": "trainer",
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }


def mutating(*expressions: str) -> Manifest:
    """The spec of a policy that applies these changes to new pods."""
    return {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [rule("", "v1", ["CREATE"], "pods")]},
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}} for expression in expressions
        ],
    }


MUTATIONS = {
    "sidecar": '[JSONPatch{op: "add", path: "/spec/containers/-", value: '
    'Object.spec.containers{name: "mesh", image: "mesh"}}]',
    "own labels": '[JSONPatch{op: "add", path: "/metadata/labels/team", value: "a"}, '
    'JSONPatch{op: "replace", path: "/metadata/labels/allranks.dev~1role", value: "x"}, '
    'JSONPatch{op: "replace", path: "/metadata/labels/allranks.dev~1attempt", value: "7"}]',
    "job label": '[JSONPatch{op: "remove", path: "/metadata/labels/allranks.dev~1job-name"}]',
}


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_policy_that_changes_pods(control_plane: ControlPlane, namespace: str, mutation: str) -> None:
    """The job succeeds, or says why not and succeeds when the policy is gone."""
    api, connection = control_plane.api, live.connection(control_plane)

    def mutated() -> bool:
        labels = {f"allranks.dev/{name}": "x" for name in ("job-name", "role", "attempt")}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "labels": labels}}
        body["spec"] = {"containers": [{"name": "trainer", "image": "x"}]}
        answer = api.request("POST", f"{path('Pod', namespace)}?dryRun=All", body)
        return len(answer["spec"]["containers"]) > 1 or answer["metadata"]["labels"] != labels

    with (
        live.operator(connection, namespace, timing=TIMING),
        live.kubelet(connection, BRIEF, namespace=namespace),
    ):
        with admission(api, "MutatingAdmissionPolicy", namespace, mutating(MUTATIONS[mutation])):
            eventually(mutated)
            api.create(job(), namespace)
            if mutation == "job label":
                eventually(lambda: explained(api, namespace, "demo", "admission policy changed its label"))
                eventually(lambda: not api.list("Pod", namespace), what="no pod runs unattended")
            else:
                eventually(lambda: phase(control_plane, namespace) == "Succeeded")
        eventually(lambda: phase(control_plane, namespace) == "Succeeded")
        assert api.get(KIND, namespace, "demo")["status"]["restarts"]["counted"] == 0


@pytest.mark.nightly
def test_a_quota_on_limits_is_explained_and_a_limit_range_ends_it(control_plane: ControlPlane, namespace: str) -> None:
    api, connection = control_plane.api, live.connection(control_plane)

    def create(kind: str, spec: Manifest) -> None:
        api.create({"apiVersion": "v1", "kind": kind, "metadata": {"name": "limits"}, "spec": spec}, namespace)

    def quota_works() -> bool:
        return "hard" in api.get("ResourceQuota", namespace, "limits").get("status", {})

    with (
        live.operator(connection, namespace, timing=TIMING),
        live.kubelet(connection, BRIEF, namespace=namespace),
    ):
        create("ResourceQuota", {"hard": {"limits.cpu": "100"}})
        eventually(quota_works)
        api.create(job(), namespace)
        eventually(lambda: explained(api, namespace, "demo", "must specify limits.cpu"))
        create("LimitRange", {"limits": [{"type": "Container", "default": {"cpu": "1"}}]})
        eventually(lambda: phase(control_plane, namespace) == "Succeeded")


@pytest.mark.nightly
def test_a_quota_on_limits_admits_the_pods_that_fetch_and_check(control_plane: ControlPlane, namespace: str) -> None:
    api, connection = control_plane.api, live.connection(control_plane)
    hard = {"limits.cpu": "100", "limits.memory": "100Gi", "requests.cpu": "100", "requests.memory": "100Gi"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "limits"}, "spec": {"hard": hard}}
    api.create(quota, namespace)
    eventually(lambda: "hard" in api.get("ResourceQuota", namespace, "limits").get("status", {}))
    inputs = [{"name": "birds", "from": "https://example.org/birds", "path": "/data"}]
    outputs = [{"name": "model", "path": "/model", "to": "s3://models/birds"}]
    with live.operator(connection, namespace, timing=TIMING, data_claim="data", data_image="example.org/data:1"):
        api.create(job(inputs=inputs, outputs=outputs), namespace)
        eventually(lambda: pods(api, namespace, "demo") == {"demo-fetch-birds", "demo-check-model"})


def test_the_policy_of_the_example_admits_only_the_directory_of_the_namespace_with_its_uid(
    control_plane: ControlPlane, namespace: str
) -> None:
    api, text = control_plane.api, (EXAMPLES / "data" / "inputs-on-nodes.yaml").read_text()
    policy = next(part for part in yaml.safe_load_all(text) if part["kind"] == "ValidatingAdmissionPolicy")
    uid = api.get("Namespace", None, namespace)["metadata"]["uid"]
    own = f"/mnt/nvme/allranks/{namespace}.{uid}"

    def refusal(directory: str) -> str:
        volume = {"name": "disk", "hostPath": {"path": directory, "type": "DirectoryOrCreate"}}
        spec = {"containers": [{"name": "trainer", "image": "x"}], "volumes": [volume]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "disk"}, "spec": spec}
        try:
            api.request("POST", f"{path('Pod', namespace)}?dryRun=All", body)
        except ApiError as error:
            return str(error)
        return ""

    with admission(api, "ValidatingAdmissionPolicy", namespace, policy["spec"]):
        eventually(lambda: "the only hostPath of this namespace is" in refusal("/etc"))
        base = "/mnt/nvme/allranks"
        others = (namespace, f"other.{uid}", f"{namespace}.{uid}/inputs", f"x/{namespace}.{uid}")
        for directory in (base, *(f"{base}/{other}" for other in others)):
            assert "the only hostPath" in refusal(directory), directory
        assert refusal(own) == ""
