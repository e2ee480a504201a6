"""Foreign hands: someone deletes or changes an object of a job, at each step of its life. The job ends as it would
have, or says why not and continues when that object is deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from allranks.api.job import KIND
from allranks.core.facts.naming import ATTEMPT_LABEL, INDEX_LABEL, JOB_LABEL, ROLE_LABEL
from support import live
from support.api import Api, ApiError, Manifest
from support.controlplane import ControlPlane
from support.kubelet import Program
from support.live import eventually, job, phase

from .test_admission import MPI, explained, failed_container, pods

LONG = Program(seconds=None)
TIMING = replace(live.TIMING, retry_max=1.0, deletion_retry_max=1.0, companion_check=1.0)
COMPANIONS = ("Service", "ConfigMap", "Secret", "NetworkPolicy", "PodDisruptionBudget")
ALL_COMPANIONS = {"network_policies": True, "disruption_budgets": True}
"""Settings of the operator."""


def companion(api: Api, namespace: str, kind: str, name: str) -> str:
    """The name of the newest object of that kind that the job owns."""
    found = [o for o in api.list(kind, namespace) if o["metadata"].get("labels", {}).get(JOB_LABEL) == name]
    return max(found, key=lambda o: o["metadata"]["creationTimestamp"])["metadata"]["name"] if found else ""


def test_a_companion_that_is_deleted_comes_back(control_plane: ControlPlane, namespace: str) -> None:
    api, connection = control_plane.api, live.connection(control_plane)
    with (
        live.operator(connection, namespace, timing=TIMING, **ALL_COMPANIONS),
        live.kubelet(connection, LONG, namespace=namespace),
    ):
        api.create(job(**MPI), namespace)
        eventually(lambda: phase(control_plane, namespace) == "Running")
        before = {kind: companion(api, namespace, kind, "demo") for kind in COMPANIONS}
        for kind, name in before.items():
            api.delete(kind, namespace, name)
        eventually(lambda: {kind: companion(api, namespace, kind, "demo") for kind in COMPANIONS} == before)
        for kind in COMPANIONS:
            eventually(lambda kind=kind: explained(api, namespace, "demo", f"{kind} {before[kind]} was deleted"))
        status = api.get(KIND, namespace, "demo")["status"]
        assert (status["phase"], status["attempt"]) == ("Running", 0)


@pytest.mark.nightly
def test_a_companion_that_is_changed_is_reported(control_plane: ControlPlane, namespace: str) -> None:
    """The operator has no right to change it. It is created again when it is deleted."""
    api, connection = control_plane.api, live.connection(control_plane)
    with (
        live.operator(connection, namespace, timing=TIMING),
        live.kubelet(connection, LONG, namespace=namespace),
    ):
        api.create(job(), namespace)
        eventually(lambda: phase(control_plane, namespace) == "Running")
        wanted = api.get("Service", namespace, "demo")["spec"]["selector"]
        api.patch("Service", namespace, "demo", {"spec": {"selector": {"app": "mine"}}})
        eventually(lambda: explained(api, namespace, "demo", "was changed by someone else (spec.selector)"))
        api.delete("Service", namespace, "demo")
        eventually(lambda: (api.find("Service", namespace, "demo") or {}).get("spec", {}).get("selector") == wanted)


Hand = Callable[[Api, str, str], tuple[str, str] | None]
"""(API, namespace, job) -> (kind, name) of the object that it touched."""


def worker(api: Api, namespace: str, name: str) -> str:
    found = [p for p in pods(api, namespace, name) if "-worker-0" in p]
    if not found:
        raise NotFound
    return max(found)


@contextlib.contextmanager
def gone() -> Iterator[None]:
    """Raises NotFound for a 404, and for a field that is immutable."""
    try:
        yield
    except ApiError as error:
        if error.code == 404 or "immutable" in str(error):
            raise NotFound from error
        raise


class NotFound(Exception):
    """What a hand would touch is gone."""


def deletes_pod(api: Api, namespace: str, name: str) -> tuple[str, str] | None:
    with gone():
        api.delete("Pod", namespace, worker(api, namespace, name), grace=0)
    return None


def changes_pod(change: Manifest) -> Hand:
    def hand(api: Api, namespace: str, name: str) -> tuple[str, str]:
        with gone():
            pod = worker(api, namespace, name)
            api.patch("Pod", namespace, pod, change)
        return "Pod", pod

    return hand


def deletes(kind: str) -> Hand:
    def hand(api: Api, namespace: str, name: str) -> None:
        if found := companion(api, namespace, kind, name):
            api.delete(kind, namespace, found)

    return hand


def changes(kind: str, change: Manifest) -> Hand:
    def hand(api: Api, namespace: str, name: str) -> tuple[str, str] | None:
        if not (found := companion(api, namespace, kind, name)):
            return None
        with gone():
            api.patch(kind, namespace, found, change)
        return kind, found

    return hand


def empties_status(api: Api, namespace: str, name: str) -> None:
    fields = api.get(KIND, namespace, name)["status"]
    api.patch(KIND, namespace, name, {"status": dict.fromkeys(fields)}, "status")


HANDS: dict[str, Hand] = {
    "pod-deleted": deletes_pod,
    "pod-unlabelled": changes_pod({"metadata": {"labels": {JOB_LABEL: None}}}),
    "pod-relabelled": changes_pod(
        {"metadata": {"labels": {ROLE_LABEL: "x", INDEX_LABEL: "9", ATTEMPT_LABEL: "9"}}},
    ),
    "pod-orphaned": changes_pod({"metadata": {"ownerReferences": []}}),
    **{f"{kind.lower()}-deleted": deletes(kind) for kind in COMPANIONS},
    **{f"{kind.lower()}-orphaned": changes(kind, {"metadata": {"ownerReferences": []}}) for kind in COMPANIONS},
    "service-changed": changes("Service", {"spec": {"selector": {"app": "mine"}}}),
    "configmap-changed": changes("ConfigMap", {"data": {"hostfile": "mine"}}),
    "secret-changed": changes("Secret", {"data": {"ssh-privatekey": "bWluZQ=="}}),
    "status-emptied": empties_status,
}


def settled(api: Api, namespace: str, name: str) -> bool:
    """All pods of the current attempt run."""
    status: dict[str, Any] = api.get(KIND, namespace, name).get("status", {})
    return status.get("phase") == "Running" and status.get("ready") == "3/3"


def finish(api: Api, namespace: str, name: str) -> None:
    """Every rank ends with code 0."""
    uid = api.get(KIND, namespace, name)["metadata"]["uid"]
    container = failed_container()
    container["state"]["terminated"] |= {"exitCode": 0, "reason": "Completed"}
    for pod in api.list("Pod", namespace):
        owners = {owner["uid"] for owner in pod["metadata"].get("ownerReferences", ())}
        if uid in owners and pod["status"].get("phase") == "Running":
            ending = {"phase": "Succeeded", "containerStatuses": [container]}
            with contextlib.suppress(NotFound), gone():
                api.patch("Pod", namespace, pod["metadata"]["name"], {"status": ending}, "status")


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["created", "running", "restarting", "suspended"])
def test_each_object_at_each_step(control_plane: ControlPlane, namespace: str, step: str) -> None:
    api, connection = control_plane.api, live.connection(control_plane)
    touched: dict[str, tuple[str, str] | None] = {}
    with live.operator(connection, namespace, timing=TIMING, **ALL_COMPANIONS):

        def touch() -> None:
            for name, hand in HANDS.items():
                with contextlib.suppress(NotFound):  # A suspended job's pods are being deleted.
                    touched[name] = hand(api, namespace, name)

        for name in HANDS:
            api.create(job(name, **MPI, restart={"backoffSeconds": 0}), namespace)
        for name in HANDS:
            eventually(
                lambda name=name: len(pods(api, namespace, name)) == 3 and companion(api, namespace, "Secret", name)
            )
        if step == "created":
            touch()
        with live.kubelet(connection, LONG, namespace=namespace):
            if step != "created":
                for name in HANDS:
                    eventually(lambda name=name: settled(api, namespace, name), what=name)
            if step == "restarting":
                for name in HANDS:
                    ending = {"phase": "Failed", "containerStatuses": [failed_container()]}
                    api.patch("Pod", namespace, f"{name}-worker-0-0", {"status": ending}, "status")
                for name in HANDS:
                    eventually(lambda name=name: f"{name}-worker-0-1" in pods(api, namespace, name), what=name)
            if step == "suspended":
                for name in HANDS:
                    api.patch(KIND, namespace, name, {"spec": {"suspend": True}})
            if step != "created":
                touch()
            if step == "suspended":
                for name in HANDS:
                    eventually(lambda name=name: phase(control_plane, namespace, name) == "Suspended", what=name)
                    api.patch(KIND, namespace, name, {"spec": {"suspend": False}})
            for name in HANDS:

                def runs_or_explains(name: str = name) -> bool:
                    return settled(api, namespace, name) or explained(api, namespace, name, "it is left alone")

                eventually(runs_or_explains, what=name)
                if not settled(api, namespace, name) and (object_ := touched.get(name)):
                    api.delete(object_[0], namespace, object_[1])
                eventually(lambda name=name: settled(api, namespace, name), what=name)
            for name in HANDS:

                def succeeded(name: str = name) -> bool:
                    finish(api, namespace, name)
                    return phase(control_plane, namespace, name) == "Succeeded"

                eventually(succeeded, what=name)
