"""`allranks wait`: waits until jobs reach a state. `allranks submit --wait` uses it too."""

from __future__ import annotations

import sys
import time

import click

from allranks.cli.completers import complete_jobs
from allranks.cli.options import (
    AFTER_WAITING,
    OK,
    Duration,
    names_callback,
    object_output_option,
    on_cluster,
    print_jobs,
)
from allranks.client.jobs import get_job
from allranks.client.waiting import STATES, wait_for_job
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.pod_logs import LogOptions


@click.command(
    epilog="""\b
Examples:
  allranks wait penguins
  allranks wait penguins --for running --timeout 10m
  allranks wait penguins --logs
  allranks wait penguins --for finished && allranks describe penguins
\b
Exit status:
  0 condition met, 1 the job failed or was deleted, or the API server rejected the request, 124 timed out,
  130 interrupted by Ctrl-C. The job continues in any case.
"""
)
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", callback=names_callback, shell_complete=complete_jobs
)
@click.option(
    "--for",
    "state",
    type=click.Choice(list(STATES)),
    default="succeeded",
    show_default=True,
    help="succeeded: exit status 1 if the job fails. finished: 0 also if it fails. running: until all ranks run.",
)
@click.option("--timeout", type=Duration(), metavar="TIME", help="Time limit, for example 90s or 10m. [default: none]")
@click.option("--logs", is_flag=True, help="Print the logs of the ranks from now on.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the outcome.")
@object_output_option
@on_cluster
async def wait(
    cluster: Cluster,
    names: tuple[str, ...],
    state: str,
    timeout: float | None,
    logs: bool,
    quiet: bool,
    output: str | None,
) -> int:
    """Wait for jobs, one after the other, and print their progress.

    If a job fails, this prints the first rank that failed, the reason, and the last lines of its log.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    log_options = LogOptions(tail=0) if logs else None
    human = sys.stderr if output else sys.stdout
    jobs: list[Manifest] = []
    status = OK
    try:
        for name in names:
            job = await get_job(cluster, name)
            ending = await wait_for_job(
                cluster, job, state, human, deadline=deadline, logs=log_options, quiet=quiet, on_end=jobs.append
            )
            status = AFTER_WAITING[ending]
            if status != OK:
                break
    finally:
        print_jobs(jobs, output, single=len(names) == 1)
    return status
