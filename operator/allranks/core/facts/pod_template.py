"""The pod template of each role: the layers of pool, job and role merged, before the framework's wiring is added."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar

from allranks.api.job import Container, Job, RoleSpec
from allranks.api.pod_template import is_valid
from allranks.api.pool import PoolSpec
from allranks.core.facts import gpu_count, naming, pod_security, pool_template, topology
from allranks.core.facts.model import ANY_PLATFORM, Manifest, Platform
from allranks.core.facts.pod_security import Choice
from allranks.core.facts.strategic_merge import merge, without_nulls

T = TypeVar("T")
DEFAULT_GRACE_PERIOD_SECONDS = 30
"""Kubernetes' default of terminationGracePeriodSeconds."""


_DEFAULTS: Manifest = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
}
"""The lowest layer: no service account token, no variables of Services."""


def has_valid_types(job: Job) -> bool:
    """Return whether the templates have the types that `role_templates` relies on: it raises any error for others."""
    parts: list[Container] = [job.spec, *job.spec.roles.values()]
    return all(is_valid(part.template) for part in parts if part.template)


def role_templates(job: Job, platform: Platform) -> dict[str, Manifest]:
    """Return role -> its pod template. Templates are read-only: roles and callers share them."""
    pools = tuple(_Same(pool_template.pool_of(job, role, platform)) for role in job.spec.roles)
    chosen = pod_security.choice(job, platform)
    return dict(_merged(_Same(job), pools, chosen, platform.policy.default_run_as_user))


