"""Ray's wiring: a head that runs the command, workers that join it, and what Ray may use in each pod."""

from __future__ import annotations

import re
from typing import Any

import pytest

from allranks.api.status import Status
from allranks.api.validation import parse
from allranks.core.diagnosis import last_words
from allranks.core.facts import topology
from allranks.core.facts.attempt import Ranks
from allranks.core.facts.model import Platform
from allranks.core.objects import companions, pods
from allranks.errors import InvalidManifest
from allranks.frameworks import FRAMEWORKS
from support.builders import CLUSTER, job

HELPER = ["python3", "/allranks/ray_node.py"]
LOCAL = Platform(helper_image="", local=True)
ROLES = {"head": 1, "worker": 2}


def made(platform: Platform = CLUSTER, roles: dict[str, int] | None = None, **fields: Any) -> list[dict[str, Any]]:
    return pods.objects(job(framework="ray", roles=roles or ROLES, **fields), Status(), platform).pods


def trainers(platform: Platform = CLUSTER, **fields: Any) -> dict[str, dict[str, Any]]:
    """`head-0` -> its training container."""
    return {
        pod["metadata"]["name"].removeprefix("job-").removesuffix("-0"): pod["spec"]["containers"][0]
        for pod in made(platform, **fields)
    }


def variables(trainer: dict[str, Any]) -> dict[str, str]:
    return {v["name"]: v["value"] for v in trainer["env"] if "RAY_" in v["name"]}


def test_the_head_runs_the_command_and_workers_join_it():
    found = trainers(command=["python", "train.py"], args=["--epochs=3"])
    assert found["head-0"]["command"] == [*HELPER, "head", "--", "python", "train.py"]
    assert found["head-0"]["args"] == ["--epochs=3"]
    assert [found[name]["command"] for name in ("worker-0", "worker-1")] == [[*HELPER, "worker"]] * 2
    assert "args" not in found["worker-0"]
    assert {variables(trainer)["RAY_ADDRESS"] for trainer in found.values()} == {"job-head-0-0.job.team.svc:6379"}


def test_only_the_head_declares_ports_and_they_are_named():
    found = trainers(ray={"port": 7000, "dashboardPort": 7001, "clientPort": 7002})
    assert found["head-0"]["ports"] == [
        {"name": "gcs", "containerPort": 7000},
        {"name": "dashboard", "containerPort": 7001},
        {"name": "client", "containerPort": 7002},
    ]
    assert "ports" not in found["worker-0"]
    assert variables(found["worker-1"])["RAY_ADDRESS"] == "job-head-0-0.job.team.svc:7000"


def test_the_token_of_the_job_protects_its_cluster():
    objects = pods.objects(job(framework="ray", roles=ROLES), Status(), CLUSTER)
    [secret] = [one for one in objects.companions if one["kind"] == "Secret"]
    for pod in objects.pods:
        found = variables(pod["spec"]["containers"][0])
        assert found["RAY_AUTH_MODE"] == "token"
        assert found["RAY_AUTH_TOKEN_PATH"] == "/etc/allranks-rendezvous/secret"
        assert {"name": "allranks-rendezvous", "mountPath": "/etc/allranks-rendezvous", "readOnly": True} in (
            pod["spec"]["containers"][0]["volumeMounts"]
        )
    assert secret["metadata"]["name"] == companions.rendezvous_secret_name(job(framework="ray", roles=ROLES))


GROUPS = {"head": 1, "worker": 2, "fast": 3}


def test_each_role_beside_the_head_is_a_group_of_workers_with_its_label():
    found = trainers(roles=GROUPS)
    workers = {name for name, trainer in found.items() if trainer["command"] == [*HELPER, "worker"]}
    assert workers == {"worker-0", "worker-1", "fast-0", "fast-1", "fast-2"}
    assert {name[:-2]: variables(trainer)["RAY_NODE_TYPE_NAME"] for name, trainer in found.items()} == {
        role: role for role in GROUPS
    }
    assert wait(found) == {"WORKERS": "5"}
    framework = topology.framework_of(job(framework="ray", roles=GROUPS))
    assert {role: framework.scope(role, 0, GROUPS) for role in GROUPS} == {
        "head": "Group",
        "worker": "Pod",
        "fast": "Pod",
    }
    assert framework.long_running_roles(GROUPS) == {"worker", "fast"}


def test_an_elastic_job_with_several_groups_counts_the_workers_of_all():
    found = trainers(roles=GROUPS, elastic={"minReplicas": 1, "maxReplicas": 4, "waitSeconds": 30})
    assert wait(found) == {"WORKERS": "5", "MIN_WORKERS": "4", "MAX_WORKERS": "7", "WAIT_SECONDS": "30"}


def test_nodes_on_one_machine_have_numbers_of_their_own():
    numbers = [variables(trainer)["ALLRANKS_RAY_NODE"] for trainer in trainers(LOCAL, roles=GROUPS).values()]
    assert sorted(numbers) == list("012345")
    assert "ALLRANKS_RAY_NODE" not in variables(trainers()["worker-0"])


