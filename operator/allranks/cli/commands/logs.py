"""`allranks logs`: prints the logs of all ranks, each line with its rank in front."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from allranks.api.status import FINISHED, Status
from allranks.cli.archived import archive_option, archived_job, archived_logs, open_archive, when_archived
from allranks.cli.completers import complete_jobs
from allranks.cli.format.log_lines import label, prefixed
from allranks.cli.format.outcome import failure_line
from allranks.cli.format.progress import pod_state
from allranks.cli.live.follow import Deleted, Follower, has_log
from allranks.cli.options import FAILED, OK, Count, Duration, get_job, name_callback, on_cluster
from allranks.cli.rank_pods import check_rank, check_role
from allranks.cli.safe_output import use_colour
from allranks.control_sequences import clean
from allranks.core.model import Pod
from allranks.core.naming import TRAINER, replica_key
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import ranks_of, status_of
from allranks.kube.pod_logs import Line, Wanted, merged, read
from allranks.open_files import raise_open_files


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
@archive_option
@on_cluster
async def logs(
    cluster: Cluster,
    name: str,
    follow: bool,
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
    archive: str | None,
) -> int:
    """Print the logs of all ranks of a job, merged by time, each line with its rank in front.

    Logs are read from the existing pods. A restart deletes the pods of the attempt, and their logs with them: an
    archive has the ends of those logs, also when the job is deleted. `allranks run` keeps the logs of all attempts
    (allranks runs logs).

    With -o json, each line is an object with time, role, index, rank, attempt and line. The rank is null for earlier
    attempts, which may have had another number of ranks.
    """
    if all_attempts and attempt is not None:
        raise click.UsageError("specify either --attempt or --all-attempts, not both.")
    if follow and previous:
        raise click.UsageError("a previous run has ended and cannot be followed: specify either -f or -p.")
    try:
        job, live = await get_job(cluster, name), True
    except ClusterError as error:
        found = archived_job(archive, cluster.namespace, name) if error.status == 404 else None
        if found is None:
            raise
        job, live = found, False
        click.echo(when_archived(job, str(archive)), err=True)
    status = status_of(job)
    first = 0 if all_attempts else status.attempt
    selected = Selection(attempt, frozenset(roles), frozenset(ranks), frozenset(indices), ranks_of(job), first)
    _check(name, selected)
    raise_open_files()
    wanted = Wanted(container, previous, tail, since)
    printer = (
        JsonPrinter(container, selected.rank_of, status.attempt)
        if output
        else Printer(container, timestamps=timestamps, prefix=not no_prefix, attempts=all_attempts)
    )
    follower = Follower(cluster, job, printer, wanted, selected)
    if live:
        await follower.list_pods()
    pods = [pod for pod in follower.pods if selected(pod)]
    archived = []
    if archive and (not follow or not live):
        there = {(pod.role, pod.index, pod.attempt, pod.restart) for pod in pods if has_log(pod, container)}
        archived = archived_logs(open_archive(archive), job, wanted, selected, there)
    printer.add_labels([*follower.pods, *(pod for pod, _ in archived)])
    if all_attempts and (gone := _deleted_attempts([*follower.pods, *(pod for pod, _ in archived)], status)):
        printer.message(_no_logs_of(name, gone))
    have = {pod.name for pod, _ in archived}
    read_live = [pod for pod in pods if pod.name not in have]
    complete = await _history(cluster, job, read_live, wanted, printer, follower.after, archived, quiet=follow)
    if not live:
        if not archived:
            raise ClusterError(f"the archive {archive} has none of the selected logs of {name}")
        return OK
    if not follow or (status.phase in FINISHED and complete):
        if not printer.printed and not pods and not archived:
            raise ClusterError(_no_pods(name, status, attempt))
        return OK if printer.printed or archived or any(has_log(pod, container) for pod in pods) else FAILED
    cluster.interrupted = f"{name} continues"
    if not pods or not all(has_log(pod, container) for pod in pods):
        printer.message(f"{name} is {status.phase}, {status.ready or '0'} pods running: waiting for the ranks")
    try:
        await follower.follow(lambda now: now.phase in FINISHED)
    except Deleted:
        click.echo(f"{name} was deleted", err=True)
        return FAILED
    return OK


def _check(name: str, selected: Selection) -> None:
    """Raises UsageError for a role or a rank that the job does not have."""
    for role in selected.roles:
        check_role(name, selected.rank_of, role)
    for rank in selected.ranks:
        check_rank(name, selected.rank_of, rank)


def _no_pods(name: str, status: Status, attempt: int | None) -> str:
    if attempt is not None and attempt != status.attempt:
        return (
            f"the pods of attempt {attempt} are deleted, and their logs with them (the job is in attempt "
            f"{status.attempt}): allranks describe {name} prints the last lines of the rank that failed"
        )
    if status.phase in FINISHED:
        return f"{name} is {status.phase} and the selected pods are deleted: spec.cleanPodPolicy: None keeps pods"
    return f"{name} is {status.phase} and the selected pods do not exist yet: -f waits for them"


def _deleted_attempts(pods: Sequence[Pod], status: Status) -> list[int]:
    """The earlier attempts that have no pod any more."""
    return sorted(set(range(status.attempt)) - {pod.attempt for pod in pods})


def _no_logs_of(name: str, attempts: list[int]) -> str:
    which = f"attempt {attempts[0]}" if len(attempts) == 1 else f"{len(attempts)} earlier attempts"
    return (
        f"{which}: no logs, because a restart deletes the pods: allranks describe {name} prints the last lines of the "
        "rank that failed"
    )


async def _history(
    cluster: Cluster,
    job: Manifest,
    pods: Sequence[Pod],
    wanted: Wanted,
    printer: Printer,
    after: dict[str, bytes],
    archived: Sequence[tuple[Pod, list[Line]]] = (),
    *,
    quiet: bool,
) -> bool:
    """Prints the existing logs and those of an archive in the order of time. Returns whether they are complete.

    `after` gets the time of the last printed line of each pod.
    """
    namespace = job["metadata"]["namespace"]
    complete = [True]

    async def one(pod: Pod) -> Any:
        try:
            async for lines in read(cluster, namespace, pod.name, wanted.query()):
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
    async def whole(lines: list[Line]) -> Any:
        yield lines

    gathered: list[tuple[Pod, Line]] = []
    sources = [*readable, *(pod for pod, _ in archived)]
    async for place, line in merged([*map(one, readable), *(whole(lines) for _, lines in archived)]):
        pod = sources[place]
        after[pod.uid] = max(line.time, after.get(pod.uid, b""))
        gathered.append((pod, line))
        if len(gathered) >= 500:
            printer.write(gathered)
            gathered = []
    printer.write(gathered)
    return complete[0]


class Printer:
    """Prints the lines of all ranks on stdout, and messages on stderr."""

    def __init__(self, container: str, *, timestamps: bool, prefix: bool, attempts: bool = False) -> None:
        """`attempts`: the label has the attempt."""
        self._container = container
        self._attempts = attempts
        self._timestamps = timestamps
        self._prefix = prefix
        self._colour = use_colour(sys.stdout)
        self._width = 0
        self._places: dict[str, int] = {}
        self._attempt: int | None = None
        self.printed = False

    def add_labels(self, pods: Sequence[Pod]) -> None:
        """Makes the labels as wide as the widest of these pods."""
        for pod in pods:
            self._places.setdefault(replica_key(pod.role, pod.index), len(self._places))
            self._width = max(self._width, len(self._label(pod)))

    def _label(self, pod: Pod) -> str:
        return f"{label(pod, self._container)} attempt {pod.attempt}" if self._attempts else label(pod, self._container)

    def write(self, lines: Sequence[tuple[Pod, Line]]) -> None:
        if lines:
            self.printed = True
            sys.stdout.write("".join(f"{self._formatted(pod, line)}\n" for pod, line in lines))
            sys.stdout.flush()

    def _formatted(self, pod: Pod, line: Line) -> str:
        # A progress bar redraws its line after \r: only the last state is printed.
        text = clean(line.text.rstrip(b"\r").rpartition(b"\r")[2], self._colour)
        if self._timestamps:
            text = f"{line.time[:23].decode()}Z {text}" if line.time else text
        if not self._prefix:
            return text
        place = self._places.get(replica_key(pod.role, pod.index), 0)
        return prefixed(self._label(pod), self._width, place, text, colour=self._colour)

    # Called by Follower.

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        self.add_labels(pods)
        if self._attempt is not None and status.attempt > self._attempt:
            failure = status.last_failure
            ended = failure is not None and failure.attempt == self._attempt
            why = f" ({failure_line(failure)})" if failure and ended else ""
            self.message(f"attempt {status.attempt} started{why}")
        self._attempt = status.attempt

    def lines(self, pod: Pod, lines: list[Line]) -> None:
        self.write([(pod, line) for line in lines])

    def message(self, text: str) -> None:
        click.echo(click.style(text, dim=True), err=True)


class JsonPrinter(Printer):
    """Prints each line as a JSON object. The text is complete: JSON escapes its control characters."""

    def __init__(self, container: str, rank_of: dict[str, int | None], attempt: int) -> None:
        super().__init__(container, timestamps=True, prefix=False)
        self._rank_of, self._current = rank_of, attempt

    def _formatted(self, pod: Pod, line: Line) -> str:
        rank = self._rank_of.get(replica_key(pod.role, pod.index)) if pod.attempt == self._current else None
        return json.dumps(
            {
                "time": line.time.decode() or None,
                "role": pod.role,
                "index": pod.index,
                "rank": rank,
                "attempt": pod.attempt,
                "line": line.text.decode("utf-8", errors="replace"),
            }
        )

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        super().status(status, pods)
        self._current = status.attempt
