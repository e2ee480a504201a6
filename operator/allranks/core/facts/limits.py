"""Applies a policy to a job: its defaults, and the violations of its limits.

Limits are checked when a job begins, resumes or changes its size. Of the new limits only the deadline affects a job
that runs; defaults always do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from allranks.api.job import Container, Job
from allranks.core.facts import naming, pod_security, pod_template, pool_template, topology
from allranks.core.facts.model import ANY_PLATFORM, Manifest, Observed, Platform
from allranks.core.facts.policy import Policy

REASON = "PolicyViolation"
"""Reason of the condition Failed of a job that a limit refuses."""
_ASK = "or ask the platform team to change the limit"


def with_default_fields(o: Observed) -> Observed:
    """Give the job the policy's defaults. The stored spec stays as it is."""
    job = with_defaults(o.job, o.platform.policy)
    return o if job is o.job else replace(o, job=job)


def with_defaults(job: Job, policy: Policy) -> Job:
    """Return the job with the policy's defaults in the fields that its author left out. The stored spec stays as it
    is."""
    spec = job.spec
    update: dict[str, Any] = {}
    if spec.ttl_seconds_after_finished is None and policy.default_ttl_seconds_after_finished is not None:
        update["ttl_seconds_after_finished"] = policy.default_ttl_seconds_after_finished
    deadline, longest = policy.default_active_deadline_seconds, policy.max_active_deadline_seconds
    if spec.active_deadline_seconds is None and (deadline or longest):
        update["active_deadline_seconds"] = min(number for number in (deadline, longest) if number)
    if spec.pool is None and policy.default_pool:
        update["pool"] = policy.default_pool
    return Job(metadata=job.metadata, spec=type(spec)(**(dict(spec) | update))) if update else job


def violations(job: Job, platform: Platform) -> list[tuple[str, str]]:
    """Return (field path, message with the limit's source) of each limit that the job exceeds; `job` has its
    defaults."""
    policy, spec = platform.policy, job.spec
    out = [*_deadline(job, policy), *_pods(job, policy)]
    for path, name in spec.pools.items():
        if policy.allowed_pools is not None and name not in policy.allowed_pools:
            allowed = ", ".join(policy.allowed_pools) or "none"
            text = f'TrainingPool "{name}" is not allowed here'
            out.append((path, f"{text} ({policy.source('allowed_pools')} allows: {allowed}): use another, {_ASK}"))
        elif wrong := pool_template.not_admitted(name, job, platform):
            out.append((path, wrong))
    return [*out, *_images(job, policy), *_accounts(job, platform), *_pod_security(job, policy)]


def _deadline(job: Job, policy: Policy) -> Iterator[tuple[str, str]]:
    longest, seconds = policy.max_active_deadline_seconds, job.spec.active_deadline_seconds
    if longest is not None and seconds is not None and seconds > longest:
        source = policy.source("max_active_deadline_seconds")
        yield "spec.activeDeadlineSeconds", f"{seconds} is more than {longest} ({source}): reduce it, {_ASK}"


def _pods(job: Job, policy: Policy) -> Iterator[tuple[str, str]]:
    if policy.max_pods is None:
        return
    sizes = topology.wanted_sizes(job)
    if elastic := job.spec.elastic:
        largest = max(sizes.get(topology.ELASTIC_ROLE, 0), elastic.max_replicas)
        sizes = {**sizes, topology.ELASTIC_ROLE: largest}
    if (pods := sum(sizes.values())) > policy.max_pods:
        roles = ", ".join(f"{role}: {size}" for role, size in sizes.items())
        text = f"{pods} pods ({roles}) are more than {policy.max_pods} ({policy.source('max_pods')})"
        yield "spec.roles", f"{text}: use fewer replicas, {_ASK}"


def _accounts(job: Job, platform: Platform) -> Iterator[tuple[str, str]]:
    """Yield violations by accounts of allranks, whose rights reach further than the job's author."""
    layers: list[tuple[str, Container]] = [("spec", job.spec)]
    layers += [(f"spec.roles.{role}", spec) for role, spec in job.spec.roles.items()]
    for where, layer in layers:
        pod_spec: Any = (layer.template or {}).get("spec") or {}
        for field in ("serviceAccountName", "serviceAccount"):  # the API server still accepts the older name
            if (account := pod_spec.get(field)) in platform.reserved_accounts:
                text = f'ServiceAccount "{account}" belongs to allranks itself, and no job may use it: use another one'
                yield f"{where}.template.spec.{field}", text


def _pod_security(job: Job, policy: Policy) -> Iterator[tuple[str, str]]:
    level, most = job.spec.pod_security, policy.max_pod_security
    if level is not None and level != pod_security.AUTO and pod_security.exceeds(level, most):
        source = policy.source("max_pod_security")
        yield (
            "spec.podSecurity",
            f"{level} is not allowed here ({source} allows no more than {most}): remove it, {_ASK}",
        )


def _images(job: Job, policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield violations by images that the job names. The platform team owns the images of a TrainingPool, and those of
    allranks."""
    prefixes = policy.image_prefixes
    if prefixes is None:
        return
    allowed = f"{policy.source('image_prefixes')} allows: {', '.join(prefixes) or 'none'}"
    reported = set()
    templates = pod_template.role_templates(job, ANY_PLATFORM)
    for role, template in templates.items():
        place = f"spec.roles.{role}.template" if job.spec.roles[role].template else "spec.template"
        for where, image in (*_image_references(template["spec"], role, place), *_images_of_volumes(job)):
            if (where, image) not in reported and not any(is_below(image, prefix) for prefix in prefixes):
                reported.add((where, image))
                yield where, f"image {image} is not allowed here ({allowed}): use an image from there, {_ASK}"


def _image_references(pod_spec: Manifest, role: str, place: str) -> Iterator[tuple[str, str]]:
    """Yield (field path, image) of everything in a template that is pulled from a registry. `place`: its path."""
    for kind in ("initContainers", "containers"):
        for container in pod_spec.get(kind) or ():
            if image := container.get("image"):
                is_trainer = container["name"] == naming.TRAINER
                where = f"spec.roles.{role}.image" if is_trainer else f"{place}.spec.{kind}[{container['name']}].image"
                yield where, str(image)
    for volume in pod_spec.get("volumes") or ():
        if reference := (volume.get("image") or {}).get("reference"):
            yield f"{place}.spec.volumes[{volume.get('name')}].image.reference", str(reference)


def _images_of_volumes(job: Job) -> Iterator[tuple[str, str]]:
    """Yield (field path, image) of the volumes that other fields than the template describe."""
    if job.spec.code and job.spec.code.image:
        yield "spec.code.image", job.spec.code.image
    for item in job.spec.sources:
        if item.scheme == "image":
            field = job.spec.field_of(item.name)
            yield field + (".from" if field.endswith("]") else ""), item.source.partition("://")[2]
    volume = job.spec.checkpoint.volume if job.spec.checkpoint else None
    source = volume.model_dump(by_alias=True, mode="json") if volume else {}
    if reference := (source.get("image") or {}).get("reference"):
        yield "spec.checkpoint.volume.image.reference", str(reference)


def is_below(image: str, prefix: str) -> bool:
    """Return whether the image is in the registry, folder or repository `prefix`.

    `ghcr.io/team` is no prefix of `ghcr.io/team-b/train`.
    """
    rest = image.removeprefix(prefix)
    return image.startswith(prefix) and (not rest or prefix.endswith("/") or rest[0] in "/:@")