def test_a_cluster_without_a_program_ends_when_it_is_idle():
    head = trainers(ray={"idleSeconds": 1200}, command=None)["head-0"]
    assert head["command"] == [*HELPER, "head"]
    assert variables(head)["ALLRANKS_RAY_IDLE_SECONDS"] == "1200"
    assert variables(head)["RAY_API_SERVER_ADDRESS"] == "http://127.0.0.1:8265"


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        ({}, "spec.roles.head.command", "a command is needed.*or ray.idleSeconds for a Ray cluster without a program"),
        (
            {"command": ["a"], "ray": {"idleSeconds": 60}},
            "spec.ray.idleSeconds",
            "ends when its command does: remove one",
        ),
        ({"command": ["a"], "success": "fast"}, "spec.success", "workers never exit by themselves"),
        ({"command": ["a"], "roles": {"head": {"replicas": 2}}}, "spec.roles.head.replicas", "at most 1 head"),
        ({"command": ["a"], "roles": {"fast": {}}}, "spec.roles.head", "ray needs a head: add it, or change framework"),
    ],
)
def test_a_job_that_ray_cannot_run_is_refused_with_the_cure(fields: dict[str, Any], path: str, text: str):
    spec = {"framework": "ray", "image": "ray:1", "roles": {"head": {}, "fast": {}}, **fields}
    document = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": {"name": "job"}}
    try:
        problems = pods.problems(parse(document | {"spec": spec}))
    except InvalidManifest as error:
        problems = error.problems
    [(where, message)] = problems
    assert where == path
    assert re.search(text, message)


def test_the_user_can_turn_the_token_off():
    found = trainers(env=[{"name": "RAY_AUTH_MODE", "value": "disabled"}])
    assert variables(found["head-0"])["RAY_AUTH_MODE"] == "disabled"


def test_ray_uses_the_limits_of_a_worker_and_nothing_of_the_head():
    limits = {"cpu": "3500m", "memory": "2Gi", "nvidia.com/gpu": 2}
    found = trainers(resources={"limits": limits})
    assert resources(found["worker-0"]) == {"CPUS": "4", "GPUS": "2", "MEMORY": str(2 << 30)}
    assert resources(found["head-0"]) == {"CPUS": "0", "GPUS": "0", "MEMORY": str(2 << 30)}


