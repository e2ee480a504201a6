"""What one job costs at any size, for every framework in the registry, also for those to come."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allranks.api.status import Status
from allranks.core.facts.attempt import MAX_VARIABLE_BYTES, attempt_context
from allranks.core.facts.topology import framework_of
from allranks.core.objects import pods
from allranks.core.objects.pods import Objects
from allranks.core.reconcile import reconcile
from allranks.frameworks import FRAMEWORKS
from support import largest
from support.builders import CLUSTER, NOW, Life, environment, job, observed
from support.largest import ALL, LARGEST, LONGEST_NAME, LONGEST_NAMESPACE, MAX_REPLICAS, Shape

every_shape = pytest.mark.parametrize("shape", ALL, ids=str)
every_largest = pytest.mark.parametrize("shape", LARGEST, ids=str)
POD_BYTES = 5_000
LOOK_MB = 300
"""Memory of the process that looks at the largest job. The interpreter and the imports need about 60."""


def made(shape: Shape, n: int, attempt: int = 0) -> Objects:
    return pods.objects(shape.job(n), Status(attempt=attempt), CLUSTER)


def size(*manifests: Any) -> int:
    return len(json.dumps(manifests))


def test_shapes_cover_every_framework_role_and_choice():
    for name, framework in FRAMEWORKS.items():
        found = [shape for shape in ALL if shape.framework == name]
        assert {role for shape in found for role in shape.roles} == set(framework.roles)
        for option, choices in largest._choices(name):
            assert {dict(shape.options)[option] for shape in found} == set(choices)
        assert any(shape.elastic for shape in found) == bool(framework.elastic)


@every_shape
def test_the_bytes_of_an_attempt_are_linear_in_its_pods(shape):
    """A pod is stored again with each of its changes: n addresses in each of n pods fill etcd."""
    few, many = made(shape, 50), made(shape, 200)
    of_each = max(size(pod) for pod in few.pods)
    # Indices and counts have a few digits more.
    assert max(size(pod) for pod in many.pods) <= of_each + 100
    assert sum(size(companion) for companion in many.companions) <= 4.4 * sum(size(c) for c in few.companions) + 100
    if len(few.pods) > len(shape.roles):
        assert size(*many.pods, *many.companions) <= 4.4 * size(*few.pods, *few.companions)


@every_shape
def test_a_pod_has_a_bounded_size(shape):
    """The parts that its author writes are not counted."""
    of_each = max(size(pod) for pod in made(shape, 200).pods)
    assert of_each < POD_BYTES, of_each


@every_shape
def test_the_wiring_refers_only_to_what_is_shared(shape):
    of = shape.job(3)
    context = attempt_context(of, Status(), CLUSTER)
    framework = framework_of(of)
    shared, wire = framework.shared(context), framework.wire(context)
    wirings = [(replica.role, wire(replica)) for replica in context.replicas]
    for role, wiring in wirings:
        assert set(wiring.shared_env) <= set(shared.variables)
        assert all(name.startswith("ALLRANKS_") for name in wiring.shared_env)
        assert not wiring.files or shared.files
        assert not wiring.ssh_key or shared.ssh_key
        # Only the first and the last replica of a role are checked before the start.
        same = [(other.prefix, other.command, other.helper) for kind, other in wirings if kind == role]
        assert set(same) == {(wiring.prefix, wiring.command, wiring.helper)}


def calls(shape: Shape, n: int) -> int:
    """Function calls of the look that creates pods: CPU time without the machine's speed."""
    of = shape.job(n)
    begun = reconcile(observed(of, Status())).next
    assert begun is not None
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    look = replace(observed(of, begun), now=NOW)
    sys.setprofile(trace)
    try:
        reconcile(look)
    finally:
        sys.setprofile(None)
    return count


@every_largest
def test_the_cpu_time_of_a_look_is_linear_in_the_pods(shape):
    assert calls(shape, 800) <= 4.5 * calls(shape, 200)


def test_a_plan_creates_a_bounded_number_of_pods_and_the_next_one_the_others():
    of = job("pytorch", {"worker": 2500})
    status, created, looks = largest.first_life(of)
    assert (status.phase, len(created), looks) == ("Pending", 2500, 5)


