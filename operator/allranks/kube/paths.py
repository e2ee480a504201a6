"""Paths of the API: of each kind's collection and of single objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.api.job import GROUP, PLURAL, VERSION
from allranks.core.facts.optional_kinds import BY_ID, OptionalKind, kind_of

_COLLECTIONS = {"Pod": "pods", "Service": "services", "ConfigMap": "configmaps", "Secret": "secrets", "Event": "events"}
_OTHER_GROUPS = {
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
}

GROUPS = "/apis"
GROUP_VERSION = f"/apis/{GROUP}/{VERSION}"
"""Here the API server lists the resources of our group that it serves."""
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
SELF_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


def job_path(namespace: str | None, name: str = "", subresource: str = "") -> str:
    """Return the path of a job, or of all jobs of a namespace; no namespace means all namespaces."""
    return _path(GROUP_VERSION, namespace, PLURAL, name, subresource)


def core_path(namespace: str | None, plural: str, name: str = "", subresource: str = "") -> str:
    return _path("/api/v1", namespace, plural, name, subresource)


def _path(base: str, namespace: str | None, *parts: str) -> str:
    scope = ("namespaces", namespace) if namespace else ()
    return "/".join(part for part in (base, *scope, *parts) if part)


def collection(kind: str, namespace: str | None) -> str:
    return item(kind, namespace)


def item(kind: str, namespace: str | None, name: str = "") -> str:
    base, plural = _OTHER_GROUPS.get(kind) or ("/api/v1", _COLLECTIONS[kind])
    return _path(base, namespace, plural, name)


def optional(kind: OptionalKind, version: str, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """Return the path of objects of an optional kind in that version; no namespace means all namespaces."""
    scope = namespace if kind.namespaced else None
    return _path(f"/apis/{kind.group}/{version}", scope, kind.plural, name, subresource)


def group_version(kind: OptionalKind, version: str) -> str:
    """Return the path at which the API server lists the resources of a version."""
    return f"/apis/{kind.group}/{version}"


def collection_of(manifest: Mapping[str, Any]) -> str:
    """Return the path to which an object is posted."""
    if kind := BY_ID.get(kind_of(manifest)):
        return optional(kind, _version(manifest), manifest["metadata"].get("namespace"))
    return collection(manifest["kind"], manifest["metadata"]["namespace"])


def item_of(manifest: Mapping[str, Any], subresource: str = "") -> str:
    """Return the path of an object."""
    metadata = manifest["metadata"]
    if kind := BY_ID.get(kind_of(manifest)):
        return optional(kind, _version(manifest), metadata.get("namespace"), metadata["name"], subresource)
    return item(manifest["kind"], metadata["namespace"], metadata["name"])


def _version(manifest: Mapping[str, Any]) -> str:
    version: str = manifest["apiVersion"].rpartition("/")[2]
    return version


def pools() -> str:
    return _path(GROUP_VERSION, None, "trainingpools")


def sweeps(namespace: str | None, name: str = "", subresource: str = "") -> str:
    """Return the path of a sweep, or of all sweeps of a namespace; no namespace means all namespaces."""
    return _path(GROUP_VERSION, namespace, "trainingsweeps", name, subresource)


def namespace(name: str) -> str:
    return _path("/api/v1", name)


def lease(namespace: str, name: str = "") -> str:
    return _path("/apis/coordination.k8s.io/v1", namespace, "leases", name)
