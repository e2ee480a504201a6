"""Shared by commands that read an archive: options, deleted jobs and sweeps, rows and logs."""

from __future__ import annotations

import difflib
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from allranks.client.jobs import get_job
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import TRAINER, pod_name
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.views.format.duration import age

if TYPE_CHECKING:
    from allranks.archive.reader import Reader
    from allranks.kube.pod_logs import Line, LogOptions

ARCHIVED = "allranks.dev/archived-in"
"""Annotation of jobs that `get --all` prints and that are deleted: the address of the archive."""
VARIABLE = "ALLRANKS_ARCHIVE"
_BATCH = 500
_NAMES = 2000
"""Jobs of the archive whose names are compared, those that were written last."""

Place = tuple[str, int, int, int]
"""Role, index, attempt and restart of a pod."""


@dataclass(frozen=True)
class Archive:
    """The archive that the user named, if any."""

    url: str | None
    uid: str | None = None
    """Of the job, if several jobs had its name."""

    @functools.cached_property
    def reader(self) -> Reader:
        """Open the archive. Raises ArchiveError if this cannot be an archive."""
        from allranks.archive.reader import Reader

        return Reader.open(self.url or "")

    def find(self, namespace: str, name: str, sweeps: bool = False) -> Manifest | None:
        """Read the newest archived job of that name, or the job with the UID, and say so on stderr.

        None without such a job, or without an archive. `sweeps`: a job or a sweep. Raises ArchiveError.
        """
        if not self.url:
            return None
        return self._announced((self.reader.find_any if sweeps else self.reader.find)(namespace, name, self.uid))

    def find_sweep(self, namespace: str, name: str) -> Manifest | None:
        """Read the newest archived sweep of that name, in the same way. Raises ArchiveError."""
        return self._announced(self.reader.find_sweep(namespace, name, self.uid)) if self.url else None

    def trials(self, sweep: Manifest, names: Sequence[str]) -> list[Manifest]:
        """Read the archived jobs of a sweep with these names; none without an archive. Blocks. Raises ArchiveError."""
        return self.reader.trials(sweep, names) if self.url else []

    def _announced(self, manifest: Manifest | None) -> Manifest | None:
        if manifest is not None:
            metadata = manifest["metadata"]
            created = metadata.get("creationTimestamp") or "at an unknown time"
            text = f"{metadata['name']} is shown from the archive {self.url} (created {created}, UID {metadata['uid']})"
            click.echo(click.style(text, dim=True), err=True)
        return manifest


archive_option = click.option(
    "--archive",
    envvar=VARIABLE,
    metavar="DIR|URL",
    help=f"The archive of deleted jobs: a directory, or an address such as s3://BUCKET/PREFIX. [default: ${VARIABLE}]",
)
_uid_option = click.option(
    "--uid", metavar="UID", help="Read the job with this UID from the archive. [default: the newest of that name]"
)


