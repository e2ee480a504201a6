"""What `allranks doctor` says about RDMA: devices of nodes, pools that do not get them, networks of Multus."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from allranks.cli.doctor import cluster as of_cluster
from allranks.cli.doctor import rdma
from allranks.cli.doctor.findings import Finding
from allranks.cli.doctor.rdma import Network
from support.builders import table

from .test_doctor import FakeCluster

HCA = "rdma/hca"
EDIT = "kubectl edit trainingpool h200"


def node(name: str = "a", devices: int | None = None, usable: int | None = None, **labels: str) -> dict[str, Any]:
    """A node of the pool with GPUs. `usable`: of its RDMA devices, all of them by default."""
    gpus = {"nvidia.com/gpu": "8"}
    offered = {} if devices is None else {HCA: str(devices)}
    allocatable = offered if usable is None else {HCA: str(usable)}
    status = {"capacity": gpus | offered, "allocatable": gpus | allocatable}
    return {"metadata": {"name": name, "labels": {"pool": "h200", **labels}}, "status": status}


def pool(**spec: Any) -> dict[str, Any]:
    fields = {"nodeSelector": {"pool": "h200"}, "gpu": {"count": 8}, **spec}
    return {"metadata": {"name": "h200"}, "spec": fields}


def template(networks: str = "", **context: Any) -> dict[str, Any]:
    annotations = {"k8s.v1.cni.cncf.io/networks": networks} if networks else {}
    trainer = {"name": "trainer", "securityContext": context}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [trainer]}}


LOCKS = template(capabilities={"add": ["IPC_LOCK"]})
GOOD = {"rdma": {HCA: 1}, "template": LOCKS}


def texts(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.status, finding.message) for finding in findings]


@table(
    ("none", [node()], [("ok", "no node offers an RDMA device")]),
    ("some", [node(devices=8), node("b", 8), node("c")], [("ok", "16 rdma/hca on 2 nodes")]),
    (
        "unhealthy ones",
        [node(devices=8, usable=6)],
        [
            ("ok", "6 rdma/hca on 1 node"),
            ("note", "node a: 6 of 8 rdma/hca can be used, the others are unhealthy"),
        ],
    ),
    (
        "cards without a device plugin",
        [node(name, **{rdma.LABEL: "true"}) for name in "abcde"],
        [
            ("ok", "no node offers an RDMA device"),
            ("note", f"5 nodes with cards for RDMA (label {rdma.LABEL}) offer no device: a, b, c and 2 more"),
        ],
    ),
)
def test_devices_of_nodes(case):
    nodes, expected = case
    assert texts(list(rdma.of_nodes(nodes))) == expected


@pytest.mark.parametrize(
    "name", ["rdma/hca_shared", "vpc.amazonaws.com/efa", "openshift.io/mlx_rdma", "nvidia.com/hostdev"]
)
def test_names_of_devices(name: str) -> None:
    offers = {"metadata": {"name": "a"}, "status": {"allocatable": {name: "2", "nvidia.com/gpu": "8", "cpu": "64"}}}
    [found] = rdma.of_nodes([offers])
    assert found.message == f"2 {name} on 1 node"


NONE = "pool h200 requests rdma/hca, and none of its 1 node offers it"


@table(
    ("as it should be", GOOD, [node(devices=8)], []),
    ("on nodes that do not exist", GOOD, [], []),
    ("without RDMA anywhere", {}, [node()], []),
    ("of processors", {"gpu": None}, [node(devices=8)], []),
    ("no node offers the device", GOOD, [node()], [("problem", NONE)]),
    (
        "another name",
        {"rdma": {"rdma/cx7": 1}, "template": LOCKS},
        [node(devices=8)],
        [("problem", "pool h200 requests rdma/cx7, and none of its 1 node offers it; they offer rdma/hca")],
    ),
    (
        "more than a node has",
        {"rdma": {HCA: 8}, "template": LOCKS},
        [node(devices=1)],
        [("problem", "pool h200 requests 8 rdma/hca for each pod, and its nodes have at most 1")],
    ),
    (
        "some nodes without it",
        GOOD,
        [node(devices=8), node("b")],
        [
            (
                "note",
                "1 of 2 nodes of pool h200 offer less than 1 rdma/hca: a pod with ranks fits there only if its job "
                "requests less",
            )
        ],
    ),
    (
        "not requested",
        {},
        [node(devices=8)],
        [("note", "pool h200 gives pods no RDMA device, and its nodes offer rdma/hca")],
    ),
    ("not requested, in privileged pods", {"template": template(privileged=True)}, [node(devices=8)], []),
    (
        "memory cannot be locked",
        {"rdma": {HCA: 1}},
        [node(devices=8)],
        [
            (
                "note",
                "pool h200 gives pods no capability IPC_LOCK: they lock as much memory as the container runtime allows",
            )
        ],
    ),
    ("with lockMemory", {"rdma": {HCA: 1}, "network": {"lockMemory": True}}, [node(devices=8)], []),
    ("an invalid pool", {"rdma": 5}, [node()], []),
)
def test_mistakes_of_a_pool(case):
    spec, nodes, expected = case
    fields = {name: value for name, value in pool(**spec)["spec"].items() if value is not None}
    of = {"metadata": {"name": "h200"}, "spec": fields}
    assert texts(list(rdma.of_pool(of, nodes, {}, "team"))) == expected


@table(
    ("none", "", []),
    ("of the job's namespace", "net1", [("team", "net1")]),
    ("several, with interfaces", " infra/ib@net1, net2 ", [("infra", "ib"), ("team", "net2")]),
    ("as JSON", json.dumps([{"name": "ib", "namespace": "infra"}, {"name": "b"}]), [("infra", "ib"), ("team", "b")]),
    ("broken", "[{", []),
)
def test_the_networks_of_a_pool(case):
    annotation, expected = case
    in_field = pool(network={"attachments": ["infra/ib@net1"]}, template=template(annotation))
    assert rdma.networks_of(in_field, "team") == (expected if annotation else [("infra", "ib")])
    assert rdma.networks_of(pool(template=template(annotation)), "team") == expected


IB = Network("infra", "ib")
WITH_DEVICE = {"metadata": {"annotations": {rdma.RESOURCE_OF_NETWORK: HCA}}}
GLOO = [{"name": "GLOO_SOCKET_IFNAME", "value": "net1"}]


@table(
    ("there", {IB: {}}, {"env": GLOO}, []),
    (
        "no Multus",
        None,
        {"env": GLOO},
        [("problem", "pool h200 adds the network infra/ib, and the cluster does not serve")],
    ),
    ("missing", {IB: None}, {"env": GLOO}, [("problem", "pool h200 adds the network infra/ib, which does not exist")]),
    ("not readable", {}, {"env": GLOO}, []),
    ("no interface", {IB: {}}, {}, [("note", "pool h200 adds a network, and no variable says which interface ranks")]),
    (
        "its device",
        {IB: WITH_DEVICE},
        {"env": GLOO},
        [("note", "pods of the network infra/ib need a rdma/hca, which pool h200 does not request")],
    ),
)
def test_mistakes_of_networks(case):
    networks, fields, expected = case
    of = pool(template=template("infra/ib"), **fields)
    found = texts(list(rdma.of_pool(of, [node()], networks, "team")))
    assert [
        (status, text[: len(start)]) for (status, text), (_, start) in zip(found, expected, strict=True)
    ] == expected


def checked(**answers: Any) -> list[tuple[str, str]]:
    """The findings about a pool with a network; the keys are nodes, pools, groups and network."""
    groups = {"groups": [{"name": "k8s.cni.cncf.io", "preferredVersion": {"version": "v1"}}]}
    paths = {
        "/api/v1/nodes": answers.get("nodes", {"items": [node(devices=8)]}),
        "/apis/allranks.dev/v1alpha1/trainingpools": answers.get(
            "pools", {"items": [pool(**GOOD | {"template": template("infra/ib", privileged=True), "env": GLOO})]}
        ),
        "/apis": answers.get("groups", groups),
        "/apis/k8s.cni.cncf.io/v1/namespaces/infra/network-attachment-definitions/ib": answers.get("network", {}),
    }
    return texts(list(asyncio.run(of_cluster._rdma(FakeCluster(paths)))))  # type: ignore[arg-type]


OFFERED = ("ok", "8 rdma/hca on 1 node")


@table(
    ("as it should be", {}, [OFFERED]),
    (
        "no network",
        {"network": 404},
        [OFFERED, ("problem", "pool h200 adds the network infra/ib, which does not exist")],
    ),
    (
        "no right to read it",
        {"network": 403},
        [OFFERED, ("note", "not checked: no right to read the network infra/ib")],
    ),
    ("no right for pools", {"pools": 403}, [OFFERED, ("note", "not checked: no right to list trainingpools")]),
    ("no pool", {"pools": {"items": []}, "groups": 500}, [OFFERED]),
    (
        "no Multus",
        {"groups": {"groups": []}},
        [
            OFFERED,
            (
                "problem",
                "pool h200 adds the network infra/ib, and the cluster does not serve NetworkAttachmentDefinitions",
            ),
        ],
    ),
)
def test_the_check_reads_only_what_pools_name(case):
    answers, expected = case
    assert checked(**answers) == expected
