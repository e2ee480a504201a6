"""Checks of RDMA: whether pods of pools get the network cards that nodes offer, as far as the API says it. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from allranks.api.job import API_VERSION
from allranks.api.pool import KIND
from allranks.api.validation import parse_pool
from allranks.authoring.checks.notes import names_no_interface
from allranks.cli.doctor.findings import Finding, note, ok, problem
from allranks.core.facts import pod_template, pool_template
from allranks.core.facts.model import Manifest
from allranks.core.facts.pool_template import NETWORKS
from allranks.core.facts.quantity import quantity
from allranks.errors import InvalidManifest
from allranks.text import joined

CHECK = "rdma"
PAGE = "docs/platform/networks.md"
LABEL = "feature.node.kubernetes.io/rdma.capable"
"""Node Feature Discovery sets it on nodes with a network card that can do RDMA."""
RESOURCE_OF_NETWORK = "k8s.v1.cni.cncf.io/resourceName"
"""Annotation of a NetworkAttachmentDefinition: the device that a pod of this network needs."""

_DEVICE = re.compile(r"rdma/.+|.+/.*(rdma|hca|roce|infiniband).*|.+/(efa|hostdev)", re.IGNORECASE)
"""Resources of the shared RDMA device plugin, of EFA, of NVIDIA's network operator, and usual names of SR-IOV's."""


class Network(NamedTuple):
    """A NetworkAttachmentDefinition."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def of_nodes(nodes: Sequence[Manifest]) -> Iterator[Finding]:
    """Yield which devices the nodes offer, devices that are unhealthy, and cards that no device plugin offers."""
    amounts: Counter[str] = Counter()
    holders: Counter[str] = Counter()
    for node in nodes:
        for resource, amount in _offered(node, "allocatable").items():
            amounts[resource] += amount
            holders[resource] += amount > 0
    listed = [f"{amounts[name]} {name} on {_nodes(holders[name])}" for name in sorted(amounts) if amounts[name]]
    yield ok(CHECK, ", ".join(listed) or "no node offers an RDMA device")
    for node in nodes:
        name, usable = node["metadata"]["name"], _offered(node, "allocatable")
        for resource, number in _offered(node, "capacity").items():
            if (left := usable.get(resource, 0)) < number:
                text = f"node {name}: {left} of {number} {resource} can be used, the others are unhealthy"
                yield note(
                    CHECK, text, "see the log of the device plugin on the node, and the state of the ports there"
                )
    unused = [
        node["metadata"]["name"] for node in nodes if _labels(node).get(LABEL) == "true" and not _has_device(node)
    ]
    if unused:
        text = f"{_nodes(len(unused))} with cards for RDMA (label {LABEL}) offer no device: {_first(unused)}"
        yield note(CHECK, text, f"install a device plugin for the cards: {PAGE}")


def of_pool(
    pool: Manifest, nodes: Sequence[Manifest], networks: Mapping[Network, Manifest | None] | None, namespace: str
) -> Iterator[Finding]:
    """Yield the mistakes of a pool.

    `networks`: the networks that pools name, None for one that does not exist; None if the cluster has no Multus.
    `namespace`: of jobs, for networks without one.
    """
    template = _template(pool)
    if template is None:
        return
    name, cure = pool["metadata"]["name"], f"kubectl edit trainingpool {pool['metadata']['name']}"
    selector = template["spec"].get("nodeSelector") or {}
    matching = [node for node in nodes if selector.items() <= _labels(node).items()]
    limits = (pod_template.trainer(template).get("resources") or {}).get("limits") or {}
    named = pool["spec"].get("rdma") or {}
    devices = [resource for resource in limits if resource in named or _DEVICE.fullmatch(resource)]
    requested = {resource: _number(limits[resource]) for resource in devices}
    for resource, amount in requested.items():
        yield from _requested(name, resource, amount, matching, cure)
    offered = sorted({resource for node in matching for resource, count in _offered(node).items() if count})
    if offered and limits and not requested and not _shares_node(template):
        text = f"pool {name} gives pods no RDMA device, and its nodes offer {joined(offered, 'and')}"
        yield note(CHECK, text, f"set rdma, for example {{{offered[0]}: 1}}: {cure}")
    if requested and not _locks_memory(template):
        text = (
            f"pool {name} gives pods no capability IPC_LOCK: they lock as much memory as the container runtime allows"
        )
        yield note(CHECK, text, f"set network.lockMemory: true, if NCCL cannot register memory: {PAGE}")
    if names_no_interface(template):
        text = f"pool {name} adds a network, and no variable says which interface ranks use"
        yield note(CHECK, text, f"set network.interface, for example to net1: {PAGE}")
    for network in networks_of(pool, namespace):
        yield from _network(name, network, networks, requested, cure)


