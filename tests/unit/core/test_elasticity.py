"""The number of workers of an elastic job: cases that the scenarios of `elastic.yaml` do not cover."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from allranks.api.status import PastAttempt, RoleStatus, Status
from allranks.core.diagnosis import elasticity
from allranks.core.facts.model import Disruption
from allranks.core.objects import placeholders, pods
from support.builders import CLUSTER, at, job, pod, table

JOB = job(roles={"worker": 3}, elastic={"minReplicas": 1, "maxReplicas": 3, "waitSeconds": 60})
BEGUN = Status(attempt=0, attempt_time=at(0), roles={"worker": RoleStatus(desired=3)})
LOST = Disruption("DeletionByTaintManager", at(40))

LEAVING = [
    ("no pod is terminating", [], 60),
    ("a terminating pod still occupies its room", [pod(deleted_at=at(0))], 300),
    (
        "a pod that does not terminate is awaited for five minutes",
        [pod(deleted_at=at(-280)), pod(deleted_at=at(20))],
        320,
    ),
    ("a pod on a lost node frees no room", [pod(deleted_at=at(0), disruption=LOST)], 60),
    ("neither does a pod that never had a node", [pod(deleted_at=at(0), node=None)], 60),
]


@table(*LEAVING)
def test_shrink_deadline(case):
    leaving, seconds = case
    assert elasticity.shrink_deadline(JOB, BEGUN, leaving, at(50)) == at(seconds)


def test_the_deadline_allows_for_the_grace_period_of_old_pods_and_a_retry_of_the_scheduler():
    later = replace(BEGUN, attempt=1)
    short = job(roles={"worker": 3}, elastic={"minReplicas": 1, "maxReplicas": 3, "waitSeconds": 5})
    assert elasticity.shrink_deadline(short, BEGUN, [], at(50)) == at(5)
    assert elasticity.shrink_deadline(short, later, [], at(50)) == at(45)
    assert elasticity.shrink_deadline(JOB, later, [], at(50)) == at(60)


def history(*reasons: str, apart: float = 100) -> list[PastAttempt]:
    ends = [at(apart * (number - len(reasons))) for number in range(len(reasons))]
    return [
        PastAttempt(attempt=n, end_time=end, reason=why) for n, (why, end) in enumerate(zip(reasons, ends, strict=True))
    ]


BACKOFF = [
    ("growth may start as soon as the ranks run", history("Shrunk"), 0),
    ("after one failed scale-up the backoff is 4 minutes", history("Shrunk", "Grown", "Shrunk"), 4),
    ("after the second 16 minutes", history("Grown", "Shrunk", "Error", "Grown", "Shrunk"), 16),
    ("and at most an hour", history(*["Grown", "Shrunk"] * 5), 60),
    ("failures more than six hours ago do not count", history("Grown", "Shrunk", "Error", "Error", apart=10_000), 0),
    ("growing twice is not a failure", history("Grown", "Grown", "Resized", "Shrunk"), 0),
]


@table(*BACKOFF)
def test_when_placeholders_may_be_created(case):
    past, minutes = case
    status = replace(BEGUN, running_time=at(10), history=past)
    assert elasticity.probe_not_before(status) == at(10) + timedelta(minutes=minutes)


def test_a_placeholder_requests_the_resources_of_its_worker_and_idles():
    spec = {
        "containers": [{"name": "trainer", "ports": [{"containerPort": 9, "hostPort": 9}, {"containerPort": 8}]}],
        "initContainers": [
            {
                "name": "fetch",
                "image": "example.org/fetch:1",
                "command": ["fetch"],
                "resources": {"limits": {"cpu": 4}},
            },
            {"name": "proxy", "image": "example.org/proxy:1", "restartPolicy": "Always"},
        ],
        "nodeSelector": {"gpu": "h200"},
    }
    of = job(roles={"worker": 3}, elastic={"minReplicas": 1, "maxReplicas": 3}, template={"spec": spec})
    status = replace(BEGUN, roles={"worker": RoleStatus(desired=2, waiting=1)})
    made = pods.objects(of, status, CLUSTER).pods
    [found] = placeholders.placeholders(of, status, made)
    assert found["metadata"]["name"] == "job-worker-2-0"
    assert found["metadata"]["labels"]["allranks.dev/role"] == "placeholder"
    assert made[0]["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert found["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
    assert "karpenter.sh/do-not-disrupt" not in found["metadata"]["annotations"]
    assert found["metadata"]["ownerReferences"] == made[0]["metadata"]["ownerReferences"]
    assert found["spec"]["nodeSelector"] == {"gpu": "h200"}
    [trainer] = found["spec"]["containers"]
    image, security = made[0]["spec"]["containers"][0]["image"], made[0]["spec"]["containers"][0]["securityContext"]
    assert trainer == {
        "name": "trainer",
        "image": image,
        "securityContext": security,
        "ports": [{"containerPort": 9, "hostPort": 9}],
        "command": ["sleep", "infinity"],
    }
    assert found["spec"]["initContainers"] == [
        {
            "name": "fetch",
            "image": image,
            "resources": {"limits": {"cpu": 4}},
            "securityContext": security,
            "command": ["sleep", "0"],
        },
        {
            "name": "proxy",
            "image": image,
            "restartPolicy": "Always",
            "securityContext": security,
            "command": ["sleep", "infinity"],
        },
    ]
