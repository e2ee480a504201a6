"""Reads what pods demand of nodes from their template, and from messages of the scheduler and of quotas whether other
pods are in their way."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from allranks.core.facts.contenders import NodeDemand
from allranks.core.facts.model import Manifest
from allranks.core.facts.quantity import pod_requests, quantity

_CLAIMS = "claims"
"""Stands for all devices of ResourceClaims."""


def of_template(template: Manifest) -> NodeDemand:
    """Return what the pods of a template demand."""
    spec = template["spec"]
    devices = {name for name, amount in pod_requests(spec).items() if "/" in name and amount}
    if spec.get("resourceClaims"):
        devices.add(_CLAIMS)
    labels = {key: frozenset({value}) for key, value in (spec.get("nodeSelector") or {}).items()}
    for expression in _expressions(spec):
        if expression.get("operator") == "In":
            values, key = frozenset(expression.get("values") or ()), expression["key"]
            labels[key] = labels.get(key, values) & values
    return NodeDemand(frozenset(devices), tuple(sorted(labels.items())))


def _expressions(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the required node affinity. Of several terms a node needs to match only one, so they exclude little."""
    required = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = required.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ()
    return list(terms[0].get("matchExpressions") or ()) if len(terms) == 1 else []


_PREEMPTION = re.compile(r"preemption: 0/\d+ nodes are available: (?P<reasons>[^:]+?)\.*$")
_NOT_HELPFUL = re.compile(r"\d+ Preemption is not helpful for scheduling")


def helped_by_other_pods(message: str) -> bool:
    """Return whether a pod that the scheduler cannot place may have room when other pods are gone.

    The scheduler says for each node whether the removal of pods could help. It could not if the node is too small,
    does not match the selector, or has a taint. True if it says nothing about that.
    """
    match = _PREEMPTION.search(message)
    if not match:
        return True
    return not all(_NOT_HELPFUL.fullmatch(reason) for reason in match["reasons"].split(", "))


_QUOTA = "exceeded quota"
_AMOUNTS = re.compile(r"requested: (?P<requested>\S+), used: \S+, limited: (?P<limited>\S+)")


def fits_quota(message: str) -> bool:
    """Return whether a quota rejected a pod that it admits when other pods are gone."""
    if _QUOTA not in message:
        return False
    match = _AMOUNTS.search(message)
    if not match:
        return True
    limits = _amounts(match["limited"])
    return all(value <= limits.get(name, value) for name, value in _amounts(match["requested"]).items())


def _amounts(text: str) -> dict[str, float]:
    out = {}
    for part in text.split(","):
        name, _, amount = part.rpartition("=")
        try:
            out[name] = quantity(amount)
        except ValueError:
            continue
    return out
