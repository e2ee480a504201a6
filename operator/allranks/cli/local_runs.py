"""What commands for jobs on clusters do if the cluster has no such job, but `allranks run` ran one on this machine."""

from __future__ import annotations

import click

from allranks.cli.options import print_problem
from allranks.control_sequences import clean
from allranks.errors import AllranksError, ClusterError
from allranks.local.run_directories import RunsError, StoredRun, find_run

_INSTEAD = {
    "logs": "`allranks runs logs {run}` prints its logs",
    "get": "`allranks runs` lists it",
    "describe": "`allranks runs report {run}` prints its report",
    "top": "`allranks runs report {run}` prints its report",
}
"""By command. `report` and `debug` choose the run themselves."""


def is_elsewhere(error: AllranksError) -> bool:
    """Whether `error` is that no cluster is configured, that it does not answer, or that it has no such job."""
    return isinstance(error, ClusterError) and (not error.status or error.status == 404)


def note_run(error: AllranksError, command: str, name: str | None) -> None:
    """Prints, after the error, which command is for the newest run of this job on this machine, if there is one."""
    if name and is_elsewhere(error) and (run := newest_run(name)):
        instead = _INSTEAD[command].format(run=name)
        print_problem("note", f"{name} ran on this machine ({run.directory}, {run.phase}): {instead}")


def run_instead(error: AllranksError, name: str) -> StoredRun | None:
    """The newest run on this machine, if `error` is that no cluster is configured or that it has no such job."""
    from allranks.kube.auth import NotConfigured

    if isinstance(error, ClusterError) and (error.status == 404 or isinstance(error.__cause__, NotConfigured)):
        return newest_run(name)
    return None


def newest_run(name: str) -> StoredRun | None:
    try:
        return find_run(name)
    except (RunsError, OSError):
        return None


def print_logs(run: StoredRun, replica: str | None = None) -> None:
    """Pod by pod, each line with the pod in front. Raises RunsError if there is no log."""
    files = run.logs()
    if replica:
        files = [file for file in files if file.stem.startswith(f"{run.job}-{replica}-")]
    if not files:
        pods = ", ".join(file.stem for file in run.logs()) or "none"
        raise RunsError(f"{run.name} has no log of {replica or 'any pod'}; it has logs of: {pods}")
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                click.echo(f"{file.stem.removeprefix(f'{run.job}-')} | {clean(line.rstrip(), colour=False)}")
