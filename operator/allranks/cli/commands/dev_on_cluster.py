"""The commands by which `allranks dev --cluster` runs a job on a cluster, and replaces it by one with new code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.api.job import KIND
from allranks.cli.manifests import load
from allranks.cli.script_job import is_script
from allranks.errors import CannotRun, ClusterError
from allranks.kube.cluster import Cluster, Where
from allranks.kube.paths import job_path

DELETION_TIMEOUT = "90s"
"""A deleted job whose pods do not end, on a lost node for example, does not keep the next one from its start."""


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """Commands without `allranks` itself, and what they read."""

    name: str
    where: Where
    submit: tuple[str, ...]
    delete: tuple[str, ...]
    code: Path | None
    """The directory of the code, if it is not named in the manifest."""

    @property
    def replace(self) -> tuple[str, ...]:
        """Deletes the job and waits until its pods are gone: the next one needs their GPUs."""
        return (*self.delete, "--wait", "--timeout", DELETION_TIMEOUT)


def plan(file: str, options: Sequence[str], grace: float) -> ClusterRun:
    """`options`: those of `allranks submit`. `grace`: seconds between SIGTERM and SIGKILL of the pods.

    Raises CannotRun for what dev cannot run, InvalidManifest, and UsageError for a wrong option.
    """
    from allranks.cli.commands.submit import submit

    if is_script(file):
        raise CannotRun(f"{file}: a cluster needs a manifest with an image: allranks init {file} writes one")
    if file == "-":
        raise CannotRun("standard input cannot be read again: give a FILE")
    given = submit.make_context("allranks submit", [file, *options]).params
    if given["files"] != (file,):
        raise CannotRun(
            f"{' '.join(given['files'][1:])}: allranks dev --cluster takes one FILE, and arguments of the "
            "program by --set args=[...]"
        )
    unfit = [f"--{name.replace('_', '-')}" for name in ("dry_run", "output", "timeout") if given[name]]
    if unfit:
        raise CannotRun(f"{unfit[0]} has no place in allranks dev, which follows the job")
    loaded = load(given["files"], given["sets"], code=given["code"])
    if len(loaded.jobs) != 1 or not loaded.jobs[0].name:
        raise CannotRun(f"{file}: allranks dev --cluster needs a file with one job that has a name")
    job = loaded.jobs[0]
    code = given["code"] or (Path() if job.spec.code is None else None)
    namespace = given["namespace"] or _namespace(loaded.documents)
    where = Where(namespace, given["context"], given["kubeconfig"])
    own = () if given["code"] or code is None else ("--code", ".")
    seconds = max(1, math.ceil(grace))
    short = ("--set", f"template.spec.terminationGracePeriodSeconds={seconds}")
    return ClusterRun(
        name=job.name,
        where=where,
        submit=("submit", file, *options, *own, *short, "--logs"),
        delete=("delete", job.name, "--ignore-not-found", *_options(where)),
        code=code,
    )


async def check_absent(cluster: Cluster, name: str) -> int:
    """Raises ClusterError if the job exists: dev deletes only jobs that it has created."""
    try:
        await cluster.get(job_path(cluster.namespace, name))
    except ClusterError as error:
        if error.status == 404:
            return 0
        raise
    raise ClusterError(
        f"job {name} exists in namespace {cluster.namespace}, and allranks dev would replace it: delete it "
        f"(allranks delete {name}), or use another name (--set metadata.name=...)"
    )


def _namespace(documents: Sequence[dict[str, Any]]) -> str | None:
    """That of the job in the file."""
    [metadata] = [document["metadata"] for document in documents if document.get("kind") == KIND]
    namespace: str | None = metadata.get("namespace")
    return namespace


def _options(where: Where) -> tuple[str, ...]:
    given = (("-n", where.namespace), ("--context", where.context), ("--kubeconfig", where.kubeconfig))
    return tuple(word for option, value in given if value for word in (option, str(value)))
