"""Defaults and limits of the platform team: operator-wide, and by annotations of a Namespace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.facts import limits
from allranks.core.facts.model import Platform
from allranks.core.facts.policy import InvalidPolicy, Policy, for_namespace
from allranks.core.facts.pool_template import admits
from allranks.core.objects import pods
from support.builders import CLUSTER, Life, failed, job, started, succeeded, table

PREFIX = "policy.allranks.dev/"
ASK = "or ask the platform team to change the limit"


def under(**policy: Any) -> Platform:
    return replace(CLUSTER, policy=Policy(**policy))


def pool(**spec: Any) -> PoolSpec:
    return PoolSpec.model_validate(spec, by_alias=True, by_name=False)


# --- defaults --------------------------------------------------------------------------------------------------------


def test_a_default_ttl_deletes_a_finished_job_that_has_none():
    life = started(job(), platform=under(default_ttl_seconds_after_finished=100))
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(60)
    life.settle(159)
    assert not life.deleted
    life.step(160)
    assert life.deleted


def test_the_jobs_own_ttl_and_deadline_win_over_the_defaults():
    own = job(ttlSecondsAfterFinished=5, activeDeadlineSeconds=7)
    policy = Policy(default_ttl_seconds_after_finished=100, default_active_deadline_seconds=100)
    assert limits.with_defaults(own, policy) is own


def test_a_default_deadline_fails_a_job_that_has_none():
    life = started(job(), platform=under(default_active_deadline_seconds=50))
    life.step(49)
    assert life.status.phase == "Running"
    life.step(50)
    condition = life.status.condition("Failed")
    assert condition is not None
    assert condition.reason == "DeadlineExceeded"
    assert "(50)" in condition.message


def test_the_largest_deadline_is_the_default_of_a_job_that_has_none():
    policy = Policy(max_active_deadline_seconds=10)
    assert limits.with_defaults(job(), policy).spec.active_deadline_seconds == 10


def test_a_job_without_a_pool_gets_the_default_pool():
    platform = replace(under(default_pool="gpu"), pools={"gpu": pool(nodeSelector={"gpu": "h200"})})
    life = Life(job(), platform=platform)
    plan = life.step(0)
    made = [each for each in plan.create if each["kind"] == "Pod"]
    assert made
    assert all(each["spec"]["nodeSelector"] == {"gpu": "h200"} for each in made)


def test_a_missing_default_pool_is_waited_for():
    life = Life(job(), platform=under(default_pool="gpu"))
    life.settle(0)
    condition = life.status.condition("Running")
    assert condition is not None
    assert condition.reason == "PoolNotFound"
    assert '"gpu"' in condition.message


@table(
    ("the default user is set", {}, {}, 1000),
    ("the pool's user wins", {"template": {"spec": {"securityContext": {"runAsUser": 7}}}}, {}, 7),
    ("the job's user wins", {}, {"template": {"spec": {"securityContext": {"runAsUser": 8}}}}, 8),
)
def test_default_user(case):
    of_pool, fields, expected = case
    platform = replace(under(default_run_as_user=1000), pools={"gpu": pool(**of_pool)})
    (made, *_) = pods.objects(job(pool="gpu", **fields), Status(), platform).pods
    context = made["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "runAsUser": expected, "seccompProfile": {"type": "RuntimeDefault"}}


# --- limits ----------------------------------------------------------------------------------------------------------

SET = "the operator's setting"
VIOLATIONS = [
    ("as many pods as allowed", {"max_pods": 3}, {"roles": {"master": 1, "worker": 2}}, []),
    (
        "too many pods of all roles",
        {"max_pods": 2},
        {"roles": {"master": 1, "worker": 2}},
        [
            (
                "spec.roles",
                f"3 pods (master: 1, worker: 2) are more than 2 ({SET} `max_pods`): use fewer replicas, {ASK}",
            )
        ],
    ),
    (
        "an elastic job counts with its largest size",
        {"max_pods": 4},
        {"roles": {"worker": 2}, "elastic": {"minReplicas": 1, "maxReplicas": 5}},
        [("spec.roles", f"5 pods (worker: 5) are more than 4 ({SET} `max_pods`): use fewer replicas, {ASK}")],
    ),
    (
        "a deadline that is too long",
        {"max_active_deadline_seconds": 60},
        {"activeDeadlineSeconds": 61},
        [
            (
                "spec.activeDeadlineSeconds",
                f"61 is more than 60 ({SET} `max_active_deadline_seconds`): reduce it, {ASK}",
            )
        ],
    ),
    ("an allowed pool", {"allowed_pools": ("a100", "gpu")}, {"pool": "gpu"}, []),
    ("no pool where some are allowed", {"allowed_pools": ("a100",)}, {}, []),
    (
        "a pool that is not allowed",
        {"allowed_pools": ("a100",)},
        {"pool": "gpu"},
        [
            (
                "spec.pool",
                f'TrainingPool "gpu" is not allowed here ({SET} `allowed_pools` allows: a100): use another, {ASK}',
            )
        ],
    ),
    (
        "an image from elsewhere",
        {"image_prefixes": ("ghcr.io/team",)},
        {"image": "ghcr.io/team-b/train:1"},
        [
            (
                "spec.roles.worker.image",
                f"image ghcr.io/team-b/train:1 is not allowed here ({SET} `image_prefixes` allows: ghcr.io/team): use "
                f"an image from there, {ASK}",
            )
        ],
    ),
    (
        "images of sidecars, init containers and volumes",
        {"image_prefixes": ("me/",)},
        {
            "template": {
                "spec": {
                    "initContainers": [{"name": "fetch", "image": "evil:1"}],
                    "containers": [{"name": "trainer"}, {"name": "logs", "image": "evil:2"}],
                    "volumes": [{"name": "data", "image": {"reference": "evil:3"}}],
                }
            }
        },
        ["initContainers[fetch].image", "containers[logs].image", "volumes[data].image.reference"],
    ),
    (
        "the image of the checkpoint volume",
        {"image_prefixes": ("example.org/",)},
        {"image": "example.org/a:1", "checkpoint": {"volume": {"image": {"reference": "evil:4"}}}},
        [
            (
                "spec.checkpoint.volume.image.reference",
                f"image evil:4 is not allowed here ({SET} `image_prefixes` allows: example.org/): use an image from "
                f"there, {ASK}",
            )
        ],
    ),
]


@table(*VIOLATIONS)
def test_violation(case):
    policy, fields, expected = case
    platform = under(**policy)
    found = limits.violations(limits.with_defaults(job(**fields), platform.policy), platform)
    if expected and isinstance(expected[0], str):
        assert [path for path, _ in found] == [f"spec.template.spec.{path}" for path in expected]
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("image", "prefix", "below"),
    [
        ("ghcr.io/team/train:1", "ghcr.io/team", True),
        ("ghcr.io/team/train:1", "ghcr.io/team/", True),
        ("ghcr.io/team-b/train:1", "ghcr.io/team", False),
        ("ghcr.io.evil.example/team/train", "ghcr.io", False),
        ("python", "python", True),
        ("python:3", "python", True),
        ("python@sha256:00", "python", True),
        ("python3:1", "python", False),
        ("registry:5000/x", "registry:5000", True),
    ],
)
def test_a_prefix_ends_where_a_part_of_the_name_ends(image: str, prefix: str, below: bool):
    assert limits.is_below(image, prefix) is below


ACCOUNTS = [
    (
        "the job's template",
        {"template": {"spec": {"serviceAccountName": "allranks"}}},
        "spec.template.spec.serviceAccountName",
    ),
    (
        "the older name of the field",
        {"template": {"spec": {"serviceAccount": "allranks"}}},
        "spec.template.spec.serviceAccount",
    ),
    (
        "the template of a role",
        {"roles": {"worker": {"replicas": 1, "template": {"spec": {"serviceAccountName": "allranks-ui"}}}}},
        "spec.roles.worker.template.spec.serviceAccountName",
    ),
]


@table(*ACCOUNTS)
def test_a_job_with_an_account_of_allranks_is_refused_where_the_account_exists(case):
    fields, path = case
    accounts = ("allranks", "allranks-archiver", "allranks-ui")
    life = Life(job(**fields), platform=replace(CLUSTER, reserved_accounts=accounts))
    life.settle(0)
    phase, reason, message = refused(life)
    assert (phase, reason) == ("Failed", "PolicyViolation")
    assert message.startswith(f'{path}: ServiceAccount "allranks')
    assert "use another one" in message
    assert not life.pods
    assert started(job(**fields)).status.phase == "Running", "an account of the same name in another namespace"


def refused(life: Life) -> tuple[str, str, str]:
    condition = life.status.condition("Failed")
    assert condition is not None
    return life.status.phase, condition.reason, condition.message


def test_a_job_that_exceeds_a_limit_fails_without_any_pod():
    life = Life(job(), platform=under(max_pods=1))
    life.settle(0)
    phase, reason, message = refused(life)
    assert (phase, reason) == ("Failed", "PolicyViolation")
    assert message.startswith("spec.roles: 2 pods (worker: 2) are more than 1")
    assert not life.pods
    assert life.events == ["PolicyViolation"]


def test_a_running_job_is_not_affected_by_a_new_limit_until_its_size_changes():
    life = started(job())
    life.platform = under(max_pods=1)
    life.put(failed(index=1))
    life.settle(61)
    life.run(62)
    assert (life.status.phase, life.status.attempt) == ("Running", 1)
    life.job = job(roles={"worker": 3}, generation=2)
    life.settle(70)
    assert refused(life)[1] == "PolicyViolation"


def test_a_resize_beyond_a_limit_fails_the_job_even_if_a_pod_fails_at_the_same_time():
    life = started(job(), platform=under(max_pods=2))
    life.put(failed(index=1))
    life.job = job(roles={"worker": 30}, generation=2)
    life.settle(61)
    assert refused(life)[1] == "PolicyViolation"
    assert set(life.pods) == {"job-worker-1-0"}, "the failed pod stays, and none is created"


def test_the_largest_deadline_holds_for_a_job_whose_own_is_raised_while_it_runs():
    life = started(job(activeDeadlineSeconds=50), platform=under(max_active_deadline_seconds=100))
    life.job = job(activeDeadlineSeconds=100_000, generation=2)
    life.step(99)
    assert life.status.phase == "Running"
    life.step(100)
    assert refused(life)[1:] == ("DeadlineExceeded", "not done within activeDeadlineSeconds (100)")


def test_a_job_that_is_resumed_obeys_the_limits():
    life = started(job())
    life.job = job(suspend=True, generation=2)
    life.settle(10)
    life.platform = under(max_pods=1)
    life.job = job(generation=3)
    life.settle(20)
    assert refused(life)[1] == "PolicyViolation"


# --- pools of namespaces ---------------------------------------------------------------------------------------------

LABELS = {"team": "vision", "tier": "gold"}
SELECTORS = [
    ("a pool without a selector admits every namespace", None, True),
    ("an empty selector admits every namespace", {}, True),
    ("the same labels", {"matchLabels": {"team": "vision"}}, True),
    ("another value", {"matchLabels": {"team": "speech"}}, False),
    ("one label of two", {"matchLabels": {"team": "vision", "x": "y"}}, False),
    ("In", {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold", "silver"]}]}, True),
    ("not In", {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["silver"]}]}, False),
    ("NotIn", {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["silver"]}]}, True),
    ("NotIn of an absent label", {"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["y"]}]}, True),
    ("not NotIn", {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]}, False),
    ("Exists", {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True),
    ("not Exists", {"matchExpressions": [{"key": "x", "operator": "Exists"}]}, False),
    ("DoesNotExist", {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, True),
    ("not DoesNotExist", {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False),
]


@table(*SELECTORS)
def test_namespace_selector(case):
    selector, expected = case
    assert admits(pool(**({} if selector is None else {"namespaceSelector": selector})), LABELS) is expected


def selective(labels: dict[str, str] | None, **policy: Any) -> Platform:
    vision = pool(namespaceSelector={"matchLabels": {"team": "vision"}})
    return replace(under(**policy), pools={"gpu": vision}, namespace_labels=labels)


def test_a_job_of_another_namespace_is_refused():
    life = Life(job(pool="gpu"), platform=selective({"team": "speech"}))
    life.settle(0)
    assert refused(life) == (
        "Failed",
        "PolicyViolation",
        'spec.pool: TrainingPool "gpu" does not admit jobs of namespace team (its namespaceSelector): use another '
        "pool, or ask the platform team for access",
    )


def test_a_job_of_a_selected_namespace_runs():
    assert started(job(pool="gpu"), platform=selective({"team": "vision"})).status.phase == "Running"


def test_a_job_that_began_before_its_namespace_lost_access_waits():
    life = started(job(pool="gpu"), platform=selective({"team": "vision"}))
    life.platform = selective({})
    life.put(failed(index=1))
    life.settle(61)
    condition = life.status.condition("Running")
    assert condition is not None
    assert (life.status.phase, condition.reason) == ("Restarting", "PoolNotAllowed")
    life.platform = selective({"team": "vision"})
    life.settle(62)
    life.run(63)
    assert life.status.phase == "Running"


def test_a_selector_admits_nothing_while_the_operator_reads_no_namespaces():
    life = Life(job(pool="gpu"), platform=selective(None))
    life.settle(0)
    condition = life.status.condition("Running")
    assert condition is not None
    assert condition.reason == "PoolNotAllowed"
    assert "`namespace_policies`" in condition.message
    assert not life.pods


def test_an_empty_selector_needs_no_labels():
    platform = replace(CLUSTER, pools={"gpu": pool(namespaceSelector={})})
    assert started(job(pool="gpu"), platform=platform).status.phase == "Running"


# --- annotations of a namespace --------------------------------------------------------------------------------------


def test_the_annotations_of_a_namespace_replace_the_values_of_the_operator_one_by_one():
    base = Policy(max_pods=4, default_pool="gpu", image_prefixes=("ghcr.io",))
    annotations = {
        f"{PREFIX}max-pods": "16",
        f"{PREFIX}allowed-pools": "a100, h200",
        f"{PREFIX}default-run-as-user": "1000",
        "someone.else/max-pods": "99",
    }
    policy = for_namespace(base, "vision", annotations)
    assert policy == Policy(
        max_pods=16,
        default_pool="gpu",
        image_prefixes=("ghcr.io",),
        allowed_pools=("a100", "h200"),
        default_run_as_user=1000,
    )
    assert policy.source("max_pods") == "annotation policy.allranks.dev/max-pods of namespace vision"
    assert policy.source("image_prefixes") == "the operator's setting `image_prefixes`"


def test_every_field_of_a_policy_can_be_set_by_an_annotation():
    text = dict.fromkeys(("default_pool", "allowed_pools", "image_prefixes"), "x")
    text |= dict.fromkeys(("default_pod_security", "max_pod_security"), "Restricted")
    names = [name for name in Policy.__dataclass_fields__ if name != "sources"]
    annotations = {PREFIX + name.replace("_", "-"): text.get(name, "5") for name in names}
    policy = for_namespace(Policy(), "vision", annotations)
    assert all(getattr(policy, name) != getattr(Policy(), name) for name in names)


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        ("max-pods", "many", "must be a whole number from 0 to 10000, not 'many'"),
        ("max-pods", "10001", "must be a whole number from 0 to 10000, not '10001'"),
        ("default-run-as-user", "0", "must be a whole number from 1 to 2147483647, not '0'"),
        ("default-pool", " ", "must be a name, not ' '"),
        ("maxpods", "4", "unknown; the names after policy.allranks.dev/ are default-ttl-seconds-after-finished, "),
    ],
)
def test_an_annotation_with_a_mistake_is_no_missing_limit(annotation: str, value: str, message: str):
    with pytest.raises(InvalidPolicy) as raised:
        for_namespace(Policy(), "vision", {PREFIX + annotation: value})
    assert str(raised.value).startswith(f"annotation {PREFIX}{annotation} of namespace vision: {message}")
