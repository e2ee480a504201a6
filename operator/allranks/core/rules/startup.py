"""Fails a job whose pods cannot start because of an image, their configuration, or their volumes."""

from __future__ import annotations

from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core import transitions
from allranks.core.diagnosis import root_cause
from allranks.core.facts import naming
from allranks.core.facts.model import Event, Pod
from allranks.core.outcomes import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot


def startup_failure(snapshot: Snapshot) -> Outcome:
    """Applies startupDeadlineSeconds to pods with a start error, until all ranks of the job have run once.

    The same images and volumes worked then. What keeps a replaced pod from starting, as a registry that is away, ends
    without a change by the user: the job waits, and the condition names the pod.

    A pod that may not run as root and whose image does fails the job at once: only a change of the job cures it. Other
    errors of the configuration, such as a missing Secret, can end by themselves.
    """
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    if status.ever_ran:
        return None
    final = next((pod for pod in snapshot.start_errors if root_image_cure(pod)), None)
    deadlines = [(pod, startup_deadline(job, status, pod) or now) for pod in snapshot.start_errors]
    overdue = final or next((pod for pod, deadline in deadlines if deadline <= now), None)
    if overdue is None:
        return WaitUntil(min(deadline for _, deadline in deadlines)) if deadlines else None
    message = f"{overdue.name}: {overdue.waiting_text}" + (f": {cure}" if (cure := root_image_cure(overdue)) else "")
    failure = root_cause.start_error(job, status, overdue, now, snapshot.observed.platform)
    failed = transitions.fail(job, snapshot.summarised, failure.reason, message, now, failure)
    return write(failed, Event(overdue.start_error, message, warning=True))


_RUN_AS_USER = "spec.template.spec.securityContext.runAsUser"
# Messages of the kubelet (verifyRunAsNonRoot in pkg/kubelet/kuberuntime/security_context_others.go).
_ROOT_IMAGES = {
    "image will run as root": f"the image runs as root: set {_RUN_AS_USER} of the job to another user, for example "
    "1000 (a TrainingPool's template or the operator's setting `default_run_as_user` can set it for all jobs)",
    "has non-numeric user": f"set {_RUN_AS_USER} of the job to the number of that user",
    "runAsUser breaks non-root policy": f"set {_RUN_AS_USER} of the job to a user other than 0, or runAsNonRoot to "
    "false if its namespace admits pods that run as root",
}


def root_image_cure(pod: Pod) -> str:
    """What to change if the kubelet refuses to start a container of the pod because of its user; else empty."""
    if pod.start_error != "CreateContainerConfigError":
        return ""
    return next((cure for text, cure in _ROOT_IMAGES.items() if text in pod.waiting_message), "")


def startup_deadline(job: Job, status: Status, pod: Pod) -> datetime | None:
    """End of startupDeadlineSeconds for this pod, counted from its assignment to a node: an unscheduled pod does not
    pull its image."""
    alone = status.replica_restarts.get(naming.replica_key(pod.role, pod.index))
    begun = (alone.restart_time if alone else status.restart_time) or status.attempt_time
    placed = max([moment for moment in (begun, pod.placed_at) if moment], default=None)
    return placed + timedelta(seconds=job.spec.startup_deadline_seconds) if placed else None