def look(shape: Shape) -> dict[str, Any]:
    """The largest job that the CRD takes, in a process of its own."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "support.largest", str(shape)],
        env=os.environ | {"PYTHONPATH": f"{root / 'operator'}:{root / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ONE_OF_EACH = [
    next(shape for shape in reversed(LARGEST) if (shape.framework, shape.roles) == of and not shape.elastic)
    for of in dict.fromkeys((shape.framework, shape.roles) for shape in LARGEST)
]


@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, marks=[] if s in ONE_OF_EACH else pytest.mark.nightly) for s in LARGEST],
    ids=str,
)
def test_a_look_at_the_largest_legal_job_needs_little_memory(shape):
    found = look(shape)
    assert found["peak_mb"] < LOOK_MB
    assert found["phase"] == "Failed" or found["pods"] == sum(shape.counts(MAX_REPLICAS).values())


# What is too large

TENSORFLOW = Shape("tensorflow", ("worker",))
MPI = Shape("horovod", ("worker", "launcher"), (("controller", "MPI"),))


def fits(shape: Shape, name: str = LONGEST_NAME, namespace: str = LONGEST_NAMESPACE) -> int:
    """The number of workers that fit, according to the message about too many."""
    [(path, message)] = pods.problems(shape.job(MAX_REPLICAS, name, namespace))
    assert path == "spec.roles.worker.replicas"
    [number] = re.findall(r"; at most (\d+) fit with this name and namespace$", message)
    return int(number)


@pytest.mark.parametrize("shape", [TENSORFLOW, MPI], ids=str)
def test_a_job_with_too_many_replicas_is_refused_with_the_number_that_fits(shape):
    number = fits(shape)
    assert pods.problems(shape.job(number, LONGEST_NAME, LONGEST_NAMESPACE)) == []
    assert pods.problems(shape.job(number + 1, LONGEST_NAME, LONGEST_NAMESPACE)) != []
    status, created, _ = largest.first_life(shape.job(number + 1, LONGEST_NAME, LONGEST_NAMESPACE))
    assert (status.phase, created) == ("Failed", [])
    [condition] = [c for c in status.conditions if c.type == "Failed" and c.status == "True"]
    assert condition.reason == "InvalidSpec"
    assert f"at most {number} fit" in condition.message


def test_the_messages_name_the_limits():
    [(_, message)] = pods.problems(TENSORFLOW.job(5000))
    assert re.fullmatch(
        r"is too large: TF_CONFIG has \d+ bytes, and Linux takes 131071 for one variable; "
        r"at most \d{4} fit with this name and namespace",
        message,
    )
    [(_, message)] = pods.problems(MPI.job(MAX_REPLICAS, LONGEST_NAME, LONGEST_NAMESPACE))
    assert "the addresses of the pods have 1" in message
    assert "and a ConfigMap takes 1048576" in message


def test_if_the_other_roles_alone_are_too_large_the_message_says_so():
    [(path, message)] = pods.problems(job("tensorflow", {"worker": 9000, "ps": 9001}))
    assert path == "spec.roles.ps.replicas"
    assert message.endswith("; set fewer replicas of the other roles as well")


def test_a_shorter_name_fits_more_replicas():
    assert fits(TENSORFLOW, "a", "b") > 2 * fits(TENSORFLOW)


@pytest.mark.parametrize("attempt", [0, 9999])
def test_the_largest_accepted_cluster_fits_into_every_limit(attempt):
    number = fits(TENSORFLOW)
    objects = pods.objects(TENSORFLOW.job(number, LONGEST_NAME, LONGEST_NAMESPACE), Status(attempt=attempt), CLUSTER)
    variables = environment(objects, objects.pods[-1])
    assert max(len(f"{name}={value}") for name, value in variables.items()) <= MAX_VARIABLE_BYTES
    assert len(json.loads(variables["TF_CONFIG"])["cluster"]["worker"]) == number


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
def test_the_limit_of_a_variable_is_that_of_the_kernel():
    def starts(size: int) -> bool:
        try:
            return subprocess.run(["true"], env={"X": "x" * (size - 2), "PATH": os.environ["PATH"]}).returncode == 0
        except OSError:
            return False

    assert starts(MAX_VARIABLE_BYTES)
    assert not starts(MAX_VARIABLE_BYTES + 1)


def test_a_running_job_that_is_scaled_beyond_the_limit_fails_with_the_reason():
    small, large = job("tensorflow", {"worker": 2}), job("tensorflow", {"worker": MAX_REPLICAS})
    life = Life(small)
    life.settle(0)
    life.run(1)
    life.job = large
    life.settle(60)
    assert life.status.phase == "Failed"
    assert "InvalidSpec" in life.events


def test_a_suspended_job_that_is_scaled_beyond_the_limit_fails_when_it_is_resumed():
    life = Life(job("tensorflow", {"worker": 2}))
    life.settle(0)
    life.job = job("tensorflow", {"worker": 2}, suspend=True)
    life.settle(30)
    assert life.status.phase == "Suspended"
    life.job = job("tensorflow", {"worker": MAX_REPLICAS})
    life.settle(60)
    assert (life.status.phase, life.pods) == ("Failed", {})
    assert [(past.attempt, past.reason) for past in life.status.history] == [(0, "Suspended")]


def test_the_hosts_of_gloo_are_a_pattern_that_makes_the_names_of_all_workers():
    objects = made(Shape("horovod", ("worker",)), 12, attempt=7)
    pattern = environment(objects, objects.pods[0])["ALLRANKS_HOROVOD_HOSTS"]
    hosts = [pattern.replace("{}", str(index)) for index in range(12)]
    assert hosts == [f"{pod['spec']['hostname']}:1" for pod in objects.pods]
