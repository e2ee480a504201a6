"""`allranks promote`: prints the job that continues a trial of a sweep."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.archived import Archive, archive_options
from allranks.cli.completers import complete_jobs_and_runs
from allranks.cli.options import FAILED, OK, Count, cluster_options, print_error, print_problem, run_on_cluster
from allranks.core.facts.naming import SWEEP_LABEL
from allranks.errors import AllranksError, CannotRun, ClusterError
from allranks.kube import paths
from allranks.kube.cluster import Cluster, Manifest, Where

if TYPE_CHECKING:
    from allranks.api.sweep import Sweep
    from allranks.api.sweep_status import SweepStatus, Trial


@click.command(
    epilog="""\b
Examples:
  allranks promote penguins 3
  allranks promote penguins | allranks submit -
  allranks promote penguins 3 --set args='[--epochs=200]' | allranks submit -
  allranks promote penguins 3 --run-dir runs/penguins/latest > job.yaml && allranks run job.yaml
  allranks promote penguins 3 --archive s3://team/history | allranks submit -
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
@archive_options
@cluster_options
def promote(where: Where, sweep: str, run_dir: Path | None, archive: Archive, **options: Any) -> None:
    """Print the job that continues a trial of a sweep, ready to run. Without TRIAL it is the best one.

    The job has the parameters of the trial, starts from its checkpoints (spec.resumeFrom) and stores its own ones in
    another folder, so the trial stays as it is. A sweep that is not on the cluster is looked for in the archive, then
    in runs/. If the trial's job is deleted, the new job continues in the trial's own folder.
    """
    if run_dir:
        sys.exit(_from_directory(run_dir, sweep, options))

    def without_cluster(error: AllranksError) -> int:
        return _from_archive_or_runs(error, where, sweep, archive, options)

    sys.exit(run_on_cluster(_from_cluster, where, {"sweep": sweep, "archive": archive, **options}, without_cluster))


async def _from_cluster(cluster: Cluster, sweep: str, archive: Archive, **options: Any) -> int:
    from allranks.kube import sweep_codec

    document, exists = await _find(cluster, sweep, archive)
    query = {"labelSelector": f"{SWEEP_LABEL}={sweep}"}
    jobs = (await cluster.get(paths.job_path(cluster.namespace), query))["items"]
    names = {job["metadata"]["name"] for job in jobs if sweep_codec.is_owned(job, document["metadata"]["uid"])}
    # The next job of a trial that has not ended may only not be created yet.
    return _print(document, **options, has_job=lambda trial: trial.job in names or (exists and not trial.ended))


async def _find(cluster: Cluster, sweep: str, archive: Archive) -> tuple[Manifest, bool]:
    """Return the sweep, and whether it exists: otherwise the archive has it."""
    if not archive.uid:
        try:
            return await cluster.get(paths.sweeps(cluster.namespace, sweep)), True
        except ClusterError as error:
            if error.status != 404 or (document := _archived(archive, cluster.namespace, sweep)) is None:
                raise
            return document, False
    document = _archived(archive, cluster.namespace, sweep)
    assert document
    return document, False


def _archived(archive: Archive, namespace: str, sweep: str) -> Manifest | None:
    """Return the sweep of the archive; None without one. Raise ClusterError if there is none with the UID."""
    document = archive.find_sweep(namespace, sweep)
    if document is None and archive.uid:
        text = f"the archive {archive.url} has no sweep {sweep} with UID {archive.uid} in namespace {namespace}"
        raise ClusterError(text, 404, "NotFound")
    return document


