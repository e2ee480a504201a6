"""How a pod ended, or will end: what its kubelet, its node and its init containers say."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.core.facts.model import (
    BY_KUBELET,
    CRASH_LOOP,
    FETCH_FAILED,
    FETCH_RETRYING,
    FETCHING,
    INIT_FAILED,
    INPUT_FAILED,
    LIMIT_EXCEEDED,
    InitContainer,
    Pod,
)
from allranks.core.facts.naming import FETCH_CONTAINER
from allranks.core.facts.restarts import MAX_IDLE_RESTARTS
from allranks.core.facts.uploads import result_in


def failed(pod: Pod) -> bool:
    """Return whether the program failed, whatever its sidecars do, or the pod is removed before the program
    completed."""
    return not pod.succeeded and (pod.ended or pod.deleted_at is not None or pod.disruption is not None)


CRASH_LOOP_RESTARTS = 10


def judge_crash_loop(job: Job, pod: Pod) -> Pod:
    """Return the pod as failed if its kubelet restarted its container in place more often than `restart.maxRestarts`.

    The limit is at most CRASH_LOOP_RESTARTS: the kubelet's backoff reaches its maximum of 300 s before that.
    """
    limit = min(job.spec.restart.max_restarts, CRASH_LOOP_RESTARTS)
    if pod.last_exit is None or pod.exit or pod.container_restarts <= limit:
        return pod
    if pod.last_exit.reason == INIT_FAILED:
        return replace(pod, phase="Failed", waiting_reason=INIT_FAILED, waiting_message=pod.last_exit.message)
    reason = CRASH_LOOP if pod.last_exit.reason == "Error" else pod.last_exit.reason
    return replace(pod, exit=replace(pod.last_exit, reason=reason))


SETTLING = timedelta(seconds=15)
"""The kubelet sets the phase of a pod when it has removed its network, usually within half a second of the end of its
containers. If it does not, because of a broken network plugin for example, the end counts as it is."""


def settles_at(pod: Pod, now: datetime) -> datetime | None:
    """Return the time until which the end of a settling pod is not judged; None if it is judged now.

    The end has the time of the node's clock. One that differs by more than SETTLING makes no pod wait.
    """
    if not pod.settling or pod.exit is None or abs(now - pod.exit.finished_at) >= SETTLING:
        return None
    return pod.exit.finished_at + SETTLING


def judge_fetches(job: Job, pod: Pod) -> Pod:
    """Return the pod with the result of its fetches as its reason and message.

    Such a pod failed for its own reason: FetchFailed does not count, because the program did not run, and InputFailed
    ends the job.
    """
    if not job.spec.sources or pod.exit or pod.phase == "Running":
        return pod
    if pod.init is None or not pod.init.name.startswith(FETCH_CONTAINER):
        return pod
    name = pod.init.name.removeprefix(FETCH_CONTAINER)
    if pod.last_exit and pod.last_exit.reason == INIT_FAILED:
        # The pod has restartPolicy OnFailure, so its kubelet tries again for ever.
        if result := _fetch_result(job, name, pod.init):
            error, final = result
            if pod.container_restarts >= MAX_IDLE_RESTARTS:
                error, final = f"{error}; {pod.container_restarts} tries have failed", True
            if final:
                return replace(pod, phase="Failed", waiting_reason=INPUT_FAILED, waiting_message=error, last_exit=None)
            text = f"{error}; try {pod.container_restarts + 1} follows"
            return replace(pod, waiting_reason=FETCH_RETRYING, waiting_message=text, last_exit=None)
    elif pod.phase == "Failed" and pod.waiting_reason == INIT_FAILED:
        if result := _fetch_result(job, name, pod.init):
            error, final = result
            return replace(pod, waiting_reason=INPUT_FAILED if final else FETCH_FAILED, waiting_message=error)
    elif pod.init.exit_code is None and not pod.start_error:
        source = next((spec.source for spec in job.spec.sources if spec.name == name), "")
        return replace(pod, waiting_reason=FETCHING, waiting_message=f"inputs are fetched: {name} from {source}")
    return pod


def _fetch_result(job: Job, name: str, container: InitContainer) -> tuple[str, bool] | None:
    """Return (error with the path of the field, whether it is final); None if the kernel killed the program, for
    example."""
    result = result_in(container.message)
    if not isinstance(result, dict) or not result.get("error"):
        return None
    return f"{job.spec.field_of(name)}: {result['error']}", result.get("final") is True


def node_failed_at(pod: Pod) -> datetime | None:
    """Return when the pod's node was lost, shut down, rebooted, or ran out of a resource; None if it did not."""
    if pod.exit and pod.exit.lost_by_runtime:
        return pod.exit.finished_at
    if pod.disruption and ended_by_kubelet(pod):
        return pod.disruption.at
    return pod.node_lost_at


def ended_by_kubelet(pod: Pod) -> bool:
    """Return whether the kubelet evicted the pod for a resource of its node, or its node shut down."""
    lost = pod.exit is not None and pod.exit.lost_by_runtime
    return not lost and pod.disruption is not None and pod.disruption.reason == BY_KUBELET


def exceeded_limit(pod: Pod) -> bool:
    """Return whether the kubelet evicted the pod for a limit of its own. It may have lost the end of the container."""
    return pod.exit.reason == LIMIT_EXCEEDED if pod.exit else pod.waiting_reason == LIMIT_EXCEEDED


def says_what_ended_it(pod: Pod) -> bool:
    """Return whether the status of the pod says that a disruption, a reboot, or a limit of its own ended it."""
    return bool(pod.disruption) or exceeded_limit(pod) or (pod.exit is not None and pod.exit.lost_by_runtime)
