"""Generated jobs: all frameworks, roles and policies, small sizes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from allranks.api.job import API_VERSION, KIND
from allranks.frameworks import FRAMEWORKS

JOB = "demo"
KEY = (KIND, "default", JOB)

Spec = dict[str, Any]

CODES = tuple({"configMap": f"code-{letter}", "sha256": letter * 64} for letter in "abc")
"""What `spec.code` can be."""

_ROLES: dict[str, list[dict[str, int]]] = {
    "pytorch": [
        {"worker": 1},
        {"worker": 2},
        {"master": 1},
        {"master": 1, "worker": 1},
        {"master": 1, "worker": 2},
        {"worker": 3},
    ],
    "tensorflow": [
        {"chief": 1, "ps": 1},
        {"worker": 2, "ps": 1},
        {"chief": 1, "worker": 1, "ps": 2},
        {"chief": 1, "worker": 1, "evaluator": 1},
        {"worker": 1},
        {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1},
    ],
    "horovod": [{"worker": 1}, {"worker": 2}, {"worker": 3}, {"launcher": 1, "worker": 2}],
    "jax": [{"worker": 1}, {"worker": 2}, {"worker": 3}],
    "ray": [{"head": 1}, {"head": 1, "worker": 1}, {"head": 1, "worker": 2}],
    "mpi": [{"launcher": 1, "worker": 2}],
    "spmd": [{"worker": 2}, {"worker": 2, "data": 1}, {"worker": 1, "data": 2}],
}

_ELASTIC = [name for name, framework in FRAMEWORKS.items() if framework.elastic]

_RULES: list[dict[str, Any]] = [
    {"exitCodes": [1, 3], "action": "Restart"},
    {"exitCodes": [3], "action": "Fail"},
    {"exitCodes": [1, 137], "action": "RestartUncounted"},
    {"exitCodes": [3], "action": "Ignore"},
    {"signals": [9], "action": "Fail"},
    {"signals": [9, 10], "action": "RestartUncounted"},
    {"signals": [10], "action": "Ignore"},
    {"reasons": ["OOMKilled"], "action": "Fail"},
    {"reasons": ["OOMKilled"], "action": "Restart"},
    {"reasons": ["Deleted"], "action": "Fail"},
    {"reasons": ["Deleted", "Evicted"], "action": "Ignore"},
    {"reasons": ["Evicted", "Preempted"], "action": "Restart"},
    {"reasons": ["NodeLost"], "action": "Restart"},
]


def _success(framework: str, roles: dict[str, int]) -> st.SearchStrategy[str | None]:
    choices: list[str | None] = [None, None, None, "All"]
    if framework == "ray":
        roles = {"head": 1}
    return st.sampled_from([*choices, *(role for role in roles if role not in ("ps", "data"))])


@st.composite
def specs(draw: st.DrawFn, elastic: bool = False, supervised: bool = False) -> Spec:
    """A spec with every default that decisions depend on; `elastic` selects elastic jobs only. `supervised`: in most of
    its pods, the helper waits for orders."""
    framework = draw(st.sampled_from(_ELASTIC if elastic else sorted(_ROLES)))
    able = [roles for roles in _ROLES[framework] if "worker" in roles and "launcher" not in roles]
    roles = draw(st.sampled_from(able if elastic else _ROLES[framework]))
    restart: Spec = {
        "maxRestarts": draw(st.sampled_from([3, 0, 1, 2, 6, 9])),
        "backoffSeconds": draw(st.sampled_from([10, 0, 1, 100])),
    }
    if draw(st.integers(0, 2)) == 2:
        restart["rules"] = draw(st.lists(st.sampled_from(_RULES), min_size=1, max_size=3))
    if draw(st.integers(0, 3)) == 3:
        restart["holdSeconds"] = draw(st.sampled_from([1, 60, 3000]))
    if scope := draw(st.sampled_from([None, None, None, "Group", "Pod"])):
        restart["scope"] = scope
    spec: Spec = {
        "framework": framework,
        "image": "example.org/train:1",
        "command": ["python", "train.py"],
        "roles": {role: {"replicas": count} for role, count in roles.items()},
        "restart": restart,
        "suspend": draw(st.sampled_from([False] * 7 + [True])),
        "cleanPodPolicy": draw(st.sampled_from(["Running", "All", "None"])),
        "startupDeadlineSeconds": draw(st.sampled_from([600, 60])),
    }
    if framework == "horovod" and "launcher" in roles:
        spec["horovod"] = {"controller": "MPI"}
    if elastic or (framework in _ELASTIC and roles in able and draw(st.integers(0, 4)) == 4):
        spec["elastic"] = {"minReplicas": 1, "maxReplicas": 3, "waitSeconds": draw(st.sampled_from([10, 60]))}
        if restart.get("scope") == "Pod":
            del restart["scope"]
    if (success := draw(_success(framework, roles))) and not ("elastic" in spec and framework == "horovod"):
        spec["success"] = success
    if supervised:
        spec["progress"] = {}
        if draw(st.booleans()):
            spec["code"] = CODES[0]
        if choice := draw(st.sampled_from([None, None, None, "Always", "Never"])):
            spec["startTogether"] = choice
        if draw(st.integers(0, 7)) == 7:
            restart["inPlace"] = "Never"
        if (grace := draw(st.sampled_from([None, None, 0, 5]))) is not None:
            restart["graceSeconds"] = grace
    if ttl := draw(st.sampled_from([None] * 8 + [60, 1000])):
        spec["ttlSecondsAfterFinished"] = ttl
    if limit := draw(st.sampled_from([None, None, None, 300, 2000])):
        spec["activeDeadlineSeconds"] = limit
    return spec


def manifest(spec: Spec) -> dict[str, Any]:
    metadata = {"name": JOB, "namespace": "default"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
