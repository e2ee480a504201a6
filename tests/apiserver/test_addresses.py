"""Which addresses the host name of a rank has: from the EndpointSlices that Kubernetes' own controller writes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from allranks.core.facts.model import Manifest
from support import live
from support.api import Api
from support.controlplane import ControlPlane
from support.kubelet import Hand
from support.live import eventually, job
from support.simulator import pod_status

PS = "demo-ps-0-0"
"""The host name of the parameter server, which TF_CONFIG of all other ranks contains."""
SIDECAR = {"spec": {"containers": [{"name": "logs", "image": "example.org/logs:1"}]}}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("template", "addresses"),
    [
        pytest.param({}, {"10.1.0.2"}, id="one address"),
        pytest.param(SIDECAR, {"10.1.0.1", "10.1.0.2"}, id="two beside a sidecar, whose state is no sign of the rank"),
    ],
)
def test_a_parameter_server_that_replaces_one_on_a_lost_node(
    template: Manifest, addresses: set[str], control_plane: ControlPlane, namespace: str
) -> None:
    if control_plane.has_nodes:
        pytest.skip("plays the nodes itself")
    api, connection = control_plane.api, live.connection(control_plane)
    hand = Hand(api, namespace, lambda: datetime.now(UTC).replace(microsecond=0), lambda _: datetime.max)
    nodes = [f"{namespace}-{node}" for node in ("first", "second")]
    for node in nodes:
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    try:
        with control_plane.controllers("endpointslice-controller"), live.operator(connection, namespace):
            roles = {role: {"replicas": 1} for role in ("chief", "worker", "ps")}
            api.create(job(framework="tensorflow", roles=roles, template=template), namespace)
            for role in ("chief", "worker", "ps"):
                eventually(lambda pod=f"demo-{role}-0-0": api.find("Pod", namespace, pod))
            for number, role in enumerate(("ps", "chief", "worker")):
                start(hand, f"demo-{role}-0-0", nodes[number > 0], f"10.1.0.{(1, 8, 9)[number]}")
            eventually(lambda: published(api, namespace, PS) == {"10.1.0.1"}, what="the first address")
            hand.lose(nodes[0])
            eventually(lambda: api.find("Pod", namespace, f"{PS}-1"))
            assert api.get("Pod", namespace, PS)["metadata"]["deletionTimestamp"], "it stays Terminating"
            start(hand, f"{PS}-1", nodes[1], "10.1.0.2")
            eventually(lambda: "10.1.0.2" in published(api, namespace, PS), what="the address of the new pod")
            assert published(api, namespace, PS) == addresses
    finally:
        for node in nodes:
            api.delete("Node", None, node)


def start(hand: Hand, pod: str, node: str, address: str) -> None:
    addresses = {"podIP": address, "podIPs": [{"ip": address}]}
    hand.place(pod, node)
    hand.set_status(pod, lambda found, now: pod_status.running(found, now) | addresses)


def published(api: Api, namespace: str, hostname: str) -> set[str]:
    """The addresses of a host name in cluster DNS, which leaves out endpoints that are not ready."""
    slices = api.request("GET", f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")["items"]
    return {
        address
        for found in slices
        for endpoint in found["endpoints"] or ()
        if endpoint.get("hostname") == hostname and endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    }
