"""Checks of a cluster: whether it serves jobs, and what jobs find there. A missing right is a note, not an error."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from allranks.api.crd import RESOURCES, differences, root_schema
from allranks.api.job import GROUP, PLURAL, VERSION
from allranks.api.pool import KIND as POOL_KIND
from allranks.api.sweep import KIND as SWEEP_KIND
from allranks.cli.doctor import rdma
from allranks.cli.doctor.findings import Finding, describe_error, not_checked, note, ok, problem
from allranks.core.facts import gpu_count
from allranks.core.facts.quantity import quantity
from allranks.errors import ClusterError
from allranks.kube import paths
from allranks.kube.cluster import Cluster, Manifest
from allranks.version import __version__

SECTION = "cluster"
CHECK_SECONDS = 15.0
"""Time limit of each check."""
OLDEST = (1, 30)
"""The Kubernetes version that the chart requires."""

INSTALL = "install the operator: docs/platform/install.md"
RIGHTS = (
    *(("distributedtrainings", verb) for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *(("pods", verb) for verb in ("list", "watch")),
    *(("pods/log", "get"), ("events", "list")),
)
"""(resource, verb) that the commands use."""
SHARED = ("nfs", "efs.csi", "filestore", "file.csi.azure", "cephfs", "lustre", "fsx", "gpfs", "spectrumscale", "weka")
"""Parts of the names of provisioners whose volumes usually can be mounted on several nodes (ReadWriteMany)."""

Check = Callable[[Cluster], Awaitable[Sequence[Finding]]]


async def check_cluster(cluster: Cluster) -> AsyncIterator[Finding]:
    """Yield all findings. Without an answer of the API server the other checks are left out."""
    findings, answered = await _server(cluster)
    for finding in findings:
        yield finding
    if not answered:
        yield not_checked("cluster", "the API server must answer first")
        return
    checks = [asyncio.create_task(_limited(name, check, cluster)) for name, check in CHECKS.items()]
    for check in checks:
        for finding in await check:
            yield finding


async def _limited(name: str, check: Check, cluster: Cluster) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check(cluster)
    except TimeoutError:
        return [not_checked(name, f"there was no answer within {CHECK_SECONDS:g} s")]
    except _Denied as error:
        return [not_checked(name, f"no right to {error}")]
    except Exception as error:  # a check must not hide the others
        return [not_checked(name, describe_error(error))]


class _Denied(Exception):
    """The API server denies the request. `str()` is the missing right."""


async def _get(cluster: Cluster, path: str, right: str, **query: str) -> Manifest | None:
    """Return the answer; None if the API server does not have it. Raise _Denied and ClusterError."""
    try:
        return await cluster.get(path, query)
    except ClusterError as error:
        if error.status == 403:
            raise _Denied(right) from error
        if error.status == 404:
            return None
        raise


async def _items(cluster: Cluster, path: str, right: str, **query: str) -> list[Manifest]:
    answer = await _get(cluster, path, right, **query)
    return list(answer["items"]) if answer else []


# --- the API server --------------------------------------------------------------------------------------------------


async def _server(cluster: Cluster) -> tuple[list[Finding], bool]:
    """Return the findings, and whether the API server answers."""
    connection = cluster.client.connection
    place = f"{connection.url} (context {connection.context})" if connection.context else connection.url
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            version = await cluster.get("/version")
    except TimeoutError:
        cure = "check the network, the VPN and the proxy"
        return [problem("api server", f"{place} does not answer within {CHECK_SECONDS:g} s", cure)], False
    except ClusterError as error:
        if error.status == 403:  # it answers, and only hides its version
            return [not_checked("api server", f"no right to read the version of {place}")], True
        text, _, cure = str(error).rpartition(": ")
        return [problem("api server", text, cure) if text else problem("api server", cure, "see the message")], False
    git = str(version.get("gitVersion", ""))
    number = re.match(r"v?(\d+)\.(\d+)", git)
    if number and (int(number[1]), int(number[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return [problem("api server", f"{place} is Kubernetes {git}", f"upgrade it: allranks needs {oldest}")], True
    return [ok("api server", f"{place} is Kubernetes {git}, namespace {cluster.namespace}")], True


# --- allranks --------------------------------------------------------------------------------------------------------


async def _crds(cluster: Cluster) -> list[Finding]:
    out = []
    for kind, resource in RESOURCES.items():
        right = "read customresourcedefinitions"
        resource_definition = await _get(cluster, f"{paths.CRDS}/{resource.plural}.{GROUP}", right)
        out.append(_crd(kind, resource.plural, resource_definition))
    return out


_OPTIONAL = {POOL_KIND: "jobs cannot name a pool", SWEEP_KIND: "sweeps run only with allranks sweep, on one machine"}
"""Kind -> what does not work without it."""


def _crd(kind: str, plural: str, crd: Manifest | None) -> Finding:
    apply = f"kubectl apply --server-side -f crds/{plural}.yaml, or upgrade the Helm release"
    if crd is None:
        if kind in _OPTIONAL:
            return note("crds", f"{kind} is not installed: {_OPTIONAL[kind]}", apply)
        return problem("crds", f"{kind} is not installed: the cluster does not accept jobs", INSTALL)
    label = (crd["metadata"].get("labels") or {}).get("app.kubernetes.io/version")
    version = f" (version {label})" if label else ""
    schemas = [v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == VERSION]
    if not schemas:
        return problem("crds", f"{kind}{version} does not serve {VERSION}, which this client uses", apply)
    if older := list(differences(root_schema(kind), schemas[0], kind)):
        return problem("crds", f"{kind}{version} is older than this client: it has no {_at_most_three(older)}", apply)
    if newer := list(differences(schemas[0], root_schema(kind), kind)):
        text = f"{kind}{version} is newer than this client, which has no {_at_most_three(newer)}"
        return note("crds", text, "install the version of allranks that the cluster has")
    return ok("crds", f"{kind}{version} has the fields of this client")


async def _operator(cluster: Cluster) -> list[Finding]:
    labels = "app.kubernetes.io/part-of=allranks,app.kubernetes.io/component=operator"
    deployments = await _items(
        cluster, "/apis/apps/v1/deployments", "list deployments in all namespaces", labelSelector=labels
    )
    if not deployments:
        return [problem("operator", "no Deployment of the operator: jobs are accepted, but nothing runs them", INSTALL)]
    return [_deployment(item) for item in deployments]


def _deployment(item: Manifest) -> Finding:
    meta, status = item["metadata"], item.get("status") or {}
    name = f"{meta['namespace']}/{meta['name']}"
    version = (meta.get("labels") or {}).get("app.kubernetes.io/version") or "unknown"
    replicas, ready = item["spec"].get("replicas", 1), status.get("readyReplicas", 0)
    text = f"{name}, version {version}, {ready}/{replicas} replicas ready"
    if not ready:
        where = f"-n {meta['namespace']}"
        cure = f"kubectl {where} describe deployment {meta['name']}; kubectl {where} logs deployment/{meta['name']}"
        return problem("operator", f"{text}: nothing runs the jobs", cure)
    if version != __version__:
        return note("operator", f"{text}; this client is {__version__}", "use the same version of both")
    return ok("operator", text)


async def _rights(cluster: Cluster) -> list[Finding]:
    allowed = await asyncio.gather(*(_may(cluster, resource, verb) for resource, verb in RIGHTS))
    missing = [right for right, may in zip(RIGHTS, allowed, strict=True) if not may]
    where = f"in namespace {cluster.namespace}"
    if not missing:
        return [ok("rights", f"you may create, watch and delete jobs, and read pods, logs and events {where}")]
    cure = f"ask an admin to bind the ClusterRole edit to you {where}; choose another namespace with -n"
    denied = ", ".join(f"{verb} {resource}" for resource, verb in missing)
    if all((PLURAL, verb) in missing for verb in ("create", "get", "list")):
        return [problem("rights", f"you have no rights for jobs {where}: {denied}", cure)]
    return [note("rights", f"you may not {denied} {where}", cure)]


async def _may(cluster: Cluster, resource: str, verb: str) -> bool:
    plural, _, sub = resource.partition("/")
    attributes = {"namespace": cluster.namespace, "verb": verb, "resource": plural, "subresource": sub}
    attributes["group"] = GROUP if plural == PLURAL else ""
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    answer = await cluster.request(
        "POST", paths.SELF_ACCESS_REVIEWS, body={**body, "spec": {"resourceAttributes": attributes}}
    )
    return bool(answer["status"]["allowed"])


# --- what jobs find --------------------------------------------------------------------------------------------------


async def _nodes(cluster: Cluster) -> list[Finding]:
    nodes = await _items(cluster, paths.core_path(None, "nodes"), "list nodes")
    ready = [node for node in nodes if _is_ready(node)]
    text = f"{len(ready)} of {len(nodes)} nodes are ready"
    if not ready:
        return [problem("nodes", text, "kubectl describe nodes names the reason")]
    gpus: Counter[str] = Counter()
    holders: Counter[str] = Counter()
    for node in ready:
        for resource, amount in ((node.get("status") or {}).get("allocatable") or {}).items():
            if gpu_count.is_gpu(resource) and (count := int(quantity(str(amount)))):
                gpus[resource] += count
                holders[resource] += 1
    if not gpus:
        cure = "if there should be some, install the vendor's device plugin, for example the NVIDIA GPU Operator"
        return [note("nodes", f"{text}; none has GPUs", cure)]
    listed = ", ".join(f"{count} {name} on {_nodes_text(holders[name])}" for name, count in sorted(gpus.items()))
    return [ok("nodes", f"{text}; {listed}")]


def _nodes_text(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def _is_ready(node: Manifest) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


async def _pools(cluster: Cluster) -> list[Finding]:
    pools = await _items(cluster, paths.pools(), "list trainingpools")
    if not pools:
        return [ok("pools", "there is no TrainingPool")]
    try:
        nodes = await _items(cluster, paths.core_path(None, "nodes"), "list nodes")
    except _Denied as error:
        names = ", ".join(pool["metadata"]["name"] for pool in pools)
        return [not_checked("pools", f"no right to {error}; there are {names}")]
    return [_pool(pool, nodes) for pool in pools]


def _pool(pool: Manifest, nodes: Sequence[Manifest]) -> Finding:
    name, selector = pool["metadata"]["name"], (pool.get("spec") or {}).get("nodeSelector") or {}
    labels = [node["metadata"].get("labels") or {} for node in nodes]
    count = sum(1 for node_labels in labels if selector.items() <= node_labels.items())
    if not count:
        selected = ", ".join(f"{key}={value}" for key, value in selector.items())
        cure = f"label the nodes, or change nodeSelector: kubectl edit trainingpool {name}"
        return problem("pools", f"{name} matches no node: none has {selected}", cure)
    return ok("pools", f"{name} matches {_nodes_text(count)}")


async def _rdma(cluster: Cluster) -> list[Finding]:
    nodes = await _items(cluster, paths.core_path(None, "nodes"), "list nodes")
    findings = list(rdma.of_nodes(nodes))
    try:
        pools = await _items(cluster, paths.pools(), "list trainingpools")
        places = {network for pool in pools for network in rdma.networks_of(pool, cluster.namespace)}
        served = not places or await _serves(cluster, _NETWORKS_GROUP)
    except _Denied as error:
        return [*findings, not_checked(rdma.CHECK, f"no right to {error}")]
    networks: dict[rdma.Network, Manifest | None] = {}
    for place in sorted(places) if served else ():
        try:
            networks[place] = await _get(cluster, _NETWORK.format(place), f"read the network {place}")
        except _Denied as error:
            findings.append(not_checked(rdma.CHECK, f"no right to {error}"))
    for pool in pools:
        findings += rdma.of_pool(pool, nodes, networks if served else None, cluster.namespace)
    return findings


_NETWORKS_GROUP = "k8s.cni.cncf.io"
_NETWORK = f"/apis/{_NETWORKS_GROUP}/v1/namespaces/{{0.namespace}}/network-attachment-definitions/{{0.name}}"


async def _storage(cluster: Cluster) -> list[Finding]:
    classes = await _items(cluster, "/apis/storage.k8s.io/v1/storageclasses", "list storageclasses")
    cure = "name a class in spec.storageClassName of claims, or ask an admin for a default class"
    if not classes:
        return [note("storage", "there is no StorageClass: claims need volumes that an admin creates", cure)]
    names = [_storage_class(item) for item in classes]
    text = ", ".join(names)
    if not any("(default" in name or ", default" in name for name in names):
        return [note("storage", f"{text}; none is the default", cure)]
    if not any(_is_shared(item) for item in classes):
        text += "; none is of a kind that usually can be mounted on several nodes (ReadWriteMany)"
        return [
            note(
                "storage", text, "for checkpoints of jobs on several nodes, use NFS, CephFS, EFS, Filestore or similar"
            )
        ]
    return [ok("storage", text)]


def _storage_class(item: Manifest) -> str:
    annotations = item["metadata"].get("annotations") or {}
    default = annotations.get("storageclass.kubernetes.io/is-default-class") == "true"
    facts = [
        item.get("provisioner") or "",
        *(["default"] if default else []),
        *(["shared"] if _is_shared(item) else []),
    ]
    return f"{item['metadata']['name']} ({', '.join(facts)})"


def _is_shared(item: Manifest) -> bool:
    return any(part in str(item.get("provisioner")) for part in SHARED)


async def _dns(cluster: Cluster) -> list[Finding]:
    path = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
    selector = "kubernetes.io/service-name=kube-dns"
    slices = await _items(cluster, path, "list endpointslices in namespace kube-system", labelSelector=selector)
    if not slices:
        return [not_checked("dns", "there is no Service kube-dns in kube-system (OpenShift has its own)")]
    endpoints = [endpoint for part in slices for endpoint in part.get("endpoints") or ()]
    ready = sum(1 for endpoint in endpoints if (endpoint.get("conditions") or {}).get("ready", True))
    if not ready:
        cure = "kubectl -n kube-system get pods -l k8s-app=kube-dns"
        return [problem("dns", "kube-dns has no ready endpoint: ranks cannot find one another", cure)]
    return [ok("dns", f"kube-dns has {ready} ready endpoint{'s' * (ready != 1)}")]


async def _kueue(cluster: Cluster) -> list[Finding]:
    version = await _serves(cluster, "kueue.x-k8s.io")
    return [ok("kueue", f"installed ({version})" if version else "not installed")]


async def _serves(cluster: Cluster, group: str) -> str:
    """Return the preferred version of an API group; empty if the cluster does not serve it."""
    groups = await _get(cluster, paths.GROUPS, "read the API groups")
    versions = {item["name"]: item["preferredVersion"]["version"] for item in (groups or {}).get("groups", ())}
    return str(versions.get(group, ""))


def _at_most_three(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


CHECKS: dict[str, Check] = {
    "crds": _crds,
    "operator": _operator,
    "rights": _rights,
    "nodes": _nodes,
    "pools": _pools,
    "rdma": _rdma,
    "storage": _storage,
    "dns": _dns,
    "kueue": _kueue,
}
