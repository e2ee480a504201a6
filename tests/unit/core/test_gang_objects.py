"""The PodGroup of each gang scheduler, and what pods need to belong to it, as whole objects. `test_gangs.py` in
`tests/apiserver` sends them to an API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from allranks.api.job import Job
from allranks.api.scheduling import GangStatus
from allranks.api.status import Status
from allranks.core.facts import quantity
from allranks.core.facts.model import Manifest
from allranks.core.facts.optional_kinds import (
    COSCHEDULING_POD_GROUP,
    GANGS,
    NATIVE_POD_GROUP,
    VOLCANO_POD_GROUP,
    WORKLOAD,
    OptionalKind,
    OptionalObjects,
)
from allranks.core.objects import pods as pod_manifests
from allranks.core.objects.gangs import backends, choice, members
from allranks.core.objects.queueing import manifest as queue_manifest
from support.builders import CLUSTER, Life, failed, job, observed, pod, serving, table

GPU = {"limits": {"nvidia.com/gpu": 4, "cpu": "1500m", "memory": "2Gi"}}
RESOURCES: dict[str, Any] = {"resources": GPU, "roles": {"master": 1, "worker": 3}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ELASTIC: dict[str, Any] = {"roles": {"worker": 3}, "elastic": {"minReplicas": 2, "maxReplicas": 3}}
SUM = {"cpu": "6", "memory": str(4 * 2 * 1024**3), "nvidia.com/gpu": "16"}


def made(of: Job, *kinds: OptionalKind, attempt: int = 0) -> list[Manifest]:
    """The objects of an attempt in a cluster that serves these kinds."""
    status = Status(attempt=attempt)
    status = replace(status, gang=choice.choose(of, status, CLUSTER, serving(*kinds)))
    objects = pod_manifests.objects(of, status, CLUSTER)
    return [*objects.companions, *objects.pods]


def group_of(objects: list[Manifest]) -> Manifest | None:
    return next((each for each in objects if each["kind"] == "PodGroup"), None)


def spec_of(of: Job, *kinds: OptionalKind) -> Manifest:
    group = group_of(made(of, *kinds))
    assert group is not None
    spec: Manifest = group["spec"]
    return spec


def first_pod(objects: list[Manifest]) -> Manifest:
    return next(each for each in objects if each["kind"] == "Pod")


def test_the_pod_group_belongs_to_the_job_and_to_one_attempt() -> None:
    group = group_of(made(job(), NATIVE_POD_GROUP, attempt=3))
    assert group is not None
    assert group["apiVersion"] == "scheduling.k8s.io/v1beta1"
    metadata = group["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("job-3", "team")
    assert metadata["labels"]["allranks.dev/job-name"] == "job", "the operator's watch selects by it"
    assert [(owner["kind"], owner["controller"]) for owner in metadata["ownerReferences"]] == [
        ("DistributedTraining", True)
    ]


def test_the_pod_group_is_created_before_the_pods() -> None:
    kinds = [each["kind"] for each in made(job(), NATIVE_POD_GROUP)]
    assert kinds == ["Service", "PodGroup", "Pod", "Pod"]


@table(
    (
        "native, Kubernetes 1.37",
        NATIVE_POD_GROUP,
        {"scheduling": {"priorityClassName": "high", "topology": {"required": "rack"}}},
        {
            "schedulingPolicy": {"gang": {"minCount": 4}},
            "schedulingConstraints": {"topology": [{"key": "rack"}]},
            "disruptionMode": {"all": {}},
            "priorityClassName": "high",
        },
    ),
    (
        "Volcano",
        VOLCANO_POD_GROUP,
        {
            "scheduling": {
                "gang": "Volcano",
                "priorityClassName": "high",
                "topology": {"preferred": "volcano.sh/tier-2"},
            },
            "template": {"metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "research"}}},
        },
        {
            "minMember": 4,
            "minTaskMember": {"master": 1, "worker": 3},
            "minResources": SUM,
            "queue": "research",
            "priorityClassName": "high",
            "networkTopology": {"mode": "soft", "highestTierAllowed": 2},
        },
    ),
    (
        "Coscheduling",
        COSCHEDULING_POD_GROUP,
        {"scheduling": {"gang": "Coscheduling", "gangTimeoutSeconds": 120}},
        {"minMember": 4, "scheduleTimeoutSeconds": 120},
    ),
)
def test_the_spec_of_a_pod_group(case: tuple[OptionalKind, dict[str, Any], Manifest]) -> None:
    kind, spec, expected = case
    assert spec_of(job(**RESOURCES, **spec), kind) == expected


def test_kubernetes_1_36_has_another_form_of_the_disruption_mode() -> None:
    status = Status(gang=GangStatus(backend="Native", api_version="scheduling.k8s.io/v1alpha2", min_count=2))
    group = group_of(pod_manifests.objects(job(), status, CLUSTER).companions)
    assert group
    assert group["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "disruptionMode": "PodGroup",
    }


@table(
    ("native", NATIVE_POD_GROUP, "Native", {}, {}, {"schedulingGroup": {"podGroupName": "job-0"}}),
    (
        "Volcano",
        VOLCANO_POD_GROUP,
        "Volcano",
        {},
        {"scheduling.k8s.io/group-name": "job-0", "volcano.sh/task-spec": "worker"},
        {"schedulerName": "volcano"},
    ),
    (
        "Coscheduling",
        COSCHEDULING_POD_GROUP,
        "Coscheduling",
        {"scheduling.x-k8s.io/pod-group": "job-0"},
        {},
        {"schedulerName": "scheduler-plugins-scheduler"},
    ),
    ("Kueue", WORKLOAD, "Kueue", {}, {}, {}),
)
def test_what_a_pod_needs_to_belong_to_its_group(
    case: tuple[OptionalKind, str, Mapping[str, str], Mapping[str, str], Manifest],
) -> None:
    kind, gang, labels, annotations, spec = case
    plain = first_pod(made(job(scheduling={"gang": "None"})))
    member = first_pod(made(job(scheduling={"gang": gang}), kind))
    assert member["metadata"]["labels"] == {**plain["metadata"]["labels"], **labels}
    assert member["metadata"]["annotations"] == {**plain["metadata"]["annotations"], **annotations}
    assert member["spec"] == {**plain["spec"], **spec}


def test_a_scheduler_that_the_template_names_is_kept() -> None:
    of = job(scheduling={"gang": "Volcano"}, template={"spec": {"schedulerName": "volcano-2"}})
    assert first_pod(made(of, VOLCANO_POD_GROUP))["spec"]["schedulerName"] == "volcano-2"


@table(
    ("all ranks", {"roles": {"master": 1, "worker": 3}}, {"master": 1, "worker": 3}),
    (
        "of elastic workers as many as the job needs to run",
        {"roles": {"master": 1, "worker": 3}, "elastic": {"minReplicas": 2, "maxReplicas": 4}},
        {"master": 1, "worker": 2},
    ),
    (
        "no evaluator, which the others do not need",
        {"framework": "tensorflow", "roles": {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}},
        {"chief": 1, "worker": 2, "ps": 1},
    ),
    (
        "the launcher, which is created together with its workers",
        {"framework": "mpi", "roles": {"launcher": 1, "worker": 2}},
        {"launcher": 1, "worker": 2},
    ),
)
def test_who_belongs_to_a_gang(case: tuple[dict[str, Any], dict[str, int]]) -> None:
    spec, expected = case
    of = job(**spec)
    assert members.min_by_role(of, Status()) == expected
    in_group = {
        each["metadata"]["labels"]["allranks.dev/role"]
        for each in made(of, NATIVE_POD_GROUP)
        if each["kind"] == "Pod" and "schedulingGroup" in each["spec"]
    }
    assert in_group == set(expected)


def test_an_attempt_that_shrank_needs_the_pods_that_it_has() -> None:
    life = Life(job(roles={"worker": 4}, elastic={"minReplicas": 3, "maxReplicas": 4}))
    life.optional = serving(NATIVE_POD_GROUP)
    life.settle(0)
    assert life.status.gang
    assert life.status.gang.min_count == 3


@table(
    ("ranks of one group go together", {}, {"all": {}}),
    ("an elastic job continues without a worker", ELASTIC, None),
    (
        "parameter servers are replaced alone",
        {"framework": "tensorflow", "roles": {"chief": 1, "worker": 2, "ps": 1}},
        None,
    ),
)
def test_what_a_preemption_takes(case: tuple[dict[str, Any], Manifest | None]) -> None:
    spec, expected = case
    assert spec_of(job(**spec), NATIVE_POD_GROUP).get("disruptionMode") == expected


@table(
    ("required, without a gang scheduler", {"required": "rack"}, (), "requiredDuringSchedulingIgnoredDuringExecution"),
    (
        "preferred, without a gang scheduler",
        {"preferred": "rack"},
        (),
        PREFERRED,
    ),
    (
        "preferred, natively: a PodGroup has only required constraints",
        {"preferred": "rack"},
        (NATIVE_POD_GROUP,),
        PREFERRED,
    ),
    ("required, natively", {"required": "rack"}, (NATIVE_POD_GROUP,), None),
)
def test_affinity_brings_pods_together_where_no_pod_group_does(
    case: tuple[dict[str, str], tuple[OptionalKind, ...], str | None],
) -> None:
    topology, kinds, expected = case
    objects = made(job(roles={"master": 1, "worker": 2}, scheduling={"topology": topology}), *kinds)
    for each in (each for each in objects if each["kind"] == "Pod"):
        affinity = each["spec"].get("affinity", {}).get("podAffinity", {})
        assert list(affinity) == ([expected] if expected else []), "the master as well"
        for term in affinity.get(expected, ()):
            found = term.get("podAffinityTerm", term)
            assert found == {
                "topologyKey": "rack",
                "labelSelector": {"matchLabels": {"allranks.dev/job-name": "job"}},
            }


@table(
    (
        "a master and its workers are neighbours, by index",
        {"master": 1, "worker": 3},
        {"required": "rack"},
        {"required": "rack", "podIndexLabel": "allranks.dev/index", "podSetGroupName": "job"},
    ),
    (
        "workers alone",
        {"worker": 3},
        {"preferred": "rack"},
        {"preferred": "rack", "podIndexLabel": "allranks.dev/index"},
    ),
    ("no topology", {"worker": 3}, None, None),
)
def test_the_topology_request_for_kueue(case: tuple[dict[str, int], dict[str, str] | None, Manifest | None]) -> None:
    roles, topology, expected = case
    scheduling = {"gang": "Kueue", "queue": "team"} | ({"topology": topology} if topology else {})
    of = job(roles=roles, scheduling=scheduling)
    assert backends.topology_request(of, roles) == expected
    found = queue_manifest.pod_sets(observed(of, Status()))
    assert [each.get("topologyRequest") for each in found] == [expected] * len(roles)


def test_a_queue_without_topology_gets_no_request_unless_kueue_is_the_gang() -> None:
    of = job(scheduling={"queue": "team", "topology": {"required": "rack"}})
    assert backends.topology_request(of, {"worker": 2}) is None


def test_the_affinity_of_a_template_is_kept_beside_that_of_the_topology() -> None:
    own = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "cache"}}}
    template = {"spec": {"affinity": {"podAffinity": {REQUIRED: [own]}}}}
    found = first_pod(made(job(template=template, scheduling={"topology": {"required": "rack"}})))
    terms = found["spec"]["affinity"]["podAffinity"][REQUIRED]
    assert [term["topologyKey"] for term in terms] == ["zone", "rack"]


def test_the_topology_of_volcano_tiers_needs_no_affinity_and_that_of_labels_does() -> None:
    for key, expected in (("volcano.sh/tier-2", False), ("rack", True)):
        of = job(scheduling={"gang": "Volcano", "topology": {"required": key}})
        assert ("affinity" in first_pod(made(of, VOLCANO_POD_GROUP))["spec"]) == expected


def test_a_placeholder_belongs_to_no_gang() -> None:
    for kind, gang in zip(GANGS, ("Native", "Volcano", "Coscheduling"), strict=True):
        of = job(scheduling={"gang": gang})
        bare = members.without_membership(first_pod(made(of, kind)))
        assert members.own_gang(bare) == ""
        assert bare["spec"]["containers"] == first_pod(made(of, kind))["spec"]["containers"]


def test_requests_are_added_up_as_the_scheduler_does() -> None:
    def container(cpu: str, **more: Any) -> Manifest:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    assert quantity.pod_requests({"containers": [container("500m"), container("1")]}) == {"cpu": 1.5}
    with_init = {"initContainers": [container("4")], "containers": [container("1")]}
    assert quantity.pod_requests(with_init) == {"cpu": 4}
    sidecar = {
        "initContainers": [container("1", restartPolicy="Always"), container("4")],
        "containers": [container("1")],
    }
    assert quantity.pod_requests(sidecar) == {"cpu": 5}
    limited = {"containers": [{"resources": {"limits": {"cpu": "2", "nvidia.com/gpu": 1}, "requests": {"cpu": "1"}}}]}
    assert quantity.pod_requests(limited) == {"cpu": 1, "nvidia.com/gpu": 1}
    assert quantity.pod_requests({"containers": [container("1")], "overhead": {"cpu": "250m"}}) == {"cpu": 1.25}
    assert quantity.pod_requests({"containers": [container("nonsense")]}) == {}


def test_past_pod_groups_are_deleted_and_the_last_one_at_the_end() -> None:
    life = Life(job())
    life.optional = serving(NATIVE_POD_GROUP)
    life.settle(0)
    life.run(1)
    life.pods.clear()
    life.settle(2)
    assert life.status.attempt == 1
    life.optional = serving(NATIVE_POD_GROUP, objects=[_group("job-0"), _group("job-1")])
    assert removed(life, 3) == ["job-0"]
    life.run(4)
    life.put(failed(index=0, attempt=1), pod(index=1, attempt=1))
    life.job = job(restart={"maxRestarts": 0})
    life.step(100)
    assert life.status.phase == "Failed"
    assert removed(life, 101) == [], "a pod of the attempt still runs"
    assert removed(life, 102) == ["job-1"]


def removed(life: Life, now: float) -> list[str]:
    return [each["metadata"]["name"] for each in life.step(now).remove]


def test_a_suspended_job_keeps_no_pod_group() -> None:
    life = Life(job())
    life.optional = serving(NATIVE_POD_GROUP, objects=[_group("job-0")])
    life.settle(0)
    life.job = job(suspend=True)
    life.step(1)
    assert life.status.phase == "Suspended"
    assert removed(life, 2) == ["job-0"]


def _group(name: str) -> Manifest:
    return {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name}, "spec": {}}


def test_nothing_is_deleted_without_pod_groups() -> None:
    life = Life(job())
    life.optional = OptionalObjects()
    assert life.settle(0).remove == ()
