"""The replicas of an attempt: roles, indices, ranks and names."""

from __future__ import annotations

import pytest

from allranks.api.status import RoleStatus, Status
from allranks.core.facts import naming, topology
from allranks.frameworks import FRAMEWORKS
from allranks.frameworks.base import Replica
from support.builders import job, table


def replicas_of(fields, status=None):
    return [(r.role, r.index, r.node_rank) for r in topology.replicas(job(**fields), status or Status())]


# Sentence, job, (role, index, node rank) in order.
RANKS = [
    (
        "the master is rank 0, the workers follow",
        {"roles": {"worker": 2, "master": 1}},
        [("master", 0, 0), ("worker", 0, 1), ("worker", 1, 2)],
    ),
    ("without a master, worker 0 is rank 0", {"roles": {"worker": 2}}, [("worker", 0, 0), ("worker", 1, 1)]),
    ("a job can be a master alone", {"roles": {"master": 1}}, [("master", 0, 0)]),
    ("a role with no replicas has no pods", {"roles": {"master": 1, "worker": 0}}, [("master", 0, 0)]),
    (
        "TensorFlow's chief comes first; parameter servers and evaluators hold no rank",
        {"framework": "tensorflow", "roles": {"evaluator": 1, "ps": 1, "worker": 2, "chief": 1}},
        [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("ps", 0, None), ("evaluator", 0, None)],
    ),
    (
        "Horovod's launcher holds no rank",
        {"framework": "horovod", "roles": {"launcher": 1, "worker": 2}, "horovod": {"controller": "MPI"}},
        [("worker", 0, 0), ("worker", 1, 1), ("launcher", 0, None)],
    ),
]


@table(*RANKS)
def test_ranks(case):
    fields, replicas = case
    assert replicas_of(fields) == replicas


def test_names_are_computed_from_job_role_index_and_attempt():
    of = job(roles={"master": 1, "worker": 1})
    assert topology.replicas(of, Status(attempt=3)) == (
        Replica("master", 0, "job-master-0-3", 0),
        Replica("worker", 0, "job-worker-0-3", 1),
    )


def test_an_attempt_keeps_its_initial_size():
    status = Status(roles={"worker": RoleStatus(desired=3)})
    assert replicas_of({"roles": {"worker": 2}}, status) == [("worker", index, index) for index in range(3)]


def test_a_role_without_replicas_in_this_attempt_stays_empty():
    status = Status(roles={"master": RoleStatus(desired=1), "worker": RoleStatus(desired=0)})
    assert replicas_of({"roles": {"master": 1, "worker": 2}}, status) == [("master", 0, 0)]


def test_a_replica_restarted_alone_has_a_new_pod_name_and_the_old_host_name():
    assert naming.hostname("job", "ps", 0, 2) == "job-ps-0-2"
    assert [naming.pod_name("job", "ps", 0, 2, restart) for restart in (0, 1, 2)] == [
        "job-ps-0-2",
        "job-ps-0-2-1",
        "job-ps-0-2-2",
    ]


@pytest.mark.parametrize("role", sorted({role for framework in FRAMEWORKS.values() for role in framework.roles}))
def test_no_name_is_longer_than_63_characters(role):
    """The CRD allows 42 characters for the job's name, 10,000 replicas and 9,999 restarts."""
    kinds = [framework.roles[role] for framework in FRAMEWORKS.values() if role in framework.roles]
    last = 0 if all(kind.max_replicas == 1 for kind in kinds) else 9_999
    assert len(naming.pod_name("j" * 42, role, last, 9_999)) <= 63
    alone = any(kind.scope == "Pod" for kind in kinds)
    assert not alone or len(naming.pod_name("j" * 42, role, last, 999, 999)) <= 63
