"""Every field of a job's spec, with generated values, valid and not, on a real API server.

The API server refuses a value with the path of the field, or the job runs, or its status or an Event says why not. Then
the job with the mended field runs. The same values are set in a job that runs, and set back. The operator logs no
unexpected exception, and other jobs start all the time.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from allranks.api.job import KIND
from support import live
from support.api import ApiError
from support.controlplane import ControlPlane
from support.kubelet import Program
from support.live import eventually, job, phase
from support.spec_values import Change, changes

from .conftest import DEFINITIONS

SEED = 20261124
LONG = Program(seconds=None)
WITHIN = 600.0
"""Seconds; an idle machine needs about one."""
SPEC_SCHEMA = yaml.safe_load(DEFINITIONS[0].read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
    "properties"
]["spec"]
_STARTING = {"Created", "PodsCreated", "PodsPending", "Restarting", ""}
"""Reasons that do not say why a job does not run."""


ROLES = {
    "tensorflow": "worker",
    "horovod": "worker",
    "jax": "worker",
    "ray": "head",
    "mpi": "launcher",
    "spmd": "worker",
}
"""The role of a job of one pod."""


def base(change: Change | None = None) -> dict[str, Any]:
    """A valid job, of the framework whose settings the change is about."""
    framework = str(change.path[0]) if change and change.path[0] in ROLES else "pytorch"
    roles = {ROLES.get(framework, "master"): {"replicas": 1}}
    value = change.value if change else None
    if (value.get("controller") if isinstance(value, dict) else value) == "MPI":
        roles["launcher"] = {"replicas": 1}  # the controller MPI of Horovod needs it
    spec: dict[str, Any] = job(framework=framework, roles=roles)["spec"]
    return spec


def drawn(seed: int, count: int | None) -> list[Change]:
    """`count` changes (None: all), half of them inside a template."""
    source = random.Random(seed)
    found = list(changes(SPEC_SCHEMA, source))
    source.shuffle(found)
    if count is None:
        return found
    inside = [change for change in found if "template" in change.path][: count // 2]
    return [change for change in found if "template" not in change.path][: count - len(inside)] + inside


class Fields:
    """The jobs of one batch of changes."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self._api, self._namespace = control_plane.api, namespace

    def create(self, name: str, spec: dict[str, Any]) -> str:
        """The API server's message if it refuses the job."""
        manifest = {**job(name), "spec": spec}
        try:
            self._api.create(manifest, self._namespace)
        except ApiError as error:
            return error.message
        return ""

    def unexplained(self, names: dict[str, Change]) -> dict[str, str]:
        """Name -> status of the jobs that do not run, and of which neither status nor Events say why."""
        warned = {
            event["involvedObject"]["name"]
            for event in self._api.list("Event", self._namespace)
            if event["type"] == "Warning"
        }
        return {
            found["metadata"]["name"]: json.dumps(found.get("status"))
            for found in self._api.list(KIND, self._namespace)
            if found["metadata"]["name"] in names and found["metadata"]["name"] not in warned and not explained(found)
        }

    def replace(self, name: str, change: Change) -> None:
        """Deletes the job and creates it again, with all fields as they should be."""
        self._api.delete(KIND, self._namespace, name)
        eventually(lambda: not self._api.find(KIND, self._namespace, name), WITHIN)
        assert not self.create(name, base(change))

    def update(self, name: str, change: Change, *, undo: bool = False) -> str:
        """Changes the field of an existing job, or sets it back. The API server's message if it refuses."""
        value, before = change.value, base(change)
        for key in change.path if undo else ():
            value = before = before.get(key) if isinstance(before, dict) else None
        for key in reversed(change.path):
            value = {key: value}
        try:
            self._api.patch(KIND, self._namespace, name, {"spec": value})
        except ApiError as error:
            return error.message
        return ""


def explained(found: dict[str, Any]) -> bool:
    status = found.get("status", {})
    if status.get("phase") in ("Running", "Succeeded", "Suspended", "Failed"):
        return status["phase"] != "Failed" or any(
            condition["type"] == "Failed" and condition["message"] for condition in status["conditions"]
        )
    if found["spec"].get("managedBy", "allranks.dev/operator") != "allranks.dev/operator":
        return True
    return any(
        condition["message"] and condition["reason"] not in _STARTING for condition in status.get("conditions", ())
    )


