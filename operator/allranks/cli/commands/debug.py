"""`allranks debug`: writes everything about a job of a cluster into one archive.

The same content gives the same bytes, and logs are cut to a bounded size.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import platform
import sys
import tarfile
import tempfile
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from allranks.authoring.yaml_text import dump
from allranks.cli.completers import complete_files, complete_jobs
from allranks.cli.options import OK, cluster_options, name_callback, run_on_cluster
from allranks.client.jobs import events_of, get_job
from allranks.client.rank_stacks import stack_dumps
from allranks.client.submission import read_differences
from allranks.control_sequences import clean, clean_text, last_state
from allranks.core.facts.naming import JOB_LABEL
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.job_codec import pods_of
from allranks.kube.paths import core_path
from allranks.kube.pod_logs import LogOptions, read
from allranks.masking import mask_text, masked, secrets_in
from allranks.version import __version__
from allranks.views.report.forms import rendered

LOG_BYTES = 5 << 20
"""Maximum size of a log: the end of a longer log is kept."""
ALL_LOGS_BYTES = 256 << 20
"""Maximum size of all logs together: of more than 51 logs, each gets an equal part."""
CONCURRENT_LOGS = 16
README = """\
The job {name}, collected by `allranks debug` on {at} UTC.

describe.txt   what `allranks describe` prints: start here
report.txt     what `allranks report` prints: attempts, progress, lost time
code.diff      what the code differs from its commit in
job.yaml       the manifest
status.yaml    the status: the last failure, past attempts, restarts
events.yaml    Events of the job and its pods, the oldest first
pods/          the pods that exist
logs/          their logs, one file for each container, with the time (UTC) of each line
stacks/        stack dumps that ranks printed when the job hung
versions.yaml  of allranks, Python and Kubernetes

Masked, as <masked>: values of variables and options whose names contain TOKEN, SECRET, PASSWORD, CREDENTIAL or KEY,
the same values wherever else they occur, and logins in URLs. Other secrets that the program prints or that are passed
in other ways are not recognised: look at the files before you give them to somebody.
{missing}"""


@click.command(
    epilog="""\b
Examples:
  allranks debug penguins
  allranks debug penguins -n team -o penguins.tar.gz
  tar xzOf penguins.tar.gz penguins-debug/describe.txt
\b
Exit status:
  0 written, also if some parts could not be read (README.txt in the archive names them),
  1 the job does not exist, or the file cannot be written.
