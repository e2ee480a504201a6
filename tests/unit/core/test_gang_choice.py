"""Which gang scheduler an attempt has, and what a job says while there is none."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.api.status import Condition, Status
from allranks.core.facts.model import Platform
from allranks.core.facts.optional_kinds import (
    COSCHEDULING_POD_GROUP,
    GANGS,
    NATIVE_POD_GROUP,
    VOLCANO_POD_GROUP,
    OptionalKind,
    OptionalObjects,
)
from allranks.core.objects import pods as pod_manifests
from allranks.core.objects.gangs import choice, read_back
from allranks.core.objects.gangs.backends import BACKENDS
from support.builders import CLUSTER, Life, at, job, serving, table

ALL = GANGS


@table(
    ("Auto without any: one by one", {}, (), None),
    ("Auto with all of them: the native one", {}, ALL, "Native"),
    ("Auto for pods of Volcano's scheduler", {"template": {"spec": {"schedulerName": "volcano"}}}, ALL, "Volcano"),
    (
        "Auto for pods of the coscheduling scheduler",
        {"template": {"spec": {"schedulerName": "scheduler-plugins-scheduler"}}},
        ALL,
        "Coscheduling",
    ),
    ("Auto for pods of an unknown scheduler", {"template": {"spec": {"schedulerName": "mine"}}}, ALL, None),
    (
        "Auto for pods of the default scheduler by name",
        {"template": {"spec": {"schedulerName": "default-scheduler"}}},
        ALL,
        "Native",
    ),
    ("Volcano alone is not used for pods of the default scheduler", {}, (VOLCANO_POD_GROUP,), None),
    ("a single pod needs no gang", {"roles": {"worker": 1}}, ALL, None),
    (
        "members of a group that the author makes",
        {"template": {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "mine"}}}},
        ALL,
        None,
    ),
    ("None", {"scheduling": {"gang": "None"}}, ALL, None),
    ("Volcano by name", {"scheduling": {"gang": "Volcano"}}, ALL, "Volcano"),
    ("by name, although it is not served", {"scheduling": {"gang": "Volcano"}}, (NATIVE_POD_GROUP,), None),
)
def test_the_backend(case: tuple[dict[str, Any], tuple[OptionalKind, ...], str | None]) -> None:
    spec, kinds, expected = case
    chosen = choice.choose(job(**spec), Status(), CLUSTER, serving(*kinds))
    assert (chosen.backend if chosen else None) == expected


def test_a_local_run_has_no_gang_scheduler() -> None:
    local = Platform(helper_image="", local=True)
    of = job(scheduling={"gang": "Native"})
    assert choice.choose(of, Status(), local, serving(*ALL)) is None
    assert choice.unavailable(of, Status(), local, OptionalObjects()) is None


def test_the_choice_is_persisted_before_the_first_object_is_created() -> None:
    life = Life(job())
    life.optional = serving(NATIVE_POD_GROUP)
    first = life.step(0)
    assert first.write_ahead
    assert life.status.gang
    assert life.status.gang.backend == "Native"
    kinds = [made["kind"] for made in life.step(0).create]
    assert kinds == ["Service", "PodGroup", "Pod", "Pod"]


def test_a_small_job_without_a_gang_scheduler_needs_no_further_write() -> None:
    life = Life(job())
    first = life.step(0)
    assert not first.write_ahead
    assert [made["kind"] for made in first.create] == ["Service", "Pod", "Pod"]
    assert life.status.gang is None
    assert life.status.condition("GangScheduling") is None


def test_an_attempt_keeps_its_backend_and_the_next_one_chooses_again() -> None:
    life = Life(job())
    life.settle(0)
    life.run(1)
    life.optional = serving(NATIVE_POD_GROUP)
    life.settle(2)
    assert life.status.gang is None, "its pods belong to no group"
    life.pods.clear()
    life.settle(3)
    assert life.status.attempt == 1
    assert life.status.gang
    assert life.status.gang.backend == "Native"


def test_a_job_waits_for_its_backend_and_names_it() -> None:
    life = Life(job(scheduling={"gang": "Volcano"}))
    life.optional = serving(NATIVE_POD_GROUP)
    life.settle(0)
    condition = life.status.condition("Running")
    assert life.status.phase == "Pending"
    assert not life.pods
    assert condition
    assert condition.reason == "GangBackendNotServed"
    assert condition.message == (
        "scheduling.gang is Volcano, but this cluster does not serve podgroups.scheduling.volcano.sh in v1beta1: "
        "install Volcano, or make a new job without it"
    )
    life.optional = serving(VOLCANO_POD_GROUP)
    assert life.step(5).write_ahead, "what it found is persisted first"
    life.settle(6)
    assert sorted(life.pods) == ["job-worker-0-0", "job-worker-1-0"]
    assert life.status.gang
    assert life.status.gang.backend == "Volcano"


def test_the_cure_is_a_setting_if_the_operator_does_not_use_gang_schedulers() -> None:
    off = OptionalObjects(
        problems={each.id: "this operator does not use gang schedulers (setting `gangs`)" for each in ALL}
    )
    _, message = choice.unavailable(job(scheduling={"gang": "Native"}), Status(), CLUSTER, off) or ("", "")
    assert message == "scheduling.gang is Native, but this operator does not use gang schedulers (setting `gangs`)"


@table(
    (
        "Kueue without a queue",
        {"scheduling": {"gang": "Kueue"}},
        [("spec.scheduling.gang", "Kueue admits the jobs of a queue: set spec.scheduling.queue as well")],
    ),
    (
        "a group of the author's own",
        {"scheduling": {"gang": "Native"}, "template": {"spec": {"schedulingGroup": {"podGroupName": "mine"}}}},
        [
            (
                "spec.template.spec.schedulingGroup",
                "is set by allranks with scheduling.gang: Native: remove it, or set scheduling.gang: None",
            )
        ],
    ),
    ("Auto leaves the author's group alone", {"template": {"spec": {"schedulingGroup": {"podGroupName": "mine"}}}}, []),
)
def test_mistakes(case: tuple[dict[str, Any], list[tuple[str, str]]]) -> None:
    spec, expected = case
    assert pod_manifests.problems(job(**spec)) == expected


# What was read back


def group(spec: dict[str, Any], *conditions: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "job-0", "resourceVersion": "1", "uid": "1"}
    kind = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup"}
    return {**kind, "metadata": metadata, "spec": spec, "status": {"conditions": list(conditions)}}


POLICY = {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": {"all": {}}}


def native(**spec: Any) -> Life:
    life = Life(job(**spec))
    life.optional = serving(NATIVE_POD_GROUP)
    life.settle(0)
    return life


def condition_of(life: Life) -> Condition:
    found = life.status.condition(read_back.CONDITION)
    assert found is not None
    return found


def test_the_condition_says_what_places_the_pods_together() -> None:
    found = condition_of(native())
    assert (found.status, found.reason) == ("True", "Native")
    assert found.message == "PodGroup job-0 (scheduling.k8s.io/v1beta1): at least 2 pods are placed together"


def test_a_pod_whose_group_was_dropped_is_reported() -> None:
    life = native()
    for name, each in life.pods.items():
        life.pods[name] = each.__class__(**{**_fields(each), "scheduling_group": ""})
    life.settle(1)
    found = condition_of(life)
    assert (found.status, found.reason) == ("False", "FieldDropped")
    assert found.message.startswith(
        "the API server dropped spec.schedulingGroup of pod job-worker-0-0 and 1 more, so the pods are placed one by "
        "one: enable the feature gate GenericWorkload"
    )
    assert life.events.count("GangNotEnforced") == 1


def _fields(each: Any) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__slots__}


def test_a_constraint_that_was_dropped_is_reported() -> None:
    life = native(scheduling={"topology": {"required": "rack"}})
    life.optional = serving(NATIVE_POD_GROUP, objects=[group(POLICY)])
    life.settle(1)
    found = condition_of(life)
    assert (found.status, found.reason) == ("False", "FieldDropped")
    assert "the API server dropped spec.schedulingConstraints of PodGroup job-0" in found.message
    constraint = {"topology": [{"key": "rack"}]}
    life.optional = serving(NATIVE_POD_GROUP, objects=[group({**POLICY, "schedulingConstraints": constraint})])
    life.settle(2)
    assert condition_of(life).status == "True"


@pytest.mark.parametrize("kind", ["PodGroupInitiallyScheduled", "PodGroupScheduled"])  # 1.37, 1.36
def test_a_group_that_does_not_fit_says_why(kind: str) -> None:
    why = "minCount (2) cannot be satisfied: 1 scheduled, 0 remaining"
    placed = {"type": kind, "status": "False", "reason": "Unschedulable", "message": why}
    life = native()
    life.optional = serving(NATIVE_POD_GROUP, objects=[group(POLICY, placed)])
    life.settle(1)
    found = condition_of(life)
    assert (found.status, found.reason, found.message) == ("False", "Unschedulable", f"PodGroup job-0: {why}")
    assert found.last_transition_time == at(1)
    life.optional = serving(NATIVE_POD_GROUP, objects=[group(POLICY, {**placed, "status": "True"})])
    life.settle(2)
    assert condition_of(life).status == "True"


def test_the_condition_goes_with_the_attempt() -> None:
    life = native()
    life.optional = OptionalObjects()
    life.run(1)
    life.pods.clear()
    life.settle(2)
    assert life.status.attempt == 1
    assert life.status.condition(read_back.CONDITION) is None


NAMED = {"template": {"spec": {"schedulerName": "mine"}}}


@table(
    ("an unknown scheduler", NAMED, (NATIVE_POD_GROUP,), "pods of scheduler mine are placed one by one, unless"),
    ("a cluster without gang schedulers", NAMED, (), ""),
    ("a single pod", {**NAMED, "roles": {"worker": 1}}, ALL, ""),
    ("None", {**NAMED, "scheduling": {"gang": "None"}}, ALL, ""),
    ("the default scheduler beside Volcano", {}, (VOLCANO_POD_GROUP,), ""),
)
def test_a_scheduler_that_no_backend_knows_is_a_condition(case: tuple[dict[str, Any], tuple[OptionalKind, ...], str]):
    spec, kinds, message = case
    life = Life(job(**spec))
    life.optional = serving(*kinds)
    life.settle(0)
    life.run(1)
    found = life.status.condition(read_back.CONDITION)
    assert life.status.gang is None
    if not message:
        assert found is None
        return
    assert found
    assert (found.status, found.reason, found.message.startswith(message)) == ("False", "NoBackend", True)


@pytest.mark.parametrize("kind", [VOLCANO_POD_GROUP, COSCHEDULING_POD_GROUP])
def test_the_problem_of_other_schedulers(kind: OptionalKind) -> None:
    backend = next(each for each in BACKENDS.values() if each.kind is kind)
    waits = {"type": "Unschedulable", "status": "True", "message": "2/2 tasks in gang unschedulable"}
    assert backend.problem({"status": {"phase": "Running", "conditions": [waits]}}) == ""
    assert backend.problem({"status": {"phase": "Failed", "conditions": [waits]}})
    assert backend.problem({}) == ""