def unexpected(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Errors in the log, except two of kopf while it stops: a generator that is closed while it runs, and a request
    for a watch that has no response yet, which its `request_cancel_callback` does not find."""
    return [
        f"{record.name}: {record.getMessage()}\n{record.exc_text or ''}"
        for record in caplog.records
        if record.levelno >= logging.ERROR
        and (record.exc_info or record.name == "asyncio" or "API request rejected" in record.getMessage())
        and not re.search(r"infinite_watch|stream\.<locals>\.request_cancel_callback", record.getMessage())
    ]


def batches(found: list[Change], size: int) -> Iterator[list[Change]]:
    for start in range(0, len(found), size):
        yield found[start : start + size]


def check(control_plane: ControlPlane, namespace: str, caplog: pytest.LogCaptureFixture, found: list[Change]) -> None:
    connection = live.connection(control_plane)
    fields, faults = Fields(control_plane, namespace), []
    with live.operator(connection, namespace) as operator, live.kubelet(connection, LONG, namespace=namespace):
        eventually(lambda: operator.session and operator.session.synced, WITHIN)
        session = operator.session
        for number, batch in enumerate(batches(found, 40)):
            named: dict[str, Change] = {}
            for place, change in enumerate(batch):
                name = f"j{number}-{place}"
                message = fields.create(name, change.applied(base(change)))
                if not message:
                    named[name] = change
                elif str(change.path[0]) not in message:
                    faults.append(f"{change}: refused without the path of the field: {message}")
            witness = f"witness-{number}"
            fields.create(witness, base())
            deadline = time.monotonic() + WITHIN
            while (silent := fields.unexplained(named)) and time.monotonic() < deadline:
                time.sleep(0.2)
            faults += [f"{named[name]}: nothing says why it does not run: {status}" for name, status in silent.items()]
            eventually(lambda name=witness: phase(control_plane, namespace, name) == "Running", WITHIN, "the witness")
            mended = [name for name in named if phase(control_plane, namespace, name) not in ("Running", "Succeeded")]
            for name in mended:
                fields.replace(name, named[name])
            deadline = time.monotonic() + WITHIN
            while time.monotonic() < deadline and any(phase(control_plane, namespace, n) != "Running" for n in mended):
                time.sleep(0.2)
            faults += [
                f"{named[name]}: does not run after it was mended: {phase(control_plane, namespace, name)}"
                for name in mended
                if phase(control_plane, namespace, name) != "Running"
            ]
            # The same values in a job that runs.
            updated = {}
            for name in mended:
                if not (message := fields.update(name, named[name])):
                    updated[name] = named[name]
                elif str(named[name].path[0]) not in message:
                    faults.append(f"{named[name]}: an update is refused without the path of the field: {message}")
            deadline = time.monotonic() + WITHIN
            while (silent := fields.unexplained(updated)) and time.monotonic() < deadline:
                time.sleep(0.2)
            faults += [f"{updated[name]}: after an update: {status}" for name, status in silent.items()]
            for name in updated:
                if message := fields.update(name, updated[name], undo=True):
                    faults.append(f"{updated[name]}: cannot be set back: {message}")
            deadline, settled = time.monotonic() + WITHIN, ("Running", "Succeeded", "Failed")
            while (
                stuck := [name for name in updated if phase(control_plane, namespace, name) not in settled]
            ) and time.monotonic() < deadline:
                time.sleep(0.2)
            faults += [f"{updated[name]}: does not run after it was set back" for name in stuck]
            for name in (*named, witness):
                control_plane.api.delete(KIND, namespace, name)
        assert operator.session is session, "the session has ended"
    assert not faults, "\n".join(faults)
    assert not unexpected(caplog)


def test_each_field_is_refused_with_its_path_or_explained_and_a_mended_job_runs(
    control_plane: ControlPlane, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    check(control_plane, namespace, caplog, drawn(SEED, 40))


def test_templates_that_are_nested_very_deeply_or_very_large_do_not_affect_other_jobs(
    control_plane: ControlPlane, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The API server stores ten thousand levels, and 1.5 MB. The operator meets such jobs in a watch and in a list."""

    def create(name: str, template: str) -> None:
        manifest = json.dumps(job(name, template={"metadata": {"annotations": {"a": "@"}}})).replace('"@"', template)
        done = control_plane.kubectl("create", "-n", namespace, "--validate=false", "-f", "-", input=manifest)
        assert done.returncode == 0, done.stderr

    def marked() -> dict[str, str]:
        """Not read from the jobs: the decoder of this client does not read them either."""
        events = control_plane.api.list("Event", namespace)
        return {e["involvedObject"]["name"]: e["message"] for e in events if e["reason"] == "InvalidSpec"}

    connection = live.connection(control_plane)
    with live.kubelet(connection, LONG, namespace=namespace):
        with live.operator(connection, namespace) as operator:
            eventually(lambda: operator.session and operator.session.synced, WITHIN)
            session = operator.session
            create("deep", '{"a":' * 950 + "1" + "}" * 950)
            create("deeper", '{"a":' * 9_500 + "1" + "}" * 9_500)
            create("large", json.dumps([{}] * 300_000))
            control_plane.api.create(job("witness"), namespace)
            eventually(lambda: len(marked()) == 3, WITHIN)
            assert marked()["deep"].startswith("spec.template: is nested more than 64 levels deep")
            assert marked()["deeper"].startswith("spec.template: is nested more than 64 levels deep")
            assert marked()["large"].startswith("spec: templates, valueFrom and volume have more than 256 KiB in total")
            eventually(lambda: phase(control_plane, namespace, "witness") == "Running", WITHIN)
            assert operator.session is session
            eventually(lambda: operator.idle, WITHIN)
        with live.operator(connection, namespace) as operator:
            control_plane.api.create(job("later"), namespace)
            eventually(lambda: phase(control_plane, namespace, "later") == "Running", WITHIN)
            eventually(lambda: operator.idle, WITHIN)
    assert not unexpected(caplog)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_each_field_with_a_random_seed(
    control_plane: ControlPlane, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    seed = int(os.environ.get("SPEC_SEED") or random.SystemRandom().getrandbits(32))
    print(f"repeat with SPEC_SEED={seed} pytest -m nightly tests/apiserver/test_spec_fields.py")
    check(control_plane, namespace, caplog, drawn(seed, int(os.environ.get("SPEC_CHANGES") or 1_000)))
