"""Decides which replica a failure is of, from all that is observed of the attempt.

A rank that only says that it lost its peers is not the cause. The cause may be a pod that never started, a rank that
never joined the group or did not come to a collective, one that completed before the others, or bad hardware.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from allranks.api.job import Job
from allranks.api.status import Because, Failure, Status
from allranks.core.diagnosis import hardware, last_words, patterns
from allranks.core.diagnosis.comparison import Comparison, made_steps
from allranks.core.diagnosis.reasons import CANNOT_START, LOST_PEER, OF_OTHERS, cause_line
from allranks.core.facts import naming, pod_template, pool_template, preflight, stored_checkpoints, topology
from allranks.core.facts.attempt import Ranks
from allranks.core.facts.model import INIT_FAILED, START_TOGETHER, Platform, Pod, RejectedCreate
from allranks.core.facts.rank_reports import Reports
from allranks.frameworks.base import Replica

TOGETHER = timedelta(seconds=30)
"""A rank that completed at most this long before another one lost its peers is the peer that was lost."""

Place = tuple[str, int]


@dataclass(frozen=True)
class Evidence:
    """What is observed of an attempt, besides the end of the pod that failed."""

    job: Job
    status: Status
    platform: Platform
    pods: Mapping[Place, Pod]
    missing: Collection[Replica] = ()
    """Replicas without a pod."""
    refused: Collection[RejectedCreate] = ()
    """Creations that the API server rejected."""
    reports: Reports | None = None
    node_problems: Mapping[str, str] = field(default_factory=dict)
    """As in `Observed`."""

    @cached_property
    def ranks(self) -> Ranks:
        return Ranks(self.job, self.status, self.platform)

    @property
    def ranked(self) -> list[Pod]:
        """The pods whose programs have a rank."""
        return [pod for place, pod in self.pods.items() if self.ranks.rank(*place) is not None]


def culprit(evidence: Evidence, failure: Failure) -> Failure:
    """Return the failure with the evidence about its pod, or the failure of the replica that it is a consequence of."""
    cause = _culprit(evidence, failure)
    return replace(cause, step=_step_of(evidence, cause))


def _step_of(evidence: Evidence, failure: Failure) -> int | None:
    """Return the step in which the rank failed, if it could report its end: the last report of a killed one is older.
    The other ranks may be further, if they do not wait for each other."""
    if failure.exit_code is None or evidence.reports is None or not made_steps(evidence.status):
        return None
    of_pod = [
        rank for rank in evidence.reports.ranks if rank.pod == failure.pod and rank.step is not None and rank.done
    ]
    steps = [rank.step for rank in of_pod if failure.rank is None or rank.rank in (None, failure.rank)]
    return steps[0] + 1 if len(steps) == 1 and steps[0] is not None else None


def _culprit(evidence: Evidence, failure: Failure) -> Failure:
    if bad := _not_passed(evidence, failure):
        return bad
    pod = evidence.pods.get((failure.role, failure.index))
    unhealthy = hardware.problem(pod, evidence.node_problems)
    if unhealthy and failure.reason in _ENDS_BY_HARDWARE and failure.because != LOST_PEER:
        return replace(failure, because=unhealthy[0], message=f"{unhealthy[1]}\n{failure.message}"[:2048])
    if failure.because == "DeviceError" and _not_of_node(evidence, failure):
        return replace(failure, because=None)
    if failure.because == "InitContainer" and _passed_elsewhere(evidence, failure):
        return replace(failure, because="InitContainerOfNode")
    if failure.reason != "Error" or topology.scope(evidence.job, failure.role, failure.index) != "Group":
        return failure
    if late := _came_too_late(evidence, failure):
        return late
    if failure.because == LOST_PEER:
        rules = (_never_whole, _on_unhealthy_hardware, _completed_early, _not_joined, waited_for)
        return next((cause for rule in rules if (cause := rule(evidence, failure))), failure)
    failure = _of_rank_that_raised(evidence, failure)
    if _could_not_resume(evidence) and patterns.is_unreadable_data(failure.message):
        return _unreadable(evidence, failure)
    return failure


def _not_of_node(evidence: Evidence, failure: Failure) -> bool:
    """Return whether the program found no GPU, and its pod requests none, or it found none on another node either."""
    job, platform = evidence.job, evidence.platform
    if not patterns.is_without_device(failure.message) or pool_template.unavailable(job, platform):
        return False
    if Comparison(job, evidence.status, failure).without_device_elsewhere:
        return True
    template = pod_template.role_templates(job, platform).get(failure.role)
    return template is not None and pod_template.gpus(job, failure.role, template, platform) == 0


_ENDS_BY_HARDWARE = frozenset({"Error", INIT_FAILED, *CANNOT_START})
"""Reasons of failures that a device can cause. A limit of memory, or a deletion, has a cause of its own."""


def culprit_of_hang(evidence: Evidence, failure: Failure) -> Failure:
    """Return the hang as one of the rank with unhealthy hardware, if there is one."""
    running = (pod for pod in evidence.pods.values() if not pod.ended)
    if not (unhealthy := hardware.first(running, evidence.node_problems)):
        return failure
    pod, because, text = unhealthy
    return replace(
        failure,
        role=pod.role,
        index=pod.index,
        rank=evidence.ranks.rank(pod.role, pod.index),
        pod=pod.name,
        node=pod.node,
        because=because,
        message=f"{text}; {failure.message}"[:2048],
    )


def _passed_elsewhere(evidence: Evidence, failure: Failure) -> bool:
    """Return whether the init containers of this role succeeded on other nodes."""
    if failure.node is None:
        return False
    started = (pod for pod in evidence.pods.values() if pod.role == failure.role and pod.started_at is not None)
    return any(pod.node is not None and pod.node != failure.node for pod in started)


def _not_passed(evidence: Evidence, failure: Failure) -> Failure | None:
    """Return the replica that did not pass its preflight, as the pod that failed says in its last line."""
    outcome = preflight.failed_test(failure.message) if failure.reason == "Error" else None
    if outcome is None or not preflight.settings(evidence.job, evidence.status, evidence.platform):
        return None
    pods = evidence.pods.values()
    pod = next((pod for pod in pods if naming.replica_key(pod.role, pod.index) == outcome.replica), None)
    if pod is None:
        return None
    text = f"{outcome.check}: {outcome.text}"
    return replace(_of_pod(evidence, failure, pod, "PreflightFailed", text), message=text)


# --- the replica that other ranks lost --------------------------------------------------------------------------------


def _never_whole(evidence: Evidence, failure: Failure) -> Failure | None:
    """Return the pod that did not run yet, if not all pods of the attempt ever ran at the same time.

    A scheduler gives a waiting pod the place of a rank that has given up, before anything is decided about the failure.
    """
    if evidence.status.running_time is not None:
        return None
    pods = [pod for pod in evidence.pods.values() if pod.deleted_at is None]
    if late := [pod for pod in pods if pod.placed_at is not None and pod.placed_at >= failure.time]:
        return _without_place(evidence, failure, min(late, key=lambda pod: (pod.role, pod.index)))
    waiting = [pod for pod in pods if not pod.ended and pod.started_at is None]
    if waiting:
        pod = min(waiting, key=lambda pod: (_waits_for_others(pod), pod.node is not None, pod.role, pod.index))
        text = f"{pod.name} had {'not started' if pod.node else 'no node'}: {pod.waiting_text or 'no reason yet'}"
        return _of_pod(evidence, failure, pod, "NeverWhole", text)
    rejected, replica = next(iter(evidence.refused), None), next(iter(evidence.missing), None)
    if rejected is None or replica is None:
        return None
    text = f"pod {rejected.name} was not created: {rejected.message}"
    return _of_place(evidence, failure, (replica.role, replica.index), rejected.name, None, "PodRefused", text)


def _came_too_late(evidence: Evidence, failure: Failure) -> Failure | None:
    """Return the failure as one of an attempt that was never whole, if its pod got a place only when another rank had
    given up: the program then misses its peers, and may say so in any words."""
    pod = evidence.pods.get((failure.role, failure.index))
    if evidence.status.running_time is not None or pod is None or pod.placed_at is None:
        return None
    ends = (other.exit for other in evidence.pods.values() if other is not pod and other.exit and other.exit.code)
    late = any(end.finished_at <= pod.placed_at for end in ends)
    return _without_place(evidence, failure, pod) if late else None


def _without_place(evidence: Evidence, failure: Failure, pod: Pod) -> Failure:
    text = f"{pod.name} had no node until another rank had given up"
    return _of_pod(evidence, failure, replace(pod, node=None), "NeverWhole", text)


def _waits_for_others(pod: Pod) -> bool:
    return pod.waiting_reason == START_TOGETHER


def _on_unhealthy_hardware(evidence: Evidence, failure: Failure) -> Failure | None:
    """Return the rank that others lost while its device or its node was unhealthy."""
    running = (pod for pod in evidence.pods.values() if not pod.succeeded)
    unhealthy = hardware.first(running, evidence.node_problems)
    return _of_pod(evidence, failure, *unhealthy) if unhealthy else None


def _completed_early(evidence: Evidence, failure: Failure) -> Failure | None:
    """Return the rank that completed just before others lost it, if most of the others still ran."""
    framework = topology.framework_of(evidence.job)
    services = framework.long_running_roles({role: 1 for role, _ in evidence.pods})
    ranked = [pod for pod in evidence.ranked if pod.role not in services]
    ends = [(time, pod.role, pod.index, pod) for pod in ranked if (time := _completed_at(pod, evidence.reports))]
    completed = [end for end in ends if timedelta(0) <= failure.time - end[0] + _SECOND <= TOGETHER]
    if not completed or 2 * len(completed) > len(ranked):
        return None
    *_, first = min(completed, key=lambda end: end[:3])
    steps = _steps(evidence.reports, first)
    text = f"{naming.replica_key(first.role, first.index)} completed{steps} while other ranks still needed it"
    return _of_pod(evidence, failure, first, "CompletedEarly", text)


def _completed_at(pod: Pod, reports: Reports | None) -> datetime | None:
    """Return when the ranks of a pod completed; None if they did not.

    torchrun keeps the pod of ranks that have completed until the ranks of the other pods have.
    """
    if pod.succeeded or pod.ended or pod.terminating:
        return pod.exit.finished_at if pod.succeeded and pod.exit else None
    ranks = [rank for rank in reports.ranks if rank.pod == pod.name] if reports else []
    if not ranks or not all(rank.done and (rank.position is None or not rank.position.raising) for rank in ranks):
        return None
    return max(rank.received_at for rank in ranks)


_SECOND = timedelta(seconds=1)
"""Kubernetes has whole seconds."""


def _steps(reports: Reports | None, pod: Pod) -> str:
    for rank in reports.ranks if reports else ():
        if (rank.role, rank.index) == (pod.role, pod.index) and rank.step is not None:
            return f" at step {rank.step}" + (f" of {rank.total_steps}" if rank.total_steps else "")
    return ""


def _not_joined(evidence: Evidence, failure: Failure) -> Failure | None:
    """Return the rank for which the others waited without success, if the group of this attempt never formed.

    The rank is only named if the numbers leave no doubt: as many pods still run as processes are missing.
    """
    if made_steps(evidence.status) or not patterns.was_joining(failure.message):
        return None
    numbers = patterns.joined(failure.message)
    present, size = numbers or (0, 1)
    text = f"{present} of {size} ranks had joined the group" if numbers else "the group of ranks never formed"
    running = [pod for pod in evidence.ranked if not pod.ended]
    missing = _awaited(evidence, failure) or (running if len(running) == size - present else [])
    if not missing:
        return replace(failure, because="NotJoined", message=f"{text}\n{failure.message}"[-2048:])
    return _of_pod(evidence, failure, missing[0], "NotJoined", f"{text}: {_names(missing)} had not joined")


def waited_for(evidence: Evidence, failure: Failure) -> Failure | None:
    """Return the rank for which others waited in a collective without success: one of their outputs names it, or all
    others gave up."""
    missing = _awaited(evidence, failure) or _only_one_left(evidence, failure)
    if not missing:
        return None
    text = f"other ranks waited for {_names(missing)} without success"
    return _of_pod(evidence, failure, missing[0], "Absent", text)


def _awaited(evidence: Evidence, failure: Failure) -> list[Pod]:
    """Return the pods of the ranks for which others waited, as an output says, without the rank that printed it."""
    ranked = evidence.ranked
    texts = [failure.message, *(pod.exit.message for pod in ranked if pod.exit and not pod.succeeded)]
    numbers = next((numbers for text in texts if (numbers := patterns.absent(text))), [])
    others = [pod for pod in ranked if (pod.role, pod.index) != (failure.role, failure.index)]
    return [pod for pod in others if not pod.succeeded and evidence.ranks.rank(pod.role, pod.index) in numbers]


def _only_one_left(evidence: Evidence, failure: Failure) -> list[Pod]:
    """Return the pod that ran until it was stopped, if all others waited in a collective until they gave up."""
    if evidence.missing or not patterns.timed_out(failure.message):
        return []
    others = [pod for pod in evidence.ranked if (pod.role, pod.index) != (failure.role, failure.index)]
    left = [pod for pod in others if not _gave_up(pod)]
    stopped = [pod for pod in left if pod.exit is None or pod.terminating]
    return stopped if len(left) == 1 else []


def _gave_up(pod: Pod) -> bool:
    if pod.exit is None:
        return False
    return last_words.lost_peer(pod.exit.message, last_words.last_words(pod.exit.message, pod.exit.code))


def _names(pods: list[Pod]) -> str:
    named = ", ".join(naming.replica_key(pod.role, pod.index) for pod in pods[:8])
    if any(pod.ended for pod in pods):
        return named
    return f"{named} ({'it runs' if len(pods) == 1 else 'they run'})"


def _of_pod(evidence: Evidence, failure: Failure, pod: Pod, because: Because, text: str) -> Failure:
    return _of_place(evidence, failure, (pod.role, pod.index), pod.name, pod.node, because, text)


def _of_place(
    evidence: Evidence, failure: Failure, place: Place, pod: str, node: str | None, because: Because, text: str
) -> Failure:
    """Return the failure of another replica, with the line of the rank that gave up because of it."""
    gave_up = naming.replica_key(failure.role, failure.index)
    line = cause_line(failure)
    return replace(
        failure,
        role=place[0],
        index=place[1],
        rank=evidence.ranks.rank(*place),
        pod=pod,
        node=node,
        exit_code=None,
        signal=None,
        reason=OF_OTHERS[because][0],
        because=because,
        message=f"{text}\n{gave_up}: {line}"[-2048:] if line else text,
    )


# --- the exception of a rank ------------------------------------------------------------------------------------------


def _of_rank_that_raised(evidence: Evidence, failure: Failure) -> Failure:
    """Return the failure with the pod of the rank that raised, if the output of another rank says which one did."""
    printed_by = evidence.ranks.rank(failure.role, failure.index)
    if printed_by is None or failure.rank is None or failure.rank == printed_by:
        return failure
    pod = next((pod for place, pod in evidence.pods.items() if evidence.ranks.rank(*place) == failure.rank), None)
    return replace(failure, role=pod.role, index=pod.index, pod=pod.name, node=pod.node) if pod else failure


def _could_not_resume(evidence: Evidence) -> bool:
    """Return whether the attempt made no step, and the program may have read a checkpoint."""
    status = evidence.status
    stored = evidence.job.spec.checkpoint is not None or _last_step(status) is not None
    return stored and not made_steps(status)


def _unreadable(evidence: Evidence, failure: Failure) -> Failure:
    """Return the failure of a checkpoint that cannot be read, with its step if a rank has listed the directory."""
    job, status = evidence.job, evidence.status
    newest = stored_checkpoints.newest(evidence.reports)
    if newest is not None and newest.verified:
        return failure  # the files are as they were stored
    if evidence.reports and failure.pod in evidence.reports.damage_elsewhere:
        return failure
    if newest is None:
        return replace(failure, because="CheckpointUnreadable", message=_with_steps(status, failure.message))
    older = stored_checkpoints.before(job, status, newest.step)
    text = f"the checkpoint of step {newest.step}, {newest.path}, cannot be read"
    text += f"; the one before it is of step {older.step}" if older else "; there is no older one"
    return replace(
        failure,
        because="CheckpointUnreadable",
        checkpoint_step=newest.step,
        message=f"{text}\n{failure.message}"[:4096],
    )


def _with_steps(status: Status, message: str) -> str:
    """Return the message of a checkpoint that cannot be read, with the steps of others."""
    stored = [past.checkpoint_step for past in status.history if past.checkpoint_step is not None]
    reached = _last_step(status)
    parts = [f"a checkpoint of step {stored[-1]} was stored before"] if stored else []
    parts += [f"the program had come to step {reached}"] if reached is not None else []
    return f"the newest checkpoint cannot be read; {', and '.join(parts)}\n{message}"[:2048] if parts else message


def _last_step(status: Status) -> int | None:
    """Return the last step of the newest attempt that made one; None if none did."""
    return next((past.last_step for past in reversed(status.history) if past.last_step is not None), None)
