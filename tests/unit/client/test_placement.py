"""Room for pods on nodes, by the rules of kube-scheduler."""

from __future__ import annotations

from typing import Any

from allranks.client.placement import Node, Rooms, admits, requests_of, unchecked
from support.builders import table

GPU = "nvidia.com/gpu"


def node(name: str = "a", gpus: int = 8, cpu: str = "32", **spec: Any) -> Node:
    labels = spec.pop("labels", {})
    ready = spec.pop("ready", "True")
    made = Node.read(
        {
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {
                "allocatable": {GPU: str(gpus), "cpu": cpu, "memory": "64Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": ready}],
            },
        }
    )
    assert made
    return made


def pod(gpus: int = 0, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    limits = {GPU: str(gpus)} if gpus else {}
    return {"containers": [{"name": "trainer", "resources": {"limits": limits, "requests": {"cpu": cpu}}}], **spec}


def required(*expressions: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "no", "operator": "Exists"}]}, term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}


@table(
    ("nothing is asked", {}, {}, True),
    ("a selector matches", {"labels": {"gpu": "h100", "zone": "a"}}, {"nodeSelector": {"gpu": "h100"}}, True),
    ("a selector does not", {"labels": {"gpu": "a100"}}, {"nodeSelector": {"gpu": "h100"}}, False),
    ("a taint", {"taints": [TAINT]}, {}, False),
    ("a soft taint", {"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, {}, True),
    ("tolerated by Exists", {"taints": [TAINT]}, {"tolerations": [{"key": GPU, "operator": "Exists"}]}, True),
    ("all taints are tolerated", {"taints": [TAINT]}, {"tolerations": [{"operator": "Exists"}]}, True),
    ("tolerated by value", {"taints": [TAINT]}, {"tolerations": [{"key": GPU, "value": "present"}]}, True),
    ("another value", {"taints": [TAINT]}, {"tolerations": [{"key": GPU, "value": "absent"}]}, False),
    (
        "another effect",
        {"taints": [TAINT]},
        {"tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoExecute"}]},
        False,
    ),
    (
        "affinity In",
        {"labels": {"zone": "b"}},
        {"affinity": required({"key": "zone", "operator": "In", "values": ["a", "b"]})},
        True,
    ),
    (
        "affinity NotIn",
        {"labels": {"zone": "b"}},
        {"affinity": required({"key": "zone", "operator": "NotIn", "values": ["b"]})},
        False,
    ),
    (
        "affinity Gt",
        {"labels": {"memory": "80"}},
        {"affinity": required({"key": "memory", "operator": "Gt", "values": ["40"]})},
        True,
    ),
    ("affinity DoesNotExist", {}, {"affinity": required({"key": "bad", "operator": "DoesNotExist"})}, True),
    (
        "the name of the node",
        {},
        {"affinity": required(fields=({"key": "metadata.name", "operator": "NotIn", "values": ["a"]},))},
        False,
    ),
)
def test_a_node_admits_a_pod_by_selector_affinity_and_taints(case: Any) -> None:
    of_node, of_pod, expected = case
    assert admits(node(**of_node), pod(**of_pod)) is expected


def test_a_node_that_is_not_ready_or_cordoned_takes_no_pods() -> None:
    manifest = {"metadata": {"name": "a"}, "spec": {"unschedulable": True}, "status": {"conditions": []}}
    assert Node.read(manifest) is None
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert Node.read({**manifest, "status": ready}) is None
    assert (
        Node.read({**manifest, "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}) is None
    )
    assert Node.read({**manifest, "spec": {}, "status": ready}) is not None


def test_pods_of_a_kind_are_counted_on_all_nodes_up_to_their_number() -> None:
    rooms = Rooms([node("a"), node("b"), node("small", gpus=2), node("tainted", taints=[TAINT])])
    assert [rooms.count(pod(gpus=4), 10), rooms.count(pod(gpus=4), 3), rooms.count(pod(gpus=2), 99)] == [4, 3, 9]
    rooms.take("a", requests_of(pod(gpus=5)))
    rooms.take("elsewhere", requests_of(pod(gpus=5)))
    assert [rooms.count(pod(gpus=4), 10), rooms.count(pod(gpus=9), 1), rooms.count(pod(cpu="40"), 1)] == [2, 0, 0]
    assert Rooms([node(cpu="1")]).count(pod(cpu="100m"), 99) == 10


def test_pods_of_several_kinds_find_room_the_largest_first() -> None:
    nodes = [node("a", gpus=8), node("b", gpus=4)]
    assert Rooms(nodes).place([(pod(gpus=2), 2), (pod(gpus=8), 1)])
    assert not Rooms(nodes).place([(pod(gpus=2), 3), (pod(gpus=8), 1)])
    assert not Rooms(nodes).place([(pod(gpus=5), 2)])


def test_fields_that_are_not_compared_are_named() -> None:
    anti = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]},
        "podAffinity": {"preferred": []},
    }
    spread = [{"whenUnsatisfiable": "DoNotSchedule"}]
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    assert unchecked(pod()) == []
    assert unchecked(pod(affinity=anti, topologySpreadConstraints=spread, volumes=volumes)) == [
        "affinity.podAntiAffinity",
        "topologySpreadConstraints",
        "volumes",
    ]
