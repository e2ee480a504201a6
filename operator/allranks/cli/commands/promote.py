"""`allranks promote`: prints the job that continues a trial of a sweep."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from allranks.cli.completers import complete_jobs_and_runs
from allranks.cli.options import FAILED, OK, Count, cluster_options, print_error, run_on_cluster
from allranks.errors import AllranksError
from allranks.kube.cluster import Cluster, Where


@click.command(
    epilog="""\b
Examples:
  allranks promote penguins 3
  allranks promote penguins | allranks submit -
  allranks promote penguins 3 --set args='[--epochs=200]' | allranks submit -
  allranks promote penguins 3 --run-dir runs/penguins/latest > job.yaml && allranks run job.yaml
\b
Exit status:
  0 printed, 1 the sweep or the trial does not exist, or the trial has no checkpoint.
"""
)
@click.argument("sweep", metavar="SWEEP", shell_complete=complete_jobs_and_runs)
@click.argument("trial", required=False, type=Count(min=0), metavar="[TRIAL]")
@click.option("--name", metavar="NAME", help="Name of the job. [default: SWEEP-TRIAL-promoted]")
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="Set a field of the job. Repeatable.")
@click.option(
    "--run-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The run directory of a sweep on this machine.",
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="[default: yaml]")
@cluster_options
def promote(where: Where, sweep: str, run_dir: Path | None, **options: Any) -> None:
    """Print the job that continues a trial of a sweep, ready to run. Without TRIAL it is the best one.

    The job has the parameters of the trial, starts from its checkpoints (spec.resumeFrom) and stores its own ones in
    another folder, so the trial stays as it is. A sweep that is not on the cluster is looked for in runs/.
    """
    if run_dir:
        sys.exit(_from_directory(run_dir, sweep, options))
    sys.exit(
        run_on_cluster(_from_cluster, where, {"sweep": sweep, **options}, lambda error: _local(error, sweep, options))
    )


async def _from_cluster(cluster: Cluster, sweep: str, **options: Any) -> int:
    from allranks.kube import paths

    return _print(await cluster.get(paths.sweeps(cluster.namespace, sweep)), **options)


def _local(error: AllranksError, sweep: str, options: dict[str, Any]) -> int:
    from allranks.local.sweep_files import find_sweep

    found = find_sweep(sweep)
    if found is None:
        print_error(error)
        return FAILED
    click.echo(f"The newest local run of {sweep} is used ({found}).", err=True)
    return _from_directory(found, sweep, options)


def _from_directory(run_dir: Path, sweep: str, options: dict[str, Any]) -> int:
    from allranks.local.sweep_files import read_sweep

    try:
        return _print(read_sweep(run_dir, sweep), **options)
    except AllranksError as error:
        print_error(error)
        return FAILED


def _print(document: dict[str, Any], trial: int | None, name: str | None, sets: tuple[str, ...], output: str) -> int:
    """Raises AllranksError."""
    from allranks.cli.format.yaml import dump
    from allranks.cli.manifests import load_documents
    from allranks.core.sweeps import trial_job
    from allranks.errors import CannotRun
    from allranks.kube import sweep_codec

    sweep, status = sweep_codec.sweep(document), sweep_codec.status(document)
    if trial is None and status.best is None:
        raise CannotRun(f"{sweep.name} has no trial that succeeded yet: name a trial")
    number = status.best.trial if trial is None and status.best else trial
    chosen = next((each for each in status.trials if each.number == number), None)
    if chosen is None:
        raise CannotRun(f"{sweep.name} has no trial {number}: it has {len(status.trials)} trials, from 0")
    if not sweep.template.get("checkpoint"):
        raise CannotRun(
            f"{sweep.name} has no checkpoints: spec.template.spec.checkpoint is not set, so trial {number} cannot be "
            "continued. Its parameters are " + ", ".join(f"{key}={value}" for key, value in chosen.parameters.items())
        )
    made = trial_job.promoted(sweep, chosen, name or f"{sweep.name}-{number}-promoted")
    [job] = load_documents([("promote", made)], sets).documents
    click.echo(json.dumps(job, indent=2) if output == "json" else dump([job]).rstrip("\n"))
    return OK
