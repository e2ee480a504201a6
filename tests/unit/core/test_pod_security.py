"""The security context of pods: which level a job gets, what it fills in, and what the template keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.status import Status
from allranks.core.facts import limits, pod_security
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.policy import InvalidPolicy, Policy, for_namespace
from allranks.core.objects import pods
from support.builders import job, started, table

OPEN = Platform(helper_image="helper", why_restricted="")
CLOSED = replace(OPEN, why_restricted="namespace team enforces the Pod Security Standard restricted")
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
BASELINE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["MKNOD", "NET_RAW"]}}
SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}


def first(platform: Platform = OPEN, **fields: Any) -> Manifest:
    """Return the first pod of a job."""
    return pods.objects(job(image="image", **fields), Status(), platform).pods[0]


def template(pod: Manifest | None = None, trainer: Manifest | None = None, **beside: Any) -> Manifest:
    """Return a template with these security contexts. `beside`: name of a container -> its context."""
    containers = [{"name": name, "image": "sidecar", "securityContext": context} for name, context in beside.items()]
    trainers = [{"name": "trainer", "securityContext": trainer}] if trainer is not None else []
    return {"spec": {"securityContext": pod or {}, "containers": [*trainers, *containers]}}


def context(pod: Manifest, name: str = "trainer") -> Any:
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    return next(item.get("securityContext") for item in containers if item["name"] == name)


# Sentence, fields of the job, changes of the policy, the platform, the level.
LEVELS: list[tuple[str, dict[str, Any], dict[str, Any], Platform, str]] = [
    ("a namespace without a standard leaves the user to the image", {}, {}, OPEN, "Baseline"),
    ("a namespace that enforces restricted pods gets them", {}, {}, CLOSED, "Restricted"),
    (
        "where the namespace was not read pods are restricted",
        {},
        {},
        replace(OPEN, why_restricted=None),
        "Restricted",
    ),
    ("the job chooses", {"podSecurity": "Restricted"}, {}, OPEN, "Restricted"),
    ("the job may leave everything to the image", {"podSecurity": "Image"}, {}, CLOSED, "Image"),
    ("the platform has a default", {}, {"default_pod_security": "Restricted"}, OPEN, "Restricted"),
    (
        "the job's choice replaces the default",
        {"podSecurity": "Auto"},
        {"default_pod_security": "Image"},
        OPEN,
        "Baseline",
    ),
    ("one limit keeps all pods restricted", {}, {"max_pod_security": "Restricted"}, OPEN, "Restricted"),
    (
        "a default beyond the limit is reduced",
        {},
        {"default_pod_security": "Image", "max_pod_security": "Baseline"},
        OPEN,
        "Baseline",
    ),
]


@table(*LEVELS)
def test_the_level_of_the_pods(case):
    fields, policy, platform, expected = case
    platform = replace(platform, policy=Policy(**policy))
    chosen = pod_security.choice(job(**fields), platform)
    assert chosen.level == expected
    pod = first(platform, **fields)
    expected_contexts = {
        "Restricted": ({"runAsNonRoot": True, **SECCOMP}, RESTRICTED),
        "Baseline": (SECCOMP, BASELINE),
        "Image": (None, None),
    }
    assert (pod["spec"].get("securityContext"), context(pod)) == expected_contexts[expected]


def test_a_pod_says_its_level_and_why() -> None:
    text = first(CLOSED)["metadata"]["annotations"]["allranks.dev/pod-security"]
    assert text == "Restricted: namespace team enforces the Pod Security Standard restricted"
    limited = replace(OPEN, policy=Policy(max_pod_security="Restricted"))
    text = first(limited)["metadata"]["annotations"]["allranks.dev/pod-security"]
    assert text == "Restricted: the operator's setting `max_pod_security` allows no more than Restricted"


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        ({}, {}, ""),
        ({"pod-security.kubernetes.io/enforce": "baseline"}, {}, ""),
        ({"pod-security.kubernetes.io/warn": "restricted"}, {}, ""),
        ({"pod-security.kubernetes.io/enforce": "restricted"}, {}, "namespace team enforces the Pod Security Standard"),
        ({}, {"openshift.io/sa.scc.uid-range": "1000690000/10000"}, "OpenShift chooses the user"),
    ],
)
def test_the_label_of_the_namespace_and_openshift_decide(labels: Any, annotations: Any, expected: str) -> None:
    reason = pod_security.why_restricted("team", labels, annotations)
    assert reason.startswith(expected)
    assert bool(reason) == bool(expected)


def test_a_level_that_the_platform_does_not_allow_is_a_violation() -> None:
    annotations = {"policy.allranks.dev/max-pod-security": "Baseline"}
    platform = replace(OPEN, policy=for_namespace(Policy(), "team", annotations))
    [(path, message)] = limits.violations(job(podSecurity="Image"), platform)
    assert path == "spec.podSecurity"
    assert message.startswith("Image is not allowed here (annotation policy.allranks.dev/max-pod-security of namespace")
    assert not limits.violations(job(podSecurity="Baseline"), platform)
    assert not limits.violations(job(podSecurity="Auto"), platform)
    with pytest.raises(InvalidPolicy, match="must be Restricted, Baseline or Image, not 'restricted'"):
        for_namespace(Policy(), "team", {"policy.allranks.dev/max-pod-security": "restricted"})


# Sentence, template, the context of the pod, the contexts of containers, of a pod that is restricted by default.
TEMPLATES: list[tuple[str, Manifest, Manifest, dict[str, Any]]] = [
    (
        "root for the pod has no runAsNonRoot beside it",
        template({"runAsUser": 0}),
        {"runAsUser": 0, **SECCOMP},
        {"trainer": RESTRICTED},
    ),
    (
        "root for the training container leaves the others as they are",
        template(trainer={"runAsUser": 0}, logs={}),
        {"runAsNonRoot": True, **SECCOMP},
        {"trainer": {**RESTRICTED, "runAsUser": 0, "runAsNonRoot": False}, "logs": RESTRICTED},
    ),
    (
        "root for a sidecar is only its own",
        template(logs={"runAsUser": 0}),
        {"runAsNonRoot": True, **SECCOMP},
        {"trainer": RESTRICTED, "logs": {"runAsUser": 0, "runAsNonRoot": False}},
    ),
    (
        "a container may have another user than a pod of root",
        template({"runAsUser": 0}, trainer={"runAsUser": 1000}),
        {"runAsUser": 0, **SECCOMP},
        {"trainer": {**RESTRICTED, "runAsUser": 1000}},
    ),
    (
        "a privileged container has no other rights beside it",
        template(trainer={"privileged": True}, logs={"privileged": True}),
        {"runAsNonRoot": True, **SECCOMP},
        {"trainer": {"privileged": True}, "logs": {"privileged": True}},
    ),
    (
        "the capability that the API server refuses without escalation allows it",
        template(trainer={"capabilities": {"add": ["CAP_SYS_ADMIN"]}}),
        {"runAsNonRoot": True, **SECCOMP},
        {"trainer": {"capabilities": {"drop": ["ALL"], "add": ["CAP_SYS_ADMIN"]}}},
    ),
]


@table(*TEMPLATES)
def test_a_default_never_contradicts_the_template(case):
    written, of_pod, of_containers = case
    pod = first(CLOSED, template=written)
    assert pod["spec"]["securityContext"] == of_pod
    assert {name: context(pod, name) for name in of_containers} == of_containers
    assert not pods.problems(job(image="image", command=["a"], template=written))


def test_an_init_container_of_root_starts_in_a_pod_of_a_user() -> None:
    chown = {"name": "chown", "image": "busybox", "securityContext": {"runAsUser": 0}}
    written = {"spec": {"securityContext": {"runAsUser": 1000}, "initContainers": [chown]}}
    assert context(first(CLOSED, template=written), "chown") == {"runAsUser": 0, "runAsNonRoot": False}
    assert context(first(OPEN, template=written), "chown") == {"runAsUser": 0}


def test_a_capability_that_the_template_adds_is_not_dropped() -> None:
    """Runtimes drop after they add."""
    for added, dropped in (["NET_RAW"], ["MKNOD"]), (["cap_net_raw", "MKNOD"], None), (["ALL"], None):
        made = context(first(template=template(trainer={"capabilities": {"add": added}})))
        assert made["capabilities"] == {"add": added, **({"drop": dropped} if dropped else {})}


def test_what_allranks_adds_to_a_pod_has_the_rights_of_the_program_and_the_helper_none() -> None:
    fields: dict[str, Any] = {"command": ["python", "a.py"], "packages": ["timm==1.0"]}
    pod = first(**fields)
    assert context(pod, "allranks-packages") == context(pod) == BASELINE
    assert context(pod, "allranks-helper") == RESTRICTED
    as_root = first(CLOSED, **fields, template=template(trainer={"runAsUser": 0}))
    assert context(as_root, "allranks-packages") == context(as_root)
    assert context(as_root, "allranks-packages")["runAsNonRoot"] is False


def test_the_default_user_of_the_platform_is_for_all_levels_but_the_image() -> None:
    policy = Policy(default_run_as_user=1000)
    for platform in (OPEN, CLOSED):
        assert first(replace(platform, policy=policy))["spec"]["securityContext"]["runAsUser"] == 1000
    assert "securityContext" not in first(replace(OPEN, policy=policy), podSecurity="Image")["spec"]


# Sentence, fields of the job, the path of the problem, a part of its message.
CONTRADICTIONS: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "root in a pod that must not be root",
        {"template": template({"runAsUser": 0, "runAsNonRoot": True})},
        "spec.template.spec.securityContext.runAsUser",
        "the kubelet does not start container trainer",
    ),
    (
        "a sidecar of root in a pod that must not be root",
        {"template": template({"runAsNonRoot": True}, logs={"runAsUser": 0})},
        "spec.template.spec.containers[logs].securityContext.runAsUser",
        "container logs: remove runAsNonRoot",
    ),
    (
        "root in the role's template, against the job's",
        {
            "template": template({"runAsNonRoot": True}),
            "roles": {"worker": {"replicas": 1, "template": template({"runAsUser": 0})}},
        },
        "spec.roles.worker.template.spec.securityContext.runAsUser",
        "runAsNonRoot is true",
    ),
    (
        "privileged without escalation",
        {"template": template(trainer={"privileged": True, "allowPrivilegeEscalation": False})},
        "spec.template.spec.containers[trainer].securityContext.allowPrivilegeEscalation",
        "beside privileged: true, the API server refuses the pod",
    ),
    (
        "the capability of administrators without escalation",
        {"template": template(a={"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": False})},
        "spec.template.spec.containers[a].securityContext.allowPrivilegeEscalation",
        "CAP_SYS_ADMIN",
    ),
]


@table(*CONTRADICTIONS)
def test_contexts_that_contradict_themselves_are_problems(case):
    fields, path, message = case
    problems = pods.problems(job(image="image", command=["a"], **{"roles": {"worker": 1}, **fields}))
    assert [where for where, _ in problems] == [path]
    assert message in problems[0][1]


def test_contexts_of_any_form_are_left_to_the_api_server() -> None:
    odd: dict[str, Any] = {"runAsUser": "0", "runAsNonRoot": "yes", "capabilities": ["NET_RAW"]}
    for platform in (OPEN, CLOSED):
        assert context(first(platform, template=template(odd, trainer=odd)))["runAsUser"] == "0"


def test_a_changed_default_or_label_restarts_no_running_job() -> None:
    life = started(job(), platform=replace(OPEN, why_restricted=None))
    life.run(10)
    before = dict(life.pods)
    for platform in (OPEN, CLOSED, replace(OPEN, policy=Policy(max_pod_security="Restricted"))):
        life.platform = platform
        assert life.settle(20).empty
    assert life.pods == before
