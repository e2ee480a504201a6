"""Local runs in commands for clusters: used if the cluster has no such job, but `allranks run` ran it here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import click

from allranks.cli.options import check_rank, print_problem
from allranks.control_sequences import clean
from allranks.errors import AllranksError, ClusterError
from allranks.kube.job_codec import ranks_of
from allranks.local.run_directories import RUN_FILE, RunsError, StoredRun, similar_job
from allranks.local.sweep_files import find_stored, list_stored, require_job

_INSTEAD = {
    "logs": "`allranks runs logs {run}` prints its logs",
    "get": "`allranks runs` lists it",
    "describe": "`allranks runs report {run}` prints its report",
    "top": "`allranks runs report {run}` prints its report",
    "stacks": "`allranks runs stacks {run}` prints its stacks while it runs",
}
"""Command -> advice. `report` and `debug` choose the run themselves."""


def is_elsewhere(error: AllranksError) -> bool:
    """Return whether `error` says that no cluster is configured, that none answers, or that it has no such job."""
    return isinstance(error, ClusterError) and (not error.status or error.status == 404)


def note_run(error: AllranksError, command: str, name: str | None) -> None:
    """Print which command shows the newest run of this job on this machine, or of a job with a similar name.

    Print nothing if there is no such run, or if `error` has another reason.
    """
    if not name or not is_elsewhere(error):
        return
    if run := newest_run(name):
        instead = _INSTEAD[command].format(run=name)
        print_problem("note", f"{name} ran on this machine ({run.directory}, {run.phase}): {instead}")
    elif near := similar_job(name, list_stored()):
        print_problem("note", f"{near} ran on this machine, did you mean it? {_INSTEAD[command].format(run=near)}")


def run_instead(error: AllranksError, name: str) -> StoredRun | None:
    """Return the newest run on this machine, if `error` says that no cluster is configured or has no such job."""
    from allranks.kube.auth import NotConfigured

    if isinstance(error, ClusterError) and (error.status == 404 or isinstance(error.__cause__, NotConfigured)):
        return newest_run(name)
    return None


def newest_run(name: str) -> StoredRun | None:
    try:
        return find_stored(name)
    except (RunsError, OSError):
        return None


def print_logs(run: StoredRun, replica: str | None = None, ranks: Sequence[int] = (), tail: int | None = None) -> None:
    """Print logs pod by pod, each line with the pod in front. `tail`: only the last lines of each pod.

    Raise RunsError if there is no log, and UsageError if the job has no such rank.
    """
    require_job(run)
    replicas = [replica] if replica else []
    if ranks:
        rank_of = ranks_of(run.manifest)
        if not rank_of:
            raise RunsError(
                f"{run.name}: {RUN_FILE} holds no valid job, so its ranks cannot be determined: use --replica"
            )
        for rank in ranks:
            check_rank(run.job, rank_of, rank)
        replicas += [key for key, rank in rank_of.items() if rank in ranks]
    files = [
        file
        for file in run.logs()
        if not replicas or any(file.stem.startswith(f"{run.job_name}-{prefix}-") for prefix in replicas)
    ]
    if not files:
        pods = ", ".join(file.stem for file in run.logs()) or "none"
        raise RunsError(f"{run.name} has no log of {' or '.join(replicas) or 'any pod'}; it has logs of: {pods}")
    for file in files:
        with file.open("rb") as opened:
            lines: Iterable[bytes] = opened if tail is None else deque(opened, maxlen=tail)
            for line in lines:
                click.echo(f"{file.stem.removeprefix(f'{run.job_name}-')} | {clean(line.rstrip(), colour=False)}")