class _Same(Generic[T]):
    """A key of a cache: equal only to the same object, which it keeps alive."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value


@lru_cache(maxsize=2)  # one decision asks a dozen times, with its platform or with any
def _merged(
    job_key: _Same[Job], pool_keys: tuple[_Same[PoolSpec | None], ...], chosen: Choice, user: int | None
) -> dict[str, Manifest]:
    job = job_key.value
    kinds = topology.framework_of(job).roles
    out: dict[str, Manifest] = {}
    distinct: list[tuple[list[object], Manifest]] = []
    for (role, spec), pool_key in zip(job.spec.roles.items(), pool_keys, strict=True):
        devices = kinds[role].ranked or spec.pool is not None
        layer = [pool_key, devices, spec.template, *(getattr(spec, field) for field in sorted(_FIELDS))]
        template = next((template for other, template in distinct if other == layer), None)
        if template is None:
            template = _role_template(job, spec, pool_key.value, devices)
            template = _secured(template, chosen, user)
            distinct.append((layer, template))
        out[role] = template
    return out


def longest_grace_period(job: Job) -> int:
    """Return the longest time, in seconds, that pods of the job may take to terminate."""
    return max(grace_period(template) for template in role_templates(job, ANY_PLATFORM).values())


def trainer(template: Manifest) -> Manifest:
    """Return the training container."""
    container: Manifest = next(c for c in template["spec"]["containers"] if c["name"] == naming.TRAINER)
    return container


def gpus(job: Job, role: str, template: Manifest, platform: Platform) -> int:
    """Return the number of GPUs that the training container of a role requests. `template`: of its pods."""
    pool = pool_template.pool_of(job, role, platform)
    return gpu_count.gpus(trainer(template).get("resources"), pool.gpu.resource if pool and pool.gpu else "")


def grace_period(template: Manifest) -> int:
    seconds = template["spec"].get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_PERIOD_SECONDS if seconds is None else int(seconds)


def _role_template(job: Job, role: RoleSpec, pool: PoolSpec | None, devices: bool) -> Manifest:
    """Return the pod template of a role.

    Its layers, lowest first: the defaults, the pool, the job's `scheduling`, spec.template, the role's template, the
    fields of the job and of the role.
    """
    user = without_nulls(merge(job.spec.template or {}, role.template or {}))
    user["spec"] = merge(user.get("spec") or {}, {"containers": [_trainer_from_fields(job, role)]})
    below = pool_template.template_of(pool, user, devices) if pool else {"spec": {}}
    template = merge(merge(below, {"spec": _requested(job, user["spec"])}), user)
    template["spec"]["containers"] = [
        _with_code(job, container) if container["name"] == naming.TRAINER else container
        for container in template["spec"]["containers"]
    ]
    if tolerations := below["spec"].get("tolerations"):
        template["spec"]["tolerations"] = pool_template.union(tolerations, user["spec"].get("tolerations"))
    return {
        "metadata": with_default_metadata(template.get("metadata") or {}),
        "spec": merge(_DEFAULTS, template["spec"]),
    }


def _secured(template: Manifest, chosen: Choice, user: int | None) -> Manifest:
    """Return the template with the security contexts of a level, and the level as an annotation."""
    metadata = template["metadata"]
    if chosen.reason:
        text = f"{chosen.level}: {chosen.reason}"
        metadata = {**metadata, "annotations": {**metadata["annotations"], pod_security.ANNOTATION: text}}
    return {"metadata": metadata, "spec": pod_security.with_defaults(template["spec"], chosen, user)}


_FIELDS = {"image", "command", "args", "env", "resources", "working_dir"}
"""Fields of a job and of a role that describe the training container."""


def _trainer_from_fields(job: Job, role: RoleSpec) -> Manifest:
    """Return the training container as the fields of the job and of the role describe it."""
    container: dict[str, Any] = {"name": naming.TRAINER}
    for source in (job.spec, role):
        values = source.model_dump(
            by_alias=True,
            exclude_none=True,
            mode="json",
            include=_FIELDS,
        )
        if values.get("command") is not None and "args" not in values:
            container.pop("args", None)  # the job's arguments belong to the job's command
        container = merge(container, values)
    return container


def _requested(job: Job, pod_spec: Manifest) -> Manifest:
    """Return the fields of the pod spec that follow from the job's `scheduling`. `pod_spec` is from the job's
    template."""
    out: Manifest = {}
    if job.spec.scheduling.priority_class_name:
        out["priorityClassName"] = job.spec.scheduling.priority_class_name
    if job.spec.scheduling.topology_key and "affinity" not in pod_spec:
        term = {
            "topologyKey": job.spec.scheduling.topology_key,
            "labelSelector": {"matchLabels": {naming.JOB_LABEL: job.name}},
        }
        out["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return out


PACKAGES_DIR = "/allranks-packages"


SITE = "site"
"""Folder of the packages inside that volume. It may be a link into a cache."""


_PYTHONPATH = "PYTHONPATH"


def _with_code(job: Job, trainer: Manifest) -> Manifest:
    """Return the training container with the working directory and PYTHONPATH.

    The user's own PYTHONPATH comes last; one with `valueFrom` replaces ours.
    """
    paths = [
        *([job.spec.code.path] if job.spec.code else []),
        *([f"{PACKAGES_DIR}/{SITE}"] if job.spec.packages else []),
    ]
    if not paths:
        return trainer
    out = dict(trainer)
    if job.spec.code:
        out.setdefault("workingDir", job.spec.code.path)
    users = {variable["name"]: variable for variable in trainer.get("env", [])}
    variable_of_user = users.get(_PYTHONPATH)
    if variable_of_user is None or "valueFrom" not in variable_of_user:
        value = ":".join(
            [*paths, *([str(variable_of_user["value"])] if variable_of_user and variable_of_user.get("value") else [])]
        )
        out["env"] = [*({**users, _PYTHONPATH: {"name": _PYTHONPATH, "value": value}}).values()]
    return out


SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
ISTIO_INJECT = "sidecar.istio.io/inject"
LINKERD_INJECT = "linkerd.io/inject"

_ISTIO_CHOICES = (ISTIO_INJECT, "istio.io/rev")
"""Each decides about Istio's sidecar, as a label or as an annotation."""


def with_default_metadata(metadata: Mapping[str, Any]) -> Manifest:
    """Return the metadata of a pod template with labels and annotations that keep other controllers away from its pods.

    - Node autoscalers do not remove a node to save cost while a rank runs on it: all ranks would lose the work since
      the last checkpoint, also in an elastic job.
    - Service meshes inject no sidecar: it would hold up the rendezvous, carry the traffic between ranks, and an
      ordinary sidecar would keep running after the program.

    The job's template or its pool may set other values.
    """
    labels, annotations = dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {})
    annotations.setdefault(SAFE_TO_EVICT, "false")
    annotations.setdefault(DO_NOT_DISRUPT, "true")
    # Istio prefers the label, so an annotation of the user's own must not meet a label of ours.
    if not any(key in part for key in _ISTIO_CHOICES for part in (labels, annotations)):
        labels[ISTIO_INJECT] = annotations[ISTIO_INJECT] = "false"
    annotations.setdefault(LINKERD_INJECT, "disabled")
    return {**metadata, "labels": labels, "annotations": annotations}


def evictable(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations of a pod that does nothing, such as a placeholder: its node may be removed."""
    kept = {key: value for key, value in annotations.items() if key != DO_NOT_DISRUPT}
    return {**kept, SAFE_TO_EVICT: "true"}
