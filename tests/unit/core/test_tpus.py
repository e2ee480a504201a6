"""The variables of a TPU slice of several hosts. Nothing here runs on a TPU."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from allranks.api.status import Status
from allranks.core.facts.attempt import LAST_ATTEMPT, attempt_context, size_problems
from allranks.core.facts.topology import framework_of
from allranks.core.objects import pods
from support.builders import CLUSTER, job

HOST = {"resources": {"limits": {"google.com/tpu": 4}}}


def variables(of: Any, platform: Any = CLUSTER) -> dict[str, dict[str, str]]:
    """Pod -> its variables, with values of the ConfigMap in their places."""
    objects = pods.objects(of, Status(), platform)
    [values, *_] = [made["data"] for made in objects.companions if made["kind"] == "ConfigMap"] or [{}]
    out: dict[str, dict[str, str]] = {}
    for pod in objects.pods:
        env = pod["spec"]["containers"][0]["env"]
        values_of_pod = {entry["name"]: entry.get("value", values.get(entry["name"], "")) for entry in env}
        for name, value in values_of_pod.items():
            for other in values:
                values_of_pod[name] = value.replace(f"$({other})", values[other])
        out[pod["spec"]["hostname"]] = values_of_pod
    return out


def with_tpus(framework: str, roles: dict[str, Any], **fields: Any) -> Any:
    return job(framework=framework, roles=roles, command=["python", "train.py"], **fields)


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "pytorch", "spmd"])
def test_each_host_of_a_slice_has_its_number_and_the_names_of_all(framework: str) -> None:
    of_pods = variables(with_tpus(framework, {"worker": {"replicas": 3, **HOST}}))
    names = ",".join(f"job-worker-{number}-0.job.team.svc" for number in range(3))
    assert {pod: (env["TPU_WORKER_ID"], env["TPU_WORKER_HOSTNAMES"]) for pod, env in of_pods.items()} == {
        f"job-worker-{number}-0": (str(number), names) for number in range(3)
    }


def test_only_replicas_with_tpus_are_hosts_of_the_slice() -> None:
    of_pods = variables(with_tpus("tensorflow", {"chief": {"replicas": 1}, "worker": {"replicas": 2, **HOST}}))
    assert "TPU_WORKER_ID" not in of_pods["job-chief-0-0"]
    assert [of_pods[f"job-worker-{number}-0"]["TPU_WORKER_ID"] for number in (0, 1)] == ["0", "1"]


def test_the_variables_of_the_user_stay() -> None:
    env = [{"name": "TPU_WORKER_HOSTNAMES", "value": "localhost"}]
    of_pods = variables(with_tpus("jax", {"worker": {"replicas": 2, **HOST}}, env=env))
    assert of_pods["job-worker-1-0"]["TPU_WORKER_HOSTNAMES"] == "localhost"
    assert of_pods["job-worker-1-0"]["TPU_WORKER_ID"] == "1"


@pytest.mark.parametrize(
    ("replicas", "resources", "platform"),
    [
        (1, HOST, CLUSTER),
        (2, {"resources": {"limits": {"nvidia.com/gpu": 4}}}, CLUSTER),
        (2, HOST, replace(CLUSTER, local=True)),
    ],
    ids=["one host", "no TPUs", "processes of this machine"],
)
def test_other_jobs_have_no_variables_of_tpus(replicas: int, resources: Any, platform: Any) -> None:
    of_pods = variables(with_tpus("jax", {"worker": {"replicas": replicas, **resources}}), platform)
    assert not [name for env in of_pods.values() for name in env if "TPU" in name]


def test_the_names_of_all_hosts_are_stored_once() -> None:
    small, large = (
        pods.objects(with_tpus("jax", {"worker": {"replicas": count, **HOST}}), Status(), CLUSTER).pods[0]
        for count in (2, 200)
    )
    assert abs(len(json.dumps(large)) - len(json.dumps(small))) < 10


def test_a_slice_whose_names_are_too_long_for_a_variable_is_refused() -> None:
    too_large = with_tpus("pytorch", {"worker": {"replicas": 10_000, **HOST}})
    context = attempt_context(too_large, LAST_ATTEMPT, CLUSTER)
    [(field, message)] = size_problems(too_large, framework_of(too_large), context)
    assert field == "spec.roles.worker.replicas"
    assert "ALLRANKS_TPU_HOSTNAMES has" in message
