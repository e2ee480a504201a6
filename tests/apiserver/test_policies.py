"""Defaults and limits by the annotations and labels of a Namespace, on a real API server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support import live
from support.api import ApiError
from support.controlplane import ControlPlane
from support.kubelet import Program
from support.live import eventually, job, phase

PREFIX = "policy.allranks.dev/"


def condition(control_plane: ControlPlane, namespace: str, name: str, kind: str) -> dict[str, Any]:
    status = (control_plane.api.find("DistributedTraining", namespace, name) or {}).get("status", {})
    return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})


def annotate(control_plane: ControlPlane, namespace: str, **metadata: Any) -> None:
    control_plane.api.patch("Namespace", None, namespace, {"metadata": metadata})


def test_a_namespaces_annotations_refuse_and_complete_its_jobs(control_plane: ControlPlane, namespace: str) -> None:
    annotate(control_plane, namespace, annotations={f"{PREFIX}max-pods": "2"})
    api, connection = control_plane.api, live.connection(control_plane)
    timing = replace(live.TIMING, namespace_max_age=0.0)
    with (
        live.operator(connection, namespace, timing=timing, namespace_policies=True),
        live.kubelet(connection, Program(seconds=0.3), namespace=namespace),
    ):
        api.create(job("large", roles={"worker": {"replicas": 3}}), namespace)
        eventually(lambda: phase(control_plane, namespace, "large") == "Failed")
        refused = condition(control_plane, namespace, "large", "Failed")
        assert refused["reason"] == "PolicyViolation"
        assert f"annotation {PREFIX}max-pods of namespace {namespace}" in refused["message"]

        annotate(control_plane, namespace, annotations={f"{PREFIX}default-ttl-seconds-after-finished": "0"})
        api.create(job("small"), namespace)
        eventually(lambda: not api.list("DistributedTraining", namespace), what="the default TTL")


@pytest.mark.nightly
def test_a_new_job_waits_while_an_annotation_is_invalid(control_plane: ControlPlane, namespace: str) -> None:
    annotate(control_plane, namespace, annotations={f"{PREFIX}max-pods": "many"})
    api, connection = control_plane.api, live.connection(control_plane)
    with (
        live.operator(connection, namespace, namespace_policies=True),
        live.kubelet(connection, Program(seconds=None), namespace=namespace),
    ):
        api.create(job(), namespace)
        eventually(lambda: condition(control_plane, namespace, "demo", "Running").get("reason"))
        waits = condition(control_plane, namespace, "demo", "Running")
        assert waits["reason"] == "NamespacePolicyInvalid"
        assert "must be a whole number from 0 to 10000, not 'many'" in waits["message"]
        assert not api.list("Pod", namespace)
        annotate(control_plane, namespace, annotations={f"{PREFIX}max-pods": "2"})
        # A change of the job is reconciled at once, and its namespace is read again.
        eventually(lambda: phase(control_plane, namespace) == "Running")


@pytest.mark.parametrize(("label", "runs"), [("vision", True), ("speech", False)])
def test_a_pool_is_for_the_namespaces_that_it_selects(
    control_plane: ControlPlane, namespace: str, label: str, runs: bool
) -> None:
    annotate(control_plane, namespace, labels={"team": label})
    api, connection = control_plane.api, live.connection(control_plane)
    pool = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "TrainingPool",
        "metadata": {"name": f"only-vision-{namespace}"},
        "spec": {"namespaceSelector": {"matchLabels": {"team": "vision"}}},
    }
    api.create(pool)
    try:
        with (
            live.operator(connection, namespace, namespace_policies=True, pools=True),
            live.kubelet(connection, Program(seconds=None), namespace=namespace),
        ):
            api.create(job(pool=pool["metadata"]["name"]), namespace)
            eventually(lambda: phase(control_plane, namespace) == ("Running" if runs else "Failed"))
            if not runs:
                refused = condition(control_plane, namespace, "demo", "Failed")
                assert (refused["reason"], api.list("Pod", namespace)) == ("PolicyViolation", [])
                assert f"does not admit jobs of namespace {namespace}" in refused["message"]
    finally:
        api.delete("TrainingPool", None, pool["metadata"]["name"])


def test_a_disruption_budget_refuses_the_eviction_of_a_rank(control_plane: ControlPlane, namespace: str) -> None:
    api, connection = control_plane.api, live.connection(control_plane)
    with (
        live.operator(connection, namespace, disruption_budgets=True),
        live.kubelet(connection, Program(seconds=None), namespace=namespace),
    ):
        api.create(job(), namespace)
        eventually(lambda: phase(control_plane, namespace) == "Running")
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "demo-worker-0-0"}}
        with pytest.raises(ApiError) as refused:
            api.request("POST", f"/api/v1/namespaces/{namespace}/pods/demo-worker-0-0/eviction", eviction)
        assert refused.value.code == 429
        # A second attempt finds the budget.
        api.patch("DistributedTraining", namespace, "demo", {"spec": {"suspend": True}})
        eventually(lambda: phase(control_plane, namespace) == "Suspended")
        api.patch("DistributedTraining", namespace, "demo", {"spec": {"suspend": False}})
        eventually(lambda: phase(control_plane, namespace) == "Running")
        assert len(api.list("PodDisruptionBudget", namespace)) == 1
