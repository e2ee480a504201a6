"""SPMD: roles of any name, generic variables, hosts files, and what restarts alone."""

from __future__ import annotations

from typing import Any

from allranks.api.status import Status
from allranks.core.facts import topology
from allranks.core.facts.model import Platform
from allranks.core.objects import pods
from allranks.core.objects.pods import Objects
from allranks.frameworks import FRAMEWORKS
from support.builders import CLUSTER, environment, job, table

TWO = {"trainer": 2, "ps": 1, "data": 3}
RANKS = {"ranks": ["ps", "trainer"]}


def made(platform: Platform = CLUSTER, **fields: Any) -> Objects:
    return pods.objects(job("spmd", **{"roles": TWO, "spmd": RANKS, **fields}), Status(), platform)


def variables(objects: Objects) -> dict[str, dict[str, str]]:
    """Replica -> its variables but those that every job has."""
    common = ("ALLRANKS_JOB", "ALLRANKS_ATTEMPT", "ALLRANKS_INDEX", "ALLRANKS_ROLE", "PYTHON")
    return {
        pod["metadata"]["name"].removeprefix("job-").removesuffix("-0"): {
            name: value for name, value in environment(objects, pod).items() if not name.startswith(common)
        }
        for pod in objects.pods
    }


ADDRESSES = {
    "ALLRANKS_PORT": "29500",
    **{f"ALLRANKS_ADDR_{role.upper()}": f"job-{role}-0-0.job.team.svc:29500" for role in TWO},
    **{f"ALLRANKS_HOSTS_{role.upper()}": f"/etc/allranks/hosts-{role}" for role in TWO},
}
OF_RANKS = {"MASTER_ADDR": "job-ps-0-0.job.team.svc", "MASTER_PORT": "29500", "WORLD_SIZE": "3", "NNODES": "3"}


def test_ranks_follow_the_order_of_the_roles_and_other_roles_have_none():
    found = variables(made())
    one = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert found["ps-0"] == {**ADDRESSES, **OF_RANKS, **one, "RANK": "0", "NODE_RANK": "0"}
    assert found["trainer-1"] == {**ADDRESSES, **OF_RANKS, **one, "RANK": "2", "NODE_RANK": "2"}
    assert found["data-2"] == ADDRESSES


def test_each_role_has_a_file_with_the_addresses_of_its_pods():
    [files] = [thing["data"] for thing in made().companions if thing["kind"] == "ConfigMap"]
    assert files == {
        f"hosts-{role}": "".join(f"job-{role}-{index}-0.job.team.svc:29500\n" for index in range(count))
        for role, count in TWO.items()
    }


def test_several_processes_in_a_pod_are_started_by_a_helper_with_consecutive_ranks():
    objects = made(spmd={"ranks": ["trainer"], "processesPerPod": 4})
    found = variables(objects)
    assert [found[f"trainer-{index}"]["RANK"] for index in range(2)] == ["0", "4"]
    assert (found["trainer-1"]["WORLD_SIZE"], found["trainer-1"]["LOCAL_WORLD_SIZE"]) == ("8", "4")
    commands = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["command"] for pod in objects.pods}
    helper = ["python3", "/allranks/local_ranks.py", "--"]
    assert commands["job-trainer-0-0"] == [*helper, "python3", "train.py"]
    assert commands["job-data-0-0"] == ["python3", "train.py"]


@table(
    ("one, as with torchrun, in a pod without CPUs", {}, "1"),
    ("the share of a limit", {"limits": {"cpu": "8"}}, "2"),
    ("the share of a request without a limit", {"requests": {"cpu": 12}}, "3"),
    ("at least one", {"limits": {"cpu": "500m"}}, "1"),
)
def test_each_of_several_processes_in_a_pod_gets_threads_for_its_share_of_the_cpus(case):
    resources, threads = case
    of_pod = {"ranks": ["trainer"], "processesPerPod": 4}
    assert variables(made(spmd=of_pod, resources=resources))["trainer-1"]["ALLRANKS_THREADS"] == threads
    assert "ALLRANKS_THREADS" not in variables(made(resources=resources))["trainer-1"]


def test_a_pod_with_gpus_has_a_process_for_each_and_roles_may_differ():
    gpus = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    found = variables(made(roles={"a": {"replicas": 1, **gpus}, "b": 2}, spmd={"ranks": ["a", "b"]}))
    assert [(of["RANK"], of["LOCAL_WORLD_SIZE"]) for of in found.values()] == [("0", "2"), ("2", "1"), ("3", "1")]


def test_on_one_machine_every_pod_has_a_port_of_its_own():
    of = job("spmd", roles={"worker": 2, "data": 1})
    wanted = pods.listening_ports(of, Status())
    assert len(wanted) == 3
    endpoints = {place: ("127.0.0.1", 5000 + number) for number, place in enumerate(wanted)}
    found = variables(pods.objects(of, Status(), Platform(helper_image="", local=True, endpoints=endpoints)))
    assert [found[pod]["ALLRANKS_PORT"] for pod in ("worker-0", "worker-1", "data-0")] == ["5000", "5001", "5002"]
    assert found["worker-1"]["ALLRANKS_ADDR_DATA"] == "127.0.0.1:5002"
    assert (found["worker-1"]["MASTER_ADDR"], found["worker-1"]["MASTER_PORT"]) == ("127.0.0.1", "5000")


@table(
    ("ranks restart together", RANKS, "trainer", "Group"),
    ("other roles restart alone", RANKS, "data", "Pod"),
    ("a role without ranks can restart the group", {**RANKS, "scope": {"data": "Group"}}, "data", "Group"),
    ("ranks can restart alone, as with TorchFT", {**RANKS, "scope": {"trainer": "Pod"}}, "trainer", "Pod"),
)
def test_what_a_failure_restarts(case):
    options, role, expected = case
    assert topology.scope(job("spmd", roles=TWO, spmd=options), role, 0) == expected


@table(
    ("the first role with ranks decides", {}, [("ps", None)]),
    ("the role in success decides", {"success": "data"}, [("data", None)]),
    ("All does not wait for services", {"success": "All"}, [("ps", None), ("trainer", None)]),
    (
        "a role that is no service counts for All",
        {"success": "All", "spmd": {**RANKS, "services": []}},
        [("data", None), ("ps", None), ("trainer", None)],
    ),
)
def test_success(case):
    fields, expected = case
    found = topology.success_target(job("spmd", roles=TWO, **{"spmd": RANKS, **fields}), Status())
    assert sorted(found) == expected


def test_a_role_without_replicas_does_not_decide():
    of = job("spmd", roles={"ps": 0, "trainer": 2}, spmd=RANKS)
    assert topology.success_target(of, Status()) == [("trainer", None)]


def test_other_roles_do_not_depend_on_the_order_of_the_manifest():
    one = job("spmd", roles={"b": 1, "worker": 1, "a": 1})
    assert list(one.spec.roles) == ["worker", "a", "b"]


def test_the_report_of_the_helper_names_the_rank():
    text = "allranks: rank 5 failed first, at 2026-11-22_01:45:14, by signal 9. Its last lines:\nepoch 3\n"
    found = FRAMEWORKS["spmd"].log.root_cause(text)
    assert found is not None
    assert (found.rank, found.exit_code, found.signal, found.message) == (5, 137, 9, "epoch 3")
