"""Jobs, uploads and sweeps of a namespace that is being deleted."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from allranks.api.job import KIND
from support import live
from support.api import ApiError
from support.controlplane import ControlPlane
from support.kubelet import Program
from support.live import eventually, job, phase

SWEEP = {
    "apiVersion": "allranks.dev/v1alpha1",
    "kind": "TrainingSweep",
    "metadata": {"name": "search"},
    "spec": {
        "parameters": {"lr": {"values": [0.1, 0.2, 0.3, 0.4]}},
        "objective": {"metric": "loss", "goal": "Minimize"},
        "trials": 4,
        "parallel": 2,
        "template": {"spec": job(roles={"worker": {"replicas": 1}}, args=["--lr=$(lr)"])["spec"]},
    },
}


@contextmanager
def being_deleted(control_plane: ControlPlane, namespace: str) -> Iterator[None]:
    """The namespace's deletion has begun, and its controller, which deletes the objects, is slow."""
    controllers = control_plane._processes["kube-controller-manager"]
    controllers.send_signal(signal.SIGSTOP)
    try:
        control_plane.api.delete("Namespace", None, namespace)
        yield
    finally:
        controllers.send_signal(signal.SIGCONT)


@pytest.fixture
def ending(control_plane: ControlPlane, namespace: str) -> str:
    """A second namespace, which the test deletes."""
    name, api = f"{namespace}-ends", control_plane.api
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    with contextlib.suppress(ApiError):  # its controller creates it as well
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, name)
    return name


@pytest.mark.parametrize("reads_namespaces", [True, False])
def test_a_namespace_that_is_being_deleted_gets_no_new_pods_and_says_so_once_for_each_job(
    control_plane: ControlPlane, ending: str, reads_namespaces: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    namespace, connection, api = ending, live.connection(control_plane), control_plane.api
    with (
        live.operator(connection, namespace, namespace_policies=reads_namespaces, sweeps=True) as operator,
        live.kubelet(connection, Program(seconds=None), namespace=namespace),
    ):
        api.create(job(), namespace)
        api.create(SWEEP, namespace)
        eventually(lambda: phase(control_plane, namespace) == "Running")
        eventually(lambda: len(api.list("Pod", namespace)) == 4)
        trials = [found["metadata"]["name"] for found in api.list(KIND, namespace)]
        with being_deleted(control_plane, namespace):
            for pod in api.list("Pod", namespace):
                api.delete("Pod", namespace, pod["metadata"]["name"])
            eventually(lambda: not api.list("Pod", namespace))
            for name in set(trials) - {"demo"}:
                api.delete(KIND, namespace, name)  # the sweep replaces a trial that is gone

            def said() -> int:
                return sum("the namespace is being deleted" in text for text in caplog.messages)

            eventually(lambda: said() >= 2, what="the job and the sweep")
            assert operator.session
            session = operator.session

            def quiet() -> bool:
                """Whether no watch brings anything more that leads to a write."""
                before = session.client.writes
                time.sleep(1)
                return session.idle and session.client.writes == before

            eventually(quiet)
            requests = session.client.writes
            for name in ("demo", "search"):  # something about them changes
                kind = KIND if name == "demo" else "TrainingSweep"
                api.patch(kind, namespace, name, {"metadata": {"labels": {"touched": "yes"}}})
            eventually(lambda: session.idle)
            assert session.client.writes == requests
            assert not api.list("Pod", namespace)
            status = api.get(KIND, namespace, "demo")["status"]
            if reads_namespaces:
                assert (status["attempt"], status["phase"]) == (0, "Running"), "no attempt was decided"
            assert status["attempt"] <= 1
            errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert not [text for text in errors if "event rejected" in text or "request rejected" in text]
            assert said() <= len(trials) + 1
        eventually(lambda: api.find("Namespace", None, namespace) is None)
