"""`allranks logs`: prints the logs of all ranks, each line with its rank in front."""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import Any

import click
from click.core import ParameterSource

from allranks.cli.archived import Archive, also_missing, archive_options, find_job, without_cluster
from allranks.cli.completers import complete_jobs
from allranks.cli.job_logs import JobLogs, LogRequest
from allranks.cli.local_runs import note_run, print_logs, run_instead
from allranks.cli.options import (
    FAILED,
    OK,
    Count,
    Duration,
    cluster_options,
    name_callback,
    print_error,
    run_on_cluster,
)
from allranks.core.facts.naming import TRAINER
from allranks.errors import AllranksError
from allranks.kube.cluster import Cluster, Where


@click.command(
    epilog="""\b
Examples:
  allranks logs penguins
  allranks logs penguins -f
  allranks logs penguins --rank 0 --rank 3 --tail 100
  allranks logs penguins --role worker --since 10m --timestamps
  allranks logs penguins --all-attempts --index 0 --index 1
  allranks logs penguins -o json | jq -r 'select(.rank == 0).line'
  allranks logs penguins --rank 0 --no-prefix > rank0.log
  allranks logs penguins --attempt 0 --archive s3://team/history
\b
Exit status:
  0 a log was read, 1 no log was read or the API server rejected the request,
  130 interrupted by Ctrl-C (the job continues).
"""
)
@click.argument("name", callback=name_callback, shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Follow the logs until the job has finished, across restarts.")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Print only pods of this role. Repeatable.")
@click.option("--rank", "ranks", type=Count(0), multiple=True, metavar="N", help="Print only this rank. Repeatable.")
@click.option(
    "--index",
    "indices",
    type=Count(0),
    multiple=True,
    metavar="N",
    help="Print only this index in its role. Repeatable.",
)
@click.option("--attempt", type=Count(0), metavar="N", help="Print this attempt. [default: the current one]")
@click.option("--all-attempts", is_flag=True, help="Print all attempts whose pods or archived logs exist.")
@click.option("-c", "--container", default=TRAINER, show_default=True, metavar="NAME", help="The container.")
@click.option("-p", "--previous", is_flag=True, help="Print the previous run of the container (OnFailure).")
@click.option("--tail", type=Count(0), metavar="LINES", help="Print the last LINES of each log. [default: all]")
@click.option("--since", type=Duration(), metavar="TIME", help="Print only newer lines, for example 30s or 10m.")
@click.option("--timestamps", is_flag=True, help="Print the time (UTC) of each line.")
@click.option("--no-prefix", is_flag=True, help="Print lines without the rank in front.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print each line as a JSON object.")
@archive_options
@cluster_options
def logs(where: Where, name: str, archive: Archive, follow: bool, **options: Any) -> None:
    """Print the logs of all ranks of a job, merged by time, each line with its rank in front.

    Logs are read from the existing pods. A restart deletes the pods of the attempt, and their logs with them: an
    archive has the ends of these logs, also when the job is deleted. `allranks run` keeps the logs of all attempts
    (allranks runs logs). If no cluster is configured, or it does not have the job, the logs of the newest local
    run of this name are printed, unless another option than --rank and --tail is given.

    With -o json, each line is an object with time, role, index, rank, attempt and line. The rank is null for earlier
    attempts, which may have had another number of ranks.
    """
    request = LogRequest(**options)
    if request.all_attempts and request.attempt is not None:
        raise click.UsageError("specify either --attempt or --all-attempts, not both.")
    if follow and request.previous:
        raise click.UsageError("a previous run has ended and cannot be followed: specify either -f or -p.")
    from_cluster = functools.partial(_from_cluster, name=name, archive=archive, request=request, follow=follow)
    without_job = functools.partial(_without_job, where=where, name=name, archive=archive, request=request)
    sys.exit(run_on_cluster(from_cluster, where, {}, without_job))


async def _from_cluster(cluster: Cluster, name: str, archive: Archive, request: LogRequest, follow: bool) -> int:
    """Return the exit status. Raise AllranksError only if neither the cluster nor the archive has the job."""
    job, exists = await find_job(cluster, name, archive)
    try:
        logs = JobLogs(job, request, archive)
        return await (logs.print(cluster, follow) if exists else logs.print_archived())
    except AllranksError as error:
        print_error(error)
        return FAILED


def _without_job(error: AllranksError, where: Where, name: str, archive: Archive, request: LogRequest) -> int:
    """Print the logs of a deleted job or of a local run, after `error` of a cluster. Return the exit status."""
    try:
        if job := without_cluster(error, where, name, archive):
            return asyncio.run(JobLogs(job, request, archive).print_archived())
        if _suits_runs() and (run := run_instead(error, name)):
            click.echo(f"The newest local run of {name} is printed ({run.directory}).", err=True)
            print_logs(run, ranks=request.ranks, tail=request.tail)
            return OK
        error = also_missing(error, where, name, archive)
    except AllranksError as other_error:
        error = other_error
    print_error(error)
    note_run(error, "logs", name)
    return FAILED


def _suits_runs() -> bool:
    """Return whether the user gave no option that is only about the pods of a cluster."""
    context = click.get_current_context()
    typed = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    return typed <= {"name", "ranks", "tail"}
