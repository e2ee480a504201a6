"""Reads a sweep, its Events and the jobs of its trials: from a cluster, an archive or a run of this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allranks.api.sweep import KIND
from allranks.core.accounting.time_accounting import last_update
from allranks.core.facts.naming import SWEEP_LABEL
from allranks.errors import AllranksError, ClusterError
from allranks.kube import paths, sweep_codec
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import DecodeError, status_of
from allranks.local.run_directories import RUN_FILE
from allranks.local.sweep_files import TRIALS
from allranks.views.report.sweep_cost import TrialJob, TrialJobs, observed_names

ArchivedTrials = Callable[[Manifest, Sequence[str]], list[Manifest]]
"""(sweep, names of jobs) -> the archived jobs with these names. Blocks. Raises AllranksError."""


async def sweep_instead(cluster: Cluster, name: str, error: ClusterError) -> Manifest | None:
    """Read the sweep with this name if `error` says that there is no such job. Return None without such a sweep."""
    if error.status != 404:
        return None
    try:
        sweep = await cluster.get(paths.sweeps(cluster.namespace, name))
    except ClusterError:
        return None
    return sweep if sweep.get("kind") == KIND else None


async def events_of_sweep(cluster: Cluster, sweep: Manifest) -> list[Manifest] | str:
    """Read the Events of the sweep itself, or return the error if the user may not list them. Raises ClusterError."""
    from allranks.kube.events import events_of_object

    try:
        return await events_of_object(cluster, cluster.namespace, sweep["metadata"]["uid"])
    except ClusterError as error:
        if error.status != 403:
            raise
        return str(error)


async def trials_of_cluster(cluster: Cluster, sweep: Mapping[str, Any], archived: ArchivedTrials) -> TrialJobs:
    """Read the jobs that exist, whose GPU time counts until now, and the deleted ones of the archive."""
    metadata, now = sweep["metadata"], datetime.now(UTC)
    try:
        query = {"labelSelector": f"{SWEEP_LABEL}={metadata['name']}"}
        items = (await cluster.get(paths.job_path(cluster.namespace), query))["items"]
    except ClusterError as error:
        return TrialJobs(problem=str(error))
    owned = [job for job in items if sweep_codec.is_owned(job, metadata["uid"])]
    existing = [TrialJob(job["metadata"]["name"], status_of(job), now) for job in owned]
    deleted = await asyncio.to_thread(trials_of_archive, archived, sweep, {job.name for job in existing})
    return TrialJobs([*existing, *deleted.jobs], deleted.problem)


def trials_of_archive(archived: ArchivedTrials, sweep: Mapping[str, Any], existing: Collection[str] = ()) -> TrialJobs:
    """Read the jobs of the archive, without the names in `existing`. Blocks."""
    try:
        names = missing_jobs(sweep, existing)
        return TrialJobs([deleted_trial(job) for job in archived(dict(sweep), names)] if names else [])
    except AllranksError as error:
        return TrialJobs(problem=str(error))


def trials_of_run(run_dir: Path) -> TrialJobs:
    """Read the jobs of a sweep of this machine, without those that cannot be read. Blocks."""
    jobs = []
    for path in (run_dir / TRIALS).glob(f"*/{RUN_FILE}"):
        try:
            job = json.loads(path.read_text(encoding="utf-8"))
            jobs.append(deleted_trial(job | {"metadata": {"name": path.parent.name}}))
        except (OSError, ValueError, TypeError):
            continue
    return TrialJobs(jobs)


def missing_jobs(sweep: Mapping[str, Any], existing: Collection[str]) -> list[str]:
    """Return the names of the jobs of the sweep that are not in `existing`; none for a sweep that cannot be read."""
    try:
        names = observed_names(sweep_codec.sweep(dict(sweep)), sweep_codec.status(dict(sweep)))
    except DecodeError:
        return []  # the report says so
    return [name for name in names if name not in existing]


def deleted_trial(job: Manifest) -> TrialJob:
    """Make a job whose GPU time counts until the last moment in its status: nothing says what happened later."""
    status = status_of(job)
    return TrialJob(job["metadata"]["name"], status, last_update(status) or datetime.now(UTC))