def _from_archive_or_runs(
    error: AllranksError, where: Where, sweep: str, archive: Archive, options: dict[str, Any]
) -> int:
    """Read the archive if no cluster answers, otherwise runs/. Return the exit status."""
    from allranks.local.sweep_files import find_sweep

    try:
        if isinstance(error, ClusterError) and not error.status:
            # Without a kubeconfig nothing else says the namespace.
            document = _archived(archive, where.namespace or "default", sweep)
            if document is not None:
                return _print(document, **options, has_job=lambda _: False)
    except AllranksError as archive_error:
        print_error(archive_error)
        return FAILED
    directory = find_sweep(sweep)
    if directory is None:
        print_error(error)
        return FAILED
    click.echo(f"The newest local run of {sweep} is used ({directory}).", err=True)
    return _from_directory(directory, sweep, options)


def _from_directory(directory: Path, sweep: str, options: dict[str, Any]) -> int:
    from allranks.local.sweep_files import read_sweep

    try:
        return _print(read_sweep(directory, sweep), **options)
    except AllranksError as error:
        print_error(error)
        return FAILED


def _print(
    document: Manifest,
    trial: int | None,
    name: str | None,
    sets: tuple[str, ...],
    output: str,
    has_job: Callable[[Trial], bool] = lambda _: True,
) -> int:
    """Print the job for a trial. `has_job`: whether the job of a trial exists."""
    from allranks.authoring.manifests import load_documents
    from allranks.core.sweeps import trial_job
    from allranks.kube import sweep_codec
    from allranks.views.format.objects import render_data

    sweep = sweep_codec.sweep(document)
    source = _trial(sweep, sweep_codec.status(document), trial)
    job_name = name or f"{sweep.name}-{source.number}-promoted"
    manifest = (trial_job.promoted if has_job(source) else _continued)(sweep, source, job_name)
    [job] = load_documents([("promote", manifest)], sets).documents
    click.echo(render_data(job, output), nl=False)
    return OK


def _trial(sweep: Sweep, status: SweepStatus, number: int | None) -> Trial:
    """Return the trial of this number, by default the best one. Raise CannotRun if it cannot be continued."""
    if number is None:
        if sweep.spec.objective is None:
            raise CannotRun(f"{sweep.name} has no objective, so none of its trials is the best: name a trial")
        if status.best is None:
            raise CannotRun(f"{sweep.name} has no trial that succeeded yet: name a trial")
        number = status.best.trial
    trial = next((trial for trial in status.trials if trial.number == number), None)
    if trial is None:
        raise CannotRun(f"{sweep.name} has no trial {number}: it has {len(status.trials)} trials, from 0")
    if not sweep.template.get("checkpoint"):
        raise CannotRun(
            f"{sweep.name} has no checkpoints: spec.template.spec.checkpoint is not set, so trial {number} cannot be "
            f"continued. Its parameters are {_parameters(trial)}"
        )
    return trial


def _parameters(trial: Trial) -> str:
    return ", ".join(f"{key}={value}" for key, value in trial.parameters.items())


def _continued(sweep: Sweep, trial: Trial, job_name: str) -> Manifest:
    """Make the job for a trial whose own job is deleted: `resumeFrom` needs that job, so this one uses its folder, and
    a note on stderr says so. Raise CannotRun if the folder is gone."""
    from allranks.core.facts.resume_source import WITH_A_POD
    from allranks.core.sweeps import trial_job
    from allranks.masking import MASK

    manifest = trial_job.continued(sweep, trial, job_name)
    checkpoint = manifest["spec"]["checkpoint"]
    volume = checkpoint.get("volume") or {}
    if lost := WITH_A_POD & volume.keys():
        raise CannotRun(
            f"the checkpoints of trial {trial.number} are gone: a volume of type {min(lost)} ends with its pod. Its "
            f"parameters are {_parameters(trial)}"
        )
    place = f"claim {checkpoint['claim']}" if checkpoint.get("claim") else f"the volume ({', '.join(volume)})"
    print_problem(
        "note",
        f"the job {trial.job} is deleted, so this one continues in its folder {checkpoint['subPath']} of {place}: if "
        "that is gone, the training begins again",
    )
    if MASK in json.dumps(manifest):
        print_problem("note", f"the archive has masked values of the manifest: replace each {MASK}")
    return manifest