def _requested(pool: str, resource: str, amount: int, nodes: Sequence[Manifest], cure: str) -> Iterator[Finding]:
    offers = [_offered(node, also=resource).get(resource, 0) for node in nodes]
    if not nodes:
        return  # the check of pools says so
    if not any(offers):
        others = sorted({name for node in nodes for name, count in _offered(node).items() if count})
        instead = f"; they offer {joined(others, 'and')}" if others else ""
        text = f"pool {pool} requests {resource}, and none of its {_nodes(len(nodes))} offers it{instead}"
        yield problem(CHECK, text, f"correct rdma: {cure}; or install the device plugin: {PAGE}")
    elif max(offers) < amount:
        text = f"pool {pool} requests {amount} {resource} for each pod, and its nodes have at most {max(offers)}"
        yield problem(CHECK, text, f"reduce the number: {cure}")
    elif few := sum(offer < amount for offer in offers):
        text = f"{few} of {_nodes(len(nodes))} of pool {pool} offer less than {amount} {resource}"
        text += ": a pod with ranks fits there only if its job requests less"
        yield note(CHECK, text, f"see the log of the device plugin there, or narrow nodeSelector: {cure}")


def _network(
    pool: str,
    network: Network,
    networks: Mapping[Network, Manifest | None] | None,
    requested: Mapping[str, int],
    cure: str,
) -> Iterator[Finding]:
    if networks is None:
        text = f"pool {pool} adds the network {network}, and the cluster does not serve NetworkAttachmentDefinitions"
        yield problem(CHECK, text, f"install Multus: {PAGE}")
        return
    if network not in networks:
        return  # it may not be read
    definition = networks[network]
    if definition is None:
        text = f"pool {pool} adds the network {network}, which does not exist"
        yield problem(CHECK, text, f"correct its name: {cure}; or create the network")
        return
    device = ((definition.get("metadata") or {}).get("annotations") or {}).get(RESOURCE_OF_NETWORK)
    if device and device not in requested:
        text = f"pods of the network {network} need a {device}, which pool {pool} does not request"
        yield note(CHECK, text, f"set rdma: {{{device}: 1}}, unless a webhook of the cluster adds it: {cure}")


def networks_of(pool: Manifest, namespace: str) -> list[Network]:
    """Return the networks that the annotation of a pool names. `namespace`: of jobs, for names without one."""
    template = _template(pool)
    text = str((((template or {}).get("metadata") or {}).get("annotations") or {}).get(NETWORKS) or "").strip()
    if text.startswith("["):
        try:
            entries = json.loads(text)
            return [Network(str(entry.get("namespace") or namespace), str(entry["name"])) for entry in entries]
        except (ValueError, KeyError, AttributeError, TypeError):
            return []  # Multus refuses the pods
    out = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        place, _, name = part.partition("@")[0].rpartition("/")
        out.append(Network(place or namespace, name))
    return out


def _template(pool: Manifest) -> Manifest | None:
    """Return the pod template of the pool for pods with ranks; None for an invalid pool, whose jobs say so."""
    try:
        spec = parse_pool({"apiVersion": API_VERSION, "kind": KIND, **pool}).spec
    except InvalidManifest:
        return None
    return None if pool_template.problems(spec) else pool_template.template_of(spec, {}, devices=True)


def _offered(node: Manifest, part: str = "allocatable", also: str = "") -> dict[str, int]:
    """Return the RDMA devices of a node. `also`: another resource to count."""
    amounts = (node.get("status") or {}).get(part) or {}
    return {name: _number(text) for name, text in amounts.items() if name == also or _DEVICE.fullmatch(name)}


def _number(text: object) -> int:
    return int(quantity(str(text)))


def _has_device(node: Manifest) -> bool:
    return any(_offered(node, "capacity").values())


def _labels(node: Manifest) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _shares_node(template: Manifest) -> bool:
    """Return whether pods may reach the cards without a device: they share the network or the devices of the node."""
    context = pod_template.trainer(template).get("securityContext") or {}
    return bool(template["spec"].get("hostNetwork")) or context.get("privileged") is True


def _locks_memory(template: Manifest) -> bool:
    context = pod_template.trainer(template).get("securityContext") or {}
    added = (context.get("capabilities") or {}).get("add") or ()
    return context.get("privileged") is True or any(name in added for name in ("IPC_LOCK", "ALL"))


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