def test_requests_count_where_there_is_no_limit():
    found = trainers(resources={"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}})
    assert resources(found["worker-0"]) == {"CPUS": "1", "GPUS": "0", "MEMORY": str(4 << 30)}


def test_ray_detects_what_the_manifest_does_not_say():
    assert resources(trainers()["worker-0"]) == {"GPUS": "0"}


@pytest.mark.parametrize("fields", [{"roles": {"head": 1}}, {"ray": {"headRunsTasks": True}}], ids=["alone", "option"])
def test_the_head_runs_tasks_if_it_is_alone_or_if_the_job_says_so(fields: dict[str, Any]):
    found = trainers(resources={"limits": {"cpu": 2, "nvidia.com/gpu": 1}}, **fields)
    assert resources(found["head-0"]) == {"CPUS": "2", "GPUS": "1"}


def resources(trainer: dict[str, Any]) -> dict[str, str]:
    wanted = ("CPUS", "GPUS", "MEMORY")
    found = variables(trainer)
    return {name: found[f"ALLRANKS_RAY_{name}"] for name in wanted if f"ALLRANKS_RAY_{name}" in found}


def test_the_head_waits_for_all_workers_or_for_enough_of_them():
    assert wait(trainers()) == {"WORKERS": "2"}
    elastic = {"minReplicas": 1, "maxReplicas": 4, "waitSeconds": 30}
    expected = {"WORKERS": "2", "MIN_WORKERS": "1", "MAX_WORKERS": "4", "WAIT_SECONDS": "30"}
    assert wait(trainers(elastic=elastic)) == expected


def wait(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    assert "ALLRANKS_RAY_WORKERS" not in variables(found["worker-0"])
    wanted = ("WORKERS", "MIN_WORKERS", "MAX_WORKERS", "WAIT_SECONDS")
    head = variables(found["head-0"])
    return {name: head[f"ALLRANKS_RAY_{name}"] for name in wanted if f"ALLRANKS_RAY_{name}" in head}


def test_a_local_cluster_has_ports_of_its_own():
    head = "job-head-0-0"
    endpoints = {(head, 6379): ("127.0.0.1", 21001), (head, 8265): ("127.0.0.1", 21002)}
    endpoints |= {(head, 10001): ("127.0.0.1", 21003)}
    found = trainers(Platform(helper_image="", local=True, endpoints=endpoints))
    assert variables(found["worker-0"])["RAY_ADDRESS"] == "127.0.0.1:21001"
    assert variables(found["head-0"])["ALLRANKS_RAY_DASHBOARD_PORT"] == "21002"
    assert variables(found["head-0"])["ALLRANKS_RAY_CLIENT_PORT"] == "21003"


def test_the_job_is_complete_when_the_head_is_and_does_not_wait_for_workers():
    ray = FRAMEWORKS["ray"]
    assert ray.success_target(ROLES) == ("head", 0)
    assert ray.long_running_roles(ROLES) == {"worker"}


def test_a_lost_worker_restarts_alone_and_a_lost_head_restarts_all():
    ray = FRAMEWORKS["ray"]
    assert (ray.scope("head", 0, ROLES), ray.scope("worker", 0, ROLES)) == ("Group", "Pod")


def test_ranks_are_numbered_by_the_program_and_not_by_the_pods():
    one = job(framework="ray", roles=ROLES)
    assert Ranks(one, Status(), CLUSTER).rank("worker", 1) is None
    assert not topology.framework_of(one).ranks_are_pods


TASK = """Traceback (most recent call last):
  File "program.py", line 12, in <module>
    ray.get(load.remote("data.csv"))
ray.exceptions.RayTaskError(ValueError): ray::load() (pid=831, ip=10.0.3.7)
  File "program.py", line 9, in load
    raise ValueError(f"no rows in {path}")
ValueError: no rows in data.csv
"""
ACTOR = """Traceback (most recent call last):
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: Learner
\tpid: 831
\tip: 10.0.3.7
The actor is dead because its node has died.
"""


@pytest.mark.parametrize("text", ["", "allranks: the last lines of the program itself:\n"])
def test_the_report_of_the_head_names_the_rank(text: str):
    report = (
        "allranks: rank 2 failed first, at 2026-11-25_18:03:41, by exit code 1. Its last lines:\nValueError: no rows"
    )
    found = FRAMEWORKS["ray"].log.root_cause(f"{text}{TASK}{report}")
    assert found
    assert (found.rank, found.exit_code, found.message) == (2, 1, "ValueError: no rows")


def test_what_the_program_itself_printed_last_is_the_message():
    others = "(load pid=7, ip=127.0.0.3) Traceback (most recent call last):\n(load pid=7, ip=127.0.0.3) KeyError\n"
    own = "Traceback (most recent call last):\nValueError: no data"
    found = FRAMEWORKS["ray"].log.root_cause(f"{own}\n{others}allranks: the last lines of the program itself:\n{own}\n")
    assert found
    assert (found.rank, found.exit_code, found.message) == (None, None, own)


@pytest.mark.parametrize(
    ("log", "begins"),
    [(TASK, "RayTaskError(ValueError): ray::load() (pid=831, ip=10.0.3.7)"), (ACTOR, "ActorDiedError: ")],
)
def test_the_root_cause_is_the_remote_failure_with_the_address_of_its_node(log: str, begins: str):
    found = FRAMEWORKS["ray"].log.root_cause(log)
    assert found is not None
    assert found.message is not None
    assert found.message.startswith(begins)
    assert log.strip().endswith(found.message)


@pytest.mark.parametrize(
    ("last", "cause", "lost"),
    [
        ("", "ActorDiedError: actor of class Learner", True),
        ("Its last lines:\nFatal Python error: Segmentation fault\n", "Fatal Python error: Segmentation fault", False),
    ],
)
def test_the_line_of_an_actor_that_died_is_the_fault_of_its_process_or_names_the_process(
    last: str, cause: str, lost: bool
):
    line = "ActorDiedError: actor of class Learner, pid 831 at 10.0.3.7, is dead because its worker process has died"
    root_cause = FRAMEWORKS["ray"].log.root_cause(f"allranks: the last lines of the program itself:\n{line}\n{last}")
    assert root_cause is not None
    text = root_cause.message or ""
    assert last_words.cause_line(text).startswith(cause)
    assert last_words.lost_peer(text, last_words.last_words(text)) is lost


def test_a_log_without_a_remote_failure_has_no_other_cause():
    assert FRAMEWORKS["ray"].log.root_cause("Traceback (most recent call last):\nValueError: no data\n") is None


def test_a_pod_with_the_helper_of_an_earlier_version_names_the_rank():
    log = (
        "Traceback (most recent call last):\nray.train.WorkerGroupError\n[Rank 1 Error Snippet]:\nValueError: no data\n"
    )
    found = FRAMEWORKS["ray"].log.root_cause(log)
    assert (found.rank, found.message) == (1, "ValueError: no data")


def test_the_root_cause_has_no_color_codes():
    log = (
        "Traceback (most recent call last):\n"
        "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::load()\x1b[39m (pid=7, ip=127.0.0.4)\n"
        "ValueError: no rows"
    )
    cause = FRAMEWORKS["ray"].log.root_cause(log)
    assert cause
    assert cause.message == "RayTaskError(ValueError): ray::load() (pid=7, ip=127.0.0.4)\nValueError: no rows"
