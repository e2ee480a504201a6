"""Prints the logs of a job: of its pods, and of an archive for pods that are deleted.

Lines go to stdout, as text with the rank in front or as JSON objects; messages go to stderr.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import click

from allranks.api.status import FINISHED, Status
from allranks.cli.archived import Archive, archived_logs, in_batches, place_of
from allranks.cli.options import FAILED, OK, check_rank, check_role
from allranks.client.follow import Deleted, Follower, has_log
from allranks.control_sequences import clean, last_state
from allranks.core.facts.attempt_pods import pods_of
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import replica_key
from allranks.core.facts.processes import BEGINS
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import ranks_of, status_of
from allranks.kube.pod_logs import Line, LogOptions, merged, read
from allranks.open_files import raise_open_files
from allranks.views.format.log_lines import label, prefixed
from allranks.views.format.outcome import failure_line
from allranks.views.format.progress import pod_state
from allranks.views.safe_output import use_colour

_LINES_WRITTEN = 500
"""Lines that are written to stdout at once."""


@dataclass(frozen=True, kw_only=True)
class LogRequest:
    """The options of `allranks logs` that select pods, lines and their form."""

    roles: tuple[str, ...]
    ranks: tuple[int, ...]
    indices: tuple[int, ...]
    attempt: int | None
    all_attempts: bool
    container: str
    previous: bool
    tail: int | None
    since: float | None
    """Seconds."""
    timestamps: bool
    no_prefix: bool
    output: str | None


ArchivedLogs = Sequence[tuple[Pod, Iterable[Line]]]


class JobLogs:
    """Prints the logs of one job. Methods raise AllranksError if there is no log."""

    def __init__(self, job: Manifest, request: LogRequest, archive: Archive) -> None:
        """Raise UsageError for a role or a rank that the job does not have."""
        self._job, self._request, self._archive = job, request, archive
        self._name: str = job["metadata"]["name"]
        self._status = status_of(job)
        self._rank_of = ranks_of(job)
        for role in request.roles:
            check_role(self._name, self._rank_of, role)
        for rank in request.ranks:
            check_rank(self._name, self._rank_of, rank)
        self._options = LogOptions(request.container, request.previous, request.tail, request.since)
        partial = request.tail is not None or request.since is not None
        attempts = LineAttempts(self._selects_attempt, None if partial else self._status.pods_of_attempt)
        self._printer = (
            JsonPrinter(request.container, attempts, self._rank_of, self._status.attempt)
            if request.output
            else Printer(
                request.container,
                attempts,
                current=self._status.attempt,
                timestamps=request.timestamps,
                prefix=not request.no_prefix,
                attempts=request.all_attempts,
            )
        )
        self._complete = True
        """Whether all logs that exist have been read, and their pods have ended."""

    async def print(self, cluster: Cluster, follow: bool) -> int:
        """Print the logs of the pods on the cluster, and of an archive for other pods. Return the exit status."""
        raise_open_files()
        follower = Follower(cluster, self._job, self._printer, self._options, self._selects)
        await follower.list_pods()
        pods = [pod for pod in follower.pods if self._selects(pod)]
        archived = [] if follow else await self._of_deleted_pods(pods)
        in_archive = {place_of(pod) for pod, _ in archived}
        pods = [pod for pod in pods if place_of(pod) not in in_archive]
        self._add_labels([*follower.pods, *(pod for pod, _ in archived)])
        await self._print_history(cluster, pods, archived, follower.after, quiet=follow)
        if follow and not (self._status.phase in FINISHED and self._complete):
            return await self._follow(cluster, follower, pods)
        if not self._printer.printed and not pods and not archived:
            raise ClusterError(self._no_pods())
        return OK if self._printer.printed or any(self._has_log(pod) for pod in pods) else FAILED

    async def print_archived(self) -> int:
        """Print the logs of a deleted job. Return the exit status."""
        logs = await asyncio.to_thread(archived_logs, self._archive.reader, self._job, self._options, self._selects)
        if not logs:
            raise ClusterError(f"the archive {self._archive.url} has none of the selected logs", 404, "NotFound")
        pods = [pod for pod, _ in logs]
        self._printer.add_labels(pods)
        await self._print_merged(pods, [in_batches(lines) for _, lines in logs], {})
        return OK

    def _selects(self, pod: Pod) -> bool:
        request = self._request
        return (
            any(map(self._selects_attempt, self._attempts_of(pod)))
            and (not request.roles or pod.role in request.roles)
            and (not request.indices or pod.index in request.indices)
            and (not request.ranks or self._rank_of.get(replica_key(pod.role, pod.index)) in request.ranks)
        )

    def _attempts_of(self, pod: Pod) -> set[int]:
        """Return the attempts that ran in the pod."""
        status = self._status
        first = status.pod_attempt if pod.attempt == status.attempt else pod.attempt
        return {first} | {number for number in range(first, status.attempt + 1) if pods_of(status, number) == first}

    def _selects_attempt(self, attempt: int) -> bool:
        request = self._request
        if request.attempt is not None:
            return attempt == request.attempt
        return request.all_attempts or attempt >= self._status.attempt

    def _has_log(self, pod: Pod) -> bool:
        return has_log(pod, self._options.container)

    async def _of_deleted_pods(self, pods: Sequence[Pod]) -> ArchivedLogs:
        """Return the archived logs of pods that are deleted, or have no log. Raise ArchiveError if `pods` have none."""
        if not self._archive.url:
            return []
        present = {place_of(pod) for pod in pods if self._has_log(pod)}
        try:
            return await asyncio.to_thread(
                archived_logs, self._archive.reader, self._job, self._options, self._selects, present
            )
        except AllranksError as error:
            if not present:
                raise
            self._printer.message(f"logs of deleted pods cannot be read: {error}")
            return []

    def _add_labels(self, pods: Sequence[Pod]) -> None:
        """Add the labels of the pods, and with --all-attempts say which attempts have no pods."""
        self._printer.add_labels(pods)
        present = {attempt for pod in pods for attempt in self._attempts_of(pod)}
        attempts = sorted(set(range(self._status.attempt)) - present)
        if self._request.all_attempts and attempts:
            self._printer.message(self._no_logs_of(attempts))

    async def _print_history(
        self, cluster: Cluster, pods: Sequence[Pod], archived: ArchivedLogs, after: dict[str, bytes], *, quiet: bool
    ) -> None:
        """Print the existing logs and archived ones in the order of time.

        `after` gets the time of the last printed line of each pod. `quiet`: print no messages about missing logs.
        """
        readable = [pod for pod in pods if self._has_log(pod)]
        for pod in pods:
            if pod in readable:
                continue
            self._complete = self._complete and pod.ended
            if not quiet:
                reason = pod.waiting_reason or pod_state(pod)
                self._printer.message(f"{replica_key(pod.role, pod.index)} has no log: {reason}")
        sources = [self._read(cluster, pod, quiet) for pod in readable]
        sources += [in_batches(lines) for _, lines in archived]
        await self._print_merged([*readable, *(pod for pod, _ in archived)], sources, after)

    async def _read(self, cluster: Cluster, pod: Pod, quiet: bool) -> AsyncIterator[list[Line]]:
        """Yield the lines of a pod. Raise ClusterError only without the right to read logs."""
        try:
            async for lines in read(cluster, self._job["metadata"]["namespace"], pod.name, self._options):
                yield lines
        except ClusterError as error:
            if error.status in (401, 403):
                raise
            self._complete = False
            if not quiet:
                self._printer.message(f"{replica_key(pod.role, pod.index)}: {error}")

    async def _print_merged(
        self, pods: Sequence[Pod], sources: Sequence[AsyncIterator[list[Line]]], after: dict[str, bytes]
    ) -> None:
        """Print the lines of all pods in the order of time. `after` gets the time of the last line of each pod."""
        gathered: list[tuple[Pod, Line]] = []
        async for place, line in merged(sources):
            pod = pods[place]
            after[pod.uid] = max(line.time, after.get(pod.uid, b""))
            gathered.append((pod, line))
            if len(gathered) >= _LINES_WRITTEN:
                self._printer.write(gathered)
                gathered = []
        self._printer.write(gathered)

    async def _follow(self, cluster: Cluster, follower: Follower, pods: Sequence[Pod]) -> int:
        """Print further lines until the job has finished. Return the exit status."""
        name, status = self._name, self._status
        cluster.interrupted = f"{name} continues"
        if not pods or not all(self._has_log(pod) for pod in pods):
            ready = status.ready or "0"
            self._printer.message(f"{name} is {status.phase}, {ready} pods running: waiting for the ranks")
        try:
            await follower.follow(lambda current: current.phase in FINISHED)
        except Deleted:
            click.echo(f"{name} was deleted", err=True)
            return FAILED
        return OK

    def _no_pods(self) -> str:
        name, status, attempt, archive = self._name, self._status, self._request.attempt, self._archive
        if archive.url and (status.phase in FINISHED or attempt is not None):
            return f"the selected pods of {name} are deleted, and the archive {archive.url} does not have their logs"
        if attempt is not None and attempt != status.attempt:
            return (
                f"the pods of attempt {attempt} are deleted, and their logs with them (the job is in attempt "
                f"{status.attempt}): allranks describe {name} prints the last lines of the rank that failed, and "
                "--archive reads the logs of an archive"
            )
        if status.phase in FINISHED:
            return (
                f"{name} is {status.phase} and the selected pods are deleted: spec.cleanPodPolicy: None keeps pods, "
                "and --archive reads the logs of an archive"
            )
        return f"{name} is {status.phase} and the selected pods do not exist yet: -f waits for them"

    def _no_logs_of(self, attempts: Sequence[int]) -> str:
        subject = f"attempt {attempts[0]}" if len(attempts) == 1 else f"{len(attempts)} earlier attempts"
        if self._archive.url:
            return f"{subject}: no logs, neither of pods nor in the archive {self._archive.url}"
        return (
            f"{subject}: no logs, because a restart deletes the pods: allranks describe {self._name} prints the last "
            "lines of the rank that failed"
        )


@dataclass
class LineAttempts:
    """Selects the lines of the requested attempts. The log of a pod in which ranks restarted has several attempts, each
    with a line of the pod's supervisor before it."""

    selects: Callable[[int], bool]
    first: int | None
    """The attempt with which the log of a pod of the current attempt begins; None if it begins with a later line."""
    _current: dict[str, int] = field(default_factory=dict)
    """UID of a pod -> the attempt of its last line."""

    def selected(self, lines: Iterable[tuple[Pod, Line]], attempt: int | None) -> Iterator[tuple[Pod, Line]]:
        """Yield the lines to print, each with its pod in the attempt of the line. `attempt`: the current one."""
        for pod, line in lines:
            if match := _BEGINS.fullmatch(line.text):
                self._current[pod.uid] = int(match[1])
            begins_at = self.first if self.first is not None and pod.attempt == attempt else pod.attempt
            number = self._current.setdefault(pod.uid, begins_at)
            if self.selects(number):
                yield (pod if number == pod.attempt else replace(pod, attempt=number)), line