def archive_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select an archive, and a job in it, to `command(archive, **options)`."""

    @_uid_option
    @archive_option
    @functools.wraps(command)
    def run(archive: str | None, uid: str | None, **options: Any) -> None:
        if uid and not archive:
            raise click.UsageError(f"--uid selects a job of an archive: name it with --archive or {VARIABLE}.")
        command(archive=Archive(archive or None, uid), **options)

    return run


async def find_job(cluster: Cluster, name: str, archive: Archive, sweeps: bool = False) -> tuple[Manifest, bool]:
    """Return the job, and whether it exists: otherwise the archive has it. `sweeps`: the job or the sweep.

    Raises AllranksError.
    """
    from allranks.client.sweeps import sweep_instead

    if archive.uid:
        return _required(archive, cluster.namespace, name, sweeps), False
    try:
        return await get_job(cluster, name), True
    except ClusterError as error:
        if sweeps and (sweep := await sweep_instead(cluster, name, error)):
            return sweep, True
        gone = archive.find(cluster.namespace, name, sweeps) if error.status == 404 else None
        if gone is None:
            raise
        return gone, False


def without_cluster(
    error: AllranksError, where: Where, name: str, archive: Archive, sweeps: bool = False
) -> Manifest | None:
    """Read the job from the archive, if `error` says that no cluster is configured, or that it does not answer.

    `sweeps`: the job or the sweep. Raises AllranksError.
    """
    if not isinstance(error, ClusterError) or error.status:
        return None
    # Without a kubeconfig nothing else says the namespace.
    namespace = where.namespace or "default"
    return _required(archive, namespace, name, sweeps) if archive.uid else archive.find(namespace, name, sweeps)


def also_missing(
    error: AllranksError, where: Where, name: str, archive: Archive, sweeps: bool = False
) -> AllranksError:
    """Add to the `error` of a missing cluster that the archive has no such job either, with similar names.

    `sweeps`: no such job or sweep. Raises ArchiveError.
    """
    if not archive.url or not isinstance(error, ClusterError) or error.status:
        return error
    namespace = where.namespace or "default"
    all_sweeps = archive.reader.sweeps(most=_NAMES)
    archived = [item["metadata"] for item in (*archive.reader.jobs(most=_NAMES), *(all_sweeps if sweeps else ()))]
    names = {metadata["name"] for metadata in archived if metadata["namespace"] == namespace}
    elsewhere = sorted({metadata["namespace"] for metadata in archived if metadata["name"] == name} - {namespace})
    hint = ""
    if any((sweep["metadata"]["namespace"], sweep["metadata"]["name"]) == (namespace, name) for sweep in all_sweeps):
        hint = f"; {name} is a sweep: allranks report {name} shows it"
    elif elsewhere:
        hint = f"; it has one in namespace {elsewhere[0]}: add -n {elsewhere[0]}"
    elif near := difflib.get_close_matches(name, names, n=1):
        hint = f", did you mean {near[0]}?"
    kind = "job or sweep" if sweeps else "job"
    text = f"the archive {archive.url} has no {kind} {name} in namespace {namespace}{hint}"
    return ClusterError(f"{text}\nThe cluster was not asked: {error}", error.status, error.reason)


def _required(archive: Archive, namespace: str, name: str, sweeps: bool = False) -> Manifest:
    if job := archive.find(namespace, name, sweeps):
        return job
    kind = "job or sweep" if sweeps else "job"
    text = f"the archive {archive.url} has no {kind} {name} with UID {archive.uid} in namespace {namespace}"
    raise ClusterError(text, 404, "NotFound")


# --- rows of `get` ---------------------------------------------------------------------------------------------------


def columns(kind: str) -> list[dict[str, Any]]:
    """Return the columns of the CRD of this version, in the form of a table of the API server."""
    from allranks.api.crd import RESOURCES

    others = [{"name": name, "priority": priority} for name, _, _, _, priority in RESOURCES[kind].columns]
    return [{"name": "Name", "priority": 0}, *others]


def row(job: Manifest, kind: str, titles: Sequence[Mapping[str, Any]], extra: Mapping[str, str]) -> Manifest:
    """Make a row of a table, as the API server does for an object of this kind. `extra`: cells of further columns."""
    from allranks.api.crd import RESOURCES

    paths = {name: path for name, _, path, _, _ in RESOURCES[kind].columns}
    cells = [
        extra[title["name"]] if title["name"] in extra else _cell(job, title["name"], paths.get(title["name"], ""))
        for title in titles
    ]
    return {"cells": cells, "object": {"metadata": job["metadata"]}}


def _cell(job: Manifest, name: str, path: str) -> Any:
    if name == "Name":
        return job["metadata"]["name"]
    if name == "Age":
        return age(job["metadata"].get("creationTimestamp"))
    value: Any = job
    if "[?" in path:  # .status.conditions[?(@.type=="Running")].reason
        kind, field = path.partition('=="')[2].partition('"')[0], path.rpartition(".")[2]
        conditions = (job.get("status") or {}).get("conditions") or []
        return next((condition.get(field) for condition in conditions if condition.get("type") == kind), None)
    for part in path.strip(".").split("."):
        value = value.get(part) if isinstance(value, dict) and part else None
    return value


# --- logs ------------------------------------------------------------------------------------------------------------


def place_of(pod: Pod) -> Place:
    return pod.role, pod.index, pod.attempt, pod.restart


def archived_logs(
    reader: Reader,
    job: Manifest,
    options: LogOptions,
    selected: Callable[[Pod], bool],
    present: Collection[Place] = (),
) -> list[tuple[Pod, Iterable[Line]]]:
    """Return the selected logs, as pods and their lines, which can be read once. `present`: pods to leave out.

    Only the training container has logs in an archive. Blocks. Raises ArchiveError.
    """
    if options.container != TRAINER or options.previous:
        return []
    logs, pods = [], []
    for log in reader.logs(job):
        name = pod_name(job["metadata"]["name"], log.role, log.index, log.attempt, log.restart)
        pod = Pod(name, f"archived/{log.path}", log.role, log.index, log.attempt, log.restart, phase="Succeeded")
        if selected(pod) and place_of(pod) not in present:
            logs.append(log)
            pods.append(pod)
    return [(pod, _selected(lines, options)) for pod, lines in zip(pods, reader.lines(job, logs), strict=True)]


def _selected(lines: Iterator[Line], options: LogOptions) -> Iterable[Line]:
    if options.since_seconds is not None:
        then = datetime.now(UTC) - timedelta(seconds=options.since_seconds)
        since = then.strftime("%Y-%m-%dT%H:%M:%S").encode()
        lines = (line for line in lines if line.time >= since)
    return lines if options.tail is None else deque(lines, maxlen=options.tail)


async def in_batches(lines: Iterable[Line]) -> AsyncIterator[list[Line]]:
    """Yield the lines in batches, as `merged` takes them."""
    remaining = iter(lines)
    while batch := list(islice(remaining, _BATCH)):
        yield batch
