"""The jobs of the trials of a sweep, for its GPU time: of the cluster, of an archive and of this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allranks.cli.archived import Archive
from allranks.core.accounting.time_accounting import last_update
from allranks.core.facts.naming import SWEEP_LABEL
from allranks.errors import AllranksError, ClusterError
from allranks.kube import paths, sweep_codec
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import DecodeError, status_of
from allranks.local.run_directories import RUN_FILE
from allranks.local.sweep_files import TRIALS
from allranks.views.report.sweep_cost import FoundJob, TrialJobs, observed_names


async def of_cluster(cluster: Cluster, sweep: Mapping[str, Any], archive: Archive) -> TrialJobs:
    """Those that exist until now, and deleted ones of the archive."""
    metadata, now = sweep["metadata"], datetime.now(UTC)
    try:
        query = {"labelSelector": f"{SWEEP_LABEL}={metadata['name']}"}
        listed = (await cluster.get(paths.job_path(cluster.namespace), query))["items"]
    except ClusterError as error:
        return TrialJobs(problem=str(error))
    own = [job for job in listed if sweep_codec.is_owned(job, metadata["uid"])]
    found = [FoundJob(job["metadata"]["name"], status_of(job), now) for job in own]
    deleted = await asyncio.to_thread(of_archive, archive, sweep, {job.name for job in found})
    return TrialJobs([*found, *deleted.found], deleted.problem)


def of_archive(archive: Archive, sweep: Mapping[str, Any], there: Collection[str] = ()) -> TrialJobs:
    """The jobs of the archive, without those of the names in `there`. Blocks."""
    if not archive.url:
        return TrialJobs()
    try:
        names = missing(sweep, there)
        return TrialJobs([ended(job) for job in archive.reader.trials(dict(sweep), names)] if names else [])
    except AllranksError as error:
        return TrialJobs(problem=str(error))


def of_run(run_dir: Path) -> TrialJobs:
    """The jobs of a sweep of this machine. Those that cannot be read are left out. Blocks."""
    found = []
    for path in (run_dir / TRIALS).glob(f"*/{RUN_FILE}"):
        try:
            job = json.loads(path.read_text(encoding="utf-8"))
            found.append(ended(job | {"metadata": {"name": path.parent.name}}))
        except (OSError, ValueError, TypeError):
            continue
    return TrialJobs(found)


def missing(sweep: Mapping[str, Any], there: Collection[str]) -> list[str]:
    """The jobs of the sweep without those of the names in `there`."""
    try:
        every = observed_names(sweep_codec.sweep(dict(sweep)), sweep_codec.status(dict(sweep)))
    except DecodeError:
        return []  # the report says so
    return [name for name in every if name not in there]


def ended(job: Manifest) -> FoundJob:
    """A job whose GPU time counts until the last moment in its status: nothing says what happened later."""
    status = status_of(job)
    return FoundJob(job["metadata"]["name"], status, last_update(status) or datetime.now(UTC))
