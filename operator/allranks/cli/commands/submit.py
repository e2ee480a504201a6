"""`allranks submit`: creates the objects of manifests on a cluster."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import click

from allranks.api.job import KIND
from allranks.cli.options import (
    AFTER_WAITING,
    BAD_MANIFEST,
    FAILED,
    OK,
    Duration,
    code_option,
    files_argument,
    on_cluster,
    print_error,
    print_problem,
    set_option,
)
from allranks.client.submission import Session
from allranks.errors import ClusterError, InvalidManifest
from allranks.kube.cluster import Cluster, Manifest
from allranks.views.format.objects import OBJECT_OUTPUTS, render_objects


@click.command(
    epilog="""\b
Examples:
  allranks submit job.yaml
  allranks submit job.yaml --set roles.worker.replicas=8 --set metadata.name=penguins-8
  allranks submit job.yaml --code . --logs
  allranks submit job.yaml --wait --timeout 2h && echo trained
  allranks submit job.yaml --logs --attach          # a step of a pipeline
  allranks render job.yaml && allranks submit job.yaml --dry-run
\b
Exit status:
  0 everything was created (with --wait or --logs: every job succeeded), 1 an object was rejected or a job failed,
  2 a manifest is not valid and nothing was sent, 124 timed out, 130 interrupted by Ctrl-C (the jobs continue, unless
  you delete the one that the question on a terminal names) or, with --attach, by a signal (the jobs are deleted).
"""
)
@files_argument
@set_option
@code_option
@click.option("--dry-run", is_flag=True, help="Let the API server validate everything without creating it.")
@click.option("-o", "--output", type=click.Choice(OBJECT_OUTPUTS), help="Print the objects in this format.")
@click.option("--wait", "wait_for", is_flag=True, help="Wait until the jobs have finished.")
@click.option("--logs", is_flag=True, help="Like --wait, and print the logs of the ranks.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="Time limit for --wait and --logs, for example 2h.")
@click.option(
    "--detach",
    is_flag=True,
    help="For --wait and --logs: Ctrl-C ends the command and lets the jobs continue, without a question on a terminal.",
)
@click.option(
    "--attach",
    is_flag=True,
    help="For --wait and --logs: Ctrl-C, SIGTERM and SIGHUP delete the jobs, as in a pipeline.",
)
@on_cluster
async def submit(
    cluster: Cluster,
    files: tuple[str, ...],
    sets: tuple[str, ...],
    code: Path | None,
    dry_run: bool,
    output: str | None,
    wait_for: bool,
    logs: bool,
    timeout: float | None,
    detach: bool,
    attach: bool,
) -> int:
    """Create the jobs and all other objects in FILEs (claims, pools, config maps) on a cluster.

    All manifests are validated first: if one is not valid, nothing is sent. An object that already exists is updated
    if it differs and can be changed. FILE can be - for standard input.
    """
    from allranks.authoring.manifests import load

    if attach and (detach or not (wait_for or logs)):
        raise click.UsageError("--attach needs --wait or --logs, and not --detach")
    try:
        loaded = load(files, sets, pools_suffice=True, code=code)
        documents = loaded.documents
    except InvalidManifest as error:
        print_error(error)
        return BAD_MANIFEST
    for severity, text in loaded.notes():
        print_problem(severity, text)
    session = Session(cluster, dry_run, loaded.bundles)
    stored = await _store(session, documents, quiet=bool(output))
    if output:
        _print(stored, session, output, single=len(documents) == 1)
    if len(stored) < len(documents):
        return FAILED
    if dry_run:
        return OK
    jobs = [answer for answer in stored if answer["kind"] == KIND]
    if not (wait_for or logs):
        _print_advice(jobs)
        return OK
    human = sys.stderr if output else sys.stdout
    return await _wait_for(cluster, jobs, human, logs=logs, timeout=timeout, detach=detach, attach=attach)


async def _store(session: Session, documents: Sequence[Manifest], *, quiet: bool) -> list[Manifest]:
    """Create or update the objects, and print what was done and why objects are rejected. Return the stored ones.

    `quiet`: print only errors. An interrupt is raised again, with a message about what is stored.
    """
    cluster, stored = session.cluster, list[Manifest]()
    for number, document in enumerate(documents, 1):
        try:
            verb, answer = await session.apply(document)
        except ClusterError as error:
            print_error(error)
            continue
        except asyncio.CancelledError:
            before = [f"{session.title(answer)} was stored" for answer in stored] if quiet else []
            after = [f"{session.title(unsent)} was not sent" for unsent in documents[number:]]
            cluster.interrupted = "\n".join(filter(None, (*before, cluster.interrupted, *after)))
            raise
        stored.append(answer)
        if not quiet:
            click.echo(f"{session.title(answer)} {verb}{' (dry run by the server)' if session.dry_run else ''}")
    return stored


async def _wait_for(
    cluster: Cluster,
    jobs: Sequence[Manifest],
    human: TextIO,
    *,
    logs: bool,
    timeout: float | None,
    detach: bool,
    attach: bool,
) -> int:
    """Show the jobs one after the other until each has finished. Return the exit status of the first that fails."""
    from allranks.client.interrupt import asks_on_interrupt, deletes_on_interrupt
    from allranks.client.jobs import delete_job
    from allranks.client.waiting import wait_for_job
    from allranks.kube.pod_logs import LogOptions

    deadline = None if timeout is None else time.monotonic() + timeout
    log_options = LogOptions() if logs else None
    for number, job in enumerate(jobs):
        sys.stdout.flush()
        cluster.namespace = job["metadata"]["namespace"]
        interrupted = (
            deletes_on_interrupt(cluster, jobs[number:], delete_job)
            if attach
            else asks_on_interrupt(cluster, job, delete_job, detach=detach)
        )
        async with interrupted:
            ending = await wait_for_job(cluster, job, "succeeded", human, deadline=deadline, logs=log_options)
        if ending != "Reached":
            return AFTER_WAITING[ending]
    return OK


def _print_advice(jobs: list[Manifest]) -> None:
    """Print the next command, on a terminal only."""
    if jobs and sys.stderr.isatty():
        name = jobs[0]["metadata"]["name"]
        click.echo(click.style(f"to follow it: allranks logs -f {name}", dim=True), err=True)


def _print(stored: list[Manifest], session: Session, output: str, *, single: bool) -> None:
    if output == "name":
        for answer in stored:
            click.echo(session.title(answer))
    elif stored or not single:
        click.echo(render_objects(stored, output, single=single), nl=False)