"""
)
@click.argument("name", metavar="JOB", callback=name_callback, shell_complete=complete_jobs)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    shell_complete=complete_files,
    help="Write this file. [default: JOB-debug-TIME.tar.gz]",
)
@cluster_options
def debug(where: Where, name: str, output: Path | None) -> None:
    """Write everything about a job of a cluster into one archive, to attach it to a question or a bug report.

    It has the manifest, the status, Events, pods, versions, the logs of all pods that exist (of all attempts; of each
    log at most the last 5 MiB, and of all at most 256 MiB) and the stack dumps in them.

    Values of variables and options with names such as HF_TOKEN or --api-key are masked, also in the logs. Other secrets
    that a program prints are not recognised: look at the files before you pass them on.
    """
    sys.exit(run_on_cluster(_debug, where, {"name": name, "output": output}))


async def _debug(cluster: Cluster, name: str, output: Path | None) -> int:
    now = datetime.now(UTC)
    with await _collect(cluster, await get_job(cluster, name), name, now) as archive:
        return _write(archive, name, output, now)


def _write(archive: Archive, name: str, output: Path | None, now: datetime) -> int:
    file = output or Path(f"{name}-debug-{now:%Y%m%d-%H%M%S}.tar.gz")
    archive.write(file, now)
    entries = archive.names()
    logs = sum(entry.startswith("logs/") for entry in entries)
    stacks = sum(entry.startswith("stacks/") for entry in entries)
    further = f", stack dumps of {stacks}" if stacks else ""
    click.echo(f"wrote {file}: {file.stat().st_size / 1024:.0f} KiB, {logs} log{'s' * (logs != 1)}{further}")
    for line in archive.missing:
        click.echo(f"not read: {line}", err=True)
    return OK


# --- the content -----------------------------------------------------------------------------------------------------


async def _collect(cluster: Cluster, job: Manifest, name: str, now: datetime) -> Archive:
    """Return the archive of a job. `missing` of the archive names the parts that cannot be read."""
    pods, hidden = await _pods(cluster, name)
    uids = {pod.uid for pod in pods_of(job, pods)}
    pods = [pod for pod in pods if pod["metadata"]["uid"] in uids]
    events = await events_of(cluster, job)
    archive = Archive(name, secrets_in([job, pods]))
    archive.missing += [text for text in (hidden, events if isinstance(events, str) else "") if text]

    spec = {key: value for key, value in job.items() if key != "status"}
    archive.add("job.yaml", dump([masked(spec)]))
    archive.add("status.yaml", dump([masked(job.get("status") or {})]))
    for pod in pods:
        archive.add(f"pods/{pod['metadata']['name']}.yaml", dump([masked(pod)]))
    if not isinstance(events, str):
        by_time = sorted(events, key=lambda event: (event["metadata"]["creationTimestamp"], event["metadata"]["name"]))
        archive.add("events.yaml", dump(masked(by_time)))
    from allranks.views.description import describe_job

    description = describe_job(job, pods, hidden, events, now)
    lines = (item if isinstance(item, str) else "\n".join(item.plain()) for item in description)
    archive.add("describe.txt", "".join(f"{line}\n" for line in lines))
    code = await read_differences(cluster, job)
    archive.add("report.txt", rendered(job, "text", now, run=code))
    if code.differences:
        archive.add("code.diff", code.differences)
    archive.add("versions.yaml", dump([await _versions(cluster, archive)]))
    await _logs(cluster, archive, pods)
    archive.add("README.txt", README.format(name=name, at=f"{now:%Y-%m-%d %H:%M:%S}", missing=_listed(archive.missing)))
    return archive


def _listed(missing: Iterable[str]) -> str:
    lines = "".join(f"- {line}\n" for line in missing)
    return f"\nNot read:\n\n{lines}" if lines else ""


async def _pods(cluster: Cluster, name: str) -> tuple[list[Manifest], str]:
    try:
        query = {"labelSelector": f"{JOB_LABEL}={name}"}
        pods: list[Manifest] = (await cluster.get(core_path(cluster.namespace, "pods"), query))["items"]
    except ClusterError as error:
        return [], f"pods: {error}"
    for pod in pods:  # a list has them only once, for all its items
        pod.update({"apiVersion": "v1", "kind": "Pod", **pod})
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"])), ""


async def _versions(cluster: Cluster, archive: Archive) -> dict[str, Any]:
    client = {"allranks": __version__, "python": platform.python_version(), "system": platform.platform()}
    try:
        server = await cluster.get("/version")
    except ClusterError as error:
        archive.missing.append(f"the version of the API server: {error}")
        return client
    return {**client, "kubernetes": server.get("gitVersion", "")}


async def _logs(cluster: Cluster, archive: Archive, pods: list[Manifest]) -> None:
    """Add the logs of all containers that have started, and of their previous runs."""
    logs = [(pod["metadata"]["name"], *run) for pod in pods for run in _containers(pod)]
    limit = log_limit(len(logs))
    slots = asyncio.Semaphore(CONCURRENT_LOGS)

    async def add(pod: str, container: str, previous: bool) -> str:
        """Add a log. Return why it cannot be read."""
        log = Log(limit)
        options = LogOptions(container, previous, tail=limit)  # no line is shorter than a byte
        async with slots:
            try:
                async for lines in read(cluster, cluster.namespace, pod, options):
                    for line in lines:
                        log.add(line.time + b" " + line.text if line.time else line.text)
            except ClusterError as error:
                which = f"the previous log of {container}" if previous else f"the log of {container}"
                return f"{which} in pod {pod}: {error}"
        archive.add_log(f"{pod}/{container}{'.previous' if previous else ''}", log)
        return ""

    failed = await asyncio.gather(*(add(*run) for run in logs))
    archive.missing += [text for text in failed if text]


def _containers(pod: Manifest) -> Iterable[tuple[str, bool]]:
    """Yield the container of each log, and whether it is the log of its previous run."""
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        if "running" in state or "terminated" in state:
            yield container["name"], False
        if container.get("restartCount") or (container.get("lastState") or {}).get("terminated"):
            yield container["name"], True


# --- the file --------------------------------------------------------------------------------------------------------


class DebugError(AllranksError):
    """The archive cannot be written."""


class Archive:
    """Files of an archive, in a temporary folder until `write`. Everything that is added is masked and cleaned."""

    def __init__(self, job: str, secrets: set[str]) -> None:
        self.job, self._secrets = job, secrets
        self._folder = tempfile.TemporaryDirectory(prefix="allranks-debug-")
        self.missing: list[str] = []
        """Sentences about what could not be read."""

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def add(self, name: str, text: str) -> None:
        path = Path(self._folder.name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(clean_text(mask_text(text, self._secrets), colour=False), encoding="utf-8")

    def add_log(self, name: str, log: Log) -> None:
        """Add a log, and its stack dumps a second time in a file of their own."""
        if not log.lines:
            return
        lines = [mask_text(line, self._secrets) for line in log.lines]
        cut = [f"[{log.dropped} bytes before this are left out]"] if log.dropped else []
        self.add(f"logs/{name}.log", "\n".join([*cut, *lines, ""]))
        if stacks := [line for dump in stack_dumps(lines) for line in dump]:
            self.add(f"stacks/{name}.txt", "\n".join([*stacks, ""]))

    def names(self) -> list[str]:
        folder = Path(self._folder.name)
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    def write(self, file: Path, at: datetime) -> None:
        """Raise DebugError if the file cannot be written."""
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            # Logs may hold what the masks do not know: no other user may read the file.
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
                self._write(raw, int(at.timestamp()))
            unfinished.replace(file)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise DebugError(f"cannot write {file}: {(error.strerror or str(error)).lower()}") from error

    def _write(self, raw: io.BufferedWriter, at: int) -> None:
        with (
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=at) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name in self.names():
                path = Path(self._folder.name, name)
                entry = tarfile.TarInfo(f"{self.job}-debug/{name}")
                entry.size, entry.mtime, entry.mode = path.stat().st_size, at, 0o644
                with path.open("rb") as content:
                    tar.addfile(entry, content)


class Log:
    """The last lines of a log, at most `limit` bytes, without control sequences."""

    def __init__(self, limit: int) -> None:
        self.lines: deque[str] = deque()
        self.dropped = 0
        self._limit, self._size = limit, 0

    def add(self, raw: bytes) -> None:
        if len(raw) > self._limit:
            self.dropped += len(raw) - self._limit
            raw = raw[-self._limit :]
        line = clean(last_state(raw), colour=False)
        self.lines.append(line)
        self._size += len(line) + 1
        while self._size > self._limit and len(self.lines) > 1:
            gone = len(self.lines.popleft()) + 1
            self._size -= gone
            self.dropped += gone


def log_limit(logs: int) -> int:
    """Return the limit in bytes of each log."""
    return min(LOG_BYTES, ALL_LOGS_BYTES // max(1, logs))
