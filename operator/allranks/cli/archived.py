"""What commands share that read an archive: the option, jobs that are not on the cluster, and their logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.format.duration import age
from allranks.core.model import Pod
from allranks.core.naming import TRAINER, pod_name

if TYPE_CHECKING:
    from allranks.archive.reader import Reader
    from allranks.kube.pod_logs import Line, Wanted

Manifest = dict[str, Any]
Column = Mapping[str, Any]

archive_option = click.option(
    "--archive",
    envvar="ALLRANKS_ARCHIVE",
    metavar="DIR|URL",
    help="The archive of deleted jobs: a directory, or an address such as s3://BUCKET/PREFIX. "
    "[default: $ALLRANKS_ARCHIVE]",
)


def open_archive(url: str) -> Reader:
    """Raises ArchiveError if `url` cannot be an archive."""
    from allranks.archive.reader import Reader

    return Reader.open(url)


def archived_job(url: str | None, namespace: str, name: str) -> Manifest | None:
    """The newest archived job of that name; None without one, or without an archive. Raises ArchiveError."""
    return open_archive(url).find(namespace, name) if url else None


def when_archived(job: Manifest, url: str) -> str:
    """A sentence for stderr, which says what is shown."""
    metadata = job["metadata"]
    created = metadata.get("creationTimestamp") or "an unknown time"
    return f"{metadata['name']} is shown from the archive {url} (created {created}, UID {metadata['uid']})."


# --- rows of `get` ---------------------------------------------------------------------------------------------------


def default_columns() -> list[dict[str, Any]]:
    """The columns of the CRD of this version, in the form of a table of the API server."""
    from allranks.api.crd import RESOURCES
    from allranks.api.job import KIND

    columns: list[dict[str, Any]] = [{"name": "Name", "priority": 0}]
    return columns + [{"name": name, "priority": priority} for name, _, _, _, priority in RESOURCES[KIND].columns]


def row(job: Manifest, columns: Sequence[Column]) -> Manifest:
    """A row of a table for an archived job. A column that this version does not know is empty."""
    from allranks.api.crd import RESOURCES
    from allranks.api.job import KIND

    paths = {name: path for name, _, path, _, _ in RESOURCES[KIND].columns}
    cells = [_cell(job, column["name"], paths.get(column["name"], "")) for column in columns]
    return {"cells": cells, "object": {"metadata": job["metadata"]}}


def _cell(job: Manifest, name: str, path: str) -> Any:
    if name == "Name":
        return job["metadata"]["name"]
    if name == "Age":
        return age(job["metadata"].get("creationTimestamp"))
    value: Any = job
    if "[?" in path:  # .status.conditions[?(@.type=="Running")].reason
        wanted, field = path.partition('=="')[2].partition('"')[0], path.rpartition(".")[2]
        conditions = (job.get("status") or {}).get("conditions") or []
        return next((each.get(field) for each in conditions if each.get("type") == wanted), None)
    for part in path.strip(".").split("."):
        value = value.get(part) if isinstance(value, dict) and part else None
    return value


# --- logs ------------------------------------------------------------------------------------------------------------


def archived_logs(
    reader: Reader,
    job: Manifest,
    wanted: Wanted,
    selected: Callable[[Pod], bool],
    present: Collection[tuple[str, int, int, int]] = (),
) -> list[tuple[Pod, list[Line]]]:
    """The selected logs, as pods and their lines. `present`: (role, index, attempt, restart) of pods to leave out.

    Only the training container has logs in an archive. Raises ArchiveError.
    """
    if wanted.container != TRAINER or wanted.previous:
        return []
    since = b""
    if wanted.since_seconds is not None:
        then = datetime.now(UTC) - timedelta(seconds=wanted.since_seconds)
        since = then.strftime("%Y-%m-%dT%H:%M:%S").encode()
    out = []
    for log in reader.logs(job):
        name = pod_name(job["metadata"]["name"], log.role, log.index, log.attempt, log.restart)
        pod = Pod(name, f"archived/{log.path}", log.role, log.index, log.attempt, log.restart, phase="Succeeded")
        if not selected(pod) or (log.role, log.index, log.attempt, log.restart) in present:
            continue
        lines = [line for line in reader.lines(job, log) if line.time >= since]
        out.append((pod, lines if wanted.tail is None else lines[len(lines) - wanted.tail :] if wanted.tail else []))
    return out
