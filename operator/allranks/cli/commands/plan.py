"""`allranks plan`: what happens to a job, before it is submitted."""

from __future__ import annotations

import json
from typing import Any

import click

from allranks.api.job import KIND
from allranks.cli.archived import Archive, archive_option
from allranks.cli.options import (
    BAD_MANIFEST,
    FAILED,
    OK,
    files_argument,
    on_cluster,
    print_error,
    print_problem,
    set_option,
)
from allranks.client.plan import OtherJob, Plan, lines, make_plan
from allranks.client.submission import Session
from allranks.errors import ClusterError, InvalidManifest
from allranks.kube.cluster import Cluster
from allranks.views.format.json_form import as_json


@click.command(
    epilog="""\b
Examples:
  allranks plan job.yaml
  allranks plan job.yaml --set roles.worker.replicas=8
  allranks plan job.yaml --archive s3://team/history
  allranks plan job.yaml -o json | jq '.[] | {job, begin, beginSeconds, cost}'
\b
Exit status:
  0 nothing prevents the jobs from running, as far as the cluster says, 1 a job would be rejected or has no room, or the
  cluster cannot be read, 2 a manifest is not valid.
"""
)
@files_argument
@set_option
@click.option("-o", "--output", type=click.Choice(["json"]), help="The output format. [default: text]")
@archive_option
@on_cluster
async def plan(
    cluster: Cluster, files: tuple[str, ...], sets: tuple[str, ...], output: str | None, archive: str | None
) -> int:
    """Predict what happens to jobs when they are submitted. Nothing is created.

    It says whether the API server accepts the job, whether the nodes have room for its pods, now or ever, when it
    starts, how long earlier jobs with the same program and size took and what that costs, which nodes must pull images,
    and what a preemption loses. Room is computed from requests, node selectors, node affinity and taints. Lines
    `Unknown` say what could not be found out, and why.
    """
    from allranks.authoring.manifests import load

    try:
        loaded = load(files, sets)
    except InvalidManifest as error:
        print_error(error)
        return BAD_MANIFEST
    for severity, text in loaded.notes():
        print_problem(severity, text)
    session = Session(cluster, dry_run=True, bundles=loaded.bundles)
    documents = [document for document in loaded.documents if document.get("kind") == KIND]
    archived = _archived(archive, cluster)
    plans = []
    for job, title, document in zip(loaded.jobs, loaded.titles, documents, strict=True):
        rejected = await _rejection(session, document)
        if "namespace" not in document["metadata"]:
            metadata = job.metadata.model_copy(update={"namespace": cluster.namespace})
            job = job.model_copy(update={"metadata": metadata})
        plans.append(await make_plan(cluster, job, title, rejected, loaded.pools, archived))
    if output:
        click.echo(json.dumps([as_json(item) for item in plans], indent=2))
    else:
        click.echo("\n\n".join("\n".join(_text(item)) for item in plans))
    return OK if all(item.possible for item in plans) else FAILED


async def _rejection(session: Session, document: dict[str, Any]) -> str:
    """Return why the API server rejects the job; empty if it accepts it. Raises ClusterError without an answer."""
    try:
        await session.apply(document)
    except ClusterError as error:
        if not error.status:
            raise
        return str(error)
    return ""


def _archived(archive: str | None, cluster: Cluster) -> list[OtherJob]:
    return [OtherJob.read(job) for job in Archive(archive).reader.each_job(cluster.namespace)] if archive else []


def _text(plan: Plan) -> list[str]:
    size = f"{plan.pods} pod{'s' * (plan.pods != 1)}{f', {plan.gpus} GPUs' if plan.gpus else ''}"
    rows = lines(plan)
    width = max(len(title) for title, _ in rows)
    shown, before = [f"{plan.job} in namespace {plan.namespace}: {size}"], ""
    for title, text in rows:
        shown.append(f"  {title if title != before else '':<{width}}  {text}")
        before = title
    return shown
