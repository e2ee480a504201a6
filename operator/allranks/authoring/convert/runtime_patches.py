"""Applies a TrainJob's changes of its runtime: `runtimePatches`, and their earlier forms `podTemplateOverrides` and
`podSpecOverrides`."""

from __future__ import annotations

from typing import Any

from allranks.authoring.convert.draft import Draft
from allranks.authoring.convert.source import Fields
from allranks.core.facts.strategic_merge import merge


def apply(draft: Draft, spec: Fields, jobs: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    """Changes the runtime's `jobs` (spec.template.spec.replicatedJobs). `names`: those that are part of the result."""
    pods = {str(job.get("name")): _pod_of(job) for job in jobs}
    for patch in spec.children("runtimePatches"):
        patch.take("manager"), patch.take("time")
        template = patch.child("trainingRuntimeSpec").child("template")
        _metadata(draft, template.child("metadata"))
        for job in template.child("spec").children("replicatedJobs"):
            inner = job.child("template")
            inner.take("metadata")  # of a Job, which does not exist here
            _change(draft, pods, str(job.take("name")), inner.child("spec").child("template"), names)
    for name, own in (("podTemplateOverrides", True), ("podSpecOverrides", False)):
        for override in spec.children(name):
            for target in override.children("targetJobs"):
                job_name = str(target.take("name"))
                _change(draft, pods, job_name, override, names, has_spec=own)


def _pod_of(job: dict[str, Any]) -> dict[str, Any]:
    inner = job.setdefault("template", {}).setdefault("spec", {}).setdefault("template", {})
    found: dict[str, Any] = inner
    return found


def _metadata(draft: Draft, metadata: Fields) -> None:
    """Labels and annotations of the JobSet become those of the job."""
    for name in ("labels", "annotations"):
        if found := metadata.take(name):
            draft.document["metadata"][name] = {**(draft.document["metadata"].get(name) or {}), **found}


def _change(
    draft: Draft,
    pods: dict[str, dict[str, Any]],
    job: str,
    patch: Fields,
    names: tuple[str, ...],
    has_spec: bool = True,
) -> None:
    """`patch` is a pod template, or a pod spec without `has_spec`."""
    given = {name: patch.take(name) for name in patch.names() if name != "targetJobs"}
    if job not in pods or job not in names:
        draft.drop(patch.path, f"the runtime's job {job} is not part of the result")
        return
    pods[job] |= merge(pods[job], given if has_spec else {"spec": given})
