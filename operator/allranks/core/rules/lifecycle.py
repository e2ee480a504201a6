"""Begin, suspension, success and active deadline of a job, and the deletion of a finished one after its TTL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core import checkpoints, in_place, transitions
from allranks.core.beginning import refuse, reject
from allranks.core.facts import development, naming, resume_source, topology
from allranks.core.facts.model import Event, Plan, Pod
from allranks.core.facts.restarts import RESTART_ANNOTATION
from allranks.core.outcomes import Act, Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot
from allranks.core.transfers import pods as transfers
from allranks.core.transfers import uploads


def begin(snapshot: Snapshot) -> Outcome:
    """Write the first status."""
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    if status.start_time:
        return None
    begun = transfers.with_checks(snapshot.observed, transitions.begin(job, status, now))
    if rejected := reject(job, begun, now, snapshot.observed.platform):
        return rejected
    if job.spec.resume_from and not snapshot.observed.platform.local:
        address, wrong = resume_source.locate(job, snapshot.observed.resume_source)
        return refuse(job, begun, now, "InvalidSpec", wrong) or write(replace(begun, resumed_from=address))
    return write(begun)


def resume(snapshot: Snapshot) -> Outcome:
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    if job.spec.suspend:
        return None
    resumed = write(transitions.resume(job, status, now), Event("Resumed", "resumed"))
    return reject(job, status, now, snapshot.observed.platform) or resumed


def succeed(snapshot: Snapshot) -> Outcome:
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    if not succeeded(job, status, snapshot.pods):
        return None
    completed = write(transitions.succeed(snapshot.summarised, now), Event("Succeeded", "training completed"))
    return uploads.upload_first(snapshot) or completed


def succeeded(job: Job, status: Status, pods: Mapping[tuple[str, int], Pod]) -> bool:
    """Return whether the replicas that `success` selects have completed, except for ignored ones."""
    target = topology.target_places(job, status)
    ignored = set(status.ignored)
    left = [place for place in target if naming.replica_key(*place) not in ignored]

    def done(place: tuple[str, int]) -> bool:
        pod = pods.get(place)
        return (pod is not None and pod.succeeded) or place[1] in naming.decode_indices(status.done.get(place[0], ""))

    # Ignored failures alone are no success.
    return all(map(done, left)) and (bool(left) or not target)


def suspend(snapshot: Snapshot) -> Outcome:
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    if not job.spec.suspend:
        return None
    if wait := checkpoints.ask_first(snapshot, "Suspended", "the job is suspended"):
        return wait
    message = f"suspended{checkpoints.result(snapshot)}: the pods are deleted"
    return write(transitions.suspend(status, now), Event("Suspended", message))


def restart(snapshot: Snapshot) -> Outcome:
    """Replace the attempt that a user names with a new one. While `allranks dev` is attached, ranks are not asked for a
    checkpoint."""
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    if job.metadata.annotations.get(RESTART_ANNOTATION) != str(status.attempt):
        return None
    attached = development.until(job, now) is not None
    if not attached and (wait := checkpoints.ask_first(snapshot, "Restarted", "the job restarts")):
        return wait
    new_pods = in_place.why_new_pods(snapshot, status)
    restarted = transitions.restart_on_request(job, status, "Restarted", "on request", now, new_pods)
    message = f"on request: a new attempt begins{checkpoints.result(snapshot)}{in_place.describe(new_pods)}"
    return write(restarted, Event("Restarted", message))


def run_changed_code(snapshot: Snapshot) -> Outcome:
    """Replace an attempt whose code is not the job's any more.

    While `allranks dev` is attached, ranks are not asked for a checkpoint, and an attempt that is starting may start
    first: its pods can then run the new code.
    """
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    if not development.code_changed(job, status):
        return None
    attached, waits = development.until(job, now) is not None, development.awaits_code(status, now)
    if attached and not (status.running_time or waits or snapshot.start_errors):
        return None
    if not attached and (wait := checkpoints.ask_first(snapshot, "CodeChanged", "the job restarts with other code")):
        return wait
    new_pods = in_place.why_new_pods(snapshot, status)
    assert job.spec.code
    text = f"code {development.short(job.spec.code.sha256 or '')}"
    fresh = replace(status, restarts=replace(status.restarts, without_progress=None))  # it may be corrected
    restarted = transitions.restart_on_request(job, fresh, "CodeChanged", text, now, new_pods)
    message = f"{text}: a new attempt begins{checkpoints.result(snapshot)}{in_place.describe(new_pods)}"
    return write(restarted, Event("CodeChanged", message))


def await_code(snapshot: Snapshot) -> Outcome:
    """Let ranks that wait for other code wait while `allranks dev` is attached."""
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    end = development.until(job, now)
    if end is None or not development.awaits_code(status, now) or end <= (status.restart_time or end):
        return None
    return write(replace(status, restart_time=end))


def exceed_active_deadline(snapshot: Snapshot) -> Outcome:
    """Fail a job that exceeds activeDeadlineSeconds."""
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    # The field can be changed while the job runs, so the largest value is enforced here too.
    of_job, longest = job.spec.active_deadline_seconds, snapshot.observed.platform.policy.max_active_deadline_seconds
    limit = min((seconds for seconds in (of_job, longest) if seconds is not None), default=None)
    deadline = active_deadline(limit, status)
    if deadline is None:
        return None
    if now < deadline:
        return WaitUntil(deadline)
    message = f"not done within activeDeadlineSeconds ({limit})"
    failed = transitions.fail(snapshot.summarised, "DeadlineExceeded", message, now)
    return write(failed, Event("DeadlineExceeded", message, warning=True))


def active_deadline(limit: int | None, status: Status) -> datetime | None:
    """Return the end of a limit in seconds, which counts only time in which the job is not suspended."""
    if limit is None or status.active_since is None:
        return None
    return status.active_since + timedelta(seconds=max(0.0, limit - status.active_seconds))


def expire(snapshot: Snapshot) -> Outcome:
    """Delete the job after ttlSecondsAfterFinished."""
    o = snapshot.observed
    ttl = o.job.spec.ttl_seconds_after_finished
    if ttl is None or any(output.state == "Uploading" for output in o.current.outputs):
        return None
    expires = (o.current.completion_time or o.now) + timedelta(seconds=ttl)
    return Act(Plan(delete_job=True)) if o.now >= expires else WaitUntil(expires)


def record_outcomes(snapshot: Snapshot) -> Outcome:
    """Persist how pods ended before they are deleted."""
    summary = snapshot.summarised_at_end
    return write(summary) if _outcomes(summary) != _outcomes(snapshot.current) else None


def _outcomes(status: Status) -> dict[str, tuple[int, int]]:
    return {role: (counts.succeeded, counts.failed) for role, counts in status.roles.items()}
