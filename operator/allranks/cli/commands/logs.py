"""`allranks logs`: what all ranks print, each line with its rank in front."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from allranks.api.status import FINISHED, Status
from allranks.cli.live.follow import Follower, Gone, begun, label
from allranks.cli.live.summary import failure_line, prefixed, state_of
from allranks.cli.options import FAILED, OK, Duration, colours, get_job, joined, name_callback, on_cluster
from allranks.control_sequences import clean
from allranks.core.model import Pod
from allranks.core.naming import TRAINER, replica_key
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import ranks_of, status_of
from allranks.kube.pod_logs import Line, Wanted, merged, read
from allranks.open_files import raise_open_files


@dataclass(frozen=True)
class Chosen:
    """Which pods."""

    attempt: int | None
    roles: frozenset[str]
    ranks: frozenset[int]
    indices: frozenset[int]
    rank_of: dict[str, int | None] = field(default_factory=dict)
    first: int = 0
    """The attempt that the job is in: earlier ones only when asked for."""

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
  allranks logs penguins --rank 0 --no-prefix > rank0.log
\b
Exit status:
  0 something could be read, 1 nothing could, or the cluster refuses, 130 interrupted by Ctrl-C (the job goes on).
"""
)
@click.argument("name", callback=name_callback)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over, over all its restarts.")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Only pods of this role. Repeatable.")
@click.option("--rank", "ranks", type=click.IntRange(0), multiple=True, help="Only this rank's pod. Repeatable.")
@click.option("--index", "indices", type=click.IntRange(0), multiple=True, help="Only this index in its role.")
@click.option("--attempt", type=click.IntRange(0), help="Only this attempt. [default: the present one]")
@click.option("-c", "--container", default=TRAINER, show_default=True, metavar="NAME", help="Which container.")
@click.option("-p", "--previous", is_flag=True, help="Of the container's last run in place (restartPolicy OnFailure).")
@click.option("--tail", type=click.IntRange(0), metavar="LINES", help="Only so many last lines of each. [default: all]")
@click.option("--since", type=Duration(), metavar="TIME", help="Only what is newer than this: 30s, 10m, 2h.")
@click.option("--timestamps", is_flag=True, help="With the time (UTC) of each line.")
@click.option("--no-prefix", is_flag=True, help="Without the rank in front.")
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
) -> int:
    """Print the logs of a job's ranks, merged by time, each line with its rank in front.

    Logs are read from the pods that there are: those of earlier attempts are deleted with them.
    """
    if follow and previous:
        raise click.UsageError("what has ended cannot be followed: give either -f or -p.")
    job = await get_job(cluster, name)
    status = status_of(job)
    chosen = Chosen(attempt, frozenset(roles), frozenset(ranks), frozenset(indices), ranks_of(job), status.attempt)
    _check(name, chosen)
    raise_open_files()
    wanted = Wanted(container, previous, tail, since)
    printer = Printer(container, timestamps=timestamps, prefix=not no_prefix)
    follower = Follower(cluster, job, printer, wanted, chosen)
    await follower.look()
    pods = [pod for pod in follower.pods if chosen(pod)]
    printer.know(follower.pods)
    complete = await _history(cluster, job, pods, wanted, printer, follower.after, quiet=follow)
    if not follow or (status.phase in FINISHED and complete):
        if not printer.any and not pods:
            raise ClusterError(_nothing(name, status, attempt))
        return OK if printer.any or any(begun(pod, container) for pod in pods) else FAILED
    cluster.interrupted = f"{name} goes on"
    if not pods or not all(begun(pod, container) for pod in pods):
        printer.say(f"{name} is {status.phase}, {status.ready or '0'} pods running: waiting for its ranks")
    try:
        await follower.follow(lambda now: now.phase in FINISHED)
    except Gone:
        click.echo(f"{name} was deleted", err=True)
        return FAILED
    return OK