_BEGINS = re.compile(BEGINS.replace("{}", r"(\d{1,9})").encode())


class Printer:
    """Prints the lines of all ranks on stdout, and messages on stderr."""

    def __init__(
        self,
        container: str,
        of_attempts: LineAttempts,
        *,
        current: int,
        timestamps: bool,
        prefix: bool,
        attempts: bool = False,
    ) -> None:
        """`current`: the current attempt. `attempts`: add the attempt to the label in front of each line."""
        self._container, self._of_attempts, self._current = container, of_attempts, current
        self._attempts = attempts
        self._timestamps = timestamps
        self._prefix = prefix
        self._colour = use_colour(sys.stdout)
        self._width = 0
        self._places: dict[str, int] = {}
        self._attempt: int | None = None
        self.printed = False

    def add_labels(self, pods: Sequence[Pod]) -> None:
        """Make the labels as wide as the widest of these pods."""
        for pod in pods:
            self._places.setdefault(replica_key(pod.role, pod.index), len(self._places))
            self._width = max(self._width, len(self._label(pod)))

    def _label(self, pod: Pod) -> str:
        return f"{label(pod, self._container)} attempt {pod.attempt}" if self._attempts else label(pod, self._container)

    def write(self, lines: Sequence[tuple[Pod, Line]]) -> None:
        lines = list(self._of_attempts.selected(lines, self._current))
        if lines:
            self.printed = True
            sys.stdout.write("".join(f"{self._formatted(pod, line)}\n" for pod, line in lines))
            sys.stdout.flush()

    def _formatted(self, pod: Pod, line: Line) -> str:
        text = clean(last_state(line.text), self._colour)
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
            is_reason = failure is not None and failure.attempt == self._attempt
            reason = f" ({failure_line(failure)})" if failure and is_reason else ""
            self.message(f"attempt {status.attempt} started{reason}")
        self._attempt = self._current = status.attempt

    def lines(self, pod: Pod, lines: list[Line]) -> None:
        self.write([(pod, line) for line in lines])

    def message(self, text: str) -> None:
        click.echo(click.style(text, dim=True), err=True)


class JsonPrinter(Printer):
    """Prints each line as a JSON object, with its control characters: JSON escapes them. Of a line that a progress bar
    redraws, the last states are printed."""

    def __init__(self, container: str, of_attempts: LineAttempts, rank_of: dict[str, int | None], current: int) -> None:
        super().__init__(container, of_attempts, current=current, timestamps=True, prefix=False)
        self._rank_of = rank_of

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
