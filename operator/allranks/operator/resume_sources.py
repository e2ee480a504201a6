"""The jobs that other jobs name in `resumeFrom`. They are read only until the other job has a status."""

from __future__ import annotations

from allranks.core.facts import resume_source
from allranks.core.facts.model import Manifest
from allranks.core.facts.resume_source import ResumeSource
from allranks.kube import compact_jobs, job_codec, paths
from allranks.kube.client import Client
from allranks.kube.errors import NotFound
from allranks.operator.cache import JobCache, JobKey


class ResumeSources:
    """`read` before `get`."""

    def __init__(self, client: Client, jobs: JobCache) -> None:
        self._client, self._jobs = client, jobs

    async def read(self, job: Manifest) -> None:
        """A source that is not cached may only not be watched yet, so the API server is asked. Raises ApiError."""
        key = _source_of(job)
        if key and self._jobs.get(key) is None:
            try:
                self._jobs.upsert(compact_jobs.job(await self._client.get(paths.job(*key))))
            except NotFound:
                return

    def get(self, job: Manifest) -> ResumeSource | None:
        key = _source_of(job)
        source = self._jobs.get(key) if key else None
        if source is None or source["metadata"].get("deletionTimestamp"):
            return None
        phase = (source.get("status") or {}).get("phase", "")
        try:
            return ResumeSource(phase, job_codec.job(compact_jobs.expanded(source)).spec.checkpoint)
        except job_codec.DecodeError:
            return ResumeSource(phase)


def _source_of(job: Manifest) -> JobKey | None:
    status = job.get("status")
    name = compact_jobs.spec_of(job).resume_from
    if not name or (isinstance(status, dict) and status.get("startTime")):
        return None
    return job["metadata"].get("namespace", ""), resume_source.split(name)[0]
