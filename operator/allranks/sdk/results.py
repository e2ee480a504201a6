"""Reads what ranks returned or raised from the ConfigMaps of a job, which the operator made of their reports."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from allranks.core.facts import naming, topology
from allranks.core.facts.attempt import attempt_context
from allranks.core.facts.model import ANY_PLATFORM
from allranks.errors import AllranksError, ClusterError, ResultError
from allranks.kube import job_codec
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.paths import core_path
from allranks.sdk import documents, outcome
from allranks.sdk.outcome import Stored
from allranks.sdk.trust import Source, Trust


async def value(cluster: Cluster, job: Manifest, trust: Trust) -> Any:
    """Read what rank 0 of a job that succeeded returned; None for a script. Raises ResultError, ClusterError."""
    if not _annotation(job, documents.FUNCTION_ANNOTATION):
        return None
    metadata = job["metadata"]
    attempt = job_codec.status_of(job).attempt
    name = naming.outcome_value_name(metadata["name"], metadata["uid"], attempt, 0)
    try:
        config_map = await cluster.get(core_path(metadata["namespace"], "configmaps", name))
    except ClusterError as error:
        if error.status != 404:
            raise
        config_map = {}
    return await _value_of(_stored(config_map, job), Source(job, attempt, "returned", 0), trust)


async def values(cluster: Cluster, job: Manifest, trust: Trust) -> list[Any]:
    """Read the values of all ranks, in the order of the ranks. Raises ResultError, ClusterError."""
    name = job["metadata"]["name"]
    if _annotation(job, documents.RESULTS_ANNOTATION) != documents.EVERY_RANK:
        raise ResultError(f"only rank 0 of {name} sent its value: submit with every_rank=True to get all values")
    attempt = job_codec.status_of(job).attempt
    stored: dict[int, Stored | None] = {}
    for item in await _list(cluster, job, attempt, "returned"):
        stored[_rank(item)] = _stored(item, job)
    sources = (Source(job, attempt, "returned", rank) for rank in range(_number_of_ranks(job, stored)))
    return [await _value_of(stored.get(source.rank), source, trust) for source in sources]


async def failure(cluster: Cluster, job: Manifest, trust: Trust) -> AllranksError:
    """Return the error of a failed job, with the exception of the rank that failed first."""
    attempt, rank, pod = outcome.first_failure(job)
    stored, refusal = None, ""
    if _annotation(job, documents.FUNCTION_ANNOTATION):
        raised = await _list(cluster, job, attempt, "raised")
        first = _first([item for item in raised if _pod(item) == pod], rank)
        stored = _stored(first, job) if first else None
        if first and stored:
            refusal = trust.refusal(stored, Source(job, attempt, "raised", _rank(first)))
    return outcome.failure_of(job, stored, refusal)


async def _value_of(stored: Stored | None, source: Source, trust: Trust) -> Any:
    """Return the value, if it was too large to be sent from the output in which the rank left it."""
    if stored is None:
        return outcome.value_of(None, source.rank)
    refusal = trust.refusal(stored, source)
    if trust.is_forged(stored, source):
        raise ResultError(f"the job succeeded, but what is stored for rank {source.rank} is not used: {refusal}")
    address = outcome.address_of(source.job, stored)
    if address and stored.described.get("bytes"):
        if refusal:
            stored = outcome.not_fetched(stored, refusal)
        else:
            stored = await asyncio.to_thread(outcome.fetched, stored, address)
    return outcome.value_of(stored, source.rank, _place(source.job), address, refusal)


def _first(raised: list[Manifest], rank: int | None) -> Manifest | None:
    """Return what the process with this rank in the pod that failed first stored, or its only process."""
    same = [item for item in raised if _rank(item) == rank] or (raised if len(raised) == 1 else [])
    return same[0] if same else None


async def _list(cluster: Cluster, job: Manifest, attempt: int, kind: str) -> list[Manifest]:
    metadata = job["metadata"]
    labels = {
        naming.JOB_LABEL: metadata["name"],
        naming.ATTEMPT_LABEL: attempt,
        naming.OUTCOME_LABEL: kind,
    }
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    config_maps = await cluster.get(core_path(metadata["namespace"], "configmaps"), {"labelSelector": selector})
    return [item for item in config_maps["items"] if _is_owned(item, job)]


def _stored(item: Manifest, job: Manifest) -> Stored | None:
    content = (item.get("binaryData") or {}).get(naming.OUTCOME_CONTENT)
    return outcome.read_content(base64.b64decode(content)) if content and _is_owned(item, job) else None


def _is_owned(item: Manifest, job: Manifest) -> bool:
    """Return whether the ConfigMap says that the operator made it for this job. Its author can write that as well."""
    return bool(naming.controller_of(item).get("uid") == job["metadata"]["uid"])


def _rank(item: Manifest) -> int:
    return int((item["metadata"].get("labels") or {}).get(naming.RANK_LABEL, -1))


def _pod(item: Manifest) -> str:
    return str((item["metadata"].get("annotations") or {}).get(naming.POD_ANNOTATION, ""))


def _number_of_ranks(job: Manifest, stored: dict[int, Stored | None]) -> int:
    """Return the number of ranks of the last attempt, in which an elastic job may have had fewer."""
    parsed, status = job_codec.job(job), job_codec.status_of(job)
    if parsed.spec.elastic:
        return max(stored, default=-1) + 1
    return ranks_of(parsed, status)


def ranks_of(job: Any, status: Any) -> int:
    """Return the number of ranks of an attempt."""
    context = attempt_context(job, status, ANY_PLATFORM)
    framework = topology.framework_of(job)
    return sum(framework.processes(context, replica.role) for replica in context.ranked())


def _annotation(job: Manifest, name: str) -> str | None:
    return (job["metadata"].get("annotations") or {}).get(name)


def _place(job: Manifest) -> str:
    """Name the claim of the job's checkpoints, for messages."""
    checkpoint = (job.get("spec") or {}).get("checkpoint") or {}
    return f"claim {checkpoint['claim']}" if checkpoint.get("claim") else ""
