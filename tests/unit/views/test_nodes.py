"""Nodes as the statuses of jobs describe them."""

from __future__ import annotations

from dataclasses import replace

from allranks.api.status import PastAttempt, ReplicaRestarts, Status
from allranks.views.nodes import Avoidance, JobStatus, histories
from support.builders import at, failure

DEVICE = failure(because="DeviceError", node="bad", message="CUDA error: uncorrectable ECC\nmore", time=at(60))
LOST = failure(reason="NodeLost", node="gone", exit_code=None, time=at(70), attempt=1)
PAST = [
    PastAttempt(attempt=0, end_time=at(61), reason="Error", failure=DEVICE, lost_seconds=1800.0),
    PastAttempt(attempt=1, end_time=at(71), reason="NodeLost", failure=LOST, lost_seconds=60.0),
]
STATUS = Status(phase="Running", attempt=2, history=PAST, last_failure=LOST, avoided_nodes=["gone", "bad"])


def test_a_node_has_its_failures_by_evidence_the_lost_gpu_hours_and_the_jobs_that_avoid_it():
    nodes = histories([JobStatus("team/a", STATUS, lambda: 8), JobStatus("other/b", STATUS, lambda: 2)])
    bad = nodes["bad"]
    assert (dict(bad.failures), bad.lost_seconds, bad.lost_gpu_hours) == ({"DeviceError": 2}, 3600.0, 5.0)
    assert bad.last_failure is not None
    assert (bad.last_failure.time, bad.last_failure.message) == (at(60), "CUDA error: uncorrectable ECC")
    assert bad.avoidances == [Avoidance(job, "DeviceError", excluded=True) for job in ("team/a", "other/b")]
    gone = nodes["gone"]
    assert dict(gone.failures) == {"NodeLost": 2}
    assert gone.avoidances[0] == Avoidance("team/a", "NodeLost", excluded=False)


def test_a_finished_job_avoids_no_node_and_a_failure_counts_once():
    [node] = histories(
        [JobStatus("team/a", replace(STATUS, phase="Failed", history=PAST[:1], last_failure=DEVICE))]
    ).values()
    assert (dict(node.failures), node.avoidances) == ({"DeviceError": 1}, [])


def test_failures_of_replicas_that_restart_alone_count():
    alone = {"ps-0": ReplicaRestarts(failure=DEVICE, restart_time=at(61))}
    nodes = histories([JobStatus("team/a", Status(phase="Running", replica_restarts=alone, last_failure=DEVICE))])
    assert dict(nodes["bad"].failures) == {"DeviceError": 1}


def test_failures_of_a_job_make_no_other_job_avoid_the_node():
    other = Status(phase="Running", attempt=0)
    nodes = histories([JobStatus("team/a", STATUS), JobStatus("other/b", other)])
    assert {avoidance.job for node in nodes.values() for avoidance in node.avoidances} == {"team/a"}
