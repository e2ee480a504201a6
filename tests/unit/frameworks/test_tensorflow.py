"""TensorFlow's wiring: TF_CONFIG, exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allranks.api.status import Status
from allranks.authoring.checks.notes import notes_of
from allranks.core.objects import commands, pods
from support.builders import CLUSTER, environment, job, table

CHIEF = "job-chief-0-0.job.team.svc:2222"
WORKER0 = "job-worker-0-0.job.team.svc:2222"
WORKER1 = "job-worker-1-0.job.team.svc:2222"
PS0 = "job-ps-0-0.job.team.svc:2222"
PS1 = "job-ps-1-0.job.team.svc:2222"
EVALUATOR = "job-evaluator-0-0.job.team.svc:2222"


def configs(**fields: Any) -> dict[str, Any]:
    """Pod name -> TF_CONFIG as TensorFlow decodes it."""
    made = pods.objects(job(framework="tensorflow", **fields), Status(), CLUSTER)
    return {pod["metadata"]["name"]: json.loads(environment(made, pod)["TF_CONFIG"]) for pod in made.pods}


def task(kind: str, index: int, **cluster: list[str]) -> dict[str, Any]:
    return {"cluster": cluster, "task": {"type": kind, "index": index}}


# Sentence, roles, pod name -> TF_CONFIG.
CASES = [
    (
        "every worker has the addresses of all",
        {"worker": 2},
        {
            "job-worker-0-0": task("worker", 0, worker=[WORKER0, WORKER1]),
            "job-worker-1-0": task("worker", 1, worker=[WORKER0, WORKER1]),
        },
    ),
    (
        "a single worker has a TF_CONFIG with one entry",
        {"worker": 1},
        {"job-worker-0-0": task("worker", 0, worker=[WORKER0])},
    ),
    ("a single chief has one too", {"chief": 1}, {"job-chief-0-0": task("chief", 0, chief=[CHIEF])}),
    (
        "the evaluator has a cluster of its own",
        {"chief": 1, "worker": 1, "ps": 2, "evaluator": 1},
        {
            "job-chief-0-0": task("chief", 0, chief=[CHIEF], worker=[WORKER0], ps=[PS0, PS1]),
            "job-worker-0-0": task("worker", 0, chief=[CHIEF], worker=[WORKER0], ps=[PS0, PS1]),
            "job-ps-0-0": task("ps", 0, chief=[CHIEF], worker=[WORKER0], ps=[PS0, PS1]),
            "job-ps-1-0": task("ps", 1, chief=[CHIEF], worker=[WORKER0], ps=[PS0, PS1]),
            "job-evaluator-0-0": task("evaluator", 0, evaluator=[EVALUATOR]),
        },
    ),
]


@table(*CASES)
def test_TF_CONFIG(case):
    roles, expected = case
    assert configs(roles=roles) == expected


def test_the_key_is_chief_never_master():
    """TensorFlow rejects a cluster with a master."""
    found = configs(roles={"chief": 1, "worker": 2, "ps": 1, "evaluator": 1})
    assert "master" not in json.dumps(found)


def test_the_addresses_are_stored_once_and_pods_refer_to_them():
    made = pods.objects(job("tensorflow", {"worker": 2}), Status(attempt=3), CLUSTER)
    _, addresses = made.companions
    assert addresses["metadata"]["name"] == "job-files-3"
    assert addresses["immutable"] is True
    hosts = [f"job-worker-{index}-3.job.team.svc:2222" for index in range(2)]
    assert addresses["data"] == {"ALLRANKS_TF_CLUSTER": json.dumps({"worker": hosts}, separators=(",", ":"))}
    for index, pod in enumerate(made.pods):
        env = [v for v in pod["spec"]["containers"][0]["env"] if "TF_C" in v["name"]]
        source = {"configMapKeyRef": {"name": "job-files-3", "key": "ALLRANKS_TF_CLUSTER"}}
        config = f'{{"cluster":$(ALLRANKS_TF_CLUSTER),"task":{{"type":"worker","index":{index}}}}}'
        # Kubernetes expands references to variables that come before.
        assert env == [
            {"name": "ALLRANKS_TF_CLUSTER", "valueFrom": source},
            {"name": "TF_CONFIG", "value": config},
        ]


def test_the_port_can_be_set():
    assert configs(roles={"worker": 1}, tensorflow={"port": 5000}) == {
        "job-worker-0-0": task("worker", 0, worker=["job-worker-0-0.job.team.svc:5000"])
    }


def test_every_task_listens_on_its_port():
    made = pods.objects(job("tensorflow", {"chief": 1, "ps": 1}), Status(), CLUSTER)
    for pod in made.pods:
        assert pod["spec"]["containers"][0]["ports"] == [{"name": "grpc", "containerPort": 2222}]


KERAS = "TF_USE_LEGACY_KERAS"


@table(
    ("two workers", {"worker": 2}, True),
    ("a chief and parameter servers", {"chief": 1, "ps": 1}, True),
    ("a chief and a worker with their evaluator", {"chief": 1, "worker": 1, "evaluator": 1}, True),
    ("a single worker", {"worker": 1}, False),
    ("a single chief with its evaluator", {"chief": 1, "evaluator": 1}, False),
)
def test_all_tasks_use_legacy_keras_if_keras_3_cannot_train_in_them(case):
    roles, legacy = case
    of_job = job("tensorflow", roles)
    made = pods.objects(of_job, Status(), CLUSTER)
    expected = {"1"} if legacy else {None}
    assert {environment(made, pod).get(KERAS) for pod in made.pods} == expected
    assert [note.severity for note in notes_of(of_job) if KERAS in note.message] == (["note"] if legacy else [])


def test_a_job_that_chooses_its_keras_keeps_it_without_a_note():
    of_job = job("tensorflow", {"worker": 2}, env=[{"name": KERAS, "value": "0"}])
    made = pods.objects(of_job, Status(), CLUSTER)
    assert {environment(made, pod)[KERAS] for pod in made.pods} == {"0"}
    assert not notes_of(of_job)


@pytest.mark.parametrize("attempt", [0, 7])
def test_addresses_contain_the_attempt_so_that_no_task_reaches_a_terminating_pod(attempt):
    made = pods.objects(job("tensorflow", {"worker": 1}), Status(attempt=attempt), CLUSTER)
    found = environment(made, made.pods[0])["TF_CONFIG"]
    assert json.loads(found)["cluster"] == {"worker": [f"job-worker-0-{attempt}.job.team.svc:2222"]}
    assert made.pods[0]["spec"]["hostname"] == f"job-worker-0-{attempt}"


@table(
    ("parameter servers and no chief", {"worker": 2, "ps": 1}, ["spec.roles.ps"]),
    ("parameter servers and a chief", {"chief": 1, "worker": 2, "ps": 1}, []),
    ("a chief without replicas", {"chief": 0, "worker": 2, "ps": 1}, ["spec.roles.ps"]),
    ("workers", {"worker": 2}, []),
)
def test_parameter_servers_without_a_chief_are_a_warning(case):
    roles, paths = case
    warnings = [remark.path for remark in commands.remarks(job("tensorflow", roles)) if remark.severity == "warning"]
    assert warnings == paths
