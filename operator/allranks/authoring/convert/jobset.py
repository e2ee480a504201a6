"""JobSet (jobset.x-k8s.io) with one job that trains."""

from __future__ import annotations

from allranks.authoring.convert import indexed_job, pod_parts, training_operator
from allranks.authoring.convert.draft import Draft, Fields, NotConvertible, Row

_ROWS: tuple[Row, ...] = (
    ("suspend", "suspend", ""),
    ("ttlSecondsAfterFinished", "ttlSecondsAfterFinished", ""),
    ("managedBy", "managedBy", ""),
)
_OWN_MANAGER = "jobset.sigs.k8s.io/jobset-controller"
_IGNORED = ("network", "successPolicy", "startupPolicy", "coordinator")
_OF_JOB = ("completionMode", "backoffLimit", "selector", "manualSelector", "podReplacementPolicy", "suspend")


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, "JobSet")
    spec = source.child("spec")
    if spec.take("managedBy") == _OWN_MANAGER:
        draft.move(spec, _ROWS[:2])
    else:
        draft.move(spec, _ROWS)
    for name in _IGNORED:
        spec.take(name)
    job = _trained(spec)
    for name in ("name", "groupName", "dependsOn"):
        job.take(name)
    outer = job.child("template")
    metadata = outer.take("metadata") or {}
    for name in ("labels", "annotations"):
        if values := metadata.get(name):
            draft.document["metadata"][name] = {**values, **(draft.document["metadata"].get(name) or {})}
    inner = outer.child("spec")
    size = inner.number("parallelism", inner.number("completions", 1))
    inner.number("completions")
    for name in _OF_JOB:
        inner.take(name)
    draft.move(inner, [("activeDeadlineSeconds", "activeDeadlineSeconds", "")])
    draft.drop_all(inner, {"podFailurePolicy": "write restart.rules", "ttlSecondsAfterFinished": "set it in the job"})
    pods = job.number("replicas", 1) * size
    part = pod_parts.read("worker", pods, inner.take("template"), inner.place("template"), ["trainer"])
    indexed_job.ranks(draft, part)
    failures = spec.child("failurePolicy")
    text = "A failure of a rank restarts all ranks, from their checkpoint."
    draft.set("restart.maxRestarts", failures.number("maxRestarts", 0), text)
    draft.drop_all(failures, {"rules": "write restart.rules", "restartStrategy": "all ranks restart together"})
    training_operator.comment_on_queue(draft, draft.document["metadata"].get("labels") or {})
    return draft.finish()


def _trained(spec: Fields) -> Fields:
    """Return the job whose pods train. Raise NotConvertible if there are several."""
    jobs = spec.children("replicatedJobs")
    if len(jobs) == 1:
        return jobs[0]
    names = ", ".join(str(job.take("name")) for job in jobs)
    cure = "write a job with framework spmd and a role for each, with spmd.ranks for the ones that train"
    raise NotConvertible(spec.place("replicatedJobs"), f"has several jobs ({names or 'none'}): {cure}")
