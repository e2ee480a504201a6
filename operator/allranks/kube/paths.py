"""Paths of the API: of each kind's collection and of single objects."""

from __future__ import annotations

from allranks.api.job import GROUP, PLURAL, VERSION

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
    """The path of a job, or of all jobs of a namespace; no namespace means all namespaces."""
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


def jobs(namespace: str | None) -> str:
    return job_path(namespace)


def job(namespace: str, name: str) -> str:
    return job_path(namespace, name)


def pools() -> str:
    return _path(GROUP_VERSION, None, "trainingpools")


def namespace(name: str) -> str:
    return _path("/api/v1", name)


def lease(namespace: str, name: str = "") -> str:
    return _path("/apis/coordination.k8s.io/v1", namespace, "leases", name)
