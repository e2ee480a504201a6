"""How many workers an elastic job has: what the scenarios of `elastic.yaml` do not reach."""

from __future__ import annotations

from datetime import timedelta

from allranks.api.status import PastAttempt, RoleStatus, Status
from allranks.core import elasticity
from allranks.core.manifests import pods
from allranks.core.model import Disruption
from support.builders import CLUSTER, at, job, pod, table

JOB = job(roles={"worker": 3}, elastic={"minReplicas": 1, "maxReplicas": 3, "waitSeconds": 60})
BEGUN = Status(attempt=0, attempt_time=at(0), roles={"worker": RoleStatus(desired=3)})
LOST = Disruption("DeletionByTaintManager", at(40))

LEAVING = [
    ("nobody is leaving", [], 60),
    ("a pod that is leaving still has the room that is sought", [pod(deleted_at=at(0))], 300),
    ("a pod that does not go is waited for five minutes", [pod(deleted_at=at(-280)), pod(deleted_at=at(20))], 320),
    ("a pod on a lost node has no room to give", [pod(deleted_at=at(0), disruption=LOST)], 60),
    ("a pod that never had a node has none either", [pod(deleted_at=at(0), node=None)], 60),
]


@table(*LEAVING)
def test_an_attempt_gives_up_seeking_room(case):
    leaving, seconds = case
    assert elasticity.gives_up_at(JOB, BEGUN, leaving, at(50)) == at(seconds)


def test_after_another_attempt_its_pods_have_their_grace_and_the_scheduler_time_to_look_again():
    later = BEGUN.model_copy(update={"attempt": 1})
    short = job(roles={"worker": 3}, elastic={"minReplicas": 1, "maxReplicas": 3, "waitSeconds": 5})
    assert elasticity.gives_up_at(short, BEGUN, [], at(50)) == at(5)
    assert elasticity.gives_up_at(short, later, [], at(50)) == at(45)
    assert elasticity.gives_up_at(JOB, later, [], at(50)) == at(60)


def history(*reasons: str, apart: float = 100) -> list[PastAttempt]:
    ends = [at(apart * (number - len(reasons))) for number in range(len(reasons))]
    return [
        PastAttempt(attempt=n, end_time=end, reason=why) for n, (why, end) in enumerate(zip(reasons, ends, strict=True))
    ]


CALM = [
    ("room is sought as soon as the ranks run", history("Shrunk"), 0),
    ("room that did not last is not sought for four minutes", history("Shrunk", "Grown", "Shrunk"), 4),
    ("the second time not for sixteen", history("Grown", "Shrunk", "Error", "Grown", "Shrunk"), 16),
    ("and never later than in an hour", history(*["Grown", "Shrunk"] * 5), 60),
    ("what is six hours ago is forgotten", history("Grown", "Shrunk", "Error", "Error", apart=10_000), 0),
    ("growing twice is no harm", history("Grown", "Grown", "Resized", "Shrunk"), 0),
]


@table(*CALM)
def test_when_room_is_sought(case):
    past, minutes = case
    status = BEGUN.model_copy(update={"running_time": at(10), "history": past})
    assert elasticity.seeks_room_from(status) == at(10) + timedelta(minutes=minutes)


def test_a_placeholder_asks_for_all_that_its_worker_asks_for_and_does_nothing():
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
    status = BEGUN.model_copy(update={"roles": {"worker": RoleStatus(desired=2, waiting=1)}})
    made = pods.objects(of, status, CLUSTER).pods
    [found] = elasticity.placeholders(of, status, made)
    assert found["metadata"]["name"] == "job-worker-2-0"
    assert found["metadata"]["labels"]["allranks.dev/role"] == "placeholder"
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
        {"name": "fetch", "image": image, "resources": {"limits": {"cpu": 4}}, "command": ["sleep", "0"]},
        {"name": "proxy", "image": image, "restartPolicy": "Always", "command": ["sleep", "infinity"]},
    ]
