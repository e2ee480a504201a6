"""Which attempts the pods of a job carried: after a restart in place, pods carry several ones."""

from __future__ import annotations

from typing import Literal

from allranks.api.status import Status
from allranks.core.facts import naming
from allranks.core.facts.model import Pod

IN_PLACE: Literal["InPlace"] = "InPlace"
NEW_PODS: Literal["NewPods"] = "NewPods"
"""How an attempt begins after another one."""


def pods_of(status: Status, attempt: int) -> int:
    """Return the attempt for which the pods of an attempt were created, as far as the history says it."""
    if status.pods_of_attempt is not None and status.pods_of_attempt <= attempt:
        return status.pods_of_attempt
    for past in reversed(status.history):
        if past.attempt == attempt - 1 and past.how == IN_PLACE:
            attempt = past.attempt
    return attempt


def last_attempt_of(status: Status, pod_attempt: int) -> int:
    """Return the last attempt that the pods carried which were created for `pod_attempt`."""
    ends = (past.attempt for past in status.history if past.attempt >= pod_attempt and past.how != IN_PLACE)
    return next(ends, status.attempt)


def _last_words(pod: Pod) -> str:
    """Return why the helper ended the pod, if it says so in the last line of the log."""
    lines = pod.exit.message.splitlines() if pod.exit else []
    last = lines[-1] if lines else ""
    return f": {last.removeprefix(_HELPER)}" if last.startswith(_HELPER) else ""


_HELPER = "allranks: "
LONGEST = 128
"""Bytes of a reason for new pods, as in the CRD."""


def pod_trouble(pod: Pod) -> str:
    """Return why no attempt can begin in this pod any more; empty if one can."""
    who = naming.replica_key(pod.role, pod.index)
    if pod.disruption:
        return f"the pod of {who} is removed ({pod.disruption.reason})"[:LONGEST]
    if pod.deleted_at:
        return f"the pod of {who} is being deleted"
    if pod.ended and pod.process is None:
        return f"the container of {who} has ended{_last_words(pod)}"[:LONGEST]
    if pod.process is None and pod.phase not in ("Running", "Failed"):
        return f"the container of {who} does not run"
    return ""
