"""Roles that name a TrainingPool of their own: their pods, and what several pools mean for the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.cost import Utilization
from allranks.api.job import Job
from allranks.api.notify import Notification
from allranks.api.pool import DataPods, PoolSpec
from allranks.api.status import Status
from allranks.core.accounting import notifications
from allranks.core.facts import attempt, limits, pool_template, preflight
from allranks.core.facts.data_store import DataStore
from allranks.core.facts.model import Manifest, Observed, Platform
from allranks.core.facts.policy import Policy
from allranks.core.objects import pods
from allranks.core.objects.gangs import choice
from allranks.core.objects.queueing.manifest import pod_sets
from allranks.core.rules import utilization
from allranks.core.transfers import input_cache
from support.builders import CLUSTER, NOW, job, table


def pool(**spec: Any) -> PoolSpec:
    return PoolSpec.model_validate(spec, by_alias=True, by_name=False)


GPU = pool(
    nodeSelector={"kind": "gpu"},
    gpu={"resource": "example.com/accelerator", "count": 4},
    rdma={"rdma/hca": 1},
    sharedMemory="64Gi",
    env=[{"name": "NCCL_SOCKET_IFNAME", "value": "net1"}],
)
CPU = pool(
    nodeSelector={"kind": "cpu"},
    tolerations=[{"key": "servers", "operator": "Exists"}],
    env=[{"name": "GLOO_SOCKET_IFNAME", "value": "eth0"}],
)
BOTH = replace(CLUSTER, pools={"gpu": GPU, "cpu": CPU})
SERVERS = {"replicas": 1, "pool": "cpu"}


def servers(**spec: Any) -> Job:
    """A job whose parameter servers have a pool of their own."""
    return job("tensorflow", roles={"chief": 1, "worker": 1, "ps": SERVERS}, **{"pool": "gpu", **spec})


def first_pods(of: Job, platform: Platform = BOTH) -> dict[str, Manifest]:
    made = pods.objects(of, Status(), platform).pods
    return {pod["metadata"]["labels"]["allranks.dev/role"]: pod["spec"] for pod in made}


def trainer(pod_spec: Manifest) -> Manifest:
    return next(container for container in pod_spec["containers"] if container["name"] == "trainer")


def test_a_role_has_its_own_pool_and_nothing_of_the_jobs():
    made = first_pods(servers())
    assert [made[role]["nodeSelector"]["kind"] for role in ("chief", "worker", "ps")] == ["gpu", "gpu", "cpu"]
    assert made["ps"]["tolerations"] == [{"key": "servers", "operator": "Exists"}]
    assert "resources" not in trainer(made["ps"])
    assert trainer(made["worker"])["resources"]["limits"] == {"example.com/accelerator": 4, "rdma/hca": 1}
    values = [variable["name"] for variable in trainer(made["ps"])["env"]]
    assert ("GLOO_SOCKET_IFNAME" in values, "NCCL_SOCKET_IFNAME" in values) == (True, False)
    sizes = {role: next(v["emptyDir"] for v in spec["volumes"] if v["name"] == "dshm") for role, spec in made.items()}
    assert (sizes["worker"].get("sizeLimit"), sizes["ps"].get("sizeLimit")) == ("64Gi", None)


def test_a_role_without_ranks_gets_the_devices_of_a_pool_that_it_names_itself():
    roles = {"trainer": 1, "rollout": {"replicas": 1, "pool": "gpu"}, "reward": 1}
    made = first_pods(job("spmd", roles=roles, spmd={"ranks": ["trainer"]}, pool="gpu"))
    devices = {role: trainer(spec).get("resources", {}).get("limits", {}) for role, spec in made.items()}
    both = {"example.com/accelerator": 4, "rdma/hca": 1}
    assert devices == {"trainer": both, "rollout": both, "reward": {}}


def test_a_job_may_have_pools_of_roles_only():
    made = first_pods(job("tensorflow", roles={"worker": 1, "ps": SERVERS}))
    assert ("nodeSelector" in made["worker"], made["ps"]["nodeSelector"]) == (False, {"kind": "cpu"})


def test_the_resource_that_a_pool_counts_as_a_gpu_is_one_for_its_roles():
    roles = {"trainer": {"replicas": 1, "pool": "gpu"}, "rollout": {"replicas": 1, "pool": "cpu"}}
    asks = {"resources": {"limits": {"example.com/accelerator": 2}}}
    of = job(
        "spmd",
        roles={"trainer": roles["trainer"] | asks, "rollout": roles["rollout"] | asks},
        spmd={"ranks": ["trainer", "rollout"]},
    )
    assert attempt.attempt_context(of, Status(), BOTH).gpus == {"trainer": 2, "rollout": 0}


ONE = 'TrainingPool "cpu" does not exist: create it (kubectl get trainingpools lists those that exist), or make a new '


@table(
    ("both are there", BOTH, None),
    ("that of the servers is missing", replace(BOTH, pools={"gpu": GPU}), ("PoolNotFound", ONE)),
    (
        "that of the servers is for others",
        replace(
            BOTH, pools={"gpu": GPU, "cpu": pool(namespaceSelector={"matchLabels": {"a": "b"}})}, namespace_labels={}
        ),
        ("PoolNotAllowed", 'TrainingPool "cpu" does not admit jobs of namespace team'),
    ),
    ("in a local run", replace(CLUSTER, local=True), None),
)
def test_a_job_waits_for_each_of_its_pools(case):
    platform, expected = case
    found = pool_template.unavailable(servers(), platform)
    assert (found and (found[0], found[1][: len(expected[1])])) == expected


def test_limits_name_the_field_of_the_role():
    policy = Policy(allowed_pools=("gpu",))
    [(path, text)] = limits.violations(servers(), replace(BOTH, policy=policy))
    assert path == "spec.roles.ps.pool"
    assert text.startswith('TrainingPool "cpu" is not allowed here')
    hidden = replace(BOTH, pools={**BOTH.pools, "cpu": pool(namespaceSelector={"matchLabels": {"a": "b"}})})
    [(path, text)] = limits.violations(servers(), replace(hidden, namespace_labels={}))
    assert path == "spec.roles.ps.pool"
    assert "does not admit jobs of namespace team" in text


def test_the_default_pool_is_that_of_roles_without_one():
    policy = Policy(default_pool="gpu")
    of = limits.with_defaults(servers(pool=None), policy)
    assert of.spec.pools == {"spec.pool": "gpu", "spec.roles.ps.pool": "cpu"}
    assert policy.pools_of(servers(pool=None)) == {"gpu", "cpu"}
    assert Policy().pools_of(servers(pool=None)) == {None, "cpu"}


def test_the_pool_of_rank_0_decides_about_the_job_as_a_whole():
    whole = {"preflight": {"disk": True}, "inputCache": {}, "data": {"nodeSelector": {"kind": "data"}}}
    of_ranks = replace(BOTH, pools={"gpu": pool(**whole), "cpu": CPU}, data=DataStore("data", "image", 10**9))
    of_servers = replace(of_ranks, pools={"gpu": GPU, "cpu": pool(**whole)})
    inputs = [{"name": "x", "from": "s3://a/b", "path": "/x"}]
    for fields in ({}, {"pool": "cpu", "roles": {"chief": {"pool": "gpu"}, "worker": 1, "ps": 1}}):
        of = servers(inputs=inputs) if not fields else job("tensorflow", inputs=inputs, **fields)
        assert preflight.settings(of, Status(), of_ranks) is not None
        assert preflight.settings(of, Status(), of_servers) is None
        places = [input_cache.place(of, platform) for platform in (of_ranks, of_servers)]
        assert [place and place.location for place in places] == ["Pod", "Claim"]
        assert pool_template.pool_of_ranks(of, of_ranks) is of_ranks.pools["gpu"]
    assert of_ranks.pools["gpu"].data == DataPods(node_selector={"kind": "data"})


def test_the_strictest_utilization_of_the_pools_holds():
    notes, suspends = (
        Utilization(min_productive_percent=90),
        Utilization(min_productive_percent=10, action="Suspend"),
    )
    gpu, cpu = GPU.model_copy(update={"utilization": notes}), CPU.model_copy(update={"utilization": suspends})
    of = servers(utilization={"minProductivePercent": 1})
    assert utilization.policy_of(of, replace(BOTH, pools={"gpu": gpu, "cpu": cpu})) == suspends
    assert utilization.policy_of(of, replace(BOTH, pools={"gpu": gpu, "cpu": CPU})) == notes
    assert utilization.policy_of(of, BOTH) == of.spec.utilization


def test_the_receivers_of_all_pools_are_notified():
    first = GPU.model_copy(update={"notify": [Notification(receiver="gpus", occasions=["Failed"])]})
    other = CPU.model_copy(update={"notify": [Notification(receiver="servers", occasions=["Failed"])]})
    platform = replace(BOTH, pools={"gpu": first, "cpu": other})
    assert notifications.subscribers(servers(), platform, "Failed") == ["gpus", "servers"]
    assert notifications.subscribers(job(pool="gpu"), platform, "Failed") == ["gpus"]


def test_a_queue_is_asked_for_the_nodes_of_each_role():
    of = servers(scheduling={"queue": "team"})
    sets = {made["name"]: made["template"]["spec"] for made in pod_sets(Observed(of, Status(), (), NOW, BOTH))}
    assert [sets[role]["nodeSelector"]["kind"] for role in ("chief", "worker", "ps")] == ["gpu", "gpu", "cpu"]
    assert sets["ps"]["tolerations"] == [{"key": "servers", "operator": "Exists"}]


def test_pools_with_different_schedulers_have_no_gang_scheduler_in_common():
    mixed = replace(BOTH, pools={"gpu": GPU.model_copy(update={"scheduler_name": "volcano"}), "cpu": CPU})
    problem = choice.mismatch([{"spec": spec} for spec in first_pods(servers(), mixed).values()], mixed)
    assert problem.startswith("the roles have different schedulers (default-scheduler and volcano)")
