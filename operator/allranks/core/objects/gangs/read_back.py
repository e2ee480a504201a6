"""Condition `GangScheduling`: whether the API server and the scheduler do what the attempt's gang asks for.

An API server drops fields of features that are off without a word, so pods and PodGroup are compared with what was
sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts.model import Event, Manifest, Pod
from allranks.core.facts.optional_kinds import Object, OptionalObjects
from allranks.core.facts.status_summary import with_condition
from allranks.core.objects.gangs import members

CONDITION: Literal["GangScheduling"] = "GangScheduling"
DROPPED = "FieldDropped"
UNSCHEDULABLE = "Unschedulable"
NO_BACKEND = "NoBackend"


def observe(
    job: Job,
    status: Status,
    pods: Iterable[Pod],
    group_sent: Manifest | None,
    optional: OptionalObjects,
    now: datetime,
    without_gang: str = "",
) -> Status:
    """Return the status with the condition of the current attempt.

    `group_sent`: its PodGroup as it is created; None if it is not compared. `without_gang`: why the schedulers of the
    pods leave an attempt without a gang; empty if they do not.
    """
    others = [condition for condition in status.conditions if condition.type != CONDITION]
    before = status.condition(CONDITION)
    backend = members.backend_of(status)
    if backend is None or status.gang is None:
        if not without_gang:
            return status if before is None else replace(status, conditions=others)
        fulfilled, reason, message = "False", NO_BACKEND, without_gang
    else:
        group = members.observed_group(status, optional, members.group_name(job, status.pod_attempt))
        fulfilled, reason, message = _verdict(job, status, list(pods), group_sent, group)
    if before and (before.status, before.reason, before.message) == (fulfilled, reason, message):
        return status if before in status.conditions else replace(status, conditions=[*others, before])
    return with_condition(status, CONDITION, fulfilled == "True", reason, message, now)


def event(before: Status, after: Status) -> Event | None:
    """Return the Event when a dropped field is found."""
    old, new = before.condition(CONDITION), after.condition(CONDITION)
    if new is None or new.reason != DROPPED or (old is not None and old.reason == DROPPED):
        return None
    return Event("GangNotEnforced", new.message, warning=True)


def _verdict(
    job: Job, status: Status, pods: list[Pod], group_sent: Manifest | None, group: Object | None
) -> tuple[Literal["True", "False"], str, str]:
    """Return (status, reason, message) of the condition."""
    backend = members.backend_of(status)
    assert backend is not None
    assert status.gang is not None
    name = members.group_name(job, status.pod_attempt)
    if backend.reads_back_pods:
        lost = [pod for pod in pods if members.belongs(job, pod.role) and pod.scheduling_group != name]
        if lost:
            first = min(pod.name for pod in lost)
            which = f"pod {first}" if len(lost) == 1 else f"pod {first} and {len(lost) - 1} more"
            text = f"the API server dropped spec.schedulingGroup of {which}, so the pods are placed one by one"
            return "False", DROPPED, f"{text}: {backend.cure}"
    missing = dropped_fields(group_sent["spec"], group.get("spec") or {}, "spec") if group and group_sent else []
    if missing:
        text = f"the API server dropped {', '.join(missing)} of PodGroup {name}"
        return "False", DROPPED, f"{text}: enable the feature gate that the field needs, or make a new job without it"
    if group is not None and (problem := backend.problem(group)):
        return "False", UNSCHEDULABLE, f"PodGroup {name}: {problem}"
    least = f"{status.gang.min_count} pods" if status.gang.min_count != 1 else "1 pod"
    if not status.gang.api_version:
        return "True", backend.name, f"{backend.name} admits the job with room for at least {least}, or not at all"
    return "True", backend.name, f"PodGroup {name} ({status.gang.api_version}): at least {least} are placed together"


def dropped_fields(sent: Mapping[str, Any], stored: Mapping[str, Any], path: str) -> list[str]:
    """Return the paths of fields that were sent and are absent.

    A field with another value is no dropped one: an API server may write a quantity differently.
    """
    out = []
    for name, value in sent.items():
        if name not in stored:
            out.append(f"{path}.{name}")
        elif isinstance(value, Mapping) and isinstance(stored[name], Mapping):
            out += dropped_fields(value, stored[name], f"{path}.{name}")
    return out
