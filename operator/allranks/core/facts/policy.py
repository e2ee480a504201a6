"""Defaults and limits of the platform team for jobs: the operator's settings, and annotations of a Namespace.

The author of a job cannot change either: editing a Namespace is a right of cluster administrators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from allranks.api.job import GROUP, Job
from allranks.errors import AllranksError

ANNOTATION_PREFIX = f"policy.{GROUP}/"
_LONGEST = 315_360_000
"""Ten years, the bound of `ttlSecondsAfterFinished` and `activeDeadlineSeconds`."""


class InvalidPolicy(AllranksError):
    """An annotation of a Namespace that cannot be read. Its jobs wait until it is corrected."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Defaults and limits for the jobs of one namespace; None: not set. Levels of pod security are in
    `pod_security.LEVELS`."""

    default_ttl_seconds_after_finished: int | None = None
    default_active_deadline_seconds: int | None = None
    default_pool: str | None = None
    default_run_as_user: int | None = None
    default_pod_security: str = "Auto"
    max_active_deadline_seconds: int | None = None
    max_pods: int | None = None
    """Pods of a job: of all roles, with as many workers as an elastic job may have."""
    allowed_pools: tuple[str, ...] | None = None
    image_prefixes: tuple[str, ...] | None = None
    max_pod_security: str = "Image"
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False)
    """Field -> where it is set, for messages, if that is not the operator's setting of the same name."""

    def pools_of(self, job: Job) -> frozenset[str | None]:
        """Return the TrainingPools of the roles of a job; None for roles without."""
        return frozenset(job.spec.pool_of(role) or self.default_pool for role in job.spec.roles)

    def source(self, name: str) -> str:
        return self.sources.get(name, f"the operator's setting `{name}`")


def for_namespace(base: Policy, namespace: str, annotations: Mapping[str, str]) -> Policy:
    """Return the policy of a namespace: its annotations replace the operator-wide values one by one.

    Raises InvalidPolicy for an unknown annotation with our prefix or a value that cannot be read: a limit with a
    mistake must not be no limit.
    """
    limits: dict[str, Any] = {}
    sources = {}
    for annotation, text in sorted(annotations.items()):
        if not annotation.startswith(ANNOTATION_PREFIX):
            continue
        where = f"annotation {annotation} of namespace {namespace}"
        name = annotation.removeprefix(ANNOTATION_PREFIX).replace("-", "_")
        if name not in _READERS:
            allowed = ", ".join(item.replace("_", "-") for item in _READERS)
            raise InvalidPolicy(f"{where}: unknown; the names after {ANNOTATION_PREFIX} are {allowed}")
        try:
            limits[name] = _READERS[name](text)
        except ValueError as error:
            raise InvalidPolicy(f"{where}: {error}, not {text!r}") from error
        sources[name] = where
    if not limits:
        return base
    values = {item.name: getattr(base, item.name) for item in fields(base)}
    return Policy(**{**values, **limits, "sources": {**base.sources, **sources}})


def _whole_number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return read


def _choice(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be {', '.join(allowed[:-1])} or {allowed[-1]}")
        return text

    return read


def names(text: str) -> tuple[str, ...]:
    """Return the items of a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("must be a name")
    return text.strip()


_READERS: dict[str, Callable[[str], Any]] = {
    "default_ttl_seconds_after_finished": _whole_number(0, _LONGEST),
    "default_active_deadline_seconds": _whole_number(1, _LONGEST),
    "default_pool": _name,
    "default_run_as_user": _whole_number(1, 2**31 - 1),
    "max_active_deadline_seconds": _whole_number(1, _LONGEST),
    "max_pods": _whole_number(0, 10_000),
    "allowed_pools": names,
    "image_prefixes": names,
    "default_pod_security": _choice("Auto", "Restricted", "Baseline", "Image"),
    "max_pod_security": _choice("Restricted", "Baseline", "Image"),
}
