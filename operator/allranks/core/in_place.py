"""Whether the next attempt begins in the pods of this one, or with new pods: with new ones where anything is unclear.

Why is a short sentence for users, `status.history[].whyNewPods`. The same for a replica that restarts alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from allranks.api.status import Failure, Status
from allranks.core import transitions
from allranks.core.diagnosis import elasticity, hardware
from allranks.core.facts import development, naming, pod_template, pool_template, topology
from allranks.core.facts.attempt_pods import IN_PLACE, LONGEST, pod_trouble
from allranks.core.facts.bad_nodes import OF_NODE
from allranks.core.facts.model import Manifest, Pod
from allranks.core.facts.restarts import MAX_DETAILED
from allranks.core.objects import pods
from allranks.core.snapshot import Snapshot
from allranks.core.transfers import data

NO_SUPERVISOR = "no helper of allranks waits in the pods"
_MOST_IN_A_ROW = 2
"""Failures in a row of one replica after which it gets another pod: something in its pod may be broken."""


def why_new_pods(snapshot: Snapshot, status: Status, failure: Failure | None = None) -> str | None:
    """Return why the attempt after `status` needs new pods; None if it can begin in the pods of this one.

    Empty: the job never restarts in its pods. `failure` ended this attempt; None after a request.
    """
    o = snapshot.observed
    if o.processes is None or o.job.spec.restart.in_place == "Never":
        return ""
    if not pool_template.unavailable(o.job, o.platform) and pods.roles_without_helper(o.job, status, o.platform):
        return NO_SUPERVISOR
    reasons = chain(
        _of_failure(snapshot, status, failure) if failure else (),
        _of_job(snapshot, status),
        (trouble for _, pod in sorted(snapshot.pods.items()) if (trouble := pod_trouble(pod))),
        (reason for _, pod in sorted(snapshot.pods.items()) if (reason := _of_pod(snapshot, pod))),
    )
    return next(reasons, None)


def roles_that_never_restart_in_pods(snapshot: Snapshot) -> frozenset[str]:
    """Return the roles whose replicas never restart alone in their pods."""
    o = snapshot.observed
    if o.processes is None or o.job.spec.restart.in_place == "Never":
        return frozenset(o.job.spec.roles)
    if pool_template.unavailable(o.job, o.platform):
        return frozenset()
    return pods.roles_without_helper(o.job, snapshot.current, o.platform)


def why_new_pod(snapshot: Snapshot, status: Status, failure: Failure) -> str | None:
    """Return why a replica that failed, and restarts alone, needs a new pod; None if it restarts in its pod.

    Its role is none of `roles_that_never_restart_in_pods`.
    """
    return next(chain(_of_cause(failure), _of_replica(snapshot, status, failure)), None)


def _of_replica(snapshot: Snapshot, status: Status, failure: Failure) -> Iterator[str]:
    """Yield what is against a restart of one replica in its pod."""
    o, who = snapshot.observed, naming.replica_key(failure.role, failure.index)
    pod, entry = snapshot.pods.get((failure.role, failure.index)), status.replica_restarts.get(who)
    if pod is None:
        yield f"{who} has no pod"
        return
    if trouble := pod_trouble(pod):
        yield trouble
    before = (entry.in_pod or 0) if entry else 0
    if reason := _of_pod(snapshot, pod, before):
        yield reason
    elif pod.process and pod.process.restart is None:
        yield f"the helper in {who} cannot restart it alone"
    if before >= _MOST_IN_A_ROW and not development.until(o.job, o.now):
        yield f"{who} failed {_MOST_IN_A_ROW + 1} times in a row in the same pod"
    if entry is None and len(status.replica_restarts) >= MAX_DETAILED:
        yield f"more than {MAX_DETAILED} replicas restarted alone"  # the status has no room for more
    if naming.FUNCTION_ANNOTATION in o.job.metadata.annotations:
        yield "the job returns the value of a function"
    if pool_template.unavailable(o.job, o.platform):
        yield "a TrainingPool of the job cannot be used"
    elif naming.RESTART_LABEL in _text(pod_template.role_templates(o.job, o.platform)[failure.role]):
        yield f"the pods of {failure.role} refer to the number of the restart"


def _of_failure(snapshot: Snapshot, status: Status, failure: Failure) -> Iterator[str]:
    """Yield what the failure says against the pods of the attempt."""
    yield from _of_cause(failure)
    if transitions.rollback_after(snapshot.observed.job, status, failure):
        yield "an init container sets the unreadable checkpoint aside"
    if development.until(snapshot.observed.job, snapshot.observed.now):
        return  # each of them may have run other code
    earlier = [past for past in status.history if past.how == IN_PLACE and past.attempt >= status.pod_attempt]
    row = [past.failure for past in earlier[-_MOST_IN_A_ROW:] if past.failure]
    place = failure.role, failure.index
    if len(row) == _MOST_IN_A_ROW and all((other.role, other.index) == place for other in row):
        who = naming.replica_key(*place) if failure.role else "the job"
        yield f"{who} failed {_MOST_IN_A_ROW + 1} times in a row in the same pods"


def _of_cause(failure: Failure) -> Iterator[str]:
    """Yield what the cause of a failure says against the pod."""
    if failure.verdict == "Node" or failure.because in OF_NODE:
        yield "the node or a device of a pod is at fault"
    elif transitions.is_nodes_fault(failure):
        yield f"the pod was lost ({failure.reason})"
    if failure.because == "NetworkError":
        yield "the network of a pod may be at fault"
    if failure.reason == "OOMKilled":
        yield "a container was killed for memory"


def _of_job(snapshot: Snapshot, status: Status) -> Iterator[str]:
    """Yield what differs between the pods of the next attempt and the present ones."""
    o = snapshot.observed
    sizes = {role: counts.desired for role, counts in elasticity.initial_roles(o.job, status).items() if counts.desired}
    if sizes != topology.sizes(o.job, status):
        yield "the size changes"
    if naming.FUNCTION_ANNOTATION in o.job.metadata.annotations:
        yield "the job returns the value of a function"
    if status.rollback:
        yield "the pods set a checkpoint aside before they start"
    if data.inputs_of_attempt(o.job, status.inputs) != status.inputs:
        yield "an init container fetches the newest checkpoint"
    if status.ignored or status.done or any(entry.pod_number for entry in status.replica_restarts.values()):
        yield "some replicas have ended, or were replaced alone"
    if pool_template.unavailable(o.job, o.platform):
        yield "a TrainingPool of the job cannot be used"
        return
    for role, template in sorted(pod_template.role_templates(o.job, o.platform).items()):
        if role in sizes and _refers_to_attempt(template):
            yield f"the pods of {role} refer to the number of the attempt"
    if missing := snapshot.missing:
        yield f"{naming.replica_key(missing[0].role, missing[0].index)} has no pod"


def _refers_to_attempt(template: Manifest) -> bool:
    """Return whether the kubelet inserts the attempt into the command or a variable, which it does only once."""
    text = _text(template)
    return "$(ALLRANKS_ATTEMPT)" in text or naming.ATTEMPT_LABEL in text


def _text(template: Manifest) -> str:
    trainer = pod_template.trainer(template)
    return repr([trainer.get(part) for part in ("command", "args", "env")])


def _of_pod(snapshot: Snapshot, pod: Pod, restart: int | None = None) -> str:
    """Return what is against this pod; empty if the next attempt can begin in it. `restart`: only this restart of its
    program in the pod can have ended."""
    who = naming.replica_key(pod.role, pod.index)
    if unhealthy := hardware.problem(pod, snapshot.observed.node_problems):
        return f"{who}: {unhealthy[1]}"[:LONGEST]
    process = pod.process
    if process is None or not process.connected:
        return f"the helper in {who} does not answer"
    if process.attempt != snapshot.current.attempt:
        return f"{who} has not ended attempt {process.attempt} yet"
    if restart is not None and process.number[1] != restart:
        return f"{who} has not begun its last restart yet"
    if process.code is None and development.code_changed(snapshot.observed.job, snapshot.current):
        return f"the helper in {who} cannot replace the code"
    return ""


def describe_alone(new_pod: str | None) -> str:
    """Return the end of a sentence about the restart of one replica; empty where a new pod needs no explanation."""
    if new_pod is None:
        return ": it restarts in its pod"
    return f"; a new pod: {new_pod}" if new_pod else ""


def describe(new_pods: str | None) -> str:
    """Return the end of a sentence about a restart; empty where new pods need no explanation."""
    if new_pods is None:
        return ": the ranks restart in their pods"
    return "" if new_pods in ("", NO_SUPERVISOR) else f"; new pods: {new_pods}"
