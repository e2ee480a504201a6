"""The Workload of a job in a queue, its admission, and what its condition says. `tests/model/scenarios/queues.yaml` has
the course of events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import queue
from allranks.core.facts import workload as workloads
from allranks.core.facts.model import ObjectPatch, Observed, Plan, RejectedCreate
from allranks.core.facts.optional_kinds import (
    LOCAL_QUEUE,
    PRIORITY_CLASS,
    QUEUES,
    RESOURCE_FLAVOR,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    OptionalKind,
    OptionalObjects,
)
from allranks.core.facts.status_summary import TAKEN_BY_KUEUE
from allranks.core.objects.queueing import manifest
from allranks.core.objects.queueing import reasons as queue_reasons
from allranks.core.reconcile import reconcile
from support.builders import NOW, UID, at, job, observed, pending, pod, table

VERSIONS = {kind.id: f"{kind.group}/{kind.versions[0]}" for kind in QUEUES}
FLAVORS = {"worker": {"cpu": "default", "nvidia.com/gpu": "default"}}


def objects(*found: tuple[OptionalKind, dict[str, Any]], version: str = "") -> OptionalObjects:
    """What the operator reads: the LocalQueue `team-a`, the flavor `default`, and these."""
    always = [(LOCAL_QUEUE, {"metadata": {"name": "team-a"}}), (RESOURCE_FLAVOR, {"metadata": {"name": "default"}})]
    shared, mine = {}, []
    for kind, each in (*always, *found):
        full = {"apiVersion": VERSIONS[kind.id], "kind": kind.kind, **each}
        shared[(kind.id, "team" if kind.namespaced else "", each["metadata"]["name"])] = full
        if any(owner["uid"] == UID for owner in each["metadata"].get("ownerReferences", ())):
            mine.append(full)
    versions = VERSIONS | ({WORKLOAD.id: f"kueue.x-k8s.io/{version}"} if version else {})
    return OptionalObjects(versions=versions, of_job=tuple(mine), shared=shared)


def look(of: Job, status: Status | None = None, optional: OptionalObjects | None = None, **how: Any) -> Observed:
    return replace(observed(of, status or Status(), **how), optional=optional or objects())


def queued(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> Job:
    made = job(scheduling={"queue": "team-a"} | spec.pop("scheduling", {}), **spec)
    more = {"labels": labels or {}, "annotations": annotations or {}}
    return made.model_copy(update={"metadata": made.metadata.model_copy(update=more)})


def begun(of: Job) -> Status:
    status = reconcile(look(of)).next
    assert status is not None
    assert status.phase == "Queued"
    return status


def workload_of(of: Job, optional: OptionalObjects | None = None) -> dict[str, Any]:
    """The Workload that the job creates."""
    plan = reconcile(look(of, begun(of), optional))
    [made] = plan.create
    return made


def stored(made: dict[str, Any], status: dict[str, Any] | None = None) -> tuple[OptionalKind, dict[str, Any]]:
    metadata = {**made["metadata"], "uid": "w", "resourceVersion": "7", "generation": 1}
    return WORKLOAD, {**made, "metadata": metadata, "status": status or {}}


def conditions(**states: str) -> list[dict[str, Any]]:
    return [{"type": kind, "status": state, "reason": kind, "message": "m"} for kind, state in states.items()]


def admitted(made: dict[str, Any], **assigned: Any) -> tuple[OptionalKind, dict[str, Any]]:
    sets = [{"name": each["name"], "flavors": FLAVORS["worker"], **assigned} for each in made["spec"]["podSets"]]
    admission = {"clusterQueue": "all", "podSetAssignments": sets}
    return stored(made, {"admission": admission, "conditions": conditions(QuotaReserved="True", Admitted="True")})


def start(of: Job, **assigned: Any) -> tuple[Status, tuple[OptionalKind, dict[str, Any]]]:
    """The status of a job right after its admission, and its Workload."""
    found = admitted(workload_of(of), **assigned)
    status = reconcile(look(of, begun(of), objects(found))).next
    assert status is not None
    assert status.phase == "Pending"
    return status, found


def test_a_workload_asks_for_the_pods_and_holds_nothing_that_has_no_influence_on_their_place() -> None:
    of = queued(env=[{"name": "TOKEN", "value": "hush"}], resources={"limits": {"nvidia.com/gpu": 8}})
    made = workload_of(of)
    assert made["apiVersion"] == "kueue.x-k8s.io/v1beta2"
    assert made["metadata"]["name"] == f"dt-job-{UID[:8]}"
    assert made["metadata"]["labels"]["allranks.dev/job-name"] == "job", "the operator watches by it"
    assert queue.QUEUE_LABEL not in made["metadata"]["labels"]
    [pods] = made["spec"]["podSets"]
    assert (pods["name"], pods["count"]) == ("worker", 2)
    [trainer] = pods["template"]["spec"]["containers"]
    assert trainer["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert "hush" not in str(made)
    assert "train.py" not in str(made)


@pytest.mark.parametrize("version", WORKLOAD.versions)
def test_the_priority_is_that_of_the_label_in_both_versions_of_the_api(version: str) -> None:
    of = queued(labels={queue.PRIORITY_LABEL: "urgent"}, scheduling={"priorityClassName": "pods"})
    urgent = (WORKLOAD_PRIORITY_CLASS, {"metadata": {"name": "urgent"}, "value": 7})
    spec = workload_of(of, objects(urgent, version=version))["spec"]
    assert spec["priority"] == 7
    if version == "v1beta1":
        assert spec["priorityClassName"] == "urgent"
        assert spec["priorityClassSource"] == "kueue.x-k8s.io/workloadpriorityclass"
    else:
        assert spec["priorityClassRef"] == {
            "group": "kueue.x-k8s.io",
            "kind": "WorkloadPriorityClass",
            "name": "urgent",
        }


def test_without_that_label_the_priority_is_that_of_the_pods_or_the_clusters_default() -> None:
    high = (PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 100})
    usual = (PRIORITY_CLASS, {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True})
    spec = workload_of(queued(scheduling={"priorityClassName": "high"}), objects(high, usual))["spec"]
    assert (spec["priority"], spec["priorityClassRef"]["name"]) == (100, "high")
    spec = workload_of(queued(), objects(high, usual))["spec"]
    assert (spec["priority"], spec["priorityClassRef"]["name"]) == (5, "usual")
    assert workload_of(queued(), objects(high))["spec"]["priority"] == 0


def test_a_priority_class_that_does_not_exist_is_named() -> None:
    of = queued(labels={queue.PRIORITY_LABEL: "urgent"})
    plan = reconcile(look(of, begun(of)))
    assert plan.create == ()
    assert plan.next
    condition = plan.next.condition("Running")
    assert condition
    assert condition.reason == "PriorityClassNotFound"
    assert "WorkloadPriorityClass urgent does not exist" in condition.message


def test_the_priority_of_an_admitted_job_follows_a_changed_label() -> None:
    of = queued(labels={queue.PRIORITY_LABEL: "urgent"})
    classes = [(WORKLOAD_PRIORITY_CLASS, {"metadata": {"name": name}, "value": of}) for name, of in _CLASSES]
    made = workload_of(of, objects(*classes))
    found = admitted(made)
    status = reconcile(look(of, begun(of), objects(found, *classes))).next
    assert status
    later = queued(labels={queue.PRIORITY_LABEL: "low"})
    changed = (WORKLOAD, {**found[1], "status": {**found[1]["status"], "conditions": _ready(found[1])}})
    plan = reconcile(look(later, status, objects(changed, *classes)))
    [patch] = plan.patch
    assert patch.change["spec"]["priority"] == 1
    assert patch.change["spec"]["priorityClassRef"]["name"] == "low"


_CLASSES = (("urgent", 7), ("low", 1))


def _ready(found: dict[str, Any]) -> list[dict[str, Any]]:
    waits = {"type": "PodsReady", "status": "False", "reason": "WaitForStart", "message": "m"}
    return [*found["status"]["conditions"], waits]


def test_kueue_assigns_nodes_to_gated_pods_if_the_flavor_has_a_topology() -> None:
    of = queued()
    status, found = start(of, topologyAssignment={"levels": ["rack"]})
    plan = reconcile(look(of, status, objects(found)))
    made = next(each for each in plan.create if each["kind"] == "Pod")
    assert made["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    annotations = made["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/workload"] == found[1]["metadata"]["name"]
    assert annotations["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "worker"


def test_an_admission_to_an_unknown_flavor_waits_for_it() -> None:
    of = queued()
    made = workload_of(of)
    found = admitted(made, flavors={"cpu": "spot"})
    plan = reconcile(look(of, begun(of), objects(found)))
    assert plan.next
    condition = plan.next.condition("Running")
    assert condition
    assert (plan.next.phase, condition.reason) == ("Queued", "FlavorNotFound")
    assert "ResourceFlavor spot does not exist" in condition.message


def test_an_admission_that_does_not_fit_into_the_status_is_an_error() -> None:
    """Kueue allows eight node labels for a flavor; a pod set with several flavors has the labels of all."""
    of = queued()
    flavors = [
        (RESOURCE_FLAVOR, {"metadata": {"name": name}, "spec": {"nodeLabels": {f"{name}-{n}": "x" for n in range(8)}}})
        for name in ("cpus", "gpus")
    ]
    workload = admitted(workload_of(of), flavors={"cpu": "cpus", "nvidia.com/gpu": "gpus"})
    with pytest.raises(ValidationError, match="node_selector"):
        reconcile(look(of, begun(of), objects(workload, *flavors)))


def test_a_rejected_workload_is_named_in_the_condition() -> None:
    of = queued()
    refused = RejectedCreate("Workload", "dt-job", "InternalError", "failed calling webhook: away")
    plan = reconcile(look(of, begun(of), refused=[refused]))
    assert plan.create, "it is tried again"
    assert plan.next
    condition = plan.next.condition("Running")
    assert condition
    assert "failed calling webhook: away" in condition.message


def test_the_workload_that_multikueue_created_is_adopted_and_none_is_created() -> None:
    of = queued(labels={queue.PREBUILT_LABEL: "from-manager"})
    status = begun(of)
    assert reconcile(look(of, status)).create == (), "it arrives in a moment"
    metadata = {"name": "from-manager", "namespace": "team", "uid": "w", "resourceVersion": "7"}
    spec = {"queueName": "team-a", "podSets": [{"name": "worker", "count": 2}]}
    sent = (WORKLOAD, {"metadata": metadata, "spec": spec, "status": {}})
    [patch] = reconcile(look(of, status, objects(sent))).patch
    [owner] = patch.change["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (UID, True)


def test_a_job_of_the_manager_of_multikueue_has_a_workload_and_its_status_is_left_to_kueue() -> None:
    of = queued(managedBy=queue.MULTIKUEUE)
    plan = reconcile(look(of))
    assert [made["kind"] for made in plan.create] == ["Workload"]
    assert plan.next is None
    found = admitted(plan.create[0])
    assert reconcile(look(of, optional=objects(found))) == Plan()


def test_a_job_with_another_manager_is_left_alone() -> None:
    assert reconcile(look(queued(managedBy="example.org/mine"))) == Plan()


def test_a_local_run_has_no_queue() -> None:
    of = queued(labels={queue.QUEUE_LABEL: "team-a"})
    found = look(of)
    plan = reconcile(replace(found, platform=replace(found.platform, local=True)))
    assert plan.next
    assert plan.next.phase == "Pending"


def test_a_running_job_keeps_its_pods_while_kueue_cannot_be_read() -> None:
    of = queued()
    status, _ = start(of)
    pods = [pod("worker", 0), pod("worker", 1)]
    plan = reconcile(look(of, status, OptionalObjects(problems={WORKLOAD.id: "no right"}), pods=pods))
    assert plan.delete == ()
    assert plan.next is None or plan.next.phase in ("Pending", "Running")


def test_pods_that_kueues_pod_integration_has_taken_are_named_with_the_cure() -> None:
    of = job()
    status = reconcile(observed(of, Status())).next
    assert status
    taken = [pending("worker", index, managed_by_kueue=True, waiting_reason="SchedulingGated") for index in (0, 1)]
    plan = reconcile(observed(of, status, taken))
    assert plan.next
    condition = plan.next.condition("Running")
    assert condition
    assert condition.reason == TAKEN_BY_KUEUE
    assert "DistributedTraining.v1alpha1.allranks.dev" in condition.message
    assert "externalFrameworks" in condition.message


READINESS = (
    ("not ready before the first start", None, False, ("False", "WaitForStart")),
    ("ready", ("False", "WaitForStart"), True, ("True", "Started")),
    ("ready already", ("True", "Started"), True, None),
    ("a rank failed", ("True", "Started"), False, ("False", "WaitForRecovery")),
    ("still restarting", ("False", "WaitForRecovery"), False, None),
    ("ready again", ("False", "WaitForRecovery"), True, ("True", "Recovered")),
    ("ready again, for some time", ("True", "Recovered"), True, None),
)


@table(*READINESS)
def test_the_condition_pods_ready_has_kueues_own_reasons(case: Any) -> None:
    before, ready, after = case
    now = [{"type": "PodsReady", "status": before[0], "reason": before[1]}] if before else []
    changed = workloads.pods_ready({"status": {"conditions": now}}, ready)
    assert (changed and changed[1:3]) == after


def test_a_condition_keeps_the_time_of_its_last_transition_and_others_stay() -> None:
    then = {"type": "Admitted", "status": "True", "reason": "a", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    found = {"metadata": {"generation": 3}, "status": {"conditions": [then]}}
    kept, new = workloads.with_conditions(found, NOW, ("Admitted", "True", "b", "m"), ("PodsReady", "True", "c", "m"))
    assert (kept["lastTransitionTime"], kept["reason"]) == ("2026-01-01T00:00:00Z", "b")
    assert (new["lastTransitionTime"], new["observedGeneration"]) == ("2026-03-04T10:00:00Z", 3)


def test_time_in_the_queue_is_queued_time_and_does_not_count_toward_the_deadline() -> None:
    of = queued(activeDeadlineSeconds=10, creation_timestamp=NOW)
    made = workload_of(of)
    found = admitted(made)
    status = begun(of)
    later = reconcile(look(of, status, objects(found), now=3600)).next
    assert later
    assert later.phase == "Pending"
    assert later.times
    assert later.times.queued == 3600
    assert later.active_since == at(3600)


def test_messages_name_the_queue_and_how_to_run_without_one() -> None:
    of = queued()
    reason, message = queue_reasons.reason(replace(look(of), optional=OptionalObjects()), None, [])
    assert reason == "QueuesNotServed"
    assert message.startswith("queue team-a: this operator does not serve queues (setting `queues`)")
    assert "remove the queue" in message


def test_an_elastic_jobs_pod_set_has_a_minimum() -> None:
    of = queued(roles={"worker": 4}, elastic={"minReplicas": 2, "maxReplicas": 8})
    [pods] = manifest.pod_sets(look(of))
    assert (pods["count"], pods["minCount"]) == (4, 2)


def test_patches_are_made_against_what_was_observed() -> None:
    of = queued()
    status, found = start(of)
    [patch] = reconcile(look(of, status, objects(found))).patch
    assert isinstance(patch, ObjectPatch)
    assert patch.object["metadata"]["resourceVersion"] == "7"
    assert patch.subresource == "status"
    assert {each["type"] for each in patch.change["status"]["conditions"]} == {"QuotaReserved", "Admitted", "PodsReady"}


GPU = {"template": {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}}}


def of_workload(of: Job, made: dict[str, Any], **metadata: Any) -> tuple[OptionalKind, dict[str, Any]]:
    """A Workload with another name or owner, admitted."""
    kind, found = admitted({**made, "metadata": {**made["metadata"], **metadata}})
    return kind, found


@pytest.mark.parametrize("owner", ["another-uid", None], ids=["another job's", "without an owner"])
def test_a_label_that_names_a_workload_gives_no_job_the_quota_of_another(owner: str | None) -> None:
    """Any author of a job may write the label `kueue.x-k8s.io/prebuilt-workload-name`."""
    rich = workload_of(queued())
    thief = queued(labels={queue.PREBUILT_LABEL: "of-another"})
    owners = [{"kind": "DistributedTraining", "name": "rich", "uid": owner, "controller": True}] if owner else []
    taken = objects(of_workload(thief, rich, name="of-another", ownerReferences=owners))
    plan = reconcile(look(thief, begun(thief), taken))
    assert plan.next is None or plan.next.phase == "Queued"
    assert not [made for made in plan.create if made["kind"] == "Pod"]
    if owner is None:
        [adoption] = plan.patch
        assert adoption.change["metadata"]["ownerReferences"][0]["uid"] == UID, "others cannot take it afterwards"
        return
    assert plan.patch == ()
    assert plan.remove == ()
    assert plan.next
    condition = plan.next.condition("Running")
    assert condition
    assert condition.reason == "WorkloadTaken"


def test_a_job_that_ends_does_not_end_the_workload_of_another() -> None:
    rich = workload_of(queued())
    thief = queued(labels={queue.PREBUILT_LABEL: "of-another"})
    owners = [{"kind": "Job", "name": "rich", "uid": "another-uid", "controller": True}]
    taken = objects(of_workload(thief, rich, name="of-another", ownerReferences=owners))
    over = replace(begun(thief), phase="Failed", completion_time=NOW)
    plan = reconcile(look(thief, over, taken))
    assert plan.patch == ()
    assert plan.remove == ()


@pytest.mark.parametrize("prebuilt", [True, False])
def test_an_admission_of_less_than_the_pods_request_admits_no_pods(prebuilt: bool) -> None:
    small, labels = queued(), {queue.PREBUILT_LABEL: "small"} if prebuilt else {}
    of = queued(labels=labels, template=GPU["template"])
    made = workload_of(small)
    name = "small" if prebuilt else made["metadata"]["name"]
    found = objects(of_workload(of, made, name=name))
    plan = reconcile(look(of, begun(of), found))
    assert plan.next is None or plan.next.phase == "Queued"
    assert not plan.create
    if prebuilt:
        assert plan.next
        condition = plan.next.condition("Running")
        assert condition
        assert condition.reason == "OutOfSync"
        assert "nvidia.com/gpu" in condition.message
    else:
        assert plan.remove, "the job asks again for what it needs"


def test_an_admission_to_which_kueue_added_requests_admits_the_pods() -> None:
    of = queued(template=GPU["template"])
    made = workload_of(of)
    for pod_set in made["spec"]["podSets"]:
        requests = {"nvidia.com/gpu": "8", "cpu": "2"}
        pod_set["template"]["spec"]["containers"][0]["resources"] = {"requests": requests}
    plan = reconcile(look(of, begun(of), objects(admitted(made))))
    assert plan.next
    assert plan.next.phase == "Pending"