def _check(name: str, chosen: Chosen) -> None:
    """Raises UsageError for what this job does not have."""
    there = {key.rpartition("-")[0] for key in chosen.rank_of}
    if not there:
        return
    for role in chosen.roles - there:
        raise click.UsageError(f"{name} has no role {role}: it has {joined(sorted(there), 'and')}.")
    known = {rank for rank in chosen.rank_of.values() if rank is not None}
    for rank in chosen.ranks - known:
        most = f"its ranks are 0 to {max(known)}" if known else "it has no ranks"
        raise click.UsageError(f"{name} has no rank {rank}: {most} (one for each pod).")


def _nothing(name: str, status: Status, attempt: int | None) -> str:
    if attempt is not None and attempt != status.attempt:
        return (
            f"no pod of attempt {attempt} is left, and its logs have gone with them (the job is in attempt "
            f"{status.attempt}): allranks describe {name} has the last lines of the rank that failed"
        )
    if status.phase in FINISHED:
        return f"{name} is {status.phase}, and no such pod is left: spec.cleanPodPolicy: None would keep them"
    return f"{name} is {status.phase} and has no such pods yet: -f waits for them"


async def _history(
    cluster: Cluster,
    job: Manifest,
    pods: Sequence[Pod],
    wanted: Wanted,
    printer: Printer,
    after: dict[str, bytes],
    *,
    quiet: bool,
) -> bool:
    """Prints what there is, in the order of time; notes in `after` how far each pod was told. Whether it was all."""
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
                printer.say(f"{replica_key(pod.role, pod.index)}: {error}")

    readable = [pod for pod in pods if begun(pod, wanted.container)]
    for pod in pods:
        if pod not in readable:
            complete[0] = complete[0] and pod.ended
            if not quiet:
                why = pod.waiting_reason or state_of(pod)
                printer.say(f"{replica_key(pod.role, pod.index)} has printed nothing: {why}")
    gathered: list[tuple[Pod, Line]] = []
    async for place, line in merged([one(pod) for pod in readable]):
        pod = readable[place]
        after[pod.uid] = max(line.time, after.get(pod.uid, b""))
        gathered.append((pod, line))
        if len(gathered) >= 500:
            printer.write(gathered)
            gathered = []
    printer.write(gathered)
    return complete[0]


class Printer:
    """Prints the lines of all ranks on stdout; what it has to say itself goes to stderr."""

    def __init__(self, container: str, *, timestamps: bool, prefix: bool) -> None:
        self._container = container
        self._timestamps = timestamps
        self._prefix = prefix
        self._colour = colours(sys.stdout)
        self._width = 0
        self._places: dict[str, int] = {}
        self._attempt: int | None = None
        self.any = False

    def know(self, pods: Sequence[Pod]) -> None:
        """The labels are as wide as the widest of these."""
        for pod in pods:
            self._places.setdefault(replica_key(pod.role, pod.index), len(self._places))
            self._width = max(self._width, len(label(pod, self._container)))

    def write(self, lines: Sequence[tuple[Pod, Line]]) -> None:
        if lines:
            self.any = True
            sys.stdout.write("".join(f"{self._formatted(pod, line)}\n" for pod, line in lines))
            sys.stdout.flush()

    def _formatted(self, pod: Pod, line: Line) -> str:
        # Of a progress bar that draws over itself: what stands there in the end.
        text = clean(line.text.rstrip(b"\r").rpartition(b"\r")[2], self._colour)
        if self._timestamps:
            text = f"{line.time[:23].decode()}Z {text}" if line.time else text
        if not self._prefix:
            return text
        place = self._places.get(replica_key(pod.role, pod.index), 0)
        return prefixed(label(pod, self._container), self._width, place, text, colour=self._colour)

    # What a follower tells.

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        self.know(pods)
        if self._attempt is not None and status.attempt > self._attempt:
            failure = status.last_failure
            ended = failure is not None and failure.attempt == self._attempt
            why = f" ({failure_line(failure)})" if failure and ended else ""
            self.say(f"attempt {status.attempt} begins{why}")
        self._attempt = status.attempt

    def lines(self, pod: Pod, lines: list[Line]) -> None:
        self.write([(pod, line) for line in lines])

    def say(self, text: str) -> None:
        click.echo(click.style(text, dim=True), err=True)
