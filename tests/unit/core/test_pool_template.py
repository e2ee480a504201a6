"""The template of a TrainingPool in a job's pods, and jobs whose pool is missing or invalid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.diagnosis import root_cause
from allranks.core.facts import pool_template
from allranks.core.facts.model import Plan, Platform
from allranks.core.objects import pods
from allranks.core.reconcile import reconcile
from allranks.frameworks import FRAMEWORKS
from support.builders import CLUSTER, Life, at, failed, job, started, table

MPI = {"framework": "horovod", "roles": {"worker": 1, "launcher": 1}, "horovod": {"controller": "MPI"}}
GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
RESERVED = {"key": "reserved", "operator": "Equal", "value": "training", "effect": "NoSchedule"}
NOT_THERE = (
    'TrainingPool "gpu" does not exist: create it (kubectl get trainingpools lists those that exist), or make a new '
    "job that names another"
)


def platform(**spec: Any) -> Platform:
    return replace(CLUSTER, pools={"gpu": PoolSpec.model_validate(spec, by_alias=True, by_name=False)})


def pods_of(pool: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return pods.objects(job(pool="gpu", **fields), Status(), platform(**pool)).pods


def first(pool: dict[str, Any], **fields: Any) -> dict[str, Any]:
    spec: dict[str, Any] = pods_of(pool, **fields)[0]["spec"]
    return spec


def trainer(spec: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in spec["containers"] if c["name"] == "trainer")


def environment(spec: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in trainer(spec)["env"]}


def template(**of_trainer: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **of_trainer}]}}


def env(**variables: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


# --- fields of the pool in pods --------------------------------------------------------------------------------------

FIELDS = [
    ("an empty pool adds nothing", {}, {}),
    ("pods get the node selector", {"nodeSelector": {"gpu": "h200"}}, {"nodeSelector": {"gpu": "h200"}}),
    ("pods get the tolerations", {"tolerations": [RESERVED]}, {"tolerations": [RESERVED]}),
    ("pods get the priority class", {"priorityClassName": "training"}, {"priorityClassName": "training"}),
    ("pods get the scheduler", {"schedulerName": "bin-packer"}, {"schedulerName": "bin-packer"}),
    (
        "pods get the template",
        {"template": {"spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}}},
        {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
    ),
    (
        "the template overrides the restricted defaults",
        {"template": {"spec": {"securityContext": {"runAsNonRoot": False}}}},
        {"securityContext": {"runAsNonRoot": False, "seccompProfile": {"type": "RuntimeDefault"}}},
    ),
    (
        "a field of the pool overrides its template",
        {"template": {"spec": {"schedulerName": "a", "nodeSelector": {"a": "1", "b": "1"}}}, "schedulerName": "b"}
        | {"nodeSelector": {"b": "2"}},
        {"schedulerName": "b", "nodeSelector": {"a": "1", "b": "2"}},
    ),
    (
        "tolerations of the pool are added to those of its template",
        {"template": {"spec": {"tolerations": [GPU_TOLERATION]}}, "tolerations": [RESERVED]},
        {"tolerations": [GPU_TOLERATION, RESERVED]},
    ),
    (
        "a null in the template is ignored",
        {"template": {"spec": {"nodeSelector": None, "containers": None, "tolerations": None}, "metadata": None}},
        {},
    ),
]


@table(*FIELDS)
def test_pod(case):
    pool, expected = case
    assert first(pool) == pods.objects(job(), Status(), CLUSTER).pods[0]["spec"] | expected


OVERRIDES = [
    (
        "a node selector of the job is added, and overrides the same key",
        {"nodeSelector": {"gpu": "h200", "zone": "a"}},
        {"template": {"spec": {"nodeSelector": {"zone": "b", "disk": "ssd"}}}},
        {"nodeSelector": {"gpu": "h200", "zone": "b", "disk": "ssd"}},
    ),
    (
        "tolerations of the job are added to the pool's",
        {"tolerations": [RESERVED]},
        {"template": {"spec": {"tolerations": [GPU_TOLERATION, RESERVED]}}},
        {"tolerations": [RESERVED, GPU_TOLERATION]},
    ),
    (
        "scheduling.priorityClassName overrides the pool's",
        {"priorityClassName": "a"},
        {"scheduling": {"priorityClassName": "b"}},
        {"priorityClassName": "b"},
    ),
    (
        "the job's template overrides the pool's fields",
        {"schedulerName": "a", "priorityClassName": "a"},
        {"template": {"spec": {"schedulerName": "b", "priorityClassName": "b"}}},
        {"schedulerName": "b", "priorityClassName": "b"},
    ),
    (
        "a role's template overrides the pool's fields",
        {"schedulerName": "a"},
        {"roles": {"worker": {"replicas": 1, "template": {"spec": {"schedulerName": "b"}}}}},
        {"schedulerName": "b"},
    ),
    (
        "a null in the job's template removes nothing",
        {"nodeSelector": {"gpu": "h200"}},
        {"template": {"spec": {"nodeSelector": None}}},
        {"nodeSelector": {"gpu": "h200"}},
    ),
    (
        "an affinity of the pool is merged with scheduling.topologyKey",
        {"template": {"spec": {"affinity": {"nodeAffinity": {"a": 1}}}}},
        {"scheduling": {"topologyKey": "rack"}},
        {
            "affinity": {
                "nodeAffinity": {"a": 1},
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "rack", "labelSelector": {"matchLabels": {"allranks.dev/job-name": "job"}}}
                    ]
                },
            }
        },
    ),
]


@table(*OVERRIDES)
def test_the_job_overrides_the_pool(case):
    pool, fields, expected = case
    found = first(pool, **fields)
    assert {name: found.get(name) for name in expected} == expected


def test_labels_volumes_and_sidecars_of_the_pools_template_reach_the_pod():
    made = pods_of(
        {
            "template": {
                "metadata": {"labels": {"cost": "training"}, "annotations": {"a": "pool", "b": "pool"}},
                "spec": {
                    "containers": [
                        {"name": "exporter", "image": "dcgm:1"},
                        {"name": "trainer", "volumeMounts": [{"name": "nvme", "mountPath": "/scratch"}]},
                    ],
                    "volumes": [{"name": "nvme", "hostPath": {"path": "/mnt/nvme"}}],
                },
            }
        },
        template={"metadata": {"annotations": {"b": "job"}}},
    )[0]
    assert made["metadata"]["labels"]["cost"] == "training"
    assert {"a": "pool", "b": "job"}.items() <= made["metadata"]["annotations"].items()
    assert [c["name"] for c in made["spec"]["containers"]] == ["trainer", "exporter"]
    assert {"name": "nvme", "mountPath": "/scratch"} in trainer(made["spec"])["volumeMounts"]
    assert {"name": "nvme", "hostPath": {"path": "/mnt/nvme"}} in made["spec"]["volumes"]


VARIABLES = [
    ("the program gets the pool's variable", {"env": env(X="pool")}, {}, "pool"),
    (
        "the pool's field overrides its template",
        {"env": env(X="pool"), "template": template(env=env(X="t"))},
        {},
        "pool",
    ),
    ("the job's variable overrides the pool's", {"env": env(X="pool")}, {"env": env(X="job")}, "job"),
    (
        "a variable of the job's template overrides the pool's",
        {"env": env(X="pool")},
        {"template": template(env=env(X="job"))},
        "job",
    ),
    ("the pool's variable overrides a default of allranks", {"env": env(PYTHONUNBUFFERED="0", X="")}, {}, ""),
]


@table(*VARIABLES)
def test_env(case):
    pool, fields, expected = case
    spec = first(pool, **fields)
    assert environment(spec)["X"] == expected
    assert [v["name"] for v in trainer(spec)["env"]].count("X") == 1


def test_a_value_in_the_job_replaces_valueFrom_in_the_pool():
    spec = first({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]}, env=env(X="job"))
    assert [v for v in trainer(spec)["env"] if v["name"] == "X"] == [{"name": "X", "value": "job"}]


def test_shared_memory_is_the_size_limit_of_dev_shm():
    volumes = first({"sharedMemory": "64Gi"})["volumes"]
    assert volumes == [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}]


# --- GPUs and network devices ----------------------------------------------------------------------------------------

DEVICES = {"gpu": {"count": 8}, "rdma": {"rdma/hca": 1}}
AMOUNTS = [
    ("GPUs and network devices are limits", DEVICES, {}, {"limits": {"rdma/hca": 1, "nvidia.com/gpu": 8}}),
    (
        "the job's number of GPUs overrides the pool's, the rest is kept",
        DEVICES,
        {"resources": {"limits": {"nvidia.com/gpu": 2, "memory": "1Gi"}}},
        {"limits": {"rdma/hca": 1, "nvidia.com/gpu": 2, "memory": "1Gi"}},
    ),
    (
        "a role's number of GPUs overrides the pool's",
        {"gpu": {"count": 8}},
        {"roles": {"worker": {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 4}}}}},
        {"limits": {"nvidia.com/gpu": 4}},
    ),
    (
        "the number in the job's template overrides the pool's",
        {"gpu": {"count": 8}},
        {"template": template(resources={"limits": {"nvidia.com/gpu": 4}})},
        {"limits": {"nvidia.com/gpu": 4}},
    ),
    (
        "the pool's limit is left out if the job has a request",
        {"gpu": {"count": 8}},
        {"resources": {"requests": {"nvidia.com/gpu": 2}}},
        {"requests": {"nvidia.com/gpu": 2}},
    ),
    ("the job can request 0 GPUs", {"gpu": {"count": 8}}, {"resources": {"limits": {"nvidia.com/gpu": 0}}}, 0),
    (
        "GPUs of another vendor are another resource",
        {"gpu": {"resource": "amd.com/gpu", "count": 4}},
        {},
        {"limits": {"amd.com/gpu": 4}},
    ),
    (
        "the pool's number overrides its template, whose other resources are kept",
        {"gpu": {"count": 8}, "template": template(resources={"limits": {"nvidia.com/gpu": 1, "memory": "1Ti"}})},
        {},
        {"limits": {"nvidia.com/gpu": 8, "memory": "1Ti"}},
    ),
    (
        "the job's limit also replaces the request in the pool's template",
        {"template": template(resources={"requests": {"nvidia.com/gpu": 8, "cpu": 4}})},
        {"resources": {"limits": {"nvidia.com/gpu": 2}}},
        {"requests": {"cpu": 4}, "limits": {"nvidia.com/gpu": 2}},
    ),
]


@table(*AMOUNTS)
def test_resources(case):
    pool, fields, expected = case
    found = trainer(first(pool, **fields))["resources"]
    assert found == (expected if expected else {"limits": {"nvidia.com/gpu": 0}})


TOLERATED = [
    ("GPUs of the pool are tolerated", {"gpu": {"count": 8}}, {}, [GPU_TOLERATION]),
    ("GPUs are tolerated once", {"gpu": {"count": 8}, "tolerations": [GPU_TOLERATION]}, {}, [GPU_TOLERATION]),
    ("GPU slices are tolerated", {"gpu": {"resource": "nvidia.com/mig-3g.40gb", "count": 1}}, {}, [GPU_TOLERATION]),
    (
        "without GPUs there is no toleration",
        {"gpu": {"count": 8}},
        {"resources": {"limits": {"nvidia.com/gpu": 0}}},
        None,
    ),
]


@table(*TOLERATED)
def test_toleration(case):
    pool, fields, expected = case
    assert first(pool, **fields).get("tolerations") == expected


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-3g.40gb"])
def test_one_process_runs_for_each_of_the_pools_gpus(resource):
    assert environment(first({"gpu": {"resource": resource, "count": 8}}))["NPROC_PER_NODE"] == "8"


def test_a_pod_without_ranks_gets_only_the_gpus_that_its_role_requests():
    launcher, worker = (
        trainer(made["spec"])
        for made in sorted(pods_of(DEVICES, **MPI), key=lambda p: p["metadata"]["labels"]["allranks.dev/role"])
    )
    assert "resources" not in launcher
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 8
    evaluator = {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    made = pods_of(DEVICES, framework="tensorflow", roles={"worker": 1, "evaluator": evaluator})
    assert trainer(made[1]["spec"])["resources"] == {"limits": {"nvidia.com/gpu": 1}}


NETWORK = {
    "attachments": ["infra/rdma-net", "other@net2"],
    "interface": "net1",
    "cards": "mlx5",
    "gidIndex": 3,
    "lockMemory": True,
    "hostNetwork": True,
}


def test_the_network_of_a_pool_is_an_annotation_variables_and_a_capability_of_the_pods_with_ranks():
    launcher, worker = sorted(
        pods_of({"network": NETWORK}, **MPI), key=lambda made: made["metadata"]["labels"]["allranks.dev/role"]
    )
    assert worker["metadata"]["annotations"][pool_template.NETWORKS] == "infra/rdma-net, other@net2"
    values = environment(worker["spec"])
    interfaces = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
    assert [values[name] for name in interfaces] == ["net1"] * 4
    assert (values["NCCL_IB_HCA"], values["NCCL_IB_GID_INDEX"]) == ("mlx5", "3")
    assert "IPC_LOCK" in trainer(worker["spec"])["securityContext"]["capabilities"]["add"]
    assert (worker["spec"]["hostNetwork"], worker["spec"]["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pool_template.NETWORKS not in launcher["metadata"]["annotations"]
    assert "hostNetwork" not in launcher["spec"]
    assert "NCCL_SOCKET_IFNAME" not in environment(launcher["spec"])


def test_the_template_and_the_variables_of_a_pool_replace_what_its_network_says():
    annotated = {"metadata": {"annotations": {pool_template.NETWORKS: "mine"}}, "spec": {"hostNetwork": False}}
    fields = {"network": NETWORK, "template": annotated, "env": [{"name": "NCCL_IB_GID_INDEX", "value": "0"}]}
    made, _ = pods_of(fields)
    assert made["metadata"]["annotations"][pool_template.NETWORKS] == "mine"
    assert made["spec"]["hostNetwork"] is False
    assert environment(made["spec"])["NCCL_IB_GID_INDEX"] == "0"
    assert "NCCL_IB_HCA" not in environment(first({"network": {"gidIndex": 0}}))
    assert environment(first({"network": {"gidIndex": 0}}))["NCCL_IB_GID_INDEX"] == "0"


def test_an_mpi_job_has_one_slot_per_gpu_of_the_pool():
    companions = pods.objects(job(pool="gpu", **MPI), Status(), platform(**DEVICES)).companions
    files = next(made for made in companions if made["kind"] == "ConfigMap")
    assert files["data"]["hostfile"] == "job-worker-0-0.job.team.svc slots=8\n"


def test_a_pool_that_the_job_does_not_name_has_no_effect():
    assert pods.objects(job(), Status(), platform(**DEVICES)) == pods.objects(job(), Status(), CLUSTER)


@table(
    ("with one GPU per pod the rank is the node rank", platform(gpu={"count": 1}), 1),
    ("with several GPUs per pod the rank is unknown", platform(gpu={"count": 8}), None),
    ("without the pool the number of GPUs, and so the rank, is unknown", CLUSTER, None),
    ("in a local run there is no pool", replace(CLUSTER, local=True), 1),
)
def test_rank_of_a_failure(case):
    where, rank = case
    of = job(pool="gpu")
    found = next(root_cause.failures(of, Status(), [failed("worker", 1)], [], at(60), where))
    assert found.rank == rank


# --- a missing or invalid pool ----------------------------------------------------------------------------------------

BROKEN = platform(template=template(env=env(MASTER_ADDR="elsewhere")))
UNAVAILABLE = [
    ("the pool does not exist", CLUSTER, "PoolNotFound", NOT_THERE),
    (
        "pools are not served here",
        replace(CLUSTER, pool_refused="this operator may not read TrainingPools: ask for its ClusterRole"),
        "PoolsNotServed",
        "this operator may not read TrainingPools: ask for its ClusterRole",
    ),
    (
        "the pool is invalid",
        BROKEN,
        "InvalidPool",
        'TrainingPool "gpu" cannot be used until it is corrected: spec.template.spec.containers[trainer]'
        ".env: MASTER_ADDR is set by allranks: remove it",
    ),
]


def reconciled(life: Life, where: Platform) -> Plan:
    life.platform = where
    return reconcile(life.look(5))


@table(*UNAVAILABLE)
def test_no_object_is_created_and_the_condition_has_the_reason(case):
    where, reason, message = case
    life = Life(job(pool="gpu"))
    plan = reconciled(life, where)
    assert (plan.create, plan.delete, plan.wake_at) == ((), (), None)
    assert plan.next is not None
    running = plan.next.condition("Running")
    assert (plan.next.phase, running.status, running.reason, running.message) == ("Pending", "False", reason, message)
    life.status = plan.next
    assert reconciled(life, where).empty, "the condition is written once"
    assert [made["kind"] for made in reconciled(life, platform()).create] == ["Service", "Pod", "Pod"]


@table(*UNAVAILABLE)
def test_running_pods_are_not_changed(case):
    where, _, _ = case
    life = started(job(pool="gpu"), platform=platform())
    assert reconciled(life, where).empty


def test_a_restart_is_decided_without_the_pool_but_its_pods_wait_for_it():
    life = started(job(pool="gpu"), platform=platform())
    life.put(failed("worker", 0))
    life.platform = CLUSTER
    life.settle(60)
    assert (life.status.phase, life.status.attempt, life.pods) == ("Restarting", 1, {})
    for kind in ("Restarting", "Running"):
        condition = life.status.condition(kind)
        assert (condition.reason, condition.message) == ("PoolNotFound", NOT_THERE)
    life.platform = platform()
    life.run(70)
    assert sorted(life.pods) == ["job-worker-0-1", "job-worker-1-1"]


def test_a_local_run_does_not_wait_for_the_pool():
    life = Life(job(pool="gpu"))
    life.step(0)
    assert len(reconciled(life, replace(CLUSTER, local=True)).create) == 3


PROBLEMS = [
    ("an empty pool is valid", {}, []),
    (
        "a variable by which ranks of any framework find one another is rejected",
        {"template": template(env=env(TF_CONFIG="{}"))},
        [("spec.template.spec.containers[trainer].env", "TF_CONFIG is set by allranks: remove it")],
    ),
    (
        "a variable that begins with ALLRANKS_ is rejected",
        {"template": template(env=env(ALLRANKS_JOB="x"))},
        [("spec.template.spec.containers[trainer].env", "ALLRANKS_JOB is set by allranks: remove it")],
    ),
    (
        "restartPolicy Always of the training container is rejected",
        {"template": {"spec": {"containers": [{"name": "trainer", "restartPolicy": "Always"}]}}},
        [
            (
                "spec.template.spec.containers[trainer].restartPolicy",
                "must be Never or OnFailure: with Always a finished rank would run again",
            )
        ],
    ),
    (
        "for a template with a wrong type nothing else is reported",
        {"template": {"spec": {"containers": {}, "restartPolicy": "Always"}}},
        [("spec.template.spec.containers", "must be a list, not a mapping")],
    ),
    (
        "a pool can use hostPath",
        {"template": {"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/a"}}]}}},
        [],
    ),
    (
        "a sidecar can have any variable",
        {"template": {"spec": {"containers": [{"name": "a", "env": env(RANK="0")}]}}},
        [],
    ),
]


@table(*PROBLEMS)
def test_problems(case):
    spec, expected = case
    assert pool_template.problems(platform(**spec).pools["gpu"]) == expected


def test_the_reserved_variables_are_those_of_every_framework():
    assert set().union(*(framework.reserved_env for framework in FRAMEWORKS.values())) == pool_template.RESERVED
