"""`allranks logs`: prints the logs of all ranks, each line with its rank in front."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from click.core import ParameterSource

from allranks.api.status import FINISHED, Status
from allranks.cli.archived import (
    Archive,
    also_missing,
    archive_options,
    archived_logs,
    find_job,
    in_batches,
    place_of,
    without_cluster,
)
from allranks.cli.completers import complete_jobs
from allranks.cli.local_runs import note_run, print_logs, run_instead
from allranks.cli.log_printers import JsonPrinter, Printer
from allranks.cli.options import (
    FAILED,
    OK,
    Count,
    Duration,
    check_rank,
    check_role,
    cluster_options,
    name_callback,
    print_error,
    run_on_cluster,
)
from allranks.client.follow import Deleted, Follower, has_log
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import TRAINER, replica_key
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.job_codec import ranks_of, status_of
from allranks.kube.pod_logs import Line, LogOptions, merged, read
from allranks.open_files import raise_open_files
from allranks.views.format.progress import pod_state


@dataclass(frozen=True)
class Selection:
    """The pods whose logs are printed."""

    attempt: int | None
    roles: frozenset[str]
    ranks: frozenset[int]
    indices: frozenset[int]
    rank_of: dict[str, int | None] = field(default_factory=dict)
    first: int = 0
    """The first attempt that is printed: the current one, or 0 for all."""

    def __call__(self, pod: Pod) -> bool:
        return (
            (pod.attempt >= self.first if self.attempt is None else pod.attempt == self.attempt)
            and (not self.roles or pod.role in self.roles)
            and (not self.indices or pod.index in self.indices)
            and (not self.ranks or self.rank_of.get(replica_key(pod.role, pod.index)) in self.ranks)
        )


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
    if options["all_attempts"] and options["attempt"] is not None:
        raise click.UsageError("specify either --attempt or --all-attempts, not both.")
    if follow and options["previous"]:
        raise click.UsageError("a previous run has ended and cannot be followed: specify either -f or -p.")

    found = False

    async def on_cluster(cluster: Cluster) -> int:
        nonlocal found
        job, exists = await find_job(cluster, name, archive)
        found = True
        view = _view(job, **options)
        return await (_logs(cluster, job, view, archive, follow) if exists else _archived(job, view, archive))

    def otherwise(error: AllranksError) -> int:
        try:
            if job := without_cluster(error, where, name, archive):
                return asyncio.run(_archived(job, _view(job, **options), archive))
            if not found and _suits_runs() and (run := run_instead(error, name)):
                click.echo(f"The newest local run of {name} is printed ({run.directory}).", err=True)
                print_logs(run, ranks=options["ranks"], tail=options["tail"])
                return OK
            error = also_missing(error, where, name, archive)
        except AllranksError as broken:
            error = broken
        print_error(error)
        if not found:
            note_run(error, "logs", name)
        return FAILED

    sys.exit(run_on_cluster(on_cluster, where, {}, otherwise))


def _suits_runs() -> bool:
    """Whether the user gave no option that is only about the pods of a cluster."""
    context = click.get_current_context()
    given = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    return given <= {"name", "ranks", "tail"}


@dataclass(frozen=True)
class View:
    """What is printed, and how."""

    selected: Selection
    wanted: LogOptions
    printer: Printer
    all_attempts: bool


def _view(
    job: Manifest,
    *,
    roles: tuple[str, ...],
    ranks: tuple[int, ...],
    indices: tuple[int, ...],
    attempt: int | None,
    container: str,
    previous: bool,
    tail: int | None,
    since: float | None,
    timestamps: bool,
    no_prefix: bool,
    all_attempts: bool,
    output: str | None,
) -> View:
    """Raises UsageError for a role or a rank that the job does not have."""
    current = status_of(job).attempt
    first = 0 if all_attempts else current
    selected = Selection(attempt, frozenset(roles), frozenset(ranks), frozenset(indices), ranks_of(job), first)
    _check(job["metadata"]["name"], selected)
    printer = (
        JsonPrinter(container, selected.rank_of, current)
        if output
        else Printer(container, timestamps=timestamps, prefix=not no_prefix, attempts=all_attempts)
    )
    return View(selected, LogOptions(container, previous, tail, since), printer, all_attempts)


async def _logs(cluster: Cluster, job: Manifest, view: View, archive: Archive, follow: bool) -> int:
    """Those of the pods that exist, and of an archive for the others. Returns the exit status."""
    name, status = job["metadata"]["name"], status_of(job)
    selected, wanted, printer = view.selected, view.wanted, view.printer
    raise_open_files()
    follower = Follower(cluster, job, printer, wanted, selected)
    await follower.list_pods()
    pods = [pod for pod in follower.pods if selected(pod)]
    archived = [] if follow else await _of_deleted_pods(job, view, archive, pods)
    pods = [pod for pod in pods if place_of(pod) not in {place_of(one) for one, _ in archived}]
    every = [*follower.pods, *(pod for pod, _ in archived)]
    printer.add_labels(every)
    if view.all_attempts and (gone := _deleted_attempts(every, status)):
        printer.message(_no_logs_of(name, gone, archive))
    complete = await _history(cluster, job, pods, wanted, printer, follower.after, archived, quiet=follow)
    if not follow or (status.phase in FINISHED and complete):
        if not printer.printed and not pods and not archived:
            raise ClusterError(_no_pods(name, status, selected.attempt, archive))
        return OK if printer.printed or any(has_log(pod, wanted.container) for pod in pods) else FAILED
    cluster.interrupted = f"{name} continues"
    if not pods or not all(has_log(pod, wanted.container) for pod in pods):
        printer.message(f"{name} is {status.phase}, {status.ready or '0'} pods running: waiting for the ranks")
    try:
        await follower.follow(lambda now: now.phase in FINISHED)
    except Deleted:
        click.echo(f"{name} was deleted", err=True)
        return FAILED
    return OK


Archived = Sequence[tuple[Pod, Iterable[Line]]]


async def _of_deleted_pods(job: Manifest, view: View, archive: Archive, pods: Sequence[Pod]) -> Archived:
    """The archived logs of pods that are deleted, or have no log. Raises ArchiveError if there is no other log."""
    if not archive.url:
        return []
    there = {place_of(pod) for pod in pods if has_log(pod, view.wanted.container)}
    try:
        return await asyncio.to_thread(archived_logs, archive.reader, job, view.wanted, view.selected, there)
    except AllranksError as error:
        if not there:
            raise
        view.printer.message(f"logs of deleted pods cannot be read: {error}")
        return []


async def _archived(job: Manifest, view: View, archive: Archive) -> int:
    """Prints the logs of a deleted job. Returns the exit status. Raises AllranksError."""
    found = await asyncio.to_thread(archived_logs, archive.reader, job, view.wanted, view.selected)
    if not found:
        raise ClusterError(f"the archive {archive.url} has none of the selected logs", 404, "NotFound")
    view.printer.add_labels([pod for pod, _ in found])
    await _print(view.printer, [pod for pod, _ in found], [in_batches(lines) for _, lines in found], {})
    return OK


def _check(name: str, selected: Selection) -> None:
    """Raises UsageError for a role or a rank that the job does not have."""
    for role in selected.roles:
        check_role(name, selected.rank_of, role)
    for rank in selected.ranks:
        check_rank(name, selected.rank_of, rank)


def _no_pods(name: str, status: Status, attempt: int | None, archive: Archive) -> str:
    if archive.url and (status.phase in FINISHED or attempt is not None):
        return f"the selected pods of {name} are deleted, and the archive {archive.url} does not have their logs"
    if attempt is not None and attempt != status.attempt:
        return (
            f"the pods of attempt {attempt} are deleted, and their logs with them (the job is in attempt "
            f"{status.attempt}): allranks describe {name} prints the last lines of the rank that failed, and --archive "
            "reads the logs of an archive"
        )
    if status.phase in FINISHED:
        return (
            f"{name} is {status.phase} and the selected pods are deleted: spec.cleanPodPolicy: None keeps pods, and "
            "--archive reads the logs of an archive"
        )
    return f"{name} is {status.phase} and the selected pods do not exist yet: -f waits for them"


def _deleted_attempts(pods: Sequence[Pod], status: Status) -> list[int]:
    """The earlier attempts that have no pod any more."""
    return sorted(set(range(status.attempt)) - {pod.attempt for pod in pods})


def _no_logs_of(name: str, attempts: list[int], archive: Archive) -> str:
    which = f"attempt {attempts[0]}" if len(attempts) == 1 else f"{len(attempts)} earlier attempts"
    if archive.url:
        return f"{which}: no logs, neither of pods nor in the archive {archive.url}"
    return (
        f"{which}: no logs, because a restart deletes the pods: allranks describe {name} prints the last lines of the "
        "rank that failed"
    )


async def _history(
    cluster: Cluster,
    job: Manifest,
    pods: Sequence[Pod],
    wanted: LogOptions,
    printer: Printer,
    after: dict[str, bytes],
    archived: Archived = (),
    *,
    quiet: bool,
) -> bool:
    """Prints the existing logs and archived ones in the order of time. Returns whether they are complete.

    `after` gets the time of the last printed line of each pod.
    """
    namespace = job["metadata"]["namespace"]
    complete = [True]

    async def one(pod: Pod) -> Any:
        try:
            async for lines in read(cluster, namespace, pod.name, wanted):
                yield lines
        except ClusterError as error:
            if error.status in (401, 403):
                raise
            complete[0] = False
            if not quiet:
                printer.message(f"{replica_key(pod.role, pod.index)}: {error}")

    readable = [pod for pod in pods if has_log(pod, wanted.container)]
    for pod in pods:
        if pod not in readable:
            complete[0] = complete[0] and pod.ended
            if not quiet:
                why = pod.waiting_reason or pod_state(pod)
                printer.message(f"{replica_key(pod.role, pod.index)} has no log: {why}")
    sources = [*map(one, readable), *(in_batches(lines) for _, lines in archived)]
    await _print(printer, [*readable, *(pod for pod, _ in archived)], sources, after)
    return complete[0]


async def _print(
    printer: Printer, pods: Sequence[Pod], sources: Sequence[AsyncIterator[list[Line]]], after: dict[str, bytes]
) -> None:
    """Prints the lines of all pods in the order of time. `after` gets the time of the last line of each pod."""
    gathered: list[tuple[Pod, Line]] = []
    async for place, line in merged(sources):
        pod = pods[place]
        after[pod.uid] = max(line.time, after.get(pod.uid, b""))
        gathered.append((pod, line))
        if len(gathered) >= 500:
            printer.write(gathered)
            gathered = []
    printer.write(gathered)
