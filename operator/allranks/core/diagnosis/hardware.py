"""Pods on devices or nodes that the platform reports as unhealthy: condition `HardwareUnhealthy`.

The evidence comes from kubelets (`allocatedResourcesStatus` of a pod: KEP-4680) and from monitors of node health, so no
program can write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

from allranks.api.status import Because, Status
from allranks.core.facts import naming
from allranks.core.facts.model import Observed, Pod
from allranks.core.facts.status_summary import with_condition

CONDITION: Literal["HardwareUnhealthy"] = "HardwareUnhealthy"
_NAMED = 8
"""Pods that the condition names."""


def problem(pod: Pod | None, node_problems: Mapping[str, str]) -> tuple[Because, str] | None:
    """Return (evidence, sentence) if a device of the pod, or its node, is unhealthy.

    `node_problems`: node -> what monitors report about it.
    """
    if pod is None or pod.node is None:
        return None
    if pod.unhealthy_devices:
        devices = ", ".join(pod.unhealthy_devices)
        return "DeviceUnhealthy", f"the kubelet of node {pod.node} reports {devices} as unhealthy"
    if reported := node_problems.get(pod.node):
        return "NodeUnhealthy", f"node {pod.node} has {reported}"
    return None


def first(pods: Iterable[Pod], node_problems: Mapping[str, str]) -> tuple[Pod, Because, str] | None:
    """Return the pod with such a problem, with evidence and sentence: one with a device before one with a node."""
    problems = [(pod, *evidence) for pod in pods if (evidence := problem(pod, node_problems))]
    return min(problems, key=lambda p: (p[1] != "DeviceUnhealthy", p[0].role, p[0].index), default=None)


def with_hardware(o: Observed) -> Observed:
    """Say in the current status which pods of the attempt have unhealthy hardware."""
    status = o.current
    if status.phase not in ("Pending", "Running", "Restarting"):
        return o
    of_attempt = [pod for pod in o.pods if pod.owned and pod.attempt == status.attempt and not pod.succeeded]
    return o.with_current(_observe(status, of_attempt, o.node_problems, o.now))


def _observe(status: Status, pods: Iterable[Pod], node_problems: Mapping[str, str], now: datetime) -> Status:
    """Update the condition; return the same object if nothing changed."""
    before = status.condition(CONDITION)
    problems = sorted((pod.role, pod.index, *evidence) for pod in pods if (evidence := problem(pod, node_problems)))
    if not problems:
        unhealthy = before is not None and before.status == "True"
        return with_condition(status, CONDITION, False, "Healthy", "", now) if unhealthy else status
    reason = (
        "DeviceUnhealthy" if any(because == "DeviceUnhealthy" for _, _, because, _ in problems) else "NodeUnhealthy"
    )
    message = "; ".join(f"{naming.replica_key(role, index)}: {text}" for role, index, _, text in problems[:_NAMED])
    if len(problems) > _NAMED:
        message += f"; and {len(problems) - _NAMED} more pods"
    if before and (before.status, before.reason, before.message) == ("True", reason, message):
        return status
    return with_condition(status, CONDITION, True, reason, message, now)
